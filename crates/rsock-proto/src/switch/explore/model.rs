//! The steps of a scenario: of each thread, of the network, and of what may happen beside.

use super::channel::{Device, FOREIGN, Item};
use super::config::{Config, Link};
use super::search::{Model, Stepped};
use super::thread::{Job, Sleep};
use super::world::{OTHER, READER, WRITER, World};
use crate::switch::DirectionSwitch;

/// A scenario as a model.
pub(super) struct Scenario(pub(super) Config);

/// A step of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// A thread goes on; or a call of it begins, or wakes, by itself.
    Go(usize),
    /// The same, and it is time for the call to check the socket.
    GoDue(usize),
    /// A thread's sleep ends by its time.
    Timer(usize),
    DeliverTcp,
    DeliverRing,
    Pump,
    Pair,
    Pin,
    Handoff,
    Close,
    /// A close goes on that has begun.
    Closing,
    Die,
    RingDies,
    /// What this end sends arrives no more.
    LinkFails,
    /// The device of this end notices that the link has failed, because it gets no answer.
    DeviceReports,
    /// The same, by something else.
    DeviceFails,
    WriteForeign,
    ShutReading,
}

const ACTS: [Act; 23] = [
    Act::Go(WRITER),
    Act::GoDue(WRITER),
    Act::Timer(WRITER),
    Act::Go(READER),
    Act::GoDue(READER),
    Act::Timer(READER),
    Act::Go(OTHER),
    Act::Timer(OTHER),
    Act::DeliverTcp,
    Act::DeliverRing,
    Act::Pump,
    Act::Pair,
    Act::Pin,
    Act::Handoff,
    Act::Close,
    Act::Closing,
    Act::Die,
    Act::RingDies,
    Act::LinkFails,
    Act::DeviceReports,
    Act::DeviceFails,
    Act::WriteForeign,
    Act::ShutReading,
];

impl Model for Scenario {
    type State = World;
    const STEPS: u16 = 46;

    fn initial(&self) -> World {
        World::new(&self.0)
    }

    fn step(&self, from: &World, step: u16, text: Option<&mut String>) -> Option<Stepped<World>> {
        let (e, act) = (usize::from(step % 2), ACTS[usize::from(step / 2)]);
        if !self.may(from, e, act) {
            return None;
        }
        let mut transition = Transition { world: *from, config: &self.0, e, text: None };
        let wants_text = text.is_some();
        transition.text = wants_text.then(String::new);
        let result = transition.act(act);
        if !self.0.is_lazy {
            (0..2).for_each(|e| transition.world.pump_all(e));
        }
        if self.0.link != [Link::Holds; 2] {
            let is_lost = transition.world.lanes.iter().any(|lane| lane.is_lost);
            transition.world.may_lose_bytes |= is_lost && transition.world.is_ring_in_use();
        }
        if let (Some(text), Some(trace)) = (text, &transition.text) {
            *text = format!("{} {act:?}: {trace}", ["A", "B"][e]);
        }
        match result {
            Ok(true) => Some(Stepped::To(transition.world)),
            Ok(false) => None,
            Err(what) => Some(Stepped::Broken(what)),
        }
    }

    fn is_done(&self, world: &World) -> Result {
        let is_done = (0..2).all(|e| world.is_done(e, &self.0));
        if is_done && !world.may_break() {
            world.has_nothing_left()?;
        }
        Ok(is_done)
    }

    fn is_fair(&self, step: u16) -> bool {
        let act = ACTS[usize::from(step / 2)];
        matches!(
            act,
            Act::Go(_)
                | Act::GoDue(_)
                | Act::Timer(_)
                | Act::DeliverTcp
                | Act::DeliverRing
                | Act::DeviceReports
                | Act::Closing
        )
    }
}

