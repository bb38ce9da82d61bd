//! `syscall(2)`: system calls by their numbers.
//!
//! A call that concerns a stream means what libc's function of that name means, with the kernel's idea of its
//! arguments: signal sets have eight bytes and come with their size, and times that are left are written back.
//! Anything else goes to libc's `syscall` as if this hook had never been there, with all its arguments and on
//! the caller's own stack: a `clone` must not return into a frame of ours.

use super::detour::detour;
use super::{epoll, epoll_wait, exec, fd, io, message, poll, process, select, socket, splice};
use crate::cancel::Shield;
use crate::{errno, fdtable, guard, log, next, tcp_only};
use libc::{c_int, c_long, c_uint, c_ulong, c_void, sigset_t, timespec};
use rsock_core::accelerate::FallbackReason;
use rsock_verbs::{own_fd, raw};
use rustix::fd::BorrowedFd;
use rustix::time::{ClockId, clock_gettime};
use std::ptr;

/// As `syscall(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub(crate) extern "C" fn syscall() {
    detour!(before_syscall)
}

/// Where a `syscall` with these first arguments goes on.
extern "C" fn before_syscall(number: c_long, first: usize) -> *mut c_void {
    if !guard::is_inside() && concerns_us(number, int(first)) {
        answer as *mut c_void
    } else {
        next::address::syscall()
    }
}

/// Whether the call may be about a stream, or change what the descriptor table says. `fd` is its first argument.
fn concerns_us(number: c_long, fd: c_int) -> bool {
    match number {
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_sendto
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_sendfile
        | libc::SYS_shutdown
        | libc::SYS_getsockname
        | libc::SYS_getpeername
        | libc::SYS_getsockopt
        | libc::SYS_setsockopt
        | libc::SYS_ioctl
        | libc::SYS_fcntl
        | libc::SYS_dup => fdtable::is_known(fd),
        libc::SYS_close => fdtable::is_known(fd) || own_fd::is_own(fd),
        libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_splice
        | libc::SYS_socket
        | libc::SYS_bind
        | libc::SYS_listen
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_connect
        | libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_epoll_ctl
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2
        | libc::SYS_dup3
        | libc::SYS_close_range
        | libc::SYS_pidfd_getfd
        | libc::SYS_io_uring_setup
        | libc::SYS_prctl
        | libc::SYS_seccomp
        | libc::SYS_execve
        | libc::SYS_execveat => true,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll | libc::SYS_select | libc::SYS_epoll_wait | libc::SYS_dup2 => true,
        _ => false,
    }
}

/// Makes the call.
///
/// # Safety
/// As `syscall(2)`. `syscall` jumps here with its own arguments: on x86-64 and aarch64 a function of C with a
/// variable number of integers and pointers finds them where one of seven words does. Those that the caller did
/// not pass have arbitrary values, and no call looks at more than it takes. The seventh lies on the caller's
/// stack on x86-64, above the return address, which libc's own `syscall` reads too.
unsafe extern "C-unwind" fn answer(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // `syscall` is no cancellation point, unlike most functions of libc.
    let shield = Shield::raise();
    // SAFETY: the caller's promise.
    let result = unsafe { dispatch(number, [a, b, c, d, e, f]) };
    shield.lower();
    result
}

