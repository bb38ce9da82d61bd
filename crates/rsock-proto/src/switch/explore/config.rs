//! The parameters of a scenario of the explorer.

use super::thread::{Job, Sleep};

/// One scenario. Everything in it may happen, in every order; nothing of it has to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) name: &'static str,
    /// Bytes that each end writes.
    pub(super) bytes: [u8; 2],
    /// Bytes that TCP buffers.
    pub(super) tcp_room: u8,
    /// Bytes that the ring buffers.
    pub(super) ring_room: u8,
    /// Entries that the device buffers until the peer dispatches them.
    pub(super) lane_room: u8,
    /// Bytes that a read has room for.
    pub(super) buffer: u8,
    /// Arrivals wait until a call, or another thread, dispatches them; otherwise that happens at
    /// once.
    pub(super) is_lazy: bool,
    /// The ring leads to another host.
    pub(super) is_remote: bool,
    /// How the link that this end sends on, to another host, may fail at some time.
    pub(super) link: [Link; 2],
    /// A device that has failed accepts posts, as if it sent them; otherwise it refuses them.
    pub(super) flushes: bool,
    /// The ends find each other at some time, or have before.
    pub(super) pairs_late: bool,
    /// Something pins this end, once.
    pub(super) pins: [bool; 2],
    /// Another thread of this end asks how much can be read, so many times.
    pub(super) counts: [u8; 2],
    /// Another thread, or forked process, of this end receives as well, so many times.
    pub(super) second_reads: [u8; 2],
    /// Another thread of this end writes as many of its last bytes, while the first may end it.
    pub(super) second_writes: [u8; 2],
    /// The program of this end only writes.
    pub(super) only_writes: [bool; 2],
    /// The reader of this end waits by `poll`.
    pub(super) polls: [bool; 2],
    /// The end hands its stream over to a program without rings, once.
    pub(super) hands_off: [bool; 2],
    /// The writer of this end ends its direction after its last byte.
    pub(super) half_closes: [bool; 2],
    /// The program of this end closes the stream at some time.
    pub(super) closes: [bool; 2],
    /// The process of this end dies at some time.
    pub(super) dies: [bool; 2],
    /// Bytes that something writes to the socket of this end, past the switch.
    pub(super) foreign: [u8; 2],
    /// The last byte of this end is urgent.
    pub(super) urgent: [bool; 2],
    /// The program of this end shuts its receiving direction at some time.
    pub(super) shuts_reading: [bool; 2],
}

/// What may happen to a direction of the link between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Holds,
    /// Nothing arrives any more. The device says so once it has waited for an answer in vain.
    Fails,
    /// The same, but the device does not say so to a thread that has something to send.
    FallsSilent,
}

/// Three bytes in one direction over a roomy ring between threads that wait; nothing else happens.
pub(super) const PLAIN: Config = Config {
    name: "plain",
    bytes: [3, 0],
    tcp_room: 2,
    ring_room: 2,
    lane_room: 4,
    buffer: 3,
    is_lazy: false,
    is_remote: false,
    link: [Link::Holds; 2],
    flushes: false,
    pairs_late: false,
    pins: [false; 2],
    counts: [0; 2],
    second_reads: [0; 2],
    second_writes: [0; 2],
    only_writes: [false; 2],
    polls: [false; 2],
    hands_off: [false; 2],
    half_closes: [false; 2],
    closes: [false; 2],
    dies: [false; 2],
    foreign: [0; 2],
    urgent: [false; 2],
    shuts_reading: [false; 2],
};

impl Config {
    /// Bytes that the writing thread of an end writes itself.
    pub(super) fn own_bytes(&self, e: usize) -> u8 {
        self.bytes[e] - self.second_writes[e]
    }

    /// What the reader of an end does at first: it only listens where nothing will ever come.
    pub(super) fn first_read(&self, e: usize) -> Job {
        if self.only_writes[e] {
            return Job::Over;
        }
        let peer = 1 - e;
        let may_break = self.link[peer] != Link::Holds;
        let may_end = self.half_closes[peer] || self.closes[peer] || self.dies[peer] || may_break;
        let may_come = self.bytes[peer] != 0 || self.foreign[peer] != 0 || may_end;
        if may_come { Job::Idle } else { Job::Asleep(Sleep::ForRequests) }
    }
}