impl Scenario {
    /// Whether a step may be possible, by what costs little to find out.
    fn may(&self, world: &World, e: usize, act: Act) -> bool {
        let (config, end) = (&self.0, &world.ends[e]);
        match act {
            Act::Go(t) => match end.threads[t].job {
                Job::Over => false,
                Job::Idle if t == WRITER => {
                    let writes = end.n_sent < config.own_bytes(e);
                    writes || config.half_closes[e] && !end.sending_ended
                }
                Job::Idle if t == OTHER => {
                    let writes = config.second_writes[e] != 0 && end.n_sent < config.bytes[e];
                    writes || end.remaining.counts + end.remaining.second_reads != 0
                }
                Job::Idle | Job::Asleep(_) => true,
                _ => true,
            },
            Act::GoDue(t) => {
                let on_ring =
                    if t == WRITER { end.sender.is_on_ring() } else { end.receiver.is_on_ring() };
                let begins = matches!(end.threads[t].job, Job::Idle | Job::Asleep(_));
                on_ring && begins && world.is_ending(config)
            }
            Act::Timer(t) => {
                matches!(end.threads[t].job, Job::Asleep(sleep) if sleep.has_timer())
            }
            Act::DeliverTcp => world.tcp[e].n_arrived < world.tcp[e].queue.len(),
            Act::DeliverRing => config.is_remote,
            Act::Pump => {
                let fails = end.device == Device::Fails;
                config.is_lazy && (fails || world.lanes[1 - e].n_arrived != 0)
            }
            Act::Pair => !end.is_paired,
            Act::Pin => end.remaining.pin,
            Act::Handoff => end.remaining.handoff,
            Act::Close => config.closes[e] && !end.is_retired(),
            Act::Closing => config.closes[e] && end.is_retired() && !end.socket.is_closed,
            Act::Die => config.dies[e] && !end.socket.is_closed,
            Act::RingDies => end.socket.is_closed && !world.lanes[e].is_dead,
            Act::LinkFails => config.link[e] != Link::Holds && !world.lanes[e].is_lost,
            Act::DeviceReports => {
                // A sleeping thread asks the device. One that waits for room does not.
                let writes = end.n_sent != config.bytes[e] && end.threads[WRITER].job != Job::Over;
                let reports = config.link[e] != Link::FallsSilent || !writes;
                world.lanes[e].is_unanswered() && end.device == Device::Works && reports
            }
            Act::DeviceFails => {
                let is_lost = world.lanes.iter().any(|lane| lane.is_lost);
                is_lost && end.device == Device::Works && config.link[e] != Link::FallsSilent
            }
            Act::WriteForeign => end.remaining.foreign != 0,
            Act::ShutReading => end.remaining.shut_reading,
        }
    }
}

/// A state on its way to the next, by a step of the end `e`.
pub(super) struct Transition<'a> {
    pub(super) world: World,
    pub(super) config: &'a Config,
    pub(super) e: usize,
    /// A description of the step, if the caller asked for one.
    pub(super) text: Option<String>,
}

/// Whether a step was possible; or what it broke.
pub(super) type Result<T = bool> = std::result::Result<T, String>;

