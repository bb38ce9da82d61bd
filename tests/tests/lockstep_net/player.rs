//! Runs programs: in processes that are told one call after the other, with the library and
//! without.

use super::program::{Call, Layout};
use rsock_tests::{Running, preload_library};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// A process that does calls.
#[derive(Debug)]
struct Player {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    _running: Running,
}

impl Player {
    fn new(program: &Path, with_shim: bool) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).env_remove("LD_PRELOAD");
        if with_shim {
            command.env("LD_PRELOAD", preload_library());
        }
        let mut running = Running::spawn(&mut command).expect("the program starts");
        let orders = running.stdin.take().expect("piped");
        let answers = BufReader::new(running.stdout.take().expect("piped"));
        Self { orders, answers, _running: running }
    }

    /// Tells the process to do `calls`, in one write.
    fn tell(&mut self, calls: impl Iterator<Item = Call>) -> Option<()> {
        let lines: String = calls.map(|call| format!("{call}\n")).collect();
        self.orders.write_all(lines.as_bytes()).ok()
    }

    /// What the next call returns that it was told of; nothing if the process has died.
    fn hear(&mut self) -> Option<String> {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).ok()?;
        answer.ends_with('\n').then(|| answer.trim_end().to_owned())
    }
}

/// The processes that programs run in.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    program: &'a Path,
    /// Two without the library, then two with it.
    players: [Player; 4],
}

/// What came of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Played {
    /// The calls that were made, and what they returned.
    pub(crate) calls: Vec<(Call, String)>,
    /// Bytes that went past the kernel.
    pub(crate) past_kernel: u64,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(program: &'a Path) -> Self {
        let players = [false, false, true, true].map(|shim| Player::new(program, shim));
        Self { program, players }
    }

    /// Runs `calls` without the library.
    pub(crate) fn play_plain(&mut self, calls: &[Call]) -> Played {
        self.play_at([0, 0], calls)
    }

    /// Runs `calls` with the library.
    pub(crate) fn play(&mut self, layout: Layout, calls: &[Call]) -> Played {
        self.play_at(
            match layout {
                Layout::One => [2, 2],
                Layout::Two => [2, 3],
                Layout::Client => [2, 1],
                Layout::Server => [1, 3],
            },
            calls,
        )
    }

    /// Runs `calls` with the ends at the given players.
    fn play_at(&mut self, at: [usize; 2], calls: &[Call]) -> Played {
        let mut played = Played::default();
        if self.try_play(at, calls, &mut played).is_none() {
            // Which of the calls that were told at once it was is not known.
            let first = Call::new("process", 0, 0);
            played.calls.push((first, "has died".to_owned()));
            *self = Self::new(self.program);
        }
        played
    }

    /// Nothing if a process dies.
    fn try_play(&mut self, at: [usize; 2], calls: &[Call], played: &mut Played) -> Option<()> {
        let mut ask = |end: usize, call: Call| {
            self.players[at[end]].tell(std::iter::once(call))?;
            self.players[at[end]].hear()
        };
        let port = ask(1, Call::new("listen", 1, 0))?;
        ask(0, Call::new("connect", 0, port.parse().ok()?))?;
        ask(1, Call::new("accept", 1, 0))?;
        let orders = orders(at[0] == at[1], calls);
        let answers: Vec<String> = if at[0] == at[1] {
            // All at once: no other thread makes a call between them.
            let player = &mut self.players[at[0]];
            player.tell(orders.iter().map(|order| order.call))?;
            orders.iter().map_while(|_| player.hear()).collect()
        } else {
            // What the kernel has sent for each end, as its last answer to `settle` said.
            let mut sent = [0; 2];
            let each = |order: &Order| {
                let mut call = order.call;
                let is_settle = call.word == "settle";
                if is_settle {
                    call.b = sent[1 - call.end];
                }
                let answer = ask(call.end, call)?;
                if is_settle {
                    sent[call.end] = answer.parse().ok()?;
                }
                Some(answer)
            };
            orders.iter().map_while(each).collect()
        };
        for (order, answer) in orders.iter().zip(&answers) {
            match order.is {
                Is::Program => played.calls.push((order.call, answer.clone())),
                Is::Count => played.past_kernel += answer.parse::<u64>().unwrap_or(0),
                Is::Between => {}
            }
        }
        (answers.len() == orders.len()).then_some(())
    }
}

/// Something that a player is told to do.
struct Order {
    call: Call,
    is: Is,
}

/// What an order is for.
#[derive(Clone, Copy)]
enum Is {
    /// A call of the program.
    Program,
    /// Waits for what the last call set off.
    Between,
    /// Counts bytes that went past the kernel.
    Count,
}

/// What is to be done for `calls`, and between them so that nothing depends on time.
fn orders(is_one: bool, calls: &[Call]) -> Vec<Order> {
    let mut orders = Vec::new();
    let mut add = |is, call| orders.push(Order { call, is });
    let mut is_open = [true; 2];
    // The other end has said that it reads or writes no more, and the end may not have noticed.
    let mut has_news = [false; 2];
    for &call in calls {
        let (end, peer) = (call.end, 1 - call.end);
        if call.sends() && std::mem::take(&mut has_news[end]) {
            // Named difference (docs/limits.md, "Writing to a peer that has closed"): a writer on
            // the ring looks at the socket once per tick.
            add(Is::Between, Call::new("tick", end, 0));
        }
        add(Is::Program, call);
        has_news[peer] |= call.ends();
        let is_closed = call.word == "close";
        is_open[end] &= !is_closed;
        if !is_one && !is_closed {
            // It says how much it has sent, which the other end waits for.
            add(Is::Between, Call::new("settle", end, 0));
        }
        if !is_one || is_closed {
            add(Is::Between, Call::new("settle", peer, i64::from(is_closed)));
            add(Is::Between, Call::new("settle", end, 0));
        }
    }
    for (end, _) in is_open.iter().enumerate().filter(|(_, is_open)| **is_open) {
        add(Is::Between, Call::new("close", end, 0));
    }
    for end in 0..2 {
        add(Is::Count, Call::new("past", end, 0));
    }
    orders
}
