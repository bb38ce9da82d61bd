//! System calls that neither the standard library nor rustix wraps as we need them. Raw, so that
//! nothing here enters a libc symbol that the preload library exports.

use crate::interrupt::{self, Watch};
use rsock_verbs::raw;
use rustix::event::PollFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Size of the kernel's signal set, not libc's.
const KERNEL_SIGSET: usize = 8;

/// `ppoll(2)`: sleeps with `sigmask` in force, `None` as the timeout waits without end.
///
/// # Errors
/// As `ppoll(2)`.
pub(crate) fn ppoll(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> io::Result<usize> {
    let mut limit = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    let limit = limit.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let mask = sigmask.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array is valid for its length; `limit` and `mask` are null or point to live
    // values, and a libc signal set begins with the kernel's eight bytes.
    unsafe {
        raw::syscall!(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), limit, mask, KERNEL_SIGSET)
    }
}

/// The value of `cell`, which `make` makes if there is none. Unlike `OnceLock::get_or_init` it runs `make` outside of the
/// cell's lock, so that a child that is forked meanwhile does not wait for it for ever; of two values that are made at the
/// same time one is dropped.
pub(crate) fn get_or_make<T>(cell: &OnceLock<T>, make: impl FnOnce() -> T) -> &T {
    match cell.get() {
        Some(value) => value,
        None => {
            let made = make();
            cell.get_or_init(|| made)
        }
    }
}

/// Whether the next byte in the kernel's receive queue is an urgent one (`SIOCATMARK`).
pub(crate) fn is_at_mark(fd: BorrowedFd<'_>) -> bool {
    let mut is_at_mark: libc::c_int = 0;
    // SAFETY: the request writes one int, to a live one.
    let asked = unsafe {
        raw::syscall!(libc::SYS_ioctl, fd.as_raw_fd(), raw::SIOCATMARK, &raw mut is_at_mark)
    };
    asked.is_ok() && is_at_mark != 0
}

/// Has an epoll set watch `fd` for input, level-triggered.
///
/// # Errors
/// As `epoll_ctl(2)`.
pub(crate) fn epoll_add(set: BorrowedFd<'_>, fd: RawFd) -> io::Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 0 };
    let (set, event) = (set.as_raw_fd(), &raw mut event);
    // SAFETY: `event` is a live event, which the kernel reads; a number that is no descriptor is
    // an error.
    unsafe { raw::syscall!(libc::SYS_epoll_ctl, set, libc::EPOLL_CTL_ADD, fd, event) }.map(|_| ())
}

/// `events` as `poll(2)` takes them. Their type is rustix's own, and another one under Miri.
pub(crate) fn poll_bits(events: PollFlags) -> i16 {
    events.bits() as i16
}

/// What `poll(2)` answered.
pub(crate) fn poll_flags(bits: i16) -> PollFlags {
    PollFlags::from_bits_retain(bits as _)
}

/// As [`ppoll`], for a caller that must not miss a handler that runs just before it falls asleep:
/// with interposed signals they are blocked, `watch` is checked, and the sleep lets them in.
///
/// # Errors
/// As `ppoll(2)`; `EINTR` if a handler has run since `watch` was taken.
pub(crate) fn sleep(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
    watch: Watch,
) -> io::Result<usize> {
    if !interrupt::is_interposed() {
        return ppoll(fds, timeout, sigmask);
    }
    let old = block_signals()?;
    let result = if watch.has_fired() {
        Err(io::Error::from_raw_os_error(libc::EINTR))
    } else {
        match sigmask {
            Some(_) => ppoll(fds, timeout, sigmask),
            None => ppoll(fds, timeout, Some(&widen(old))),
        }
    };
    restore_signals(old);
    result
}

/// Resets a TCP connection: the peer hears of it at once, and the descriptor stays open.
pub(crate) fn disconnect(fd: BorrowedFd<'_>) {
    // `AF_UNSPEC` is 0, and so is the rest.
    let nowhere = [0u16; 8];
    let len = size_of_val(&nowhere);
    // SAFETY: a live address of that length. It fails where there is nothing to reset.
    let _ = unsafe { raw::syscall!(libc::SYS_connect, fd.as_raw_fd(), nowhere.as_ptr(), len) };
}

/// A kernel signal set as libc's, which begins with it.
fn widen(kernel: u64) -> libc::sigset_t {
    // SAFETY: a signal set is plain words, and all zeros is the empty one.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `sigset_t` is larger than eight bytes and aligned for words.
    unsafe { (&raw mut set).cast::<u64>().write(kernel) };
    set
}

fn sigprocmask(how: i32, new: Option<&mut u64>, old: Option<&mut u64>) -> io::Result<()> {
    let new = new.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let old = old.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: both pointers are null or point to eight live bytes, the size given.
    unsafe { raw::syscall!(libc::SYS_rt_sigprocmask, how, new, old, KERNEL_SIGSET) }.map(|_| ())
}

/// Blocks every signal; returns what was blocked before, for [`restore_signals`].
///
/// # Errors
/// As `sigprocmask(2)`.
pub(crate) fn block_signals() -> io::Result<u64> {
    let mut all = u64::MAX;
    let mut old = 0;
    sigprocmask(libc::SIG_SETMASK, Some(&mut all), Some(&mut old))?;
    Ok(old)
}

