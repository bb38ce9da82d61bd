//! The hub's task: looks at listed streams, wakes the tasks of those that have something, and settles all
//! when nothing comes.

use super::{BRIEF, HUBS, Hub, nanos};
use crate::crowd::{self, CROWD, Presence};
use crate::link::Link;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Looks at all streams between two turns of the other tasks.
const LOOKS: u32 = 24;
/// A stream on which nothing has come for so long is not worth a look each time.
const QUIET: Duration = Duration::from_millis(1);
/// `sched_yield` calls before sleeping, in case the other end needs this CPU.
const YIELDS: u32 = 4;
/// After so long each turn offers the CPU to others...
const OFFER_AFTER: Duration = Duration::from_micros(5);
/// ...and if getting it back takes so long, somebody wanted it: looking is in the way...
const TAKEN: Duration = Duration::from_micros(20);
/// A stream on which nothing has come in so many turns of being woken for others is left to itself.
const ROUNDS: u8 = 8;

/// A stream that the hub looks at.
#[derive(Debug)]
struct Listed {
    link: Arc<Link>,
    since: Instant,
    /// As in [`Settled`].
    rounds: u8,
}

/// A stream that the hub has settled with others, and would look at again with them.
#[derive(Debug)]
struct Settled {
    /// Weak: it may be gone before anything comes again.
    link: Weak<Link>,
    /// Turns of being looked at again for nothing.
    rounds: u8,
}

/// The hub's task.
#[derive(Debug)]
pub(super) struct Watch {
    hub: Arc<Hub>,
    links: Vec<Listed>,
    /// Those that were looked at when it went to sleep.
    settled: Vec<Settled>,
    swept: Instant,
    /// The last turn.
    turned: Instant,
    /// When something last happened.
    since: Option<Instant>,
    /// At the last sweep, unless it has slept since.
    presence: Option<Presence>,
    /// The runtime has one thread.
    is_alone: bool,
}

impl Watch {
    pub(super) fn new(hub: Arc<Hub>, is_alone: bool) -> Self {
        let (links, settled, now) = (Vec::new(), Vec::new(), Instant::now());
        let (swept, turned) = (now, now);
        Self { hub, links, settled, swept, turned, since: None, presence: None, is_alone }
    }

