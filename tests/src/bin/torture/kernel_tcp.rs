//! What kernel TCP itself does slowly, or not at all, as `/proc/net/tcp` shows it: the two reasons
//! for which a call may wait on kernel TCP alone, although its peer has done its part.
//!
//! A connection that is reset while its receive window has shrunk can miss the reset: the segment
//! lies beyond the window, the receiver's kernel drops it (RFC 9293, 3.10.7.4), and the sender's
//! kernel has nothing left to repeat it with. The reader then waits for ever: 2 of 4,000
//! connections without the library did that, whose buffers were made smaller while they were full.
//!
//! A receiver whose buffer is full drops segments, and the sender's kernel sends them again later
//! and later (RFC 6298, 5.5): after 25 seconds without an answer the next try is 25 seconds away.

use crate::rules;
use crate::shared::{CONNECTIONS, End, Shared};
use std::fs;
use std::sync::atomic::Ordering::SeqCst;

/// States of a socket whose kernel knows of no end by the peer: established, and its own end
/// acknowledged.
const CONNECTED: [&str; 2] = ["01", "05"];
/// Timers that wait for an answer of the peer's kernel: retransmission, and the window probe.
const ANSWER_TIMERS: [&str; 2] = ["01", "04"];

/// Marks every end whose kernel takes it for connected although the peer's socket was reset and is
/// gone. Returns how many were marked now.
pub(crate) fn mark_lost_resets(shared: &Shared) -> u64 {
    let Some(sockets) = Sockets::now() else { return 0 };
    let lost = ends(shared).filter(|&end| has_lost_reset(shared, &sockets, end));
    let marked = lost.map(|end| shared.state(end).has_lost_reset.swap(1, SeqCst));
    marked.filter(|was_marked| *was_marked == 0).map(|_| 1).sum()
}

/// How many ends have been marked.
pub(crate) fn lost_resets(shared: &Shared) -> u64 {
    let ends = shared.connections.iter().flat_map(|connection| &connection.ends);
    ends.map(|end| u64::from(end.has_lost_reset.load(SeqCst))).sum()
}

/// Whether the kernel is about to send something of one of the run's connections again.
pub(crate) fn retransmits(shared: &Shared) -> bool {
    Sockets::now().is_some_and(|sockets| {
        ends(shared).any(|end| {
            let socket = sockets.of(ports(shared, end));
            socket.is_some_and(|socket| {
                ANSWER_TIMERS.contains(&socket.timer.as_str()) && socket.n_tries > 0
            })
        })
    })
}

fn has_lost_reset(shared: &Shared, sockets: &Sockets, end: End) -> bool {
    let peer = end.peer();
    let is_reset = rules::is_closed(shared, peer) && rules::may_be_reset(shared, end);
    let socket = sockets.of(ports(shared, end));
    is_reset
        && socket.is_some_and(|socket| CONNECTED.contains(&socket.state.as_str()))
        && sockets.of(ports(shared, peer)).is_none()
}

fn ends(shared: &Shared) -> impl Iterator<Item = End> {
    let n = (shared.n_connections.load(SeqCst) as usize).min(CONNECTIONS);
    (0..n).flat_map(|connection| (0..2).map(move |side| End { connection, side }))
}

/// The ports of an end: its own and the peer's.
fn ports(shared: &Shared, end: End) -> [u32; 2] {
    let connection = shared.connection(end);
    let to = connection.to.load(SeqCst) as usize;
    let client = connection.port.load(SeqCst);
    let server = shared.processes[to].port.load(SeqCst);
    if end.side == 0 { [client, server] } else { [server, client] }
}

struct Socket {
    /// Local and remote.
    ports: [u32; 2],
    state: String,
    timer: String,
    /// Unanswered segments or probes, sent again so far.
    n_tries: u32,
}

/// All TCP sockets of the network namespace.
struct Sockets(Vec<Socket>);

impl Sockets {
    fn now() -> Option<Self> {
        let text = fs::read_to_string("/proc/self/net/tcp").ok()?;
        Some(Self(text.lines().skip(1).filter_map(Socket::of_line).collect()))
    }

    fn of(&self, ports: [u32; 2]) -> Option<&Socket> {
        self.0.iter().find(|socket| socket.ports == ports)
    }
}

impl Socket {
    /// Of a line such as `0: 0100007F:372E 0100007F:372B 05 00000000:00000000 01:00000014 00000003
    /// 0 2 ...`: addresses, state, queues, timer and its time, retransmissions, user, probes.
    fn of_line(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let hexadecimal = |text: &str| u32::from_str_radix(text, 16).ok();
        let port = |address: &str| hexadecimal(address.rsplit(':').next()?);
        Some(Self {
            ports: [port(words.get(1)?)?, port(words.get(2)?)?],
            state: (*words.get(3)?).to_owned(),
            timer: words.get(5)?.split(':').next()?.to_owned(),
            n_tries: hexadecimal(words.get(6)?)? + words.get(8)?.parse::<u32>().ok()?,
        })
    }
}
