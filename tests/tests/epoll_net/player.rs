//! Runs programs: in processes that make one call after the other as they are ordered to, with the
//! library and without.

use super::program::{Call, Layout};
use rsock_tests::lockstep::{Library, Played, Player};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// The processes that programs run in.
#[derive(Debug)]
pub(crate) struct Stage {
    program: PathBuf,
    cpu: usize,
    /// Two without the library, then two with it.
    players: [Player; 4],
    /// What the processes share, without the library and with it.
    memory: [Memory; 2],
}

/// A file that processes map.
#[derive(Debug)]
struct Memory(PathBuf);

impl Stage {
    pub(crate) fn new(program: PathBuf, cpu: usize) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let memory = [0, 1].map(|_| {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("epoll_net.{}.{number}", std::process::id());
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
            let file = File::create(&path).expect("a file in the target directory");
            file.set_len(1 << 16).expect("a file of that size");
            Memory(path)
        });
        let players = Self::players(&program, cpu, &memory);
        Self { program, cpu, players, memory }
    }

    fn players(program: &Path, cpu: usize, memory: &[Memory; 2]) -> [Player; 4] {
        [
            (&memory[0], Library::Without),
            (&memory[0], Library::Without),
            (&memory[1], Library::With),
            (&memory[1], Library::With),
        ]
        .map(|(memory, library)| {
            let mut command = Command::new(program);
            Player::new(command.arg(cpu.to_string()).arg(&memory.0), library)
        })
    }

    /// Runs `calls` without the library. Also, of each order, the sets in which threads have
    /// returned by then.
    pub(crate) fn play_plain(&mut self, layout: Layout, calls: &[Call]) -> (Played, Vec<i64>) {
        self.play(layout, calls, Library::Without, &[])
    }

    /// Runs `calls` with the library. `returned` is what [`Stage::play_plain`] said of the orders.
    pub(crate) fn play_with(&mut self, layout: Layout, calls: &[Call], returned: &[i64]) -> Played {
        self.play(layout, calls, Library::With, returned).0
    }

    fn play(
        &mut self,
        layout: Layout,
        calls: &[Call],
        with: Library,
        expect: &[i64],
    ) -> (Played, Vec<i64>) {
        let mut played = (Played::default(), Vec::new());
        if self.try_play(layout, calls, with, expect, &mut played).is_none() {
            // Which of the calls that were ordered at once it was is not known.
            played.0.calls.push(("process".to_owned(), "has died".to_owned()));
            for Memory(path) in &self.memory {
                fs::write(path, vec![0; 1 << 16]).expect("a file in the target directory");
            }
            self.players = Self::players(&self.program, self.cpu, &self.memory);
        }
        played
    }

    /// Nothing if a process dies.
    fn try_play(
        &mut self,
        layout: Layout,
        calls: &[Call],
        with: Library,
        expect: &[i64],
        (played, returned): &mut (Played, Vec<i64>),
    ) -> Option<()> {
        let orders = orders(layout, calls);
        let first = match with {
            Library::Without => 0,
            Library::With => 2,
        };
        let line = |i: usize| {
            let order: &Order = &orders[i];
            // Only a stream on a ring needs these.
            let word = match (order.call.word, with) {
                ("tick", Library::Without) => "quiet",
                (word, _) => word,
            };
            let Call { process, thread, a, .. } = &order.call;
            let child = usize::from(*process >= 2);
            let expect = expect.get(i).copied().unwrap_or(if expect.is_empty() { -1 } else { 0 });
            format!(
                "{word} {child} {thread} {} {} {} {} {} {expect}\n",
                a[0], a[1], a[2], a[3], a[4]
            )
        };
        let mut at = 0;
        while at < orders.len() {
            let process = orders[at].call.process % 2;
            let mut end = at + 1;
            if !orders[at].is_with_next {
                while end < orders.len()
                    && orders[end].call.process % 2 == process
                    && !orders[end].is_with_next
                {
                    end += 1;
                }
                let lines: String = (at..end).map(line).collect();
                self.players[first + process].order(&lines)?;
            } else {
                end += 1;
                for (i, order) in orders.iter().enumerate().take(end).skip(at) {
                    self.players[first + order.call.process % 2].order(&line(i))?;
                }
            }
            for order in &orders[at..end] {
                let answer = self.players[first + order.call.process % 2].answer()?;
                let sets = answer.rsplit_once(" +").map(|(_, sets)| i64::from_str_radix(sets, 16));
                returned.push(sets.and_then(Result::ok).unwrap_or(0));
                match order.call.word {
                    "past" => played.is_past_kernel |= answer != "0",
                    _ if order.is_shown => played.calls.push((order.call.to_string(), answer)),
                    _ => {}
                }
            }
            at = end;
        }
        Some(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Something that a player has to do.
struct Order {
    call: Call,
    /// Whether what it returns is compared.
    is_shown: bool,
    /// Whether the next order, of the other process, is done at the same time.
    is_with_next: bool,
}

/// What is to be done for `calls`, and between them so that nothing depends on time.
fn orders(layout: Layout, calls: &[Call]) -> Vec<Order> {
    let mut orders = Vec::new();
    let mut add = |call: Call, is_shown, is_with_next| {
        orders.push(Order { call, is_shown, is_with_next });
    };
    let mut ends = 0;
    // The process in which threads wait.
    let mut waiting = None;
    let mut child = None;
    for &call in calls {
        let other = 1 - call.process % 2;
        if call.after_tick {
            add(Call::new("tick", call.process, &[]), false, false);
        }
        match call.word {
            "begin" => waiting = Some(call.process),
            "end" => waiting = None,
            "fork" => child = Some(call.process + 2),
            "exit" => child = None,
            _ => {}
        }
        if call.word == "warm" && call.a[1] < 0 {
            add(call, true, true);
            add(Call::new("warm", other, &[-1 - call.a[1], -1, 0, call.a[3]]), false, false);
            continue;
        }
        ends += i64::from(call.ends());
        let is_acknowledged = layout == Layout::Two && call.ends();
        add(call, true, is_acknowledged);
        if is_acknowledged {
            add(Call::new("ack", other, &[ends]), false, false);
        }
        if waiting == Some(other) {
            // The act may have ended a wait there.
            add(Call::new("quiet", other, &[]), true, false);
        }
    }
    if let Some(child) = child {
        add(Call::new("exit", child, &[]), false, false);
    }
    let processes: &[usize] = match layout {
        Layout::One => &[0],
        Layout::Two => &[0, 1],
    };
    if let Some(process) = waiting {
        add(Call::new("end", process, &[]), false, false);
    }
    for &process in processes {
        add(Call::new("reset", process, &[]), true, false);
    }
    add(Call::new("past", 0, &[]), false, false);
    orders
}
