//! Dropping a future at each of its awaits.

use crate::common::Count;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use tokio::task::{coop, yield_now};

/// The step of [`at_every_await`] at which the event that the future waits for happens.
pub(crate) const EVENT: usize = 3;

/// Starts `future` over and over and drops it one step later each time, until it completes; returns
/// how many steps that took.
///
/// The steps are a poll with the task's cooperative budget used up, two polls with nothing to do,
/// `event`, and then, by turns, being woken and a poll. So the future is dropped before its first
/// poll, after every `Pending`, with the event unnoticed, and woken but not polled. The event
/// happens each time, if need be after the drop; if it returns true, it happens again after each
/// further `Pending`. Then `after` gets the future's output, `None` if it was dropped, and asserts
/// what its documentation promises.
pub(crate) async fn at_every_await<A, B, T>(
    a: &mut A,
    b: &mut B,
    future: impl AsyncFn(&mut A) -> T,
    event: impl AsyncFn(&mut B) -> bool,
    after: impl AsyncFn(&mut A, &mut B, Option<T>),
) -> usize {
    for steps in 0.. {
        let mut event = Event { b: &mut *b, happen: &event, has_happened: false, recurs: false };
        let done = take_steps(steps, pin!(future(a)), &mut event).await;
        if !event.has_happened {
            event.happen().await;
        }
        let is_over = done.is_some();
        after(a, b, done).await;
        if is_over {
            return steps;
        }
    }
    unreachable!("steps without end")
}

/// As [`at_every_await`], for a future that waits for no event of the test.
pub(crate) async fn at_its_own_awaits<A, T>(
    a: &mut A,
    future: impl AsyncFn(&mut A) -> T,
    after: impl AsyncFn(&mut A, Option<T>),
) {
    let nothing = async |(): &mut ()| false;
    at_every_await(a, &mut (), future, nothing, async |a, (), done| after(a, done).await).await;
}

/// The event that a future waits for.
struct Event<'a, B, E> {
    b: &'a mut B,
    happen: &'a E,
    has_happened: bool,
    recurs: bool,
}

impl<B, E: AsyncFn(&mut B) -> bool> Event<'_, B, E> {
    async fn happen(&mut self) {
        self.recurs = (self.happen)(self.b).await;
        self.has_happened = true;
    }
}

async fn take_steps<F: Future, B, E: AsyncFn(&mut B) -> bool>(
    steps: usize,
    mut future: Pin<&mut F>,
    event: &mut Event<'_, B, E>,
) -> Option<F::Output> {
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut cx = Context::from_waker(&waker);
    let mut poll = || {
        // A wake-up from here on is for an event that this poll does not see.
        count.0.store(0, Ordering::Release);
        future.as_mut().poll(&mut cx)
    };
    for step in 0..steps {
        let polled = match step {
            0 => {
                use_up_the_budget();
                poll()
            }
            EVENT => {
                event.happen().await;
                Poll::Pending
            }
            // Woken...
            _ if step > EVENT && (step - EVENT) % 2 == 1 => {
                if step > EVENT + 1 && event.recurs {
                    event.happen().await;
                }
                while count.0.load(Ordering::Acquire) == 0 {
                    yield_now().await;
                }
                Poll::Pending
            }
            // ...and polled.
            _ => {
                // The poll driver has its turn, and this task's next one begins with a full budget.
                for _ in 0..3 {
                    yield_now().await;
                }
                poll()
            }
        };
        if let Poll::Ready(done) = polled {
            return Some(done);
        }
    }
    None
}

/// What is polled after this, before the task yields, must wait for the task's next turn.
fn use_up_the_budget() {
    let mut noop = Context::from_waker(Waker::noop());
    while coop::has_budget_remaining() {
        assert!(pin!(coop::consume_budget()).poll(&mut noop).is_ready());
    }
}
