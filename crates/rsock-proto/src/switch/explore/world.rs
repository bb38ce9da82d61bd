//! Both ends of a stream and the two channels between them, as one value.

use super::channel::{Device, FIN, FOREIGN, Item, Lane, OFFSET_BITS, RST, START, Tcp};
use super::config::Config;
use super::queue::Queue;
use super::thread::{Job, Thread};
use crate::switch::mistake::Mistake;
use crate::switch::{DirectionSwitch, Message, ReceivedMessages, Receiver, Rules, Sender};
use std::cell::Cell;

thread_local! {
    /// The mistake that the explored rules contain.
    pub(super) static MISTAKE: Cell<Option<Mistake>> = const { Cell::new(None) };
}

/// The rules of the wire with narrow offsets, and with the mistake of this thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Narrow;

impl Rules for Narrow {
    const OFFSET_BITS: u32 = OFFSET_BITS;

    fn has(mistake: Mistake) -> bool {
        MISTAKE.get() == Some(mistake)
    }
}

/// A state of the model: both ends and both channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) ends: [Endpoint; 2],
    /// From each end to the other.
    pub(super) tcp: [Tcp; 2],
    pub(super) lanes: [Lane; 2],
    /// A direction was on the ring, or could move to it, when its bytes could be lost.
    pub(super) may_lose_bytes: bool,
}

/// One end of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Endpoint {
    pub(super) sender: Sender<Narrow>,
    pub(super) receiver: Receiver<Narrow>,
    pub(super) is_sending_locked: bool,
    pub(super) is_receiving_locked: bool,
    pub(super) is_paired: bool,
    pub(super) is_pinned: bool,
    pub(super) sending_ended: bool,
    pub(super) receiving_ended: bool,
    pub(super) kernel_only_waiters: u8,
    /// The messages that were received from the ring.
    pub(super) messages: ReceivedMessages,
    pub(super) inbox: Queue,
    pub(super) inbox_ended: bool,
    /// Both directions of the ring have ended, or the device takes nothing any more.
    pub(super) is_disconnected: bool,
    pub(super) device: Device,
    /// The connection was broken off, because bytes on the ring were lost.
    pub(super) is_broken: bool,
    /// The kernel's socket.
    pub(super) socket: Socket,
    /// Bytes that the program has written, and read.
    pub(super) n_sent: u8,
    pub(super) n_read: u8,
    /// The reading program has reached the end of the stream, or an error.
    pub(super) has_reached_end: bool,
    pub(super) threads: [Thread; 3],
    /// What may still happen.
    pub(super) remaining: Remaining,
}

/// The kernel's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Socket {
    pub(super) is_shut: bool,
    /// The receiving direction has been shut by a break of the connection.
    pub(super) is_read_shut: bool,
    pub(super) is_closed: bool,
    /// A reset has arrived; the kernel reports the error once.
    pub(super) was_reset: bool,
    pub(super) pending_error: bool,
    /// The process was killed, or reset the connection: bytes may be lost.
    pub(super) may_lose: bool,
    /// Bytes that this end has not read are not lost bytes: no reset follows from them.
    pub(super) discards_unread: bool,
}

/// What may still happen to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Remaining {
    pub(super) pin: bool,
    pub(super) handoff: bool,
    pub(super) counts: u8,
    pub(super) second_reads: u8,
    pub(super) foreign: u8,
    pub(super) shut_reading: bool,
}

pub(super) const WRITER: usize = 0;
pub(super) const READER: usize = 1;
pub(super) const OTHER: usize = 2;

