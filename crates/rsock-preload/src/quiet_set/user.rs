//! The thread that uses a quiet set, during one call of `poll`.

use super::members::{Members, Place};
use super::{ALL, N_FORKS, QuietSet, SETS};
use crate::rows::{self, Row};
use crate::slot::Handle;
use crate::{tcp_only, watched};
use libc::c_int;
use rsock_core::accelerate::{Changed, PolledSet, StreamRef, spin_until};
use rsock_core::interrupt::{Section, is_in_handler};
use rustix::fd::RawFd;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

thread_local! {
    /// The set that this thread used last, whose members are the streams that it polls.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// The use of a set by one thread.
pub(crate) struct User {
    at: usize,
    set: &'static QuietSet,
    fd: RawFd,
    /// The thread has left an earlier use by `longjmp`.
    is_again: bool,
}

/// Begins to use a set, where `stream_of` finds the stream of a descriptor. `None` if all are in
/// use, if descriptors have run out, in a signal handler, or if the process may not make the system
/// calls that a set needs.
pub(crate) fn begin_use(stream_of: impl Fn(c_int) -> Option<Handle>) -> Option<User> {
    if tcp_only::is_sandboxed() || is_in_handler() {
        return None;
    }
    // An address that no other thread has: that of an ended thread is free to be used again.
    let (last, thread) = LAST.with(|last| (last.get(), std::ptr::from_ref(last).addr()));
    let is_again = ALL[last].user.load(Ordering::Relaxed) == thread;
    let is_taken = |&at: &usize| {
        // SYNC(quiet-set): Acquire takes what the last user has done.
        let (taken, not) = (Ordering::AcqRel, Ordering::Relaxed);
        ALL[at].user.compare_exchange(0, thread, taken, not).is_ok()
    };
    let at = if is_again { last } else { (0..SETS).map(|i| (last + i) % SETS).find(is_taken)? };
    LAST.set(at);
    let mut user = User { at, set: &ALL[at], fd: -1, is_again };
    let _section = Section::enter();
    let mut members = user.set.lock();
    if members.is_none() {
        *members = Members::new(at);
    }
    let made = members.as_mut()?;
    if user.set.has_unreaped.swap(false, Ordering::AcqRel) {
        made.reap(stream_of);
    }
    user.fd = made.fd();
    drop(members);
    Some(user)
}

impl Drop for User {
    fn drop(&mut self) {
        if self.is_again {
            // Or it has not left it: a signal handler of which this library does not know polls.
            self.with(|members| self.set.wake_user(members));
        }
        // SYNC(quiet-set): see `begin_use`.
        self.set.user.store(0, Ordering::Release);
    }
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("at", &self.at).finish_non_exhaustive()
    }
}

impl User {
    /// The descriptor to sleep on, as an entry of a [`PolledSet`].
    pub(crate) fn fd(&self) -> RawFd {
        self.fd
    }

    fn with<R>(&self, f: impl FnOnce(&mut Members) -> R) -> Option<R> {
        let _section = Section::enter();
        self.set.lock().as_mut().map(f)
    }

    /// Takes what has happened to streams: those are no longer quiet.
    pub(crate) fn take(&self) {
        self.set.has_lost_any.store(false, Ordering::Release);
        self.with(|members| {
            members.take_socket_events();
            members.take();
        });
    }

    /// Whether a look at the stream of `fd` would find nothing.
    #[inline]
    pub(crate) fn is_quiet(&self, fd: c_int) -> bool {
        let Some(row) = rows::row(fd) else { return false };
        let word = row.quiet.load(Ordering::Relaxed);
        word != 0 && word == row.socket.load(Ordering::Acquire) && self.is_at_home(row)
    }

    fn is_at_home(&self, row: &Row) -> bool {
        let place = Place::of(row.quiet_place.load(Ordering::Relaxed));
        place.is_some_and(|place| place.set() == self.at)
    }

    /// Notes that a look at the stream of `fd` for input, with the kernel, has found nothing, where
    /// `word` is its word in the descriptor table. Returns whether it is passed over from now on. A
    /// stream that is not a member yet becomes one if `may_join`; returns false, then.
    pub(crate) fn note_nothing(
        &self,
        handle: &Handle,
        fd: c_int,
        word: u64,
        may_join: &mut usize,
    ) -> bool {
        let (StreamRef::Accelerated(stream), Some(row)) = (handle.stream(), rows::row(fd)) else {
            return false;
        };
        let place = Place::of(row.quiet_place.load(Ordering::Relaxed));
        if place.is_some_and(|place| place.set() != self.at) {
            return false;
        }
        if stream.is_plain() {
            // The kernel alone serves it from now on.
            super::leave(handle, fd);
            return false;
        }
        // Under the lock, so that the stream does not leave meanwhile.
        let is_quiet = self.with(|members| {
            let place = Place::of(row.quiet_place.load(Ordering::Relaxed))?;
            let is_quiet = members.has(fd, place, handle.key()).then(|| stream.stay_quiet())?;
            row.quiet.store(if is_quiet { word } else { 0 }, Ordering::Release);
            Some(is_quiet)
        });
        if let Some(is_quiet) = is_quiet.flatten() {
            return is_quiet;
        }
        if *may_join != 0 && self.join(handle, fd, word) {
            *may_join -= 1;
        }
        false
    }

    /// Has the set watch a stream.
    fn join(&self, handle: &Handle, fd: c_int, word: u64) -> bool {
        let StreamRef::Accelerated(stream) = handle.stream() else { return false };
        let is_possible = watched::membership(fd) == watched::Membership::None
            && stream.has_local_path()
            && !handle.has_other_descriptors();
        if !is_possible || handle.is_same_socket() != Some(true) {
            return false;
        }
        let key = handle.key();
        let has_joined = self
            .with(|members| N_FORKS.load(Ordering::SeqCst) == 0 && members.add(fd, key, stream));
        if has_joined != Some(true) {
            return false;
        }
        // SYNC(quiet-set): see `leave`.
        let is_open = rows::row(fd).is_some_and(|row| row.socket.load(Ordering::SeqCst) == word);
        if !is_open || handle.has_other_descriptors() {
            super::leave(handle, fd);
        }
        is_open
    }

    /// Whether something has happened since [`Self::take`].
    pub(crate) fn has_any(&self) -> bool {
        self.has_lost_any() || self.with(|members| members.has_any()) == Some(true)
    }

    fn has_lost_any(&self) -> bool {
        self.set.has_lost_any.load(Ordering::Acquire)
    }

    /// Spins as long as that has paid off lately. Returns whether something has happened.
    pub(crate) fn spin(&self) -> bool {
        let Some((own_fds, n)) = self.with(|m| (m.own_fds().clone(), m.len())) else {
            return false;
        };
        let ready = &own_fds.ready;
        n != 0 && spin_until(n, || ready.is_peer_elsewhere(), || ready.has_any())
    }
}

impl PolledSet for User {
    fn is_ready(&self) -> bool {
        let has_any = self.with(|members| {
            members.take_own_events();
            members.has_any()
        });
        has_any == Some(true) || self.has_lost_any()
    }

    fn arm(&self) -> Result<Option<Duration>, Changed> {
        let is_armed = self.with(|members| {
            members.own_fds().add_pipe_if_busy(members.fd());
            !members.has_any() && members.own_fds().ready.arm()
        });
        match is_armed {
            Some(true) if !self.has_lost_any() => Ok(None),
            Some(_) => Err(Changed),
            // In a child that a signal handler has forked during the call.
            None => Ok(Some(Duration::ZERO)),
        }
    }
}
