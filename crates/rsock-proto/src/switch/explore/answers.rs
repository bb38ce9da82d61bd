//! The effects of the answer of a query: a call reads, writes, waits or fails.

use super::channel::{Device, Item, URGENT};
use super::model::{Result, Transition};
use super::thread::{Job, Sleep};
use super::world::{Narrow, OTHER, Written};
use crate::switch::mistake::Mistake;
use crate::switch::{
    Conditions, DirectionSwitch, End, Fact, Fault, Input, KernelInput, Read, Readable,
    ReceivedMessages, RingInput, Room, Rules, Seen, Sender, SettleStatus, WaitFor, Write,
};

impl Transition<'_> {
    pub(super) fn read(&mut self, t: usize, read: Read, mut seen: Seen) -> Result<()> {
        match read {
            Read::Tcp { most } => match self.read_tcp(most)? {
                Some(fact) => {
                    self.trace(|| format!("{fact:?}"));
                    self.note(t, &mut seen, fact);
                    self.keep(t, seen);
                    Ok(())
                }
                None if self.world.ends[self.e].has_reached_end => self.reached_end(t, None),
                None => self.over(t, Job::Read, Job::Idle),
            },
            Read::Ring => match self.read_ring()? {
                Some(fact) => {
                    self.trace(|| format!("{fact:?}"));
                    self.note(t, &mut seen, fact);
                    self.keep(t, seen);
                    Ok(())
                }
                None => self.over(t, Job::Read, Job::Idle),
            },
            Read::Wait(_) | Read::WaitBriefly if t == OTHER => self.over(t, Job::Read, Job::Idle),
            Read::Wait(_) if self.config.polls[self.e] => {
                self.unlock(Job::Read);
                self.set(t, Job::Idle);
                self.lock_to(t, Job::Poll).map(drop)
            }
            Read::Wait(WaitFor::Tcp) => self.wait_for_tcp(t, Job::Read),
            Read::Wait(WaitFor::TcpOrRing) => self.wait(t, Job::Read, Sleep::TcpOrRing),
            Read::Wait(WaitFor::Ring) => self.wait(t, Job::Read, Sleep::Ring),
            Read::WaitBriefly => self.wait(t, Job::Read, Sleep::Moment),
            Read::End => self.reached_end(t, Some(())),
            Read::Stop => unreachable!("{read:?}"),
            Read::Fault(Fault::ForeignBytes | Fault::Violation) if self.has_foreign() => {
                self.reached_end(t, None)
            }
            Read::BreakOff if self.world.may_break() => {
                let now = self.world.conditions(self.e, t, self.config);
                let end = &mut self.world.ends[self.e];
                let by_reset = end.is_sending_locked || end.sender.breaks_by_reset(now);
                end.receiver.break_off();
                self.world.break_connection(self.e, by_reset);
                self.reached_end(t, None)
            }
            Read::Reset | Read::Fail | Read::Fault(Fault::Lost) if self.world.may_break() => {
                self.reached_end(t, None)
            }
            Read::Reset | Read::Fail | Read::BreakOff | Read::Fault(_) => {
                Err(format!("a read failed without a reason: {read:?}"))
            }
        }
    }

    fn has_foreign(&self) -> bool {
        self.world.ends[1 - self.e].remaining.foreign != self.config.foreign[1 - self.e]
    }

    /// The program reaches the end of what it receives: in order, or by an error.
    fn reached_end(&mut self, t: usize, in_order: Option<()>) -> Result<()> {
        let (end, peer) = (&self.world.ends[self.e], &self.world.ends[1 - self.e]);
        if in_order.is_some() && !end.receiving_ended {
            let has_ended = peer.sending_ended || peer.socket.is_closed;
            if !has_ended || end.n_read != peer.n_sent {
                return Err(format!("the end after {} of {} bytes", end.n_read, peer.n_sent));
            }
        }
        self.world.ends[self.e].has_reached_end = true;
        self.over(t, Job::Read, if t == OTHER { Job::Idle } else { Job::Over })
    }

    pub(super) fn counted(&mut self, t: usize, readable: Readable) -> Result<()> {
        let (end, peer) = (&self.world.ends[self.e], &self.world.ends[1 - self.e]);
        let most = u64::from(peer.n_sent - end.n_read + self.config.foreign[1 - self.e]);
        match readable {
            Readable::Bytes(n) if n > most => Err(format!("{n} bytes counted of {most}")),
            _ => self.over(t, Job::Count, Job::Idle),
        }
    }

    pub(super) fn polled(&mut self, t: usize, input: Input) -> Result<()> {
        if input.fault.is_some() {
            return self.over(t, Job::Poll, Job::Idle);
        }
        match (input.kernel, input.ring) {
            (KernelInput::Bytes, RingInput::Unused) => self.wait_for_tcp(t, Job::Poll),
            (KernelInput::Bytes, _) => self.wait(t, Job::Poll, Sleep::TcpOrRing),
            (KernelInput::End, _) => self.wait(t, Job::Poll, Sleep::RingLevel),
        }
    }

    pub(super) fn write(&mut self, t: usize, write: Write, mut seen: Seen) -> Result<()> {
        let e = self.e;
        match write {
            Write::Tcp => {
                let urgent = u8::from(self.world.is_urgent_next(e, self.config)) * URGENT;
                let byte = self.world.ends[e].n_sent + 1;
                match self.world.tcp_write(e, byte | urgent, self.config.tcp_room) {
                    Written::Taken => {
                        self.trace(|| format!("byte {byte} to TCP"));
                        self.world.ends[e].n_sent += 1;
                        self.world.ends[e].sender.took_tcp(1);
                        return self.over(t, Job::Write, Job::Idle);
                    }
                    Written::Error => return self.failed_write(t),
                    Written::Full => self.note(t, &mut seen, Fact::TcpFull),
                }
            }
            Write::Ring => {
                let (lane, end) = (&self.world.lanes[e], &self.world.ends[e]);
                let is_dead = lane.is_dead && !self.config.is_remote;
                let is_closed = is_dead || end.sending_ended || end.is_disconnected;
                let byte = end.n_sent + 1;
                let has_room = lane.unread < self.config.ring_room;
                let is_kernel_call = self.world.is_urgent_next(e, self.config);
                let is_posted = has_room && !is_kernel_call && !is_closed;
                if is_posted && end.device == Device::Fails && !self.config.flushes {
                    // A post that is refused shows the failure.
                    self.world.pump_all(e);
                }
                if self.world.ends[e].device == Device::Failed {
                    self.note(t, &mut seen, Fact::RingFailed);
                } else if is_closed {
                    self.note(t, &mut seen, Fact::RingClosed);
                } else if !is_kernel_call && has_room && self.post(Item::Byte(byte)) {
                    self.trace(|| format!("byte {byte} to the ring"));
                    self.world.ends[e].n_sent += 1;
                    self.world.ends[e].sender.took_ring(1);
                    return self.over(t, Job::Write, Job::Idle);
                } else {
                    self.trace(|| "full".to_owned());
                    self.note(t, &mut seen, Fact::RingFull);
                }
            }
            Write::Wait(Room::Tcp) => return self.wait(t, Job::Write, Sleep::RoomOnTcp),
            Write::Wait(Room::Ring | Room::Device) => {
                return self.wait(t, Job::Write, Sleep::RoomOnRing);
            }
            Write::BreakOff if self.world.may_break() => {
                self.break_off(t);
                return self.over(t, Job::Write, Job::Over);
            }
            Write::Reset | Write::Fault(_) if self.world.may_break() => {
                return self.over(t, Job::Write, Job::Over);
            }
            Write::Reset | Write::BreakOff | Write::Fail | Write::Fault(_) => {
                return Err(format!("a write failed without a reason: {write:?}"));
            }
        }
        self.keep(t, seen);
        Ok(())
    }

    /// The writer, or a thread that waits, breaks the connection off.
    fn break_off(&mut self, t: usize) {
        let now = self.world.conditions(self.e, t, self.config);
        let sender = &mut self.world.ends[self.e].sender;
        let by_reset = sender.breaks_by_reset(now);
        sender.break_off();
        self.world.break_connection(self.e, by_reset);
    }

    fn failed_write(&mut self, t: usize) -> Result<()> {
        let (end, peer) = (&self.world.ends[self.e], &self.world.ends[1 - self.e]);
        if !end.sending_ended && !end.is_broken && !peer.socket.is_closed && !self.world.may_break()
        {
            return Err("TCP refuses a byte without a reason".to_owned());
        }
        self.over(t, Job::Write, Job::Over)
    }

    /// The writer ends its direction.
    pub(super) fn end_sending(&mut self, t: usize) -> Result {
        let now = self.world.conditions(self.e, t, self.config);
        let end = &mut self.world.ends[self.e];
        end.sending_ended = true;
        match end.sender.end(now) {
            End::RingThenTcp => {
                end.is_sending_locked = !Narrow::has(Mistake::EndWithoutLock);
                (end.threads[t].job, end.threads[t].has_lock) = (Job::EndTcp, true);
                self.post(Item::End);
            }
            End::Tcp => {
                self.world.tcp_shut(self.e);
                self.set(t, Job::Over);
            }
        }
        Ok(true)
    }

    pub(super) fn settled(&mut self, t: usize, job: Job, settled: SettleStatus) -> Result<()> {
        if settled == SettleStatus::BreakOff {
            self.break_off(t);
        }
        let next = match (job, settled) {
            (Job::Answer(sleep), _) => Job::Asleep(sleep),
            (Job::SettleSending, _) => Job::SettleReceiving,
            (Job::LeaveSending, SettleStatus::Yes) => Job::LeaveReceiving,
            (Job::LeaveSending, SettleStatus::NotYet) => Job::Asleep(Sleep::Handoff),
            _ => Job::Idle,
        };
        self.over(t, job, next)
    }

    fn wait_for_tcp(&mut self, t: usize, job: Job) -> Result<()> {
        let now = self.world.conditions(self.e, t, self.config);
        let end = &mut self.world.ends[self.e];
        end.kernel_only_waiters += 1;
        let ring_wakes = end.is_paired && !end.sender.is_settled(now);
        self.wait(t, job, Sleep::Tcp { ring_wakes })
    }

    /// A call answers what the peer has asked, and sleeps.
    fn wait(&mut self, t: usize, job: Job, sleep: Sleep) -> Result<()> {
        if self.world.ends[self.e].is_paired {
            self.world.pump_all(self.e);
        }
        let now = self.world.conditions(self.e, t, self.config);
        let end = &self.world.ends[self.e];
        let has_to_settle = end.is_paired && must_settle(&end.sender, now, end.messages);
        let next = if has_to_settle && job != Job::Write {
            Job::Answer(sleep)
        } else {
            Job::Asleep(sleep)
        };
        self.over(t, job, next)
    }
}

/// Whether a call that is about to wait has to ask [`Sender::settle`]: the receiver's last request
/// has no answer, the stream is pinned, or sent bytes are lost.
pub(super) fn must_settle(
    sender: &Sender<Narrow>,
    now: Conditions,
    messages: ReceivedMessages,
) -> bool {
    let is_requested = messages.counts.leaves() != sender.leaves_answered();
    let must_answer = is_requested || now.has(Conditions::PINNED);
    sender.has_lost_bytes(now) || !sender.is_settled(now) && must_answer
}