    /// One look at everything; never ready.
    pub(super) fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        self.admit(now);
        let since = *self.since.get_or_insert(now);
        let gap = now.duration_since(std::mem::replace(&mut self.turned, now));
        if now.duration_since(self.swept) >= QUIET {
            self.sweep(now, gap);
        }
        let limit = Duration::from_nanos(self.hub.limit_ns.load(Ordering::Relaxed).into());
        let is_brief = self.hub.is_brief.load(Ordering::Relaxed);
        if self.look() {
            if !is_brief {
                self.hub.shared.hit(since.elapsed());
            }
            self.since = None;
            return self.soon(cx);
        }
        if self.links.is_empty() {
            return self.sleep(cx);
        }
        let looked = since.elapsed();
        let is_over = looked >= limit;
        if !is_over && looked < OFFER_AFTER {
            return self.later(cx);
        }
        if is_brief {
            return self.settle_and_sleep(cx);
        }
        let offered = Instant::now();
        for _ in 0..if is_over { YIELDS } else { 1 } {
            rustix::thread::sched_yield();
            if is_over && self.pass() {
                // The other end ran when we made room for it: looking was in its way.
                self.hub.shared.was_in_the_way();
                self.since = None;
                return self.later(cx);
            }
        }
        let away = offered.elapsed();
        if away >= crowd::TURN {
            self.is_in_a_crowd();
        } else if away >= TAKEN {
            self.hub.shared.was_in_the_way();
        }
        if away >= TAKEN {
            if self.pass() {
                self.since = None;
                return self.later(cx);
            }
        } else if is_over {
            self.hub.shared.miss();
        } else {
            return self.later(cx);
        }
        self.settle_and_sleep(cx)
    }

    /// Takes in what is new, and with it those that were settled before.
    fn admit(&mut self, now: Instant) {
        let mut inbox = self.hub.inbox();
        if inbox.new.is_empty() {
            return;
        }
        let listed = |link| Listed { link, since: now, rounds: 0 };
        self.links.extend(inbox.new.drain(..).map(listed));
        drop(inbox);
        for Settled { link, rounds } in self.settled.drain(..) {
            if rounds < ROUNDS
                && let Some(link) = link.upgrade()
                && link.relist()
            {
                self.hub.listed.fetch_add(1, Ordering::Relaxed);
                self.links.push(Listed { link, since: now, rounds: rounds + 1 });
            }
        }
        self.hub.settled.store(0, Ordering::Relaxed);
    }

    /// Now and then: leaves streams on which nothing comes to their doorbells, and finds out whether
    /// others want the CPU. The turn before this one was `gap` ago.
    fn sweep(&mut self, now: Instant, gap: Duration) {
        self.swept = now;
        let presence = Presence::now(now);
        let before = self.presence.replace(presence);
        // The other end may share this CPU for a moment, in short turns; or tasks had much to do.
        if gap >= crowd::TURN
            && before.is_some_and(|before| presence.lost_since(&before) >= gap / 4 * 3)
        {
            self.is_in_a_crowd();
        }
        self.settle(|listed| now.duration_since(listed.since) >= QUIET);
    }

    fn is_in_a_crowd(&mut self) {
        CROWD.is_found(Instant::now());
        self.presence = None;
        self.hub.is_brief.store(true, Ordering::Relaxed);
        self.hub.limit_ns.store(nanos(BRIEF), Ordering::Relaxed);
    }

    /// Looks until something has come, for a moment. Whether something has.
    fn look(&mut self) -> bool {
        let looks = (LOOKS / u32::try_from(self.links.len().max(1)).unwrap_or(LOOKS)).max(1);
        for _ in 0..looks {
            if self.pass() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Looks at each stream once.
    fn pass(&mut self) -> bool {
        let before = self.links.len();
        for listed in self.links.extract_if(.., |listed| listed.link.is_due()) {
            self.hub.listed.fetch_sub(1, Ordering::Relaxed);
            listed.link.release();
        }
        self.links.len() != before
    }

    /// Looks again after the tasks that were just woken.
    fn soon(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_alone {
            // To the end of the queue; the runtime looks at descriptors every few dozen turns.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Among several threads that would call another one for help.
        self.later(cx)
    }

    /// Lets everything else run: every other task, what is behind descriptors, and the future that
    /// the runtime blocks on, which has no place in the queue and its turn only when that is empty.
    fn later(&self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = pin!(tokio::task::yield_now()).poll(cx);
        Poll::Pending
    }

    /// Nothing to look at: until something is offered.
    fn sleep(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        (self.since, self.presence) = (None, None);
        let mut inbox = self.hub.inbox();
        if inbox.new.is_empty() {
            inbox.sleeper = Some(cx.waker().clone());
            return Poll::Pending;
        }
        drop(inbox);
        self.later(cx)
    }

    /// Nothing comes: hands all streams over to their doorbells, until one rings.
    fn settle_and_sleep(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for Listed { link, rounds, .. } in self.links.drain(..) {
            self.hub.listed.fetch_sub(1, Ordering::Relaxed);
            link.settle();
            if link.is_cheap_to_settle() {
                self.settled.push(Settled { link: Arc::downgrade(&link), rounds });
            }
        }
        self.hub.settled.store(self.settled.len(), Ordering::Relaxed);
        self.sleep(cx)
    }

    /// Hands the streams that `which` picks over to their doorbells.
    fn settle(&mut self, which: impl Fn(&Listed) -> bool) {
        for listed in self.links.extract_if(.., |listed| which(listed)) {
            self.hub.listed.fetch_sub(1, Ordering::Relaxed);
            listed.link.settle();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut inbox = self.hub.inbox();
        inbox.is_over = true;
        inbox.sleeper = None;
        let new = std::mem::take(&mut inbox.new);
        drop(inbox);
        let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.retain(|(_, hub)| !Arc::ptr_eq(hub, &self.hub));
        drop(hubs);
        // The runtime ends: who still waits learns that from its descriptors.
        for link in self.links.drain(..).map(|listed| listed.link).chain(new) {
            link.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn looking_leaves_the_future_that_the_runtime_blocks_on_its_turn() {
        const TIMES: u32 = 100;
        let turns = Arc::new(AtomicU32::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let (watch, count) = (Watch::new(Arc::new(Hub::new()), true), Arc::clone(&turns));
            let looking = tokio::spawn(poll_fn(move |cx| {
                count.fetch_add(1, Ordering::Relaxed);
                watch.later(cx)
            }));
            for _ in 0..TIMES {
                let (send, sent) = tokio::sync::oneshot::channel();
                tokio::spawn(async { send.send(()) });
                sent.await.expect("the task sends");
            }
            looking.abort();
        });
        // It has no place in the queue of tasks, which must therefore run empty between two looks.
        assert!(turns.load(Ordering::Relaxed) <= 3 * TIMES, "{turns:?} turns");
    }
}
