//! Signal handlers and the data path.
//!
//! A handler may run between any two instructions, may call `send` on the very stream that the
//! interrupted code is working on, and may leave by `longjmp`. So the data path runs in
//! [`Section`]s, and the preload library, which interposes `sigaction`, keeps handlers out of them:
//! if [`is_inside`] holds, it defers the signal until the [`Section`] ends, which calls the
//! function registered with [`on_leave`]. Calls sleep outside of sections.
//!
//! A blocking call also has to know that a handler ran, and whether it asked for `SA_RESTART`:
//! [`note_handler`] counts the handlers, [`handlers_run`] reads the counts.

use rsock_verbs::per_thread::ZeroInThread;
use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

rsock_verbs::per_thread! {
    /// Of the calling thread.
    STATE: State, "interrupt"
}

struct State {
    depth: Cell<u32>,
    pending: Cell<bool>,
    /// Handlers that ran on this thread.
    handlers: Cell<u32>,
    /// Those of them that did not ask for `SA_RESTART`.
    interrupting: Cell<u32>,
    /// Stack address where the program's outermost handler began; 0 outside of handlers.
    handler_at: Cell<usize>,
    /// Whether this thread is being cancelled.
    is_cancelled: Cell<bool>,
}

// SAFETY: numbers and flags, of which zero is a value; no drop.
unsafe impl ZeroInThread for State {}

static ON_LEAVE: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Registers the function that runs when a section ends in which a signal was deferred.
#[inline]
pub fn on_leave(f: fn()) {
    ON_LEAVE.store(f as *mut (), Ordering::Release);
}

/// A stretch of code that no signal handler may interrupt. Nestable; not `Send`.
#[derive(Debug)]
#[must_use]
pub struct Section {
    not_send: PhantomData<*const ()>,
}

impl Section {
    /// Begins a section.
    #[inline]
    pub fn enter() -> Self {
        STATE.with(|s| s.depth.set(s.depth.get() + 1));
        Self { not_send: PhantomData }
    }
}

impl Drop for Section {
    #[inline]
    fn drop(&mut self) {
        let due = STATE.with(|s| {
            s.depth.set(s.depth.get() - 1);
            s.depth.get() == 0 && s.pending.replace(false)
        });
        if due {
            leave();
        }
    }
}

#[cold]
fn leave() {
    let f = ON_LEAVE.load(Ordering::Acquire);
    if !f.is_null() {
        // SAFETY: only `on_leave` stores here, and only values of this very type.
        let f: fn() = unsafe { mem::transmute::<*mut (), fn()>(f) };
        f();
    }
}

/// Whether this thread is inside a section.
#[must_use]
pub fn is_inside() -> bool {
    STATE.with(|s| s.depth.get() != 0)
}

/// A handler of the program, while it runs. It may have interrupted any code, libc's allocator too,
/// so the calls that it makes postpone everything that allocates.
#[derive(Debug)]
#[must_use]
pub struct InHandler {
    before: usize,
    not_send: PhantomData<*const ()>,
}

impl InHandler {
    /// Marks the beginning of a handler.
    #[inline(always)]
    pub fn begin() -> Self {
        let here = here();
        let before = STATE.with(|s| s.handler_at.get());
        if !is_below(here, before) {
            STATE.with(|s| s.handler_at.set(here));
        }
        Self { before, not_send: PhantomData }
    }
}

impl Drop for InHandler {
    fn drop(&mut self) {
        STATE.with(|s| s.handler_at.set(self.before));
    }
}

/// Whether this thread is inside a handler of the program.
#[inline]
#[must_use]
pub fn is_in_handler() -> bool {
    let handler_at = STATE.with(|s| s.handler_at.get());
    handler_at != 0 && is_below(here(), handler_at)
}

/// Whether a frame at `here` can belong to a function that a handler at `handler_at` called. A
/// handler that left by `longjmp` did not end its [`InHandler`]: then the frame lies above it, or
/// on another stack.
fn is_below(here: usize, handler_at: usize) -> bool {
    /// A frame that is further away lies on another stack.
    const FAR: usize = 64 << 20;
    handler_at.checked_sub(here).is_some_and(|below| below < FAR)
}

/// An address in the frame of the caller.
#[inline(always)]
fn here() -> usize {
    let here = 0u8;
    std::hint::black_box(&raw const here).addr()
}

/// Notes that a signal was deferred: the function given to [`on_leave`] runs when the section ends.
pub fn note_deferred() {
    STATE.with(|s| s.pending.set(true));
}

/// Counts a handler that is about to run. `restart` says whether it asked for `SA_RESTART`.
pub fn note_handler(restart: bool) {
    STATE.with(|s| {
        s.handlers.set(s.handlers.get().wrapping_add(1));
        if !restart {
            s.interrupting.set(s.interrupting.get().wrapping_add(1));
        }
    });
}

