//! Looks at members: whether there is something to report of one.

use super::{EDGE, ONE_SHOT};
use crate::event_set::members::{AnnouncedBy, OnRing};
use crate::event_set::mistake::{self, is_mistaken};
use crate::event_set::{EventSet, PolledEventSet, State, stream_of};
use crate::raw_epoll;
use crate::slot::Handle;
use libc::epoll_event;
use rsock_core::accelerate::StreamRef;
use rsock_proto::event_set::{Events, News, Place, ReadinessSnapshot, Watch};
use std::time::Instant;

/// So often a set among the members is looked at again to learn whether only events of this
/// library's own make it readable.
const MOST_LOOKS_AGAIN: usize = 3;

/// What a look at a member is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Report,
    Ask,
}

/// What a look does that leaves a member without a report.
#[derive(Clone, Copy)]
pub(super) enum After {
    /// What happens after this mark is announced.
    Announce(u32),
    /// The same, and the next wait looks again too: a full ring is given up after some time.
    AnnounceAndLookAgain(u32),
    /// Nothing is announced: the next wait looks again.
    LookAgain,
}

/// What a look at a member found.
pub(in crate::event_set) enum Found {
    /// An event to report.
    Event(epoll_event),
    Nothing,
}

impl State {
    /// Looks at a member once, for a wait that reports what is found.
    pub(in crate::event_set) fn look(&mut self, set: &EventSet, number: u32) -> Found {
        self.look_for(set, number, Purpose::Report)
    }

    /// Looks at a member once, for a caller that asks only whether there is something to report.
    pub(in crate::event_set) fn look_without_report(
        &mut self,
        set: &EventSet,
        number: u32,
    ) -> Found {
        self.look_for(set, number, Purpose::Ask)
    }

    fn look_for(&mut self, set: &EventSet, number: u32, purpose: Purpose) -> Found {
        let Some(member) = self.members.get_mut(number) else { return Found::Nothing };
        member.is_candidate = false;
        if member.is_deleted {
            return Found::Nothing;
        }
        // The kernel would report an edge again when it begins to watch.
        let is_level = member.events & (EDGE | ONE_SHOT) == 0 && !member.is_renamed;
        let is_unwatched = member.ring.as_ref().is_some_and(|r| r.announced_by.is_unwatched());
        let handle = self.stream_of_member(number);
        if (is_level || is_unwatched || !set.may_watch())
            && let Some(handle) = handle.as_ref().filter(|handle| handle.stream().is_plain())
        {
            self.leave_ring(set, number, handle);
        }
        let Some((now, after)) = self.state_of(number, handle.as_ref()) else {
            return Found::Nothing;
        };
        let Some(member) = self.members.get_mut(number) else { return Found::Nothing };
        let Some(ring) = &mut member.ring else { return Found::Nothing };
        let has_news = ring.watch.has_news(&now);
        let mut looked = ring.watch.inspect(&now);
        let is_edge = member.events & EDGE != 0 && looked.report != Events::NONE;
        if is_mistaken!(LostEdge) && is_edge && mistake::is_fourth_time() {
            looked.report = Events::NONE;
        }
        if is_mistaken!(DoubledEdge) && is_edge && mistake::is_fourth_time() {
            (looked.place, looked.next) = (Place::Last, ring.watch);
        }
        if is_mistaken!(RearmedOneShot) {
            looked.next = Watch::resumed(Events::from_bits(member.events), now.news);
        }
        let found = match looked.report.bits() {
            0 => Found::Nothing,
            events if is_mistaken!(MissingHangUp) => {
                let events = events & !Events::HANG_UP.bits();
                Found::Event(epoll_event { events, u64: member.data })
            }
            events if is_mistaken!(DataOfAnother) => {
                Found::Event(epoll_event { events, u64: mistake::exchanged(member.data) })
            }
            events => Found::Event(epoll_event { events, u64: member.data }),
        };
        let is_counted = ring.counted.replace(now.news) == Some(now.news);
        let is_news = !is_counted && (has_news || matches!(found, Found::Event(_)));
        self.n_news = self.n_news.wrapping_add(u32::from(is_news));
        if purpose == Purpose::Ask && matches!(found, Found::Event(_)) {
            self.note_candidate(number);
            if let After::Announce(mark) | After::AnnounceAndLookAgain(mark) = after {
                // More news are news for those that poll the set.
                let _ = self.announce_next(number, handle.as_ref(), mark);
            }
            return found;
        }
        ring.watch = looked.next;
        match (looked.place, after) {
            (Place::Last, _) => self.note_candidate(number),
            (Place::Out, After::LookAgain) => self.impatient.push(number),
            (Place::Out, After::Announce(mark) | After::AnnounceAndLookAgain(mark)) => {
                if matches!(after, After::AnnounceAndLookAgain(_)) {
                    self.impatient.push(number);
                }
                if !self.announce_next(number, handle.as_ref(), mark) {
                    self.note_candidate(number);
                }
            }
        }
        found
    }