/// Blocks these signals and no others.
pub(crate) fn restore_signals(mut blocked: u64) {
    // Cannot fail: the pointer and the size are right.
    let _ = sigprocmask(libc::SIG_SETMASK, Some(&mut blocked), None);
}

/// Runs `f` while this process may have a few more descriptors than its limit says, if the hard limit
/// allows: for what has to be made where a program has used up its own.
pub(crate) fn with_spare_descriptors<R>(f: impl FnOnce() -> R) -> R {
    const SPARE: u64 = 8;
    let limit = getrlimit(Resource::Nofile);
    let more = Rlimit { current: limit.current.map(|n| n + SPARE), maximum: limit.maximum };
    let is_raised = setrlimit(Resource::Nofile, more).is_ok();
    let result = f();
    if is_raised {
        let _ = setrlimit(Resource::Nofile, limit);
    }
    result
}

/// How often this process has forked since the first call. For those who must know that a
/// descriptor has other owners now.
pub(crate) fn forks() -> u32 {
    static FORKS: AtomicU32 = AtomicU32::new(0);
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    extern "C" fn in_parent() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // Twice where two threads meet here, which counts as well. No thread waits for another one: a
    // forked child may not have that.
    if !IS_REGISTERED.load(Ordering::Relaxed) {
        // SAFETY: the handler does nothing but add to an atomic, and stays mapped as long as this
        // library, which is never unloaded while it has sockets.
        unsafe { libc::pthread_atfork(None, Some(in_parent), None) };
        IS_REGISTERED.store(true, Ordering::Relaxed);
    }
    FORKS.load(Ordering::Relaxed)
}

/// Time left until `deadline`; `None` for no deadline.
pub(crate) fn time_left(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|d| d.saturating_duration_since(now()))
}

/// The monotonic clock. The one place outside the engine that reads it.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Milliseconds, wrapping, as the kernel last wrote them down: advances every 1 to 10 ms. For
/// what is to be done now and then on a path that has no time for a real clock.
#[inline]
pub(crate) fn tick() -> u32 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it wraps")]
    let (secs, ms) = (t.tv_sec as u32, (t.tv_nsec / 1_000_000) as u32);
    secs.wrapping_mul(1000).wrapping_add(ms)
}

/// `setsockopt(2)`, of any option.
///
/// # Errors
/// As `setsockopt(2)`.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &[u8],
) -> io::Result<()> {
    // SAFETY: the value is readable for its length during the call.
    unsafe {
        raw::syscall!(
            libc::SYS_setsockopt,
            fd.as_raw_fd(),
            level,
            name,
            value.as_ptr(),
            libc::socklen_t::try_from(value.len()).unwrap_or(libc::socklen_t::MAX),
        )
    }
    .map(|_| ())
}

/// Bytes that must be there before a socket counts as readable (`SO_RCVLOWAT`). Allocates nothing.
#[must_use]
pub(crate) fn low_water(fd: BorrowedFd<'_>) -> Option<usize> {
    let mut value: libc::c_int = 0;
    let mut len = libc::socklen_t::try_from(size_of_val(&value)).ok()?;
    // SAFETY: the request writes at most `len` bytes to an int, and both outlive the call.
    let asked = unsafe {
        raw::syscall!(
            libc::SYS_getsockopt,
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            &raw mut value,
            &raw mut len,
        )
    };
    asked.ok().map(|_| usize::try_from(value).unwrap_or(1))
}

/// Packets that a UDP socket has dropped because they found no room; 0 where the kernel does not tell (before 4.12).
#[must_use]
pub fn n_dropped(fd: BorrowedFd<'_>) -> u64 {
    const AT: usize = libc::SK_MEMINFO_DROPS as usize * 4;
    let info = option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, MAX_OPTION).unwrap_or_default();
    let word = info.get(AT..AT + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_ne_bytes).into()
}

/// Bytes of a socket's receive buffer as the kernel counts them, which is twice what was asked for; 0 if it
/// does not say.
pub(crate) fn receive_buffer(fd: BorrowedFd<'_>) -> usize {
    rustix::net::sockopt::socket_recv_buffer_size(fd).unwrap_or(0)
}

/// `getsockopt(2)`, of any option: at most `room` bytes.
///
/// # Errors
/// As `getsockopt(2)`.
pub(crate) fn option(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    room: usize,
) -> io::Result<Vec<u8>> {
    let mut value = vec![0u8; room.min(MAX_OPTION)];
    let mut len = libc::socklen_t::try_from(value.len()).unwrap_or(0);
    // SAFETY: the value has room for `len` bytes, and both outlive the call.
    unsafe {
        raw::syscall!(
            libc::SYS_getsockopt,
            fd.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr(),
            &raw mut len,
        )
    }?;
    value.truncate(usize::try_from(len).unwrap_or(0));
    Ok(value)
}

/// Longest value of an option, in bytes.
const MAX_OPTION: usize = 4096;

/// Whether the descriptor table is more than half full, as far as the number of `fd` tells: then
/// what is left is the program's.
pub(crate) fn is_crowded(fd: BorrowedFd<'_>) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    u64::try_from(fd.as_raw_fd()).is_ok_and(|n| n >= limit / 2)
}

/// Closes by a raw system call: dropping an `OwnedFd` goes through libc's `close`.
pub(crate) fn close(fd: OwnedFd) {
    // SAFETY: the descriptor is owned, and given up here.
    unsafe { rustix::io::close(fd.into_raw_fd()) };
}
