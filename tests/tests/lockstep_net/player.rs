//! Runs programs: in processes that make one call after the other as they are ordered to, with the
//! library and without.

use super::program::{Call, Layout};
use rsock_tests::lockstep::{Library, Played, Player};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The processes that programs run in.
#[derive(Debug)]
pub(crate) struct Stage {
    program: PathBuf,
    /// Two without the library, then two with it.
    players: [Player; 4],
}

impl Stage {
    pub(crate) fn new(program: PathBuf) -> Self {
        Self { players: Self::players(&program), program }
    }

    fn players(program: &Path) -> [Player; 4] {
        [Library::Without, Library::Without, Library::With, Library::With]
            .map(|library| Player::new(&mut Command::new(program), library))
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
            // Which of the calls that were ordered at once it was is not known.
            played.calls.push(("process".to_owned(), "has died".to_owned()));
            self.players = Self::players(&self.program);
        }
        played
    }

    /// Nothing if a process dies.
    fn try_play(&mut self, at: [usize; 2], calls: &[Call], played: &mut Played) -> Option<()> {
        let mut ask = |end: usize, call: Call| {
            self.players[at[end]].order(&format!("{call}\n"))?;
            self.players[at[end]].answer()
        };
        let port = ask(1, Call::new("listen", 1, 0))?;
        ask(0, Call::new("connect", 0, port.parse().ok()?))?;
        ask(1, Call::new("accept", 1, 0))?;
        let orders = orders(at[0] == at[1], calls);
        let answers: Vec<String> = if at[0] == at[1] {
            // All at once: no other thread makes a call between them.
            let player = &mut self.players[at[0]];
            player.order(
                &orders.iter().map(|order| format!("{}\n", order.call)).collect::<String>(),
            )?;
            orders.iter().map_while(|_| player.answer()).collect()
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
                Is::Program => played.calls.push((order.call.to_string(), answer.clone())),
                Is::Count => played.is_past_kernel |= answer.parse().is_ok_and(|n: u64| n != 0),
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
