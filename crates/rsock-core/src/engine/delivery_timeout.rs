//! Doubt whether what was sent arrives, on a device that has to be asked.
//!
//! A device repeats a request a few times, for some seconds, and then says that it failed. But the kernel's
//! soft RoCE (seen in Linux 6.1) may forget to, when its interface goes down with requests under way. A
//! sender notices when no room comes back; who sent and then waits for an answer would wait for ever. So
//! whoever sleeps for long looks now and then what is known of the requests, asks the device for a word
//! where nothing will tell, and gives the stream up when [`MOST`] looks found none.

use crate::engine::stream::Stream;
use crate::interrupt::Section;
use rsock_verbs::{Backend, QueuePair, RKey, RemoteAddr, SendFlags, SendOp, WrId};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(5);
/// Looks without a word from the device, of which the first makes it speak: 30 seconds. Counted rather than
/// timed, for a process that was stopped meanwhile looks once.
const MOST: u32 = 6;

/// What is not known to have arrived.
#[derive(Debug, Default)]
pub(super) struct Doubt(Mutex<Option<Silence>>);

#[derive(Clone, Copy, Debug)]
struct Silence {
    /// Requests that had completed when it began.
    n_done: u64,
    n_looks: u32,
    /// The last look, or its beginning.
    looked: Instant,
}

impl<B: Backend> Stream<B> {
    /// For who is about to sleep: how long it may, `None` for as long as it likes. Fails the stream if
    /// there has been no word for too long, which shows as a change.
    pub(super) fn doubt(&self) -> Option<Duration> {
        if !B::SENDS_WAIT {
            return None;
        }
        let _section = Section::enter();
        let mut doubt = self.doubt.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((n_done, nothing_tells)) = self.parts.qp.unsettled() else {
            *doubt = None;
            return None;
        };
        let now = Instant::now();
        let mut silence = doubt.filter(|silence| silence.n_done == n_done).unwrap_or(Silence {
            n_done,
            n_looks: 0,
            looked: now,
        });
        let since = now.duration_since(silence.looked);
        let left = LOOK.saturating_sub(since);
        if left.is_zero() {
            silence = Silence { n_looks: silence.n_looks + 1, looked: now, ..silence };
            if silence.n_looks >= MOST {
                self.ring.shared.mail.fail(libc::ETIMEDOUT);
                self.announce();
            } else if nothing_tells {
                self.ask();
            }
        }
        *doubt = Some(silence);
        Some(if left.is_zero() { LOOK } else { left })
    }

    /// Asks the device for a word about everything that was posted: with a write of nothing, of which the
    /// peer hears nothing.
    fn ask(&self) {
        let op = SendOp::Write { remote: RemoteAddr::default(), rkey: RKey::default() };
        // If there is no room now, some later look finds it, or that there never is.
        let _ = self.parts.qp.post_copy(WrId(0), op, &[], SendFlags::SIGNALED);
    }
}
