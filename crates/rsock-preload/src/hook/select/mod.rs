//! `select` and `pselect`, as `poll` with bits.

mod sets;

use super::alias;
use super::epoll_wait::timespec_of;
use super::poll::duration;
use crate::fdtable::datagrams;
use crate::{cancel, next};
use libc::{c_int, fd_set, sigset_t, timespec, timeval};
use sets::{AskedBefore, Wanted};
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

/// As `select(2)`.
///
/// # Safety
/// As `select(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn select(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: sets of at least `n` bits, by the promise of a caller of `select`.
    let wanted = unsafe { Wanted::of_streams(n, [read, write, except]) };
    // SAFETY: the sets that `wanted` was made of.
    let is_counted = wanted.as_ref().is_some_and(|wanted| unsafe { wanted.begin_kernel_poll() });
    let result = loop {
        // SAFETY: null or valid by the caller's promise.
        let given = unsafe { timeout.as_ref() };
        let limit = given.map_or(Some(None), |given| span(given).map(Some));
        if let (Some(wanted), Some(limit)) = (&wanted, limit) {
            let began = Instant::now();
            // SAFETY: the sets that `wanted` was made of.
            if let Some(result) = cancel::without_cancel(|| unsafe { wanted.wait(limit, None) }) {
                if let Some(limit) = limit {
                    let left = limit.saturating_sub(began.elapsed());
                    // SAFETY: not null, since there is a limit, and valid by the caller's promise.
                    unsafe {
                        *timeout = timeval {
                            tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
                            tv_usec: left.subsec_micros().into(),
                        }
                    };
                }
                break result;
            }
        }
        // SAFETY: as above.
        let asked = wanted.as_ref().and_then(|wanted| unsafe { wanted.of_event_sets() });
        // A thread that is cancelled in the kernel leaves this frame as it is.
        let asked = ManuallyDrop::new(asked);
        // SAFETY: arguments passed on unchanged; the kernel has them wait for the time that is left
        // when they are passed again.
        let result = unsafe { next::select(n, read, write, except, timeout) };
        // SAFETY: as above.
        let is_again = |asked: AskedBefore<'_>| result > 0 && unsafe { asked.begin_again() };
        if !ManuallyDrop::into_inner(asked).is_some_and(is_again) {
            break result;
        }
    };
    datagrams::end_kernel_poll(is_counted);
    result
}

/// As `pselect(2)`.
///
/// # Safety
/// As `pselect(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn pselect(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: sets of at least `n` bits, by the promise of a caller of `pselect`.
    let wanted = unsafe { Wanted::of_streams(n, [read, write, except]) };
    // SAFETY: the sets that `wanted` was made of.
    let is_counted = wanted.as_ref().is_some_and(|wanted| unsafe { wanted.begin_kernel_poll() });
    // SAFETY: null or valid by the caller's promise.
    let limit = unsafe { duration(timeout) };
    let began = wanted.as_ref().map(|_| Instant::now());
    let mut left = limit;
    let mut rest;
    let mut timeout = timeout;
    let result = loop {
        if let (Some(wanted), Ok(left)) = (&wanted, left) {
            // SAFETY: null or valid by the caller's promise.
            let mask = unsafe { mask.as_ref() };
            // SAFETY: the sets that `wanted` was made of.
            if let Some(result) = cancel::without_cancel(|| unsafe { wanted.wait(left, mask) }) {
                break result;
            }
        }
        // SAFETY: as above.
        let asked = wanted.as_ref().and_then(|wanted| unsafe { wanted.of_event_sets() });
        // A thread that is cancelled in the kernel leaves this frame as it is.
        let asked = ManuallyDrop::new(asked);
        // SAFETY: arguments passed on unchanged, or with the time that is left.
        let result = unsafe { next::pselect(n, read, write, except, timeout, mask) };
        // SAFETY: as above.
        let is_again = |asked: AskedBefore<'_>| result > 0 && unsafe { asked.begin_again() };
        if !ManuallyDrop::into_inner(asked).is_some_and(is_again) {
            break result;
        }
        if let (Ok(Some(limit)), Some(began)) = (limit, began) {
            let time = limit.saturating_sub(began.elapsed());
            left = Ok(Some(time));
            rest = timespec_of(time);
            timeout = &raw const rest;
        }
    };
    datagrams::end_kernel_poll(is_counted);
    result
}

alias! {
    __select = select(n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval) -> c_int;
}

/// `None` if the kernel would refuse the time.
fn span(t: &timeval) -> Option<Duration> {
    let secs = u64::try_from(t.tv_sec).ok()?;
    let micros = u64::try_from(t.tv_usec).ok()?;
    Duration::from_secs(secs).checked_add(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_many_microseconds_is_taken_as_the_kernel_takes_it() {
        let t = timeval { tv_sec: 1, tv_usec: 2_500_000 };
        assert_eq!(span(&t), Some(Duration::from_millis(3500)));
        assert_eq!(span(&timeval { tv_sec: -1, tv_usec: 0 }), None);
    }
}
