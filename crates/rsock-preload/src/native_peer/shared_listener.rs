//! A native listener that several threads use.

use libc::c_int;
use rsock_core::accelerate::{self, NativeListener, PollDescriptor};
use rsock_verbs::HighFd;
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A native listener and the thread that accepts on it.
pub(crate) struct SharedListener {
    pub(super) native: NativeListener,
    /// The thread that waits in `accept` for the native listener and the kernel's queue; 0 for
    /// none. Of two such threads both could see one connection in the queue, and one would then
    /// sleep in the kernel, where the native listener cannot wake it.
    acceptor: AtomicU32,
    /// Readable when there is no acceptor any more.
    acceptor_left: HighFd,
}

impl SharedListener {
    pub(super) fn open(fd: c_int) -> io::Result<Self> {
        // SAFETY: not negative, since it has an inode; the program's own.
        let native = NativeListener::open(unsafe { BorrowedFd::borrow_raw(fd) })?;
        let acceptor_left = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { native, acceptor: AtomicU32::new(0), acceptor_left: HighFd::new(acceptor_left) })
    }

    /// The native listener, to wait for in `poll`.
    pub(crate) fn native(&self) -> &NativeListener {
        &self.native
    }

    /// Becomes the acceptor; false if another thread is.
    pub(super) fn become_acceptor(&self) -> bool {
        let me = this_thread();
        match self.acceptor.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                let _ = rustix::io::read(&self.acceptor_left, &mut [0; 8]);
                true
            }
            // Own id: from a call that a signal handler has left by longjmp.
            Err(acceptor) => acceptor == me,
        }
    }

    pub(super) fn stop_accepting(&self) {
        self.acceptor.store(0, Ordering::Release);
        // The write can only fail when the counter is full, and the descriptor is readable then.
        let _ = rustix::io::write(&self.acceptor_left, &1u64.to_ne_bytes());
    }

    /// Sleeps: the acceptor until a connection comes, another thread until there is no acceptor.
    pub(super) fn wait(
        &self,
        is_acceptor: bool,
        fd: c_int,
        left: Option<Duration>,
    ) -> io::Result<usize> {
        let (fd, listener) = if is_acceptor {
            (fd, Some(&self.native))
        } else {
            (self.acceptor_left.as_fd().as_raw_fd(), None)
        };
        let mut entries = [PollDescriptor { listener, ..PollDescriptor::new(fd, PollFlags::IN) }];
        accelerate::poll(&mut entries, left, None)
    }
}

fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}
