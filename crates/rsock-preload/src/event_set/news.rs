//! Counts the news of a stream that the library watches, on the ring and on TCP.

use rsock_core::accelerate::EpollState;
use rsock_proto::event_set::{News, ReadinessSnapshot};

/// Counts what happens to a stream, from one state to the next.
#[derive(Clone, Copy, Default)]
pub(super) struct NewsCounter {
    /// All but the arrivals on the ring.
    news: News,
    /// Bytes that had arrived on TCP, and the state of the socket.
    tcp_arrivals: (u32, u8),
    /// Sends without room that have been noticed.
    full_sends: u32,
    /// Whether there was no room.
    was_full: bool,
    /// Whether input has ended, the kernel has hung up, and there was an error.
    ends: [bool; 3],
    /// Whether the kernel knows of the end of input.
    ended_on_tcp: bool,
    has_failed: bool,
    output_ended: bool,
    was_urgent: bool,
}

/// What a state is since the one before.
pub(super) struct Counted {
    /// The state with all news.
    pub(super) now: ReadinessSnapshot,
    /// The kernel has an event of what is new, of which it has not told yet.
    pub(super) is_event_due: bool,
}

impl NewsCounter {
    /// A counter that begins with `state`.
    pub(super) fn new(state: &EpollState) -> Self {
        let mut counter = Self { full_sends: state.full_sends, ..Self::default() };
        counter.count(state, false);
        counter
    }

    /// Counts a change that no state shows.
    pub(super) fn note_change(&mut self) {
        self.news.changes = self.news.changes.wrapping_add(1);
    }

    /// Counts what is new in `state`. `has_event` if the kernel has told of something.
    pub(super) fn count(&mut self, state: &EpollState, has_event: bool) -> Counted {
        let mut now = state.now;
        let ends = [now.input_ended, state.has_hung_up, now.has_error];
        let before = std::mem::replace(&mut self.ends, ends);
        // The kernel tells of an end after the ring, and counts it as one byte.
        let is_end_of_ring = state.ended_on_tcp && !self.ended_on_tcp && before[0];
        self.ended_on_tcp = state.ended_on_tcp;
        // A hang-up is no news if both ends are known.
        let had_ended = std::mem::replace(&mut self.output_ended, now.output_ended);
        let is_known = had_ended && is_end_of_ring;
        let is_new = |i: usize| ends[i] && !before[i];
        let had_failed = std::mem::replace(&mut self.has_failed, state.has_failed);
        let has_failed = state.has_failed && !had_failed;
        let has_ended = is_new(0) || is_new(1) && !is_known || is_new(2) || has_failed;
        let is_urgent_news =
            now.is_urgent && !std::mem::replace(&mut self.was_urgent, now.is_urgent);
        // As far as is known: it has not changed if the socket was not asked.
        let tcp_arrivals = state.tcp_arrivals.unwrap_or(self.tcp_arrivals);
        let before = std::mem::replace(&mut self.tcp_arrivals, tcp_arrivals);
        let n_arrived = tcp_arrivals.0.wrapping_sub(before.0);
        let has_arrived = is_urgent_news || n_arrived > u32::from(is_end_of_ring);
        let has_state_changed = tcp_arrivals.1 != before.1;
        let has_room_again = now.has_room && self.was_full;
        // An event that tells of nothing that can be seen is a change of the socket too.
        let is_seen = is_end_of_ring || !has_state_changed && (has_arrived || has_room_again);
        // An event that was taken with the arrival of the end told of the state, too.
        let has_fin = has_arrived && has_state_changed && !is_end_of_ring;
        let is_change = has_ended || has_fin || has_event && !is_seen;
        self.news.changes = self.news.changes.wrapping_add(u32::from(is_change));
        self.news.arrivals = self.news.arrivals.wrapping_add(u32::from(has_arrived));
        self.was_full |= self.full_sends != state.full_sends;
        self.full_sends = state.full_sends;
        if now.has_room {
            self.news.room = self.news.room.wrapping_add(u32::from(self.was_full));
        }
        self.was_full = !now.has_room;
        now.news.arrivals = now.news.arrivals.wrapping_add(self.news.arrivals);
        now.news.room = self.news.room;
        now.news.changes = self.news.changes;
        Counted { now, is_event_due: !has_event && (has_ended || has_arrived) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIN_WAIT_2: u8 = 5;
    const CLOSE: u8 = 7;

    /// A stream that this end has shut down in both directions.
    fn shut(tcp_arrivals: (u32, u8)) -> EpollState {
        let now = ReadinessSnapshot {
            input_ended: true,
            output_ended: true,
            ..ReadinessSnapshot::default()
        };
        EpollState {
            now,
            tcp_arrivals: Some(tcp_arrivals),
            ended_on_tcp: true,
            has_hung_up: true,
            ..EpollState::default()
        }
    }

    #[test]
    fn an_end_after_a_shutdown_is_one_change_with_its_event_and_without() {
        for has_event in [false, true] {
            let mut counter = NewsCounter::new(&shut((0, FIN_WAIT_2)));
            let before = counter.count(&shut((0, FIN_WAIT_2)), false);
            // Without the event, the ring has told of the end.
            let counted = counter.count(&shut((1, CLOSE)), has_event);
            assert_eq!(counted.is_event_due, !has_event, "the kernel's event is taken");
            let after = counter.count(&shut((1, CLOSE)), false);
            let changes = [before, counted, after].map(|counted| counted.now.news.changes);
            assert_eq!(changes[1], changes[0] + 1, "a change, event: {has_event}");
            assert_eq!(changes[2], changes[1], "counted once, event: {has_event}");
        }
    }
}
