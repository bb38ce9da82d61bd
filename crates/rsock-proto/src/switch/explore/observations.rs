//! The observations that a call makes of the two channels, and its reads of them.

use super::channel::{Device, START, is_urgent};
use super::model::{Result, Transition};
use crate::switch::{Fact, Observation, Peeked};

impl Transition<'_> {
    pub(super) fn observe(&mut self, observation: Observation) -> Fact {
        let e = self.e;
        match observation {
            Observation::Messages => Fact::Messages(self.world.ends[e].messages),
            Observation::PolledMessages => {
                self.world.pump_all(e);
                Fact::Messages(self.world.ends[e].messages)
            }
            Observation::AllMessages => {
                self.world.pump_all(e);
                Fact::AllMessages(self.world.ends[e].messages)
            }
            Observation::Queued => Fact::Queued(self.world.tcp[1 - e].queued()),
            Observation::KernelRead => {
                let fin = u64::from(self.world.tcp[1 - e].arrived_end().is_some());
                let read = u64::from(self.world.tcp[1 - e].read);
                Fact::KernelCount(Some(START + read + fin))
            }
            Observation::KernelWritten => {
                let is_over = self.world.ends[e].socket.was_reset;
                let written = START + u64::from(self.world.tcp[e].written);
                Fact::KernelCount((!is_over).then_some(written))
            }
            Observation::TcpEnded => Fact::TcpEnded(self.world.tcp_has_ended(e)),
            Observation::Peek => Fact::Peeked(self.peek()),
            // No call here goes on after it has received something.
            Observation::TcpHasMore | Observation::TcpEndsCall => unreachable!("{observation:?}"),
            Observation::RingBytes => {
                self.world.pump_all(e);
                Fact::RingBytes(self.world.ends[e].inbox.len().into())
            }
            Observation::RingEnd => {
                self.world.pump_all(e);
                Fact::RingEnd(self.world.ring_has_ended(e))
            }
            Observation::Drained => {
                self.world.pump_all(e);
                let has_failed = !matches!(self.world.ends[e].device, Device::Works);
                Fact::Drained(self.world.lanes[e].is_drained() || has_failed)
            }
            Observation::LeftUnread => Fact::LeftUnread(self.world.left_unread(e)),
            Observation::PeerGone => {
                self.world.pump_all(e);
                let has_end = self.world.ring_has_ended(e);
                Fact::PeerGone(self.world.tcp_has_ended(e) && !has_end)
            }
        }
    }

    fn peek(&mut self) -> Peeked {
        let has_bytes = !self.world.tcp[1 - self.e].arrived().is_empty();
        let has_ended = self.world.tcp_has_ended(self.e);
        let socket = &mut self.world.ends[self.e].socket;
        if has_bytes {
            Peeked::Bytes
        } else if std::mem::take(&mut socket.pending_error) {
            Peeked::Error
        } else if has_ended {
            Peeked::End
        } else {
            Peeked::Nothing
        }
    }

    /// Reads the kernel's socket; returns the fact if there were no bytes.
    pub(super) fn read_tcp(&mut self, most: u64) -> Result<Option<Fact>> {
        let e = self.e;
        let mut n = 0;
        while n < most.min(self.config.buffer.into()) {
            let first = self.world.tcp[1 - e].arrived().first().copied();
            // A read ends before an urgent byte.
            if first.is_some_and(is_urgent) && n != 0 {
                break;
            }
            let Some(byte) = self.world.tcp[1 - e].take() else { break };
            self.trace(|| format!("byte {byte:#x} of TCP"));
            self.world.receive(e, byte)?;
            n += 1;
        }
        if n != 0 {
            if self.world.ends[e].receiver.took_tcp(n) {
                self.world.wake(e);
            }
            return Ok(None);
        }
        if std::mem::take(&mut self.world.ends[e].socket.pending_error) {
            self.world.ends[e].has_reached_end = true;
            return Ok(None);
        }
        let has_ended = self.world.tcp_has_ended(e);
        Ok(Some(if has_ended { Fact::TcpEof } else { Fact::TcpEmpty }))
    }

    pub(super) fn read_ring(&mut self) -> Result<Option<Fact>> {
        let e = self.e;
        self.world.pump_all(e);
        let mut n = 0;
        while n < u64::from(self.config.buffer) {
            let Some(byte) = self.world.ends[e].inbox.pop() else { break };
            self.trace(|| format!("byte {byte:#x} of the ring"));
            self.world.receive(e, byte)?;
            self.world.credit(e);
            n += 1;
        }
        if n != 0 {
            self.world.ends[e].receiver.took_ring(n);
            return Ok(None);
        }
        let lane = &self.world.lanes[1 - e];
        Ok(Some(if self.world.ends[e].device == Device::Failed {
            Fact::RingFailed
        } else if self.world.ends[e].inbox_ended {
            Fact::RingEof
        } else if lane.is_dead && lane.n_arrived == 0 && !self.config.is_remote {
            Fact::RingBroke
        } else {
            Fact::RingEmpty
        }))
    }
}