/// Notes that this thread is being cancelled: calls that wait end with `EINTR`, also one that has
/// not begun to watch for handlers yet, until [`take_cancellation`].
pub fn note_cancellation() {
    STATE.with(|s| s.is_cancelled.set(true));
}

/// Whether this thread is being cancelled; from now on it is not.
#[inline]
#[must_use]
pub fn take_cancellation() -> bool {
    STATE.with(|s| s.is_cancelled.replace(false))
}

/// Whether this thread is being cancelled.
pub(crate) fn is_cancelled() -> bool {
    STATE.with(|s| s.is_cancelled.get())
}

/// Numbers of handlers that ran on a thread. Both wrap; callers compare two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandlerCounts {
    /// All of them.
    pub all: u32,
    /// Those without `SA_RESTART`.
    pub interrupting: u32,
}

/// The handlers that ran on this thread.
#[must_use]
pub fn handlers_run() -> HandlerCounts {
    STATE.with(|s| HandlerCounts { all: s.handlers.get(), interrupting: s.interrupting.get() })
}

/// Whether signals are interposed, so that a [`Watch`] sees handlers.
#[must_use]
pub fn is_interposed() -> bool {
    !ON_LEAVE.load(Ordering::Relaxed).is_null()
}

/// Whether an interrupted call may restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// If every handler that ran asked for `SA_RESTART`.
    Allowed,
    /// Not at all: the call has a timeout, or bytes to return.
    Never,
}

impl Restart {
    /// [`Self::Allowed`] if `may_restart`.
    pub(crate) fn of(may_restart: bool) -> Self {
        if may_restart { Self::Allowed } else { Self::Never }
    }
}

/// The handlers that had run when a call began.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    at: HandlerCounts,
}

impl Watch {
    /// Watches for handlers from now on.
    #[must_use]
    pub fn begin() -> Self {
        Self { at: handlers_run() }
    }

    /// Forgets the handlers that ran so far and asked for `SA_RESTART`: the call continues.
    pub fn restart(&mut self) {
        self.at.all = handlers_run().all;
    }

    /// The result of a sleep for the call: a sleep that only handlers with `SA_RESTART` interrupted
    /// counts as a success, and those handlers are forgotten. With [`Restart::Never`] the call ends
    /// whatever the handler asked for (`signal(7)`).
    ///
    /// # Errors
    /// That of the sleep: `EINTR` if the call must end.
    pub(crate) fn after_sleep(
        &mut self,
        slept: io::Result<()>,
        restart: Restart,
    ) -> io::Result<()> {
        match slept {
            Err(e)
                if e.raw_os_error() == Some(libc::EINTR)
                    && restart == Restart::Allowed
                    && !self.must_end() =>
            {
                self.restart();
                Ok(())
            }
            other => other,
        }
    }

    /// Whether a handler has run since this was begun.
    #[must_use]
    pub fn has_fired(self) -> bool {
        handlers_run().all != self.at.all || is_cancelled()
    }

    /// Whether a call that restarts after `SA_RESTART` handlers must end with `EINTR` nevertheless,
    /// because a handler without `SA_RESTART` has run since, or because the thread is being
    /// cancelled. Where signals are not interposed, any interruption ends the call.
    #[must_use]
    pub fn must_end(self) -> bool {
        let is_interrupted = handlers_run().interrupting != self.at.interrupting;
        !is_interposed() || is_interrupted || is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[inline(never)]
    fn deeper<R>(f: impl FnOnce() -> R) -> R {
        let frame = std::hint::black_box([0u8; 512]);
        let result = f();
        std::hint::black_box(frame);
        result
    }

    #[test]
    fn calls_of_a_handler_are_inside_it_and_code_after_a_longjmp_out_of_it_is_not() {
        assert!(!is_in_handler());
        let seen = deeper(|| {
            let handler = InHandler::begin();
            let seen = deeper(|| {
                let nested = InHandler::begin();
                let seen = deeper(is_in_handler);
                drop(nested);
                seen && deeper(is_in_handler)
            });
            // As if the handler left by longjmp.
            mem::forget(handler);
            seen
        });
        assert!(seen);
        assert!(!is_in_handler());
    }

    #[test]
    fn a_deferred_signal_is_delivered_once_when_the_outer_section_ends() {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        on_leave(|| {
            CALLS.fetch_add(1, Ordering::Relaxed);
        });
        let outer = Section::enter();
        let inner = Section::enter();
        assert!(is_inside());
        note_deferred();
        drop(inner);
        assert_eq!(CALLS.load(Ordering::Relaxed), 0);
        drop(outer);
        drop(Section::enter());
        assert_eq!((CALLS.load(Ordering::Relaxed), is_inside()), (1, false));
    }

    #[test]
    fn a_cancellation_ends_a_call_that_begins_after_it() {
        note_cancellation();
        let mut watch = Watch::begin();
        watch.restart();
        assert!(watch.has_fired() && watch.must_end());
        assert!(take_cancellation());
        assert!(!watch.has_fired() && !take_cancellation());
    }
}