impl World {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            ends: [0, 1].map(|e| Endpoint::new(config, e)),
            tcp: Default::default(),
            lanes: Default::default(),
            may_lose_bytes: false,
        }
    }

    /// Writes a byte to the kernel's socket of `e`.
    pub(super) fn tcp_write(&mut self, e: usize, byte: u8, room: u8) -> Written {
        let socket = &mut self.ends[e].socket;
        if socket.was_reset || socket.is_shut || socket.is_closed {
            socket.pending_error = false;
            return Written::Error;
        }
        let tcp = &mut self.tcp[e];
        if tcp.queue.len() >= room {
            return Written::Full;
        }
        tcp.queue.push(byte);
        tcp.written += 1;
        Written::Taken
    }

    /// The kernel's socket ends its sending direction.
    pub(super) fn tcp_shut(&mut self, e: usize) {
        let socket = &mut self.ends[e].socket;
        if !socket.is_shut && !socket.was_reset {
            self.tcp[e].queue.push(FIN);
        }
        socket.is_shut = true;
    }

    /// The kernel's socket of `e` closes; `linger` makes it a reset, and so does what is unread.
    pub(super) fn tcp_close(&mut self, e: usize, linger: bool) {
        let has_unread = !self.tcp[1 - e].arrived().is_empty();
        if linger || has_unread {
            self.send_reset(e);
        } else {
            self.tcp_shut(e);
        }
        self.ends[e].socket.is_closed = true;
    }

    fn send_reset(&mut self, e: usize) {
        let tcp = &mut self.tcp[e];
        if !tcp.queue.as_slice().contains(&RST) {
            // What has not arrived is lost.
            tcp.queue.truncate(tcp.n_arrived);
            tcp.queue.push(RST);
            self.ends[e].socket.may_lose = true;
        }
    }

    /// The network brings the next of what the kernel of `e` has sent.
    pub(super) fn tcp_deliver(&mut self, e: usize) -> bool {
        if !self.tcp[e].deliver() {
            return false;
        }
        let at = usize::from(self.tcp[e].n_arrived) - 1;
        let entry = self.tcp[e].queue.as_slice()[at];
        let peer = &mut self.ends[1 - e].socket;
        if entry == RST {
            (peer.was_reset, peer.pending_error) = (true, true);
            let back = &mut self.tcp[1 - e];
            back.queue.truncate(back.n_arrived);
        } else if (peer.is_closed || peer.is_read_shut) && entry != FIN {
            self.send_reset(1 - e);
        }
        true
    }

    /// A post to the device of `e`, if it takes it.
    pub(super) fn post(&mut self, e: usize, item: Item, config: &Config) -> bool {
        let is_end = matches!(item, Item::End | Item::Close);
        let end = &mut self.ends[e];
        if end.device != Device::Works {
            end.is_disconnected |= is_end && !config.flushes;
            return config.flushes;
        }
        let is_remote = config.is_remote;
        let lane = &mut self.lanes[e];
        if lane.is_dead && !is_remote || !is_end && lane.queue.len() >= config.lane_room {
            return false;
        }
        end.is_disconnected |= is_end && (item == Item::Close || end.inbox_ended);
        lane.queue.push(item.encode());
        if let Item::Byte(_) = item {
            lane.unread += 1;
        }
        if !is_remote {
            lane.n_arrived = lane.queue.len();
            self.wake(1 - e);
        }
        true
    }

    /// The network brings the next of what the device of `e` was given.
    pub(super) fn lane_deliver(&mut self, e: usize) -> bool {
        let lane = &mut self.lanes[e];
        if lane.is_drained() || lane.is_lost {
            return false;
        }
        lane.n_arrived += 1;
        self.wake(1 - e);
        // The sender gets a completion.
        self.wake(e);
        true
    }

    /// Dispatches the next arrival at the device of `e`.
    pub(super) fn pump(&mut self, e: usize) -> bool {
        let lane = &mut self.lanes[1 - e];
        if lane.n_arrived == 0 {
            return self.note_failure(e);
        }
        lane.n_arrived -= 1;
        let entry = lane.queue.pop().expect("it has arrived");
        let end = &mut self.ends[e];
        match Item::decode(entry) {
            Item::Byte(byte) => end.inbox.push(byte),
            Item::End => {
                end.inbox_ended = true;
                end.is_disconnected |= end.sending_ended;
            }
            Item::Close => (end.inbox_ended, end.is_disconnected) = (true, true),
            Item::Message(message) => {
                end.messages.counts = end.messages.counts.after(message);
                if let Message::Up { offset } = message {
                    end.messages.up_offset = offset;
                }
            }
        }
        true
    }

    /// Notes the failure of the device of `e`, after all earlier arrivals.
    fn note_failure(&mut self, e: usize) -> bool {
        let end = &mut self.ends[e];
        if end.device != Device::Fails {
            return false;
        }
        end.device = if end.is_disconnected { Device::Over } else { Device::Failed };
        self.wake(e);
        true
    }

    /// The device of `e` has failed: what is under way in either direction is lost.
    pub(super) fn device_fails(&mut self, e: usize) {
        self.lanes.iter_mut().for_each(|lane| lane.is_lost = true);
        if self.ends[e].device == Device::Works {
            self.ends[e].device = Device::Fails;
            self.wake(e);
        }
    }

    /// The connection of `e` is broken off: see `break_connection` in rsock-core.
    pub(super) fn break_connection(&mut self, e: usize, by_reset: bool) {
        let end = &mut self.ends[e];
        end.is_pinned = true;
        if std::mem::replace(&mut end.is_broken, true) {
            return;
        }
        if by_reset && !end.socket.was_reset {
            (end.socket.was_reset, end.socket.pending_error) = (true, true);
            self.tcp[1 - e].queue.truncate(0);
            self.tcp[1 - e].n_arrived = 0;
            self.send_reset(e);
        } else {
            end.socket.is_read_shut = true;
            self.tcp_shut(e);
        }
        self.device_fails(e);
    }

    pub(super) fn pump_all(&mut self, e: usize) {
        while self.pump(e) {}
    }

    /// Wakes the threads of `e` that wait for the ring.
    pub(super) fn wake(&mut self, e: usize) {
        self.ends[e].threads.iter_mut().for_each(|thread| thread.note_ring_event());
    }

    /// The program of `e` has read a byte from the ring, so that there is room again.
    pub(super) fn credit(&mut self, e: usize) {
        if self.lanes[e].is_lost {
            self.lanes[e].has_lost_room = true;
            return;
        }
        self.lanes[1 - e].unread -= 1;
        self.wake(1 - e);
    }

    /// Whether `POLLRDHUP` or worse holds.
    pub(super) fn tcp_has_ended(&self, e: usize) -> bool {
        let end = &self.ends[e];
        let is_own = end.receiving_ended || end.socket.is_read_shut;
        self.tcp[1 - e].arrived_end().is_some() || is_own || end.socket.was_reset
    }

    /// Whether a read of the kernel's socket would return something.
    pub(super) fn tcp_is_readable(&self, e: usize) -> bool {
        !self.tcp[1 - e].arrived().is_empty() || self.tcp_has_ended(e)
    }

    /// Whether what `e` wrote to the ring is unread by a peer that has gone.
    pub(super) fn left_unread(&self, e: usize) -> bool {
        let peer = &self.ends[1 - e].socket;
        let is_read = self.lanes[e].unread == 0 || peer.discards_unread;
        peer.is_closed && !is_read && !self.ends[e].inbox_ended
    }

    /// Whether the programs may get an error.
    pub(super) fn may_break(&self) -> bool {
        self.may_lose_bytes || self.ends.iter().any(|end| end.socket.may_lose)
    }

    /// Whether the ring of `e` carries an end, or has failed.
    pub(super) fn ring_has_ended(&self, e: usize) -> bool {
        self.ends[e].inbox_ended || self.ends[e].device == Device::Failed
    }

    /// Whether a direction is on the ring, or may move to it.
    pub(super) fn is_ring_in_use(&self) -> bool {
        self.ends.iter().any(|end| !end.sender.is_on_tcp() || !end.receiver.is_on_tcp())
    }

    /// The program of `e` gets a byte.
    pub(super) fn receive(&mut self, e: usize, byte: u8) -> Result<(), String> {
        if byte == FOREIGN {
            return Ok(());
        }
        let end = &mut self.ends[e];
        let byte = byte & 0x1f;
        if byte != end.n_read + 1 {
            return Err(format!("byte {byte} was read after byte {}", end.n_read));
        }
        end.n_read = byte;
        Ok(())
    }
}

