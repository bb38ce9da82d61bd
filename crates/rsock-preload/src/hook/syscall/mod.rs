//! The hook of `syscall(2)`: system calls by their numbers.
//!
//! A call that concerns an entry of the table is made by the hook of that name, with the kernel's
//! form of the arguments: signal sets have eight bytes and come with their size, and remaining
//! times are written back. Any other call goes to libc's `syscall` with all its arguments and on
//! the caller's own stack: a `clone` must not return into a frame of this library.

mod action;
#[cfg(test)]
mod tables;
mod wait;
mod words;

use super::detour::detour;
#[cfg(target_arch = "x86_64")]
use super::epoll_wait;
use super::{
    accept, clone, close, connect, control, dup, epoll, exec, message, message_batch, native_aio,
    poll, read, seccomp, select, sendfile, socket, sockopt, splice, write,
};
use crate::cancel_state::SavedCancelState;
use crate::{arg, errno, event_set, fdtable, guard, log, next, process_handoff};
use action::rt_sigaction;
use libc::{c_int, c_long, c_ulong, c_void};
use rsock_core::accelerate::{FallbackReason, note_kernel_call};
use rsock_verbs::{own_fd, raw};
use wait::{epoll_pwait, ppoll, pselect6};
use words::{at, int, int_of, offset, uint};

/// As `syscall(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
#[unsafe(naked)]
pub(crate) extern "C" fn syscall() {
    detour!(before_syscall)
}

/// The address at which a `syscall` with these first arguments continues.
#[unsafe(link_section = "rsock_hooks")]
extern "C" fn before_syscall(number: c_long, first: usize, second: usize) -> *mut c_void {
    note_kernel_call();
    note_child(number, first, second);
    if !guard::is_in_core() && concerns_hook(number, int(first)) {
        answer as *mut c_void
    } else {
        next::address::syscall()
    }
}

/// Notes a call that makes a child, which may have a copy of this process's memory or run in it.
fn note_child(number: c_long, first: usize, second: usize) {
    /// The size of the arguments of the first version of `clone3`.
    const LEAST: usize = 64;
    let flags = match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => 0,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => libc::CLONE_VM | libc::CLONE_VFORK,
        libc::SYS_clone => int(first),
        libc::SYS_clone3 if second >= LEAST => {
            // SAFETY: memory of the program, or an address where there is none.
            match unsafe { arg::load(at::<*const usize>(first)) } {
                Ok(flags) => int(flags),
                // The kernel's call fails.
                Err(_) => return,
            }
        }
        _ => return,
    };
    clone::before_child(flags);
}

/// Whether the call may concern a stream, or change the descriptor table. `fd` is its first
/// argument.
fn concerns_hook(number: c_long, fd: c_int) -> bool {
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
        | libc::SYS_shutdown
        | libc::SYS_getsockname
        | libc::SYS_getpeername
        | libc::SYS_getsockopt
        | libc::SYS_setsockopt
        | libc::SYS_ioctl
        | libc::SYS_fcntl
        | libc::SYS_dup => fdtable::is_known(fd) || event_set::find(fd).is_some(),
        libc::SYS_close => {
            fdtable::is_known(fd) || own_fd::is_own(fd) || event_set::find(fd).is_some()
        }
        libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_splice
        | libc::SYS_sendfile
        | libc::SYS_socket
        | libc::SYS_socketpair
        | libc::SYS_bind
        | libc::SYS_listen
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_connect
        | libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_epoll_create1
        | libc::SYS_epoll_ctl
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2
        | libc::SYS_dup3
        | libc::SYS_close_range
        | libc::SYS_pidfd_getfd
        | libc::SYS_io_submit
        | libc::SYS_io_uring_setup
        | libc::SYS_rt_sigaction
        | libc::SYS_prctl
        | libc::SYS_seccomp
        | libc::SYS_execve
        | libc::SYS_execveat => true,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll
        | libc::SYS_select
        | libc::SYS_epoll_create
        | libc::SYS_epoll_wait
        | libc::SYS_dup2 => true,
        _ => false,
    }
}

/// Makes the call.
///
/// As `syscall(2)`. `syscall` jumps here with its own arguments: on x86-64 and aarch64 a C function
/// with a variable number of integers and pointers finds them where one of seven words does. Those
/// that the caller did not pass have arbitrary values, and no call looks at more than it takes. The
/// seventh lies on the caller's stack on x86-64, above the return address, where libc's own
/// `syscall` reads it too.
unsafe extern "C-unwind" fn answer(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // `syscall` is not a cancellation point, unlike most functions of libc.
    let cancel_state = SavedCancelState::disable();
    // SAFETY: the caller's promise.
    let result = unsafe { dispatch(number, [a, b, c, d, e, f]) };
    cancel_state.restore();
    result
}