impl Transition<'_> {
    fn act(&mut self, act: Act) -> Result {
        let e = self.e;
        match act {
            Act::Go(thread) => self.go(thread, false),
            Act::GoDue(thread) => self.go(thread, true),
            Act::Timer(thread) => self.end_by_time(thread),
            Act::DeliverTcp => Ok(self.world.tcp_deliver(e)),
            Act::DeliverRing => Ok(self.config.is_remote && self.world.lane_deliver(e)),
            Act::Pump => {
                self.world.pump_all(e);
                Ok(self.is_open())
            }
            Act::Pair => Ok(self.pair()),
            Act::Pin => Ok(self.pin()),
            Act::Handoff => Ok(self.hand_off()),
            Act::Close => Ok(self.close()),
            Act::Closing => Ok(self.finish_close()),
            Act::Die => Ok(self.config.dies[e] && self.is_open() && self.die()),
            Act::RingDies => Ok(self.ring_dies()),
            Act::LinkFails => {
                self.world.lanes[e].is_lost = true;
                Ok(true)
            }
            Act::DeviceReports | Act::DeviceFails => {
                self.world.device_fails(e);
                Ok(true)
            }
            Act::WriteForeign => Ok(self.write_foreign()),
            Act::ShutReading => Ok(self.shut_reading()),
        }
    }

    pub(super) fn trace(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.text {
            *trace += &text();
            *trace += "; ";
        }
    }

    fn is_open(&self) -> bool {
        !self.world.ends[self.e].socket.is_closed
    }

    fn pair(&mut self) -> bool {
        let end = &mut self.world.ends[self.e];
        if end.is_paired || end.is_pinned || end.socket.is_closed {
            return false;
        }
        end.is_paired = true;
        if end.sending_ended {
            // The end went to the kernel alone: it is sent on the ring as well.
            self.post(Item::End);
        }
        true
    }

    fn pin(&mut self) -> bool {
        let end = &mut self.world.ends[self.e];
        if !end.remaining.pin || end.threads[OTHER].job != Job::Idle || end.socket.is_closed {
            return false;
        }
        end.remaining.pin = false;
        end.is_pinned = true;
        end.threads[OTHER].job = Job::SettleSending;
        true
    }

    fn hand_off(&mut self) -> bool {
        let end = &mut self.world.ends[self.e];
        if !end.remaining.handoff || end.threads[OTHER].job != Job::Idle || end.socket.is_closed {
            return false;
        }
        end.remaining.handoff = false;
        end.is_pinned = true;
        end.threads[OTHER].job = Job::LeaveSending;
        true
    }

    /// The program closes, when it has written all, from no call or in the place of one that waits.
    fn close(&mut self) -> bool {
        let end = &self.world.ends[self.e];
        let is_idle = |job| matches!(job, Job::Idle | Job::Over | Job::Asleep(_));
        if !self.is_open() || !end.threads.iter().all(|thread| is_idle(thread.job)) {
            return false;
        }
        if self.config.is_remote && end.is_paired && !end.is_broken {
            // The end goes to the ring, and the close waits until the peer's device has it.
            self.world.ends[self.e].sending_ended = true;
            self.post(Item::Close);
        }
        self.retire();
        true
    }

    /// The kernel's socket closes.
    fn finish_close(&mut self) -> bool {
        self.world.pump_all(self.e);
        let (lane, end) = (&self.world.lanes[self.e], &self.world.ends[self.e]);
        let has_failed = end.device == Device::Failed && !end.sender.is_on_tcp();
        let is_over = !matches!(end.device, Device::Works) || end.is_broken;
        if !lane.is_drained() && !lane.is_lost && !is_over {
            return false;
        }
        let is_missing_bytes = !end.is_broken && (has_failed || !lane.is_drained() && !is_over);
        let has_unread = end.inbox.len() != 0;
        if !has_unread {
            self.world.ends[self.e].socket.discards_unread = true;
        }
        self.world.tcp_close(self.e, is_missing_bytes || has_unread && !self.config.is_remote);
        true
    }

    fn die(&mut self) -> bool {
        self.retire();
        let lane = &mut self.world.lanes[self.e];
        lane.queue.truncate(lane.n_arrived);
        self.world.tcp_close(self.e, false);
        self.world.ends[self.e].socket.may_lose = true;
        true
    }

    /// Ends all threads of this end.
    fn retire(&mut self) {
        let end = &mut self.world.ends[self.e];
        end.kernel_only_waiters = 0;
        (end.is_sending_locked, end.is_receiving_locked) = (false, false);
        end.threads = [super::thread::Thread::at(Job::Over); 3];
    }

    /// The device notices that the end `e` has gone.
    fn ring_dies(&mut self) -> bool {
        if self.is_open() || self.world.lanes[self.e].is_dead {
            return false;
        }
        self.world.lanes.iter_mut().for_each(|lane| lane.is_dead = true);
        if self.config.is_remote {
            self.world.device_fails(1 - self.e);
        }
        self.world.wake(1 - self.e);
        true
    }

    fn write_foreign(&mut self) -> bool {
        let (e, room) = (self.e, self.config.tcp_room + 2);
        let end = &mut self.world.ends[e];
        if end.remaining.foreign == 0 || end.socket.is_closed || end.socket.is_shut {
            return false;
        }
        end.remaining.foreign -= 1;
        self.world.tcp_write(e, FOREIGN, room);
        true
    }

    fn shut_reading(&mut self) -> bool {
        let end = &mut self.world.ends[self.e];
        let can = end.remaining.shut_reading && !end.socket.is_closed;
        end.receiving_ended |= can;
        end.remaining.shut_reading = false;
        can
    }

    pub(super) fn post(&mut self, item: Item) -> bool {
        self.world.post(self.e, item, self.config)
    }
}

impl World {
    /// Whether everything that the programs of `e` want has come about.
    fn is_done(&self, e: usize, config: &Config) -> bool {
        let (end, peer) = (&self.ends[e], &self.ends[1 - e]);
        if end.is_retired() {
            return end.socket.is_closed;
        }
        let writes = &end.threads[WRITER];
        let must_end = config.half_closes[e];
        let has_written = writes.job == Job::Over || !must_end && end.n_sent == config.bytes[e];
        let ends = peer.is_retired() || peer.sending_ended || config.half_closes[1 - e];
        let has_read = end.has_reached_end
            || config.only_writes[e]
            || !ends && end.n_read == config.bytes[1 - e];
        let now = self.conditions(e, OTHER, config);
        let is_settled = end.sender.is_settled(now) && end.receiver.is_settled(now);
        let is_whole = self.lanes.iter().all(|lane| !lane.is_lost);
        let must_settle = end.is_pinned && !self.is_ending(config) && is_whole;
        let is_quiet =
            matches!(end.threads[OTHER].job, Job::Idle | Job::Over | Job::Asleep(Sleep::Handoff));
        has_written && has_read && is_quiet && (is_settled || !must_settle)
    }

    /// Whether programs end, or are ended, in this scenario.
    fn is_ending(&self, config: &Config) -> bool {
        let kinds = [config.closes, config.dies, config.half_closes, config.shuts_reading];
        kinds.as_flattened().contains(&true)
    }

    /// Checks that no byte is left that would be read twice, once all have been read.
    fn has_nothing_left(&self) -> Result<()> {
        for e in 0..2 {
            let end = &self.ends[e];
            if end.has_reached_end || end.socket.is_closed {
                continue;
            }
            let on_tcp = self.tcp[1 - e].queue.as_slice().iter().any(|b| *b < FOREIGN);
            if on_tcp || end.inbox.len() != 0 {
                return Err("a byte is left after the last".to_owned());
            }
        }
        Ok(())
    }
}