/// # Safety
/// As `syscall(2)`.
unsafe fn dispatch(number: c_long, all: [usize; 6]) -> c_long {
    let [a, b, c, d, e, f] = all;
    // What follows calls the hook of the same name with the same arguments: the promise of the caller of
    // `syscall` is that of the caller of the function.
    macro_rules! hook {
        ($call:expr) => {
            // SAFETY: the caller's promise.
            c_long::from(unsafe { $call })
        };
    }
    macro_rules! hook_len {
        ($call:expr) => {
            // SAFETY: the caller's promise.
            unsafe { $call as c_long }
        };
    }
    match number {
        libc::SYS_read => hook_len!(io::read(int(a), at(b), c)),
        libc::SYS_write => hook_len!(io::write(int(a), at(b), c)),
        libc::SYS_readv => hook_len!(io::readv(int(a), at(b), int(c))),
        libc::SYS_writev => hook_len!(io::writev(int(a), at(b), int(c))),
        // The kernel takes the offset in two halves, of which the first holds all of it.
        libc::SYS_preadv2 => hook_len!(io::preadv2(int(a), at(b), int(c), offset(d), int(f))),
        libc::SYS_pwritev2 => hook_len!(io::pwritev2(int(a), at(b), int(c), offset(d), int(f))),
        libc::SYS_sendto => hook_len!(io::sendto(int(a), at(b), c, int(d), at(e), uint(f))),
        libc::SYS_recvfrom => hook_len!(io::recvfrom(int(a), at(b), c, int(d), at(e), at(f))),
        libc::SYS_sendmsg => hook_len!(message::sendmsg(int(a), at(b), int(c))),
        libc::SYS_recvmsg => hook_len!(message::recvmsg(int(a), at(b), int(c))),
        libc::SYS_sendmmsg => hook!(message::sendmmsg(int(a), at(b), uint(c), int(d))),
        libc::SYS_recvmmsg => hook!(message::recvmmsg(int(a), at(b), uint(c), int(d), at(e))),
        libc::SYS_sendfile => hook_len!(splice::sendfile(int(a), int(b), at(c), d)),
        libc::SYS_splice => hook_len!(splice::splice(int(a), at(b), int(c), at(d), e, uint(f))),
        libc::SYS_socket => hook!(socket::socket(int(a), int(b), int(c))),
        libc::SYS_bind => hook!(socket::bind(int(a), at(b), uint(c))),
        libc::SYS_listen => hook!(socket::listen(int(a), int(b))),
        libc::SYS_accept => hook!(socket::accept(int(a), at(b), at(c))),
        libc::SYS_accept4 => hook!(socket::accept4(int(a), at(b), at(c), int(d))),
        libc::SYS_connect => hook!(socket::connect(int(a), at(b), uint(c))),
        libc::SYS_shutdown => hook!(socket::shutdown(int(a), int(b))),
        libc::SYS_getsockname => hook!(socket::getsockname(int(a), at(b), at(c))),
        libc::SYS_getpeername => hook!(socket::getpeername(int(a), at(b), at(c))),
        libc::SYS_getsockopt => hook!(socket::getsockopt(int(a), int(b), int(c), at(d), at(e))),
        libc::SYS_setsockopt => hook!(socket::setsockopt(int(a), int(b), int(c), at(d), uint(e))),
        libc::SYS_ioctl => hook!(fd::ioctl(int(a), b as c_ulong, at(c))),
        libc::SYS_close => hook!(fd::close(int(a))),
        libc::SYS_close_range => hook!(fd::close_range(uint(a), uint(b), int(c))),
        libc::SYS_dup => hook!(fd::dup(int(a))),
        libc::SYS_dup3 => hook!(fd::dup3(int(a), int(b), int(c))),
        libc::SYS_fcntl => {
            // libc's `fcntl` answers some commands otherwise than the kernel.
            // SAFETY: the caller's promise.
            let kernel = || int_of(unsafe { kernel(number, all) });
            c_long::from(fd::fcntl_by(int(a), int(b), at(c), kernel))
        }
        libc::SYS_epoll_ctl => hook!(epoll::epoll_ctl(int(a), int(b), int(c), at(d))),
        // SAFETY: the caller's promise.
        libc::SYS_ppoll => unsafe { ppoll(all) },
        // SAFETY: the caller's promise.
        libc::SYS_pselect6 => unsafe { pselect6(all) },
        // SAFETY: the caller's promise.
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => unsafe { epoll_pwait(number, all) },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => hook!(poll::poll(at(a), b as libc::nfds_t, int(c))),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => hook!(select::select(int(a), at(b), at(c), at(d), at(e))),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => hook!(epoll_wait::epoll_wait(int(a), at(b), int(c), int(d))),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => hook!(fd::dup2(int(a), int(b))),
        libc::SYS_execve => hook!(exec::execve(at(a), at(b), at(c))),
        libc::SYS_execveat => hook!(exec::execveat(int(a), at(b), at(c), at(d), int(e))),
        libc::SYS_prctl if !process::restricts_by_prctl(int(a), b as c_ulong, c as c_ulong) => {
            // SAFETY: the caller's promise.
            unsafe { kernel(number, all) }
        }
        libc::SYS_seccomp if !process::restricts_by_seccomp(a as c_ulong, c as c_ulong) => {
            // SAFETY: the caller's promise.
            unsafe { kernel(number, all) }
        }
        libc::SYS_prctl | libc::SYS_seccomp => match tcp_only::before_sandbox() {
            // SAFETY: the caller's promise.
            Ok(()) => unsafe { kernel(number, all) },
            Err(e) => c_long::from(errno::fail_int(e)),
        },
        libc::SYS_pidfd_getfd => {
            // SAFETY: the caller's promise.
            let new = unsafe { kernel(number, all) };
            note_fetched(int_of(new));
            new
        }
        // SAFETY: the caller's promise.
        libc::SYS_io_uring_setup => unsafe { io_uring_setup(all) },
        // SAFETY: the caller's promise.
        _ => unsafe { kernel(number, all) },
    }
}

