//! The calls of a program over the switch, one step at a time: models of `send`, `recv`, `poll`,
//! `FIONREAD` and a handoff of rsock-core.

use super::answers::must_settle;
use super::channel::{Device, Item};
use super::config::Config;
use super::model::{Result, Transition};
use super::thread::{Job, Sleep, Thread};
use super::world::{Narrow, OTHER, READER, WRITER, World};
use crate::switch::mistake::Mistake;
use crate::switch::{Conditions, DirectionSwitch, Fact, LeaveStatus, Message, Rules, Seen, Step};

impl World {
    /// The conditions of a call of a thread.
    pub(super) fn conditions(&self, e: usize, thread: usize, config: &Config) -> Conditions {
        use Conditions as C;
        let (end, call) = (&self.ends[e], &self.ends[e].threads[thread]);
        let lane = &self.lanes[1 - e];
        let is_cut = config.is_remote && lane.is_dead;
        let is_dead = !config.is_remote && lane.is_dead && !end.inbox_ended;
        // Not of a network that is slow: that answers within a fraction of this time.
        let is_silent = self.lanes[e].is_unanswered() && end.device == Device::Works;
        C::NONE
            .with_if(C::PAIRED, end.is_paired)
            .with_if(C::PINNED, end.is_pinned)
            .with_if(C::SENDING_ENDED, end.sending_ended)
            .with_if(C::RECEIVING_ENDED, end.receiving_ended)
            .with_if(C::BETWEEN_HOSTS, config.is_remote)
            .with_if(C::RING_FAILED, end.device == Device::Failed || is_dead)
            .with_if(C::RING_DISCONNECTED, is_cut)
            .with_if(C::BROKEN, end.is_broken)
            .with_if(C::DEVICE_SILENT, thread == WRITER && call.is_impatient && is_silent)
            .with_if(C::KERNEL_ONLY_WAITER, end.kernel_only_waiters != 0)
            .with_if(C::SOCKET_CHECK_DUE, call.is_due)
            .with_if(C::SPILL_DUE, call.is_impatient)
            .with_if(C::END_OVERDUE, call.is_impatient)
            .with_if(C::KERNEL_CALL, thread == WRITER && self.is_urgent_next(e, config))
    }

    pub(super) fn is_urgent_next(&self, e: usize, config: &Config) -> bool {
        config.urgent[e] && self.ends[e].n_sent + 1 == config.bytes[e]
    }
}