    /// The stream of a member, if it is one.
    pub(in crate::event_set) fn stream_of_member(&self, number: u32) -> Option<Handle> {
        stream_of(self.members.get(number).filter(|member| member.set.is_none())?.fd)
    }

    /// The state of a member with this stream, and what a look that reports nothing does then.
    pub(super) fn state_of(
        &mut self,
        number: u32,
        handle: Option<&Handle>,
    ) -> Option<(ReadinessSnapshot, After)> {
        let member = self.members.get_mut(number)?;
        let ring = member.ring.as_mut()?;
        let has_event = std::mem::take(&mut ring.has_socket_event);
        if let Some(set) = member.set {
            return Some((state_of_set(set, ring, has_event), After::Announce(0)));
        }
        let handle = handle?;
        let StreamRef::Accelerated(stream) = handle.stream() else { return None };
        let asked = Events::from_bits(member.events);
        if let AnnouncedBy::Doorbell { watch, .. } = &ring.announced_by {
            stream.pause_remote(watch);
            let after = stream.check_after();
            let check_at = after.and_then(|after| Instant::now().checked_add(after));
            self.check_at = [self.check_at, check_at].into_iter().flatten().min();
        }
        let has_changed = std::mem::take(&mut ring.has_changed);
        let asks_socket = ring.asks_socket || has_event || has_changed || self.is_inherited;
        let state = stream.epoll_state(handle.fd(), asked, asks_socket).ok()?;
        ring.asks_socket |= state.has_kernel_news;
        // Of a stream on TCP the socket watch tells everything.
        let is_told = match ring.announced_by {
            AnnouncedBy::Nothing => stream.is_plain(),
            _ => ring.announced_by.is_any(),
        };
        let is_announced = is_told && !self.is_inherited && !state.is_end_pending;
        let after = match state.look_again {
            None if is_announced => After::Announce(state.mark),
            Some(_) if is_announced => After::AnnounceAndLookAgain(state.mark),
            _ => After::LookAgain,
        };
        if has_changed || state.is_receive_due {
            ring.news.note_change();
        }
        let mut counted = ring.news.count(&state, has_event);
        let is_event_due = counted.is_event_due || has_changed && !has_event;
        if is_event_due && !self.is_inherited && self.take_event_of(number) {
            // The event may tell of something that came after the state was taken: what comes from
            // now on has an event of its own.
            let state = stream.epoll_state(handle.fd(), asked, true).ok()?;
            let ring = self.members.get_mut(number)?.ring.as_mut()?;
            ring.asks_socket |= state.has_kernel_news;
            counted = ring.news.count(&state, false);
        }
        Some((counted.now, after))
    }

    /// Takes the kernel's event of a member, of which something has been seen. Returns whether
    /// there was one.
    fn take_event_of(&mut self, number: u32) -> bool {
        let Some(own_fds) = self.own_fds.clone() else { return false };
        own_fds.take_socket_events(|event| self.note_socket_event(event));
        let ring = self.members.get_mut(number).and_then(|member| member.ring.as_mut());
        ring.is_some_and(|ring| std::mem::take(&mut ring.has_socket_event))
    }

    /// Has the ready set told of what happens after `mark` to a member with this stream. False if
    /// something has happened already.
    fn announce_next(&mut self, number: u32, handle: Option<&Handle>, mark: u32) -> bool {
        let Some(member) = self.members.get_mut(number) else { return true };
        if let Some(set) = member.set {
            return set.arm_for_news();
        }
        let Some(StreamRef::Accelerated(stream)) = handle.map(Handle::stream) else { return true };
        let remote = member.ring.as_mut().map(|ring| &mut ring.announced_by);
        match remote {
            Some(AnnouncedBy::Doorbell { watch, mark: last }) => {
                *last = mark;
                stream.announce_next_to(watch, mark)
            }
            Some(AnnouncedBy::Nothing) => true,
            _ => stream.announce_next(mark),
        }
    }
}

/// The state of a member that is a set, of which the socket watch `has_event`.
fn state_of_set(set: PolledEventSet, ring: &mut OnRing, has_event: bool) -> ReadinessSnapshot {
    let (mut is_ready, mut n_news) = set.look();
    let mut in_kernel = raw_epoll::is_readable(set.fd);
    for _ in 0..MOST_LOOKS_AGAIN {
        if is_ready || !in_kernel {
            break;
        }
        // The look itself may have led to events of this library's own.
        (is_ready, n_news) = set.look();
        in_kernel = raw_epoll::is_readable(set.fd);
    }
    let is_readable = is_ready || in_kernel;
    let was_readable = std::mem::replace(&mut ring.was_readable, is_readable);
    let is_news = is_readable && !was_readable || has_event && in_kernel;
    let in_set = &mut ring.kernel_news_in_set;
    *in_set = in_set.wrapping_add(u32::from(is_news));
    let news = News { arrivals: n_news.wrapping_add(*in_set), ..News::default() };
    ReadinessSnapshot { is_readable, news, ..ReadinessSnapshot::default() }
}
