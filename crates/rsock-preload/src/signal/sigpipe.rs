//! SIGPIPE for writes to a stream that has no reader.

use super::queue_to_self;
use crate::errno;
use libc::siginfo_t;
use std::mem;

/// Sends SIGPIPE to the calling thread, as the kernel does when a stream has no reader.
pub(crate) fn raise_sigpipe() {
    let _errno = errno::Kept::now();
    // SAFETY: zeroes are a valid `siginfo_t`.
    let mut info: siginfo_t = unsafe { mem::zeroed() };
    info.si_signo = libc::SIGPIPE;
    info.si_code = libc::SI_USER;
    let sender = Sender {
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        uid: rustix::process::getuid().as_raw(),
    };
    // SAFETY: inside `info`: the kernel's layout has the sender here, on every 64-bit Linux.
    let at = unsafe { (&raw mut info).cast::<u8>().add(SENDER_OFFSET) };
    // SAFETY: in bounds, and unaligned writes are what this call is for.
    unsafe { at.cast::<Sender>().write_unaligned(sender) };
    queue_to_self(libc::SIGPIPE, &raw const info);
}

/// The fields that follow the three numbers in the `siginfo_t` of a `kill`.
#[repr(C)]
struct Sender {
    pid: libc::pid_t,
    uid: libc::uid_t,
}

const SENDER_OFFSET: usize = 16;

const _: () = assert!(SENDER_OFFSET + size_of::<Sender>() <= size_of::<siginfo_t>());