impl Transition<'_> {
    /// A thread goes on.
    pub(super) fn go(&mut self, t: usize, is_due: bool) -> Result {
        let end = &self.world.ends[self.e];
        let job = end.threads[t].job;
        if !matches!(job, Job::Idle | Job::Asleep(_)) && is_due {
            return Ok(false);
        }
        match job {
            Job::Over => Ok(false),
            Job::Idle => self.begin(t, is_due, false),
            Job::Asleep(Sleep::ForRequests) => Ok(self.answer_if_asked(t)),
            Job::Asleep(sleep) => {
                let thread = &end.threads[t];
                if !sleep.is_over(&self.world, self.e, thread, self.config.tcp_room) {
                    return Ok(false);
                }
                let ended = matches!(sleep, Sleep::Ring | Sleep::RingLevel)
                    && end.receiver.is_on_ring()
                    && self.world.tcp_has_ended(self.e);
                self.begin(t, is_due || ended, false)
            }
            _ if !end.threads[t].has_lock => self.lock_to(t, job),
            _ => self.query(t).map(|()| true),
        }
    }

    /// A call that waits for input dispatches arrivals on the ring, and answers requests.
    fn answer_if_asked(&mut self, t: usize) -> bool {
        let has_pumped = self.world.ends[self.e].is_paired && self.world.pump(self.e);
        self.world.pump_all(self.e);
        let now = self.world.conditions(self.e, t, self.config);
        let end = &mut self.world.ends[self.e];
        let has_to_settle = end.is_paired && must_settle(&end.sender, now, end.messages);
        if has_to_settle && end.threads[t].has_ring_event {
            end.threads[t] = Thread::at(Job::Answer(Sleep::ForRequests));
            return true;
        }
        has_pumped
    }

    /// A sleep ends by its time.
    pub(super) fn end_by_time(&mut self, t: usize) -> Result {
        match self.world.ends[self.e].threads[t].job {
            Job::Asleep(Sleep::Handoff) => {
                // It gives up; a process of its own carries on.
                self.set(t, Job::Idle);
                Ok(true)
            }
            Job::Asleep(sleep) if sleep.has_timer() => {
                let is_due =
                    sleep == Sleep::Moment && self.world.ends[self.e].receiver.is_on_ring();
                self.begin(t, is_due, true)
            }
            _ => Ok(false),
        }
    }

    /// A thread begins a call, or a new try of one.
    fn begin(&mut self, t: usize, is_due: bool, is_impatient: bool) -> Result {
        let lane = &self.world.lanes[1 - self.e];
        // A reader waits for the end of the ring longer than the network takes to bring it.
        let is_impatient = is_impatient && (t != READER || lane.is_drained() || lane.is_lost);
        let end = &mut self.world.ends[self.e];
        let was = end.threads[t].job;
        let is_waking = matches!(was, Job::Asleep(_));
        let job = match t {
            WRITER if end.n_sent < self.config.own_bytes(self.e) => Job::Write,
            WRITER if self.config.half_closes[self.e] && !end.sending_ended => Job::EndTcp,
            READER if !end.has_reached_end => Job::Read,
            OTHER if was == Job::Asleep(Sleep::Handoff) => Job::LeaveSending,
            OTHER if end.remaining.counts != 0 => Job::Count,
            OTHER if end.remaining.second_reads != 0 && !end.has_reached_end => Job::Read,
            OTHER
                if self.config.second_writes[self.e] != 0
                    && end.n_sent < self.config.bytes[self.e] =>
            {
                Job::Write
            }
            _ => return Ok(false),
        };
        let on_ring = match job {
            Job::Write => end.sender.is_on_ring(),
            Job::Read => end.receiver.is_on_ring(),
            _ => false,
        };
        if is_due && !on_ring {
            return Ok(false);
        }
        let is_locked = match lock_of(job) {
            Lock::Sending => end.is_sending_locked,
            Lock::Receiving => end.is_receiving_locked,
        };
        if is_locked {
            return Ok(false);
        }
        if is_waking && matches!(was, Job::Asleep(Sleep::Tcp { .. })) {
            end.kernel_only_waiters -= 1;
        }
        if t == OTHER {
            end.remaining.counts -= u8::from(job == Job::Count);
            end.remaining.second_reads -= u8::from(job == Job::Read);
        }
        end.threads[t] = Thread { is_due, is_impatient, ..Thread::at(Job::Idle) };
        if job == Job::Write && self.world.is_urgent_next(self.e, self.config) {
            self.world.ends[self.e].is_pinned = true;
        }
        if job == Job::EndTcp {
            return self.end_sending(t);
        }
        self.lock_to(t, job)
    }

    /// Takes the lock for a job, and makes its first step; not possible while it is held.
    pub(super) fn lock_to(&mut self, t: usize, job: Job) -> Result {
        let end = &mut self.world.ends[self.e];
        let lock = match lock_of(job) {
            Lock::Sending => &mut end.is_sending_locked,
            Lock::Receiving => &mut end.is_receiving_locked,
        };
        if std::mem::replace(lock, true) {
            return Ok(false);
        }
        let thread = &mut end.threads[t];
        (thread.job, thread.has_lock) = (job, true);
        let now = self.world.conditions(self.e, t, self.config);
        self.world.ends[self.e].threads[t].seen = Seen::new(now);
        self.query(t).map(|()| true)
    }

    pub(super) fn unlock(&mut self, job: Job) {
        let end = &mut self.world.ends[self.e];
        match lock_of(job) {
            Lock::Sending => end.is_sending_locked = false,
            Lock::Receiving => end.is_receiving_locked = false,
        }
    }

    pub(super) fn set(&mut self, t: usize, job: Job) {
        let has_ring_event = self.world.ends[self.e].threads[t].has_ring_event;
        let keeps = matches!(job, Job::Asleep(_) | Job::Answer(_));
        self.world.ends[self.e].threads[t] =
            Thread { has_ring_event: has_ring_event && keeps, ..Thread::at(job) };
    }

    /// One step of the query that a thread is at.
    fn query(&mut self, t: usize) -> Result<()> {
        let e = self.e;
        let end = &mut self.world.ends[e];
        let mut seen = end.threads[t].seen;
        let job = end.threads[t].job;
        match job {
            Job::Read => {
                let step = end.receiver.read(&mut seen);
                self.trace_step(&step);
                self.follow(t, step, seen, |transition, read, seen| transition.read(t, read, seen))
            }
            Job::Count => {
                let step = end.receiver.count_readable(&mut seen);
                self.trace_step(&step);
                self.follow(t, step, seen, |transition, n, _| transition.counted(t, n))
            }
            Job::Poll => {
                let step = end.receiver.poll_input(&mut seen);
                self.trace_step(&step);
                self.follow(t, step, seen, |transition, input, _| transition.polled(t, input))
            }
            Job::SettleReceiving => {
                let step = end.receiver.settle(&mut seen);
                self.trace_step(&step);
                self.follow(t, step, seen, |transition, _, _| transition.over(t, job, Job::Idle))
            }
            Job::LeaveReceiving => {
                let step = end.receiver.leave(&mut seen);
                self.trace_step(&step);
                self.follow(t, step, seen, |transition, left, _| {
                    let waits = left == LeaveStatus::NotYet;
                    let next = if waits { Job::Asleep(Sleep::Handoff) } else { Job::Idle };
                    transition.over(t, job, next)
                })
            }
            Job::Write => {
                let step = end.sender.write(&mut seen);
                self.trace_step(&step);
                self.follow(t, step, seen, |transition, write, seen| {
                    transition.write(t, write, seen)
                })
            }
            Job::Answer(_) | Job::SettleSending | Job::LeaveSending => {
                let step = end.sender.settle(&mut seen);
                self.trace_step(&step);
                self.follow(t, step, seen, |transition, settled, _| {
                    transition.settled(t, job, settled)
                })
            }
            Job::EndTcp => {
                self.world.tcp_shut(e);
                if Narrow::has(Mistake::EndWithoutLock) {
                    self.set(t, Job::Over);
                    return Ok(());
                }
                self.over(t, Job::Write, Job::Over)
            }
            Job::Idle | Job::Over | Job::Asleep(_) => unreachable!("{job:?}"),
        }
    }

    fn trace_step<D: std::fmt::Debug>(&mut self, step: &Step<D>) {
        self.trace(|| format!("{step:?}"));
    }

    /// Does what a step asks for.
    fn follow<D>(
        &mut self,
        t: usize,
        step: Step<D>,
        mut seen: Seen,
        done: impl FnOnce(&mut Self, D, Seen) -> Result<()>,
    ) -> Result<()> {
        match step {
            Step::Observe(observation) => {
                let fact = self.observe(observation);
                self.trace(|| format!("{fact:?}"));
                self.note(t, &mut seen, fact);
            }
            Step::Send(message) => {
                let is_sent = self.post(Item::Message(message));
                self.trace(|| (if is_sent { "sent" } else { "no room" }).to_owned());
                let end = &mut self.world.ends[self.e];
                match message {
                    Message::Ready | Message::Leave => {
                        end.receiver.note_send(message, is_sent, &mut seen);
                    }
                    Message::Up { .. } | Message::Down => {
                        end.sender.note_send(message, is_sent, &mut seen);
                    }
                }
            }
            Step::Pin(_) => {
                self.world.ends[self.e].is_pinned = true;
                seen.pinned();
            }
            Step::Done(answer) => return done(self, answer, seen),
        }
        self.keep(t, seen);
        Ok(())
    }

    /// Takes note of a fact, as the driver does.
    pub(super) fn note(&self, t: usize, seen: &mut Seen, fact: Fact) {
        seen.note::<Narrow>(fact, || self.world.conditions(self.e, t, self.config));
    }

    pub(super) fn keep(&mut self, t: usize, seen: Seen) {
        self.world.ends[self.e].threads[t].seen = seen;
    }

    /// A query has its answer: the lock is released, and the thread goes on with something else.
    pub(super) fn over(&mut self, t: usize, job: Job, next: Job) -> Result<()> {
        self.unlock(job);
        self.set(t, next);
        Ok(())
    }
}

enum Lock {
    Sending,
    Receiving,
}

fn lock_of(job: Job) -> Lock {
    match job {
        Job::Read | Job::Count | Job::Poll | Job::SettleReceiving | Job::LeaveReceiving => {
            Lock::Receiving
        }
        _ => Lock::Sending,
    }
}
