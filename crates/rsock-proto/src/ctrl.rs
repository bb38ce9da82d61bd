//! The room for control messages: how many may be posted and not yet completed.
//!
//! Control messages carry no credit, so their number is bounded at the sender: a peer like C posts
//! as many receives as it gives credits, and a message that finds none waits at the sender.
//!
//! # Source
//! rdma-core v64.0, librdmacm/rsocket.c: `RS_QP_CTRL_SIZE`, `rs_ctrl_avail`.

/// Control messages (grants included) that may be under way at once.
#[doc(alias = "RS_QP_CTRL_SIZE")]
pub const CTRL_DEPTH: u8 = 4;

/// Places that grants leave free: SHUTDOWN and DISCONNECT, each of which is sent once, never wait.
pub const CTRL_RESERVE: u8 = 2;

/// Counts the control messages that are posted and not completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtrlWindow {
    in_flight: u8,
}

impl CtrlWindow {
    /// With nothing under way.
    #[must_use]
    pub const fn new() -> Self {
        Self { in_flight: 0 }
    }

    /// Takes a place for one control message; false when all are taken and nothing may be posted.
    #[inline]
    #[must_use]
    pub fn post(&mut self) -> bool {
        let has_room = self.has_room();
        self.in_flight += u8::from(has_room);
        has_room
    }

    /// `n` control messages completed. More than were posted count as all.
    #[inline]
    pub fn done(&mut self, n: usize) {
        let n = u8::try_from(n).unwrap_or(u8::MAX);
        self.in_flight = self.in_flight.saturating_sub(n);
    }

    /// Whether one more may be posted.
    #[inline]
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.in_flight < CTRL_DEPTH
    }

    /// Whether one more may be posted that can wait: a grant.
    #[inline]
    #[must_use]
    pub fn has_room_for_grant(&self) -> bool {
        self.in_flight + CTRL_RESERVE < CTRL_DEPTH
    }

    /// Whether everything posted has completed.
    #[inline]
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_messages_fit_and_each_completion_makes_room_for_one() {
        let mut ctrl = CtrlWindow::new();
        assert!(ctrl.is_idle());
        for _ in 0..4 {
            assert!(ctrl.post());
        }
        assert!(!ctrl.post() && !ctrl.has_room());
        ctrl.done(1);
        assert!(ctrl.post() && !ctrl.post());
        ctrl.done(3);
        assert!(!ctrl.is_idle());
        ctrl.done(1);
        assert!(ctrl.is_idle());
    }

    #[test]
    fn grants_leave_room_for_both_ends_of_a_stream() {
        let mut ctrl = CtrlWindow::new();
        let mut n_grants = 0;
        while ctrl.has_room_for_grant() {
            assert!(ctrl.post());
            n_grants += 1;
        }
        assert!(n_grants > 0, "a stream without grants stands still");
        assert!(ctrl.post() && ctrl.post() && !ctrl.post());
    }

    #[test]
    fn spurious_completions_do_not_widen_the_window() {
        let mut ctrl = CtrlWindow::new();
        ctrl.done(usize::MAX);
        assert_eq!((0..10).filter(|_| ctrl.post()).count(), 4);
    }
}