/// The kernel's answer, as `syscall` gives it.
///
/// # Safety
/// As the system call.
unsafe fn kernel(number: c_long, all: [usize; 6]) -> c_long {
    // SAFETY: the caller's promise.
    match unsafe { raw::call(number, all) } {
        Ok(result) => result as c_long,
        Err(e) => c_long::from(errno::fail_int(errno::of(&e))),
    }
}

/// Makes an io_uring; the process stays on TCP from then on.
///
/// # Safety
/// As `io_uring_setup(2)`.
unsafe fn io_uring_setup(all: [usize; 6]) -> c_long {
    // SAFETY: the caller's promise.
    let ring = unsafe { kernel(libc::SYS_io_uring_setup, all) };
    if ring < 0 {
        return ring;
    }
    // The program does not know of it yet, so nothing is read or written by it.
    log::line(format_args!("an io_uring, fd {ring}: everything stays on TCP"));
    if let Err(e) = tcp_only::begin(FallbackReason::IoUring) {
        // SAFETY: made above, and known to no one.
        unsafe { rustix::io::close(int_of(ring)) };
        return c_long::from(errno::fail_int(e));
    }
    ring
}

/// `new` came out of another process, or out of this one: then it may be a name of a stream of ours.
fn note_fetched(new: c_int) {
    if new < 0 {
        return;
    }
    // SAFETY: not negative, and the program's own.
    let inode = |fd| rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).map(|s| s.st_ino);
    let Ok(wanted) = inode(new) else { return };
    let is_same = |&fd: &c_int| fd != new && inode(fd) == Ok(wanted);
    match fdtable::known(0, u32::MAX).find(is_same) {
        Some(old) => fdtable::note_duplicate(old, new),
        None => fdtable::note_made(new),
    }
}

/// # Safety
/// As `ppoll(2)`, of the kernel.
unsafe fn ppoll(all: [usize; 6]) -> c_long {
    let [fds, n, limit, mask, size, _] = all;
    // SAFETY: the caller's promise.
    let Some(mask) = (unsafe { Mask::of(at(mask), size) }) else {
        // SAFETY: the caller's promise; the kernel refuses the size.
        return unsafe { kernel(libc::SYS_ppoll, all) };
    };
    // SAFETY: the caller's promise.
    let timed = unsafe { Timed::begin(at(limit)) };
    // SAFETY: the caller's promise.
    let n = unsafe { poll::ppoll(at(fds), n as libc::nfds_t, timed.limit(), mask.get()) };
    // SAFETY: as above.
    unsafe { timed.put_back() };
    c_long::from(n)
}

/// # Safety
/// As `pselect(2)`, of the kernel.
unsafe fn pselect6(all: [usize; 6]) -> c_long {
    /// What the sixth argument points to.
    #[repr(C)]
    struct Given {
        mask: *const u64,
        size: usize,
    }
    let [n, read, write, except, limit, given] = all;
    let given: *const Given = at(given);
    // SAFETY: null or readable, by the caller's promise.
    let given = unsafe { given.as_ref() }.map_or((ptr::null(), 8), |g| (g.mask, g.size));
    // SAFETY: the caller's promise.
    let Some(mask) = (unsafe { Mask::of(given.0, given.1) }) else {
        // SAFETY: the caller's promise; the kernel refuses the size.
        return unsafe { kernel(libc::SYS_pselect6, all) };
    };
    // SAFETY: the caller's promise.
    let timed = unsafe { Timed::begin(at(limit)) };
    // SAFETY: the caller's promise.
    let n = unsafe {
        select::pselect(int(n), at(read), at(write), at(except), timed.limit(), mask.get())
    };
    // SAFETY: as above.
    unsafe { timed.put_back() };
    c_long::from(n)
}

