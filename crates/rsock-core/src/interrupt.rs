//! Signal handlers and the data path.
//!
//! A handler may run between any two instructions, may call `send` on the very stream that the
//! interrupted code is working on, and may leave by `longjmp`. So the data path runs in
//! [`Section`]s, and whoever interposes `sigaction` (the preload library) keeps handlers out of
//! them: it asks [`is_inside`], and if so puts the signal off until [`Section`] ends, which calls
//! the function registered with [`on_leave`]. Sleeping happens outside sections.
//!
//! A blocking call also has to know that a handler ran, and whether it asked for `SA_RESTART`:
//! [`note_handler`] counts, [`handlers_run`] reads.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

thread_local! {
    static STATE: State = const {
        State {
            depth: Cell::new(0),
            pending: Cell::new(false),
            handlers: Cell::new(0),
            interrupting: Cell::new(0),
            handler_at: Cell::new(0),
        }
    };
}

struct State {
    depth: Cell<u32>,
    pending: Cell<bool>,
    /// Handlers run on this thread.
    handlers: Cell<u32>,
    /// Those of them that did not ask for `SA_RESTART`.
    interrupting: Cell<u32>,
    /// Where on the stack the outermost handler of the program's began; 0 outside.
    handler_at: Cell<usize>,
}

static ON_LEAVE: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Registers what runs when a section ends during which a signal was put off.
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
    /// Enters.
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

/// A handler of the program's, while it runs. What it interrupted may be anything, libc's allocator too: the calls
/// that it makes allocate nothing, so they leave for later whatever would.
#[derive(Debug)]
#[must_use]
pub struct InHandler {
    before: usize,
    not_send: PhantomData<*const ()>,
}

impl InHandler {
    /// From now on.
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

/// Whether this thread is inside a handler of the program's.
#[inline]
#[must_use]
pub fn is_in_handler() -> bool {
    let handler_at = STATE.with(|s| s.handler_at.get());
    handler_at != 0 && is_below(here(), handler_at)
}

/// Whether a frame at `here` can be one of what a handler at `handler_at` calls. A handler that left by longjmp did
/// not say so: then the stack is above it, or is another one.
fn is_below(here: usize, handler_at: usize) -> bool {
    /// Far away is another stack.
    const FAR: usize = 64 << 20;
    handler_at.checked_sub(here).is_some_and(|below| below < FAR)
}

/// An address in the frame of the caller.
#[inline(always)]
fn here() -> usize {
    let here = 0u8;
    std::hint::black_box(&raw const here).addr()
}

/// Says that a signal was put off: the function given to [`on_leave`] runs when the section ends.
pub fn put_off() {
    STATE.with(|s| s.pending.set(true));
}

/// Counts a handler that is about to run; `restart` is whether it asked for `SA_RESTART`.
pub fn note_handler(restart: bool) {
    STATE.with(|s| {
        s.handlers.set(s.handlers.get().wrapping_add(1));
        if !restart {
            s.interrupting.set(s.interrupting.get().wrapping_add(1));
        }
    });
}

/// How many handlers ran on this thread: all, and those without `SA_RESTART`. Compare two
/// readings; both wrap.
#[must_use]
pub fn handlers_run() -> (u32, u32) {
    STATE.with(|s| (s.handlers.get(), s.interrupting.get()))
}

/// Whether somebody interposes signals, so that [`Watch`] means something.
#[must_use]
pub fn is_interposed() -> bool {
    !ON_LEAVE.load(Ordering::Relaxed).is_null()
}

/// The handlers that had run when a call began.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    at: (u32, u32),
}

impl Watch {
    /// From now on.
    #[must_use]
    pub fn begin() -> Self {
        Self { at: handlers_run() }
    }

    /// Forgets the handlers that ran so far and asked for `SA_RESTART`: the call goes on.
    pub fn restart(&mut self) {
        self.at.0 = handlers_run().0;
    }

    /// What a sleep of a call comes to: nothing, too, if it was ended by handlers that asked for `SA_RESTART`, which
    /// are forgotten. Not where `may_restart` is false: a time-out, or bytes in hand, make a call end whatever the
    /// handler asked for (signal(7)).
    ///
    /// # Errors
    /// That of the sleep: `EINTR` if the call must end.
    pub(crate) fn settle(&mut self, slept: io::Result<()>, may_restart: bool) -> io::Result<()> {
        match slept {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) && may_restart && !self.must_end() => {
                self.restart();
                Ok(())
            }
            other => other,
        }
    }

    /// Whether a handler has run since.
    #[must_use]
    pub fn has_fired(self) -> bool {
        handlers_run().0 != self.at.0
    }

    /// Whether a call that restarts after `SA_RESTART` handlers must end with `EINTR` nevertheless:
    /// a handler without `SA_RESTART` has run since. Where nobody interposes signals, any
    /// interruption ends the call.
    #[must_use]
    pub fn must_end(self) -> bool {
        !is_interposed() || handlers_run().1 != self.at.1
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
    fn what_a_handler_calls_is_inside_and_what_follows_a_jump_out_of_it_is_not() {
        assert!(!is_in_handler());
        let seen = deeper(|| {
            let handler = InHandler::begin();
            let seen = deeper(|| {
                let nested = InHandler::begin();
                let seen = deeper(is_in_handler);
                drop(nested);
                seen && deeper(is_in_handler)
            });
            // As if by longjmp.
            mem::forget(handler);
            seen
        });
        assert!(seen);
        assert!(!is_in_handler());
    }

    #[test]
    fn a_signal_put_off_is_delivered_once_when_the_outer_section_ends() {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        on_leave(|| {
            CALLS.fetch_add(1, Ordering::Relaxed);
        });
        let outer = Section::enter();
        let inner = Section::enter();
        assert!(is_inside());
        put_off();
        drop(inner);
        assert_eq!(CALLS.load(Ordering::Relaxed), 0);
        drop(outer);
        drop(Section::enter());
        assert_eq!((CALLS.load(Ordering::Relaxed), is_inside()), (1, false));
    }
}
