//! Delivery timeout: fails a stream whose device stops reporting on posted work requests.
//!
//! A device retries a request a few times, for some seconds, and then completes it with an error.
//! But the kernel's soft RoCE (seen in Linux 6.1) may never complete it when its interface goes
//! down with requests under way. A sender notices, because no room comes back; a program that has
//! sent a request and waits for the answer would wait for ever. So a thread that sleeps for long
//! checks now and then how many requests have completed. Where none under way is signaled, it posts
//! one that is. It fails the stream after [`MAX_CHECKS`] checks without a completion.

use crate::engine::QpStream;
use crate::interrupt::Section;
use rsock_verbs::{Backend, QueuePair, RKey, RemoteAddr, SendFlags, SendOp, WrId};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two checks.
const INTERVAL: Duration = Duration::from_secs(5);
/// Checks without a completion: 30 seconds. They are counted rather than timed, because a process
/// that was stopped meanwhile checks once.
const MAX_CHECKS: u32 = 6;

/// The requests that are not known to have arrived.
#[derive(Debug, Default)]
pub(super) struct DeliveryTimeout(Mutex<Option<Outstanding>>);

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    /// Requests that had completed at the first check.
    n_done: u64,
    n_checks: u32,
    /// The last check, or the first.
    checked: Instant,
}

impl<B: Backend> QpStream<B> {
    /// For a caller that is about to sleep: how long it may sleep before it must call again, `None`
    /// without limit. Fails the stream if no request has completed for too long, which shows as a
    /// change.
    pub(super) fn check_delivery(&self) -> Option<Duration> {
        if !B::SENDS_WAIT {
            return None;
        }
        let _section = Section::enter();
        let mut watched = self.delivery.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((n_done, none_is_signaled)) = self.resources.qp.unsettled() else {
            *watched = None;
            return None;
        };
        let now = Instant::now();
        let mut outstanding = watched
            .filter(|outstanding| outstanding.n_done == n_done)
            .unwrap_or(Outstanding { n_done, n_checks: 0, checked: now });
        let since = now.duration_since(outstanding.checked);
        let left = INTERVAL.saturating_sub(since);
        if left.is_zero() {
            outstanding =
                Outstanding { n_checks: outstanding.n_checks + 1, checked: now, ..outstanding };
            if outstanding.n_checks >= MAX_CHECKS {
                self.ring.shared.mail.fail(libc::ETIMEDOUT);
                self.announce();
            } else if none_is_signaled {
                self.post_signaled();
            }
        }
        *watched = Some(outstanding);
        Some(if left.is_zero() { INTERVAL } else { left })
    }

    /// Posts a signaled write of length zero, which completes after every request before it. The
    /// peer's software does not see it.
    fn post_signaled(&self) {
        let op = SendOp::Write { remote: RemoteAddr::default(), rkey: RKey::default() };
        // If the queue has no room now, a later check posts it, or fails the stream.
        let _ = self.resources.qp.post_copy(WrId(0), op, &[], SendFlags::SIGNALED);
    }
}