/// # Safety
/// As `epoll_pwait(2)` or `epoll_pwait2(2)`, of the kernel.
unsafe fn epoll_pwait(number: c_long, all: [usize; 6]) -> c_long {
    let [set, events, n, limit, mask, size] = all;
    // SAFETY: the caller's promise.
    let Some(mask) = (unsafe { Mask::of(at(mask), size) }) else {
        // SAFETY: the caller's promise; the kernel refuses the size.
        return unsafe { kernel(number, all) };
    };
    let (set, events, n) = (int(set), at(events), int(n));
    let n = if number == libc::SYS_epoll_pwait {
        // SAFETY: the caller's promise.
        unsafe { epoll_wait::epoll_pwait(set, events, n, int(limit), mask.get()) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { epoll_wait::epoll_pwait2(set, events, n, at(limit), mask.get()) }
    };
    c_long::from(n)
}

/// The kernel's signal set as libc's.
struct Mask(Option<sigset_t>);

impl Mask {
    /// `None` if the kernel would refuse the size.
    ///
    /// # Safety
    /// `at` is null or a readable set of the kernel.
    unsafe fn of(at: *const u64, size: usize) -> Option<Self> {
        if at.is_null() {
            return Some(Self(None));
        }
        if size != size_of::<u64>() {
            return None;
        }
        // SAFETY: not null, so readable by the caller's promise.
        let bits = unsafe { at.read_unaligned() };
        // SAFETY: plain words, of which all zeroes is the empty set.
        let mut set: sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: libc's set is larger than the kernel's, and begins with it.
        unsafe { (&raw mut set).cast::<u64>().write_unaligned(bits) };
        Some(Self(Some(set)))
    }

    fn get(&self) -> *const sigset_t {
        self.0.as_ref().map_or(ptr::null(), ptr::from_ref)
    }
}

/// A time that the kernel, unlike libc's functions, counts down for the caller.
struct Timed {
    at: *mut timespec,
    given: Option<timespec>,
    began: rustix::time::Timespec,
}

impl Timed {
    /// # Safety
    /// `at` is null or readable.
    unsafe fn begin(at: *mut timespec) -> Self {
        // SAFETY: the caller's promise.
        let given = unsafe { at.as_ref() }.copied();
        Self { at, given, began: clock_gettime(ClockId::Monotonic) }
    }

    fn limit(&self) -> *const timespec {
        self.given.as_ref().map_or(ptr::null(), ptr::from_ref)
    }

    /// # Safety
    /// `at` of `begin` is null or writable.
    unsafe fn put_back(&self) {
        let Some(given) =
            self.given.filter(|t| t.tv_sec >= 0 && (0..1_000_000_000).contains(&t.tv_nsec))
        else {
            return;
        };
        const SECOND: i128 = 1_000_000_000;
        let nanos = |secs: i64, nanos: i64| i128::from(secs) * SECOND + i128::from(nanos);
        let now = clock_gettime(ClockId::Monotonic);
        let passed = nanos(now.tv_sec, now.tv_nsec) - nanos(self.began.tv_sec, self.began.tv_nsec);
        let left = (nanos(given.tv_sec, given.tv_nsec) - passed).max(0);
        let left = timespec {
            tv_sec: libc::time_t::try_from(left / SECOND).unwrap_or(libc::time_t::MAX),
            tv_nsec: (left % SECOND).try_into().unwrap_or(0),
        };
        // SAFETY: not null, since it was read; writable by the caller's promise.
        unsafe { self.at.write_unaligned(left) };
    }
}

#[expect(clippy::cast_possible_truncation, reason = "C passed an int in a wider register")]
fn int(word: usize) -> c_int {
    word as c_int
}

#[expect(clippy::cast_possible_truncation, reason = "C passed an int in a wider register")]
fn uint(word: usize) -> c_uint {
    word as c_uint
}

#[expect(clippy::cast_possible_truncation, reason = "a small result")]
fn int_of(result: c_long) -> c_int {
    result as c_int
}

fn offset(word: usize) -> libc::off_t {
    word.cast_signed() as libc::off_t
}

fn at<P: Pointer>(word: usize) -> P {
    P::at(word)
}

/// Either kind of pointer.
trait Pointer {
    fn at(word: usize) -> Self;
}

impl<T> Pointer for *const T {
    fn at(word: usize) -> Self {
        ptr::with_exposed_provenance(word)
    }
}

impl<T> Pointer for *mut T {
    fn at(word: usize) -> Self {
        ptr::with_exposed_provenance_mut(word)
    }
}
