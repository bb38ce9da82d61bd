//! A schedule: what each thread of each process does, and the text by which the driver gives it to
//! them.

use crate::shared::{PROCESSES, THREADS};
use std::fmt::{self, Write as _};

/// Defines operations with their names.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal),* $(,)?) => {
        /// What an operation does. Its numbers: `slot`, `n`, `how`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum Kind { $($(#[$doc])* $kind),* }

        impl Kind {
            pub(crate) const ALL: &[Self] = &[$(Self::$kind),*];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),* }
            }
        }
    };
}

kinds! {
    /// Connects to the listener of process `slot`; `n` rounds of questions and answers first; `how`
    /// bytes of receive buffer.
    Connect = "connect",
    /// Accepts; `how` 1: only if a connection is there.
    Accept = "accept",
    /// Sends `n` bytes.
    Send = "send",
    /// Receives at most `n` bytes.
    Recv = "recv",
    /// Looks at `n` bytes.
    Peek = "peek",
    /// Sends bytes one at a time, `n` times; `how` bit 1: with a pause after each.
    Drip = "drip",
    /// Receives bytes one at a time.
    Sip = "sip",
    /// Sends `n` bytes, however many calls that takes.
    Flood = "flood",
    /// Waits until the peer is `n` bytes ahead.
    Await = "await",
    /// Polls up to `n` milliseconds; 9999 is for ever. `how` bits: 1 for input, 2 for output, 4
    /// select, 8 poll among many entries that name nothing.
    Poll = "poll",
    /// Asks how many bytes are there.
    Fionread = "fionread",
    /// `how` as of shutdown(2).
    Shutdown = "shutdown",
    /// Closes.
    Close = "close",
    /// Shuts down both ways (`how` 1), closes and accepts at once, so that the number is used
    /// again.
    Replace = "replace",
    Dup = "dup",
    /// dup2 of `slot` over the descriptor of slot `n`.
    Dup2 = "dup2",
    /// Forks process 2, if it is not there yet.
    Fork = "fork",
    /// Becomes the same program; `how` 1: without the library.
    Exec = "exec",
    /// Sends the descriptor to process `n`; `how` 1: and closes it.
    Pass = "pass",
    /// Takes a descriptor that was sent to this process.
    Take = "take",
    /// Sets or clears `O_NONBLOCK`, by `how`.
    Nonblock = "nonblock",
    /// Sets the receive buffer (`how` 0) or the send buffer to `n` bytes.
    Buffer = "buffer",
    /// Makes the close a reset.
    Linger = "linger",
    /// Signals thread `n`, whose handler restarts calls.
    Signal = "signal",
    /// Sleeps for `n` microseconds.
    Sleep = "sleep",
    /// Kills process `n`.
    Kill = "kill",
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    pub(crate) slot: u32,
    pub(crate) n: u64,
    pub(crate) how: u32,
}

impl Op {
    pub(crate) fn new(kind: Kind, slot: u32, n: u64, how: u32) -> Self {
        Self { kind, slot, n, how }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.kind.name(), self.slot, self.n, self.how)
    }
}

/// What does not belong to a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Tells the bytes of this run from those of others.
    pub(crate) nonce: u64,
    /// The first port for listeners; clients have those after it.
    pub(crate) port: u64,
    /// Receive buffer of what listeners accept; 0 as the kernel has it.
    pub(crate) buffer: u64,
    /// Whether what is left at the end is closed rather than read.
    pub(crate) ends_abruptly: u64,
    /// Whether no descriptor is closed or replaced while a thread is in a call on it.
    pub(crate) is_gentle: u64,
}

/// What the threads of all processes do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub(crate) settings: Settings,
    pub(crate) shape: String,
    pub(crate) threads: [[Vec<Op>; THREADS]; PROCESSES],
}

impl Schedule {
    /// The number of operations.
    pub(crate) fn len(&self) -> usize {
        self.threads.iter().flatten().map(Vec::len).sum()
    }

    /// One line for each setting, thread and operation.
    pub(crate) fn to_text(&self) -> String {
        let Settings { nonce, port, buffer, ends_abruptly, is_gentle } = self.settings;
        let mut text = format!("settings {nonce} {port} {buffer} {ends_abruptly} {is_gentle}\n");
        let _ = writeln!(text, "shape {}", self.shape);
        for (process, threads) in self.threads.iter().enumerate() {
            for (thread, ops) in threads.iter().enumerate().filter(|(_, ops)| !ops.is_empty()) {
                let _ = writeln!(text, "thread {process} {thread}");
                for op in ops {
                    let _ = writeln!(text, "{op}");
                }
            }
        }
        text
    }

    /// Reads what [`Self::to_text`] has written.
    ///
    /// # Panics
    /// With the line that is no part of a schedule.
    pub(crate) fn of_text(text: &str) -> Self {
        let mut schedule = Self::default();
        let mut at = (0, 0);
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            let numbers: Vec<u64> = rest.split(' ').filter_map(|n| n.parse().ok()).collect();
            let number = |i: usize| numbers.get(i).copied().unwrap_or(0);
            match word {
                "settings" => {
                    schedule.settings = Settings {
                        nonce: number(0),
                        port: number(1),
                        buffer: number(2),
                        ends_abruptly: number(3),
                        is_gentle: number(4),
                    };
                }
                "shape" => rest.clone_into(&mut schedule.shape),
                "thread" => at = (small(number(0)) as usize, small(number(1)) as usize),
                _ => {
                    let kind = Kind::ALL.iter().find(|kind| kind.name() == word);
                    let kind = *kind.unwrap_or_else(|| panic!("no operation: {line}"));
                    let op = Op::new(kind, small(number(0)), number(1), small(number(2)));
                    schedule.threads[at.0][at.1].push(op);
                }
            }
        }
        schedule
    }
}

/// A number of a schedule that is a small one.
fn small(n: u64) -> u32 {
    u32::try_from(n).expect("a small number")
}