/// What came of a write to the kernel's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Taken,
    Full,
    Error,
}

impl Endpoint {
    /// Whether its program has closed the stream, or is dead.
    pub(super) fn is_retired(&self) -> bool {
        self.threads.iter().all(|thread| thread.job == Job::Over)
    }

    fn new(config: &Config, e: usize) -> Self {
        Self {
            sender: Sender::after(START),
            receiver: Receiver::after(START),
            is_sending_locked: false,
            is_receiving_locked: false,
            is_paired: !config.pairs_late,
            is_pinned: false,
            sending_ended: false,
            receiving_ended: false,
            kernel_only_waiters: 0,
            messages: ReceivedMessages::default(),
            inbox: Queue::default(),
            inbox_ended: false,
            is_disconnected: false,
            device: Device::default(),
            is_broken: false,
            socket: Socket::default(),
            n_sent: 0,
            n_read: 0,
            has_reached_end: false,
            threads: [Thread::IDLE, Thread::at(config.first_read(e)), Thread::IDLE],
            remaining: Remaining {
                pin: config.pins[e],
                handoff: config.hands_off[e],
                counts: config.counts[e],
                second_reads: config.second_reads[e],
                foreign: config.foreign[e],
                shut_reading: config.shuts_reading[e],
            },
        }
    }
}