/// # Safety
/// As `syscall(2)`.
unsafe fn dispatch(number: c_long, all: [usize; 6]) -> c_long {
    let [a, b, c, d, e, f] = all;
    // The expressions below call the hook of the same name with the same arguments: the promise of
    // the caller of `syscall` is that of the caller of the function.
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
        libc::SYS_read => hook_len!(read::read(int(a), at(b), c)),
        libc::SYS_write => hook_len!(write::write(int(a), at(b), c)),
        libc::SYS_readv => hook_len!(read::readv(int(a), at(b), int(c))),
        libc::SYS_writev => hook_len!(write::writev(int(a), at(b), int(c))),
        // The kernel takes the offset in two halves, of which the first holds all of it.
        libc::SYS_preadv2 => hook_len!(read::preadv2(int(a), at(b), int(c), offset(d), int(f))),
        libc::SYS_pwritev2 => hook_len!(write::pwritev2(int(a), at(b), int(c), offset(d), int(f))),
        libc::SYS_sendto => hook_len!(write::sendto(int(a), at(b), c, int(d), at(e), uint(f))),
        libc::SYS_recvfrom => hook_len!(read::recvfrom(int(a), at(b), c, int(d), at(e), at(f))),
        libc::SYS_sendmsg => hook_len!(message::sendmsg(int(a), at(b), int(c))),
        libc::SYS_recvmsg => hook_len!(message::recvmsg(int(a), at(b), int(c))),
        libc::SYS_sendmmsg => hook!(message_batch::sendmmsg(int(a), at(b), uint(c), int(d))),
        libc::SYS_recvmmsg => hook!(message_batch::recvmmsg(int(a), at(b), uint(c), int(d), at(e))),
        libc::SYS_sendfile => hook_len!(sendfile::sendfile(int(a), int(b), at(c), d)),
        libc::SYS_splice => hook_len!(splice::splice(int(a), at(b), int(c), at(d), e, uint(f))),
        libc::SYS_socket => hook!(socket::socket(int(a), int(b), int(c))),
        libc::SYS_socketpair => hook!(socket::socketpair(int(a), int(b), int(c), at(d))),
        libc::SYS_bind => hook!(socket::bind(int(a), at(b), uint(c))),
        libc::SYS_listen => hook!(socket::listen(int(a), int(b))),
        libc::SYS_accept => hook!(accept::accept(int(a), at(b), at(c))),
        libc::SYS_accept4 => hook!(accept::accept4(int(a), at(b), at(c), int(d))),
        libc::SYS_connect => hook!(connect::connect(int(a), at(b), uint(c))),
        libc::SYS_shutdown => hook!(socket::shutdown(int(a), int(b))),
        libc::SYS_getsockname => hook!(socket::getsockname(int(a), at(b), at(c))),
        libc::SYS_getpeername => hook!(socket::getpeername(int(a), at(b), at(c))),
        libc::SYS_getsockopt => hook!(sockopt::getsockopt(int(a), int(b), int(c), at(d), at(e))),
        libc::SYS_setsockopt => hook!(sockopt::setsockopt(int(a), int(b), int(c), at(d), uint(e))),
        libc::SYS_ioctl => hook!(control::ioctl(int(a), b as c_ulong, at(c))),
        libc::SYS_close => hook!(close::close(int(a))),
        libc::SYS_close_range => hook!(close::close_range(uint(a), uint(b), int(c))),
        libc::SYS_dup => hook!(dup::dup(int(a))),
        libc::SYS_dup3 => hook!(dup::dup3(int(a), int(b), int(c))),
        libc::SYS_fcntl => {
            // libc's `fcntl` returns other results than the kernel for some commands.
            // SAFETY: the caller's promise.
            let kernel = || int_of(unsafe { kernel(number, all) });
            c_long::from(control::fcntl_by(int(a), int(b), at(c), kernel))
        }
        libc::SYS_epoll_create1 => hook!(epoll::epoll_create1(int(a))),
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
        libc::SYS_epoll_create => hook!(epoll::epoll_create(int(a))),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => hook!(epoll_wait::epoll_wait(int(a), at(b), int(c), int(d))),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => hook!(dup::dup2(int(a), int(b))),
        // SAFETY: the caller's promise.
        libc::SYS_rt_sigaction => unsafe { rt_sigaction(all) },
        libc::SYS_execve => hook!(exec::execve(at(a), at(b), at(c))),
        libc::SYS_execveat => hook!(exec::execveat(int(a), at(b), at(c), at(d), int(e))),
        libc::SYS_prctl if !seccomp::restricts_by_prctl(int(a), b as c_ulong, c as c_ulong) => {
            // SAFETY: the caller's promise.
            unsafe { kernel(number, all) }
        }
        libc::SYS_seccomp if !seccomp::restricts_by_seccomp(a as c_ulong, c as c_ulong) => {
            // SAFETY: the caller's promise.
            unsafe { kernel(number, all) }
        }
        libc::SYS_prctl | libc::SYS_seccomp => match process_handoff::before_sandbox() {
            // SAFETY: the caller's promise.
            Ok(()) => unsafe { kernel(number, all) },
            Err(e) => c_long::from(errno::fail_int(e)),
        },
        libc::SYS_pidfd_getfd => {
            // SAFETY: the caller's promise.
            let new = unsafe { kernel(number, all) };
            dup::note_fetched(int_of(new));
            new
        }
        // SAFETY: the caller's promise.
        libc::SYS_io_submit => match unsafe { native_aio::before(b as c_long, at(c)) } {
            // SAFETY: the caller's promise.
            Ok(()) => unsafe { kernel(number, all) },
            Err(e) => c_long::from(errno::fail_int(e)),
        },
        // SAFETY: the caller's promise.
        libc::SYS_io_uring_setup => unsafe { io_uring_setup(all) },
        // SAFETY: the caller's promise.
        _ => unsafe { kernel(number, all) },
    }
}

/// Makes the system call; returns its result as `syscall` does.
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
    // The program does not have the ring's descriptor yet, so no transfer uses it.
    log::line(format_args!("io_uring, fd {ring}: the process stays on TCP"));
    if let Err(e) = process_handoff::begin(FallbackReason::IoUring) {
        // SAFETY: made above, and not yet known to the program.
        unsafe { rustix::io::close(int_of(ring)) };
        return c_long::from(errno::fail_int(e));
    }
    ring
}
