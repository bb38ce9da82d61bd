//! Doorbells that a thread keeps for its waits.

use rsock_verbs::rdma::Rdma;
use rsock_verbs::soft::Soft;
use rsock_verbs::{Backend, Bell, Context};
use std::cell::RefCell;
use std::io;
use std::os::fd::AsRawFd as _;
use std::thread::LocalKey;

/// A backend with a doorbell for each thread.
pub trait ThreadBell: Backend {
    /// Runs `f` with the calling thread's doorbell, which is created on first use.
    ///
    /// # Errors
    /// When no doorbell can be created.
    fn with_bell<R>(ctx: &Self::Context, f: impl FnOnce(&Self::Bell) -> R) -> io::Result<R>;
}

/// What a thread polls that waits with `bell`.
pub fn poll_entries(bell: &impl Bell) -> [libc::pollfd; 2] {
    [Some(bell.as_fd()), bell.pipe()].map(|fd| libc::pollfd {
        fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
        events: libc::POLLIN,
        revents: 0,
    })
}

thread_local! {
    /// The process that created the bell (a forked child needs its own), and the bell.
    static SOFT_BELL: Kept<Soft> = const { RefCell::new(None) };
    static RDMA_BELL: Kept<Rdma> = const { RefCell::new(None) };
}

/// Where a thread keeps its bell, with the process that created it.
type Kept<B> = RefCell<Option<(u32, <B as Backend>::Bell)>>;

fn with_kept<B: Backend, R>(
    key: &'static LocalKey<Kept<B>>,
    ctx: &B::Context,
    f: impl FnOnce(&B::Bell) -> R,
) -> io::Result<R> {
    let here = rsock_verbs::family::process().0;
    // The cell is empty while the bell is in use: a signal handler that waits too creates another
    // bell.
    let kept = key.try_with(|cell| cell.take()).ok().flatten();
    let bell = match kept {
        Some((at, bell)) if at == here => bell,
        _ => ctx.create_bell()?,
    };
    let result = f(&bell);
    let _ = key.try_with(|cell| cell.replace(Some((here, bell))));
    Ok(result)
}

impl ThreadBell for Soft {
    fn with_bell<R>(ctx: &Self::Context, f: impl FnOnce(&Self::Bell) -> R) -> io::Result<R> {
        with_kept::<Self, R>(&SOFT_BELL, ctx, |bell| {
            // Each wait with a thread's bell watches its pipe too: see [`poll_entries`].
            bell.add_pipe_if_busy(|_| true);
            f(bell)
        })
    }
}

impl ThreadBell for Rdma {
    fn with_bell<R>(ctx: &Self::Context, f: impl FnOnce(&Self::Bell) -> R) -> io::Result<R> {
        with_kept::<Self, R>(&RDMA_BELL, ctx, f)
    }
}
