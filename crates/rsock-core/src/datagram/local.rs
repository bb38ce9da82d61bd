//! The part of a datagram socket for peers on this host: a queue in shared memory, and the
//! handshakes with peers.
//!
//! It belongs to the process that created it. A forked child keeps receiving from the existing
//! lanes and sending over the existing routes, makes no new handshakes, and uses UDP for the rest.

use crate::datagram::handshake::{Handshakes, Outcome};
use crate::datagram::header::KEY;
use crate::datagram::source_check::SourceCheck;
use rsock_cm::Port;
use rsock_verbs::family::{ProcessId, process};
use rsock_verbs::soft::{Soft, SoftContext, SoftUd};
use rsock_verbs::{Arrived, DatagramBackend, DatagramQueue};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A queue in shared memory.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) ctx: SoftContext,
    pub(super) ud: SoftUd,
    pub(super) sources: SourceCheck,
    owner: ProcessId,
    handshakes: Mutex<Handshakes>,
    /// Whether any datagram has come this way: then receivers spin for it.
    is_active: AtomicBool,
    /// When the peers were last checked for exited processes.
    swept: AtomicU32,
}

/// Milliseconds between two such checks.
const SWEEP_EVERY: u32 = 200;

impl Local {
    /// For the socket at `port`, which is bound. `None` where peers on this host use UDP too.
    pub(super) fn new(port: &Arc<Port>) -> Option<Self> {
        if !crate::config::environment::is_enabled()
            || crate::config::environment::device()
                == Some(crate::config::environment::Device::Rdma)
        {
            return None;
        }
        if is_shared(port.as_fd()) {
            return None;
        }
        let made = || -> io::Result<Self> {
            let ctx = SoftContext::open()?;
            let ud = Soft::create_datagrams(&ctx, KEY)?;
            let handshakes = Mutex::new(Handshakes::new(&ctx, port)?);
            Ok(Self {
                ctx,
                ud,
                sources: SourceCheck::new(),
                owner: process(),
                handshakes,
                is_active: AtomicBool::new(false),
                swept: AtomicU32::new(crate::sys::tick()),
            })
        };
        made().ok()
    }

    /// Whether the calling process created it, and so may make handshakes.
    pub(super) fn is_own_process(&self) -> bool {
        self.owner == process()
    }

    pub(super) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Begins a handshake with a peer's queue. False if that is not possible now.
    pub(super) fn begin(&self, peer: SocketAddr, number: rsock_verbs::QpNum, now: Instant) -> bool {
        // The holder of the lock advances the handshakes: this call does not wait for it.
        let Ok(mut handshakes) = self.handshakes.try_lock() else { return false };
        self.is_own_process() && handshakes.begin(peer, number, now)
    }

    /// Advances the handshakes, unless another thread does.
    pub(super) fn progress(&self, now: Instant, done: impl FnMut(Outcome)) {
        if !self.is_own_process() {
            return;
        }
        if let Ok(mut handshakes) = self.handshakes.try_lock() {
            handshakes.progress((&self.ud, &self.sources), now, done);
        }
    }

    /// The descriptors to poll besides the bell. Returns the latest time at which
    /// [`Self::progress`] must be called.
    pub(super) fn poll_entries(&self, out: &mut Vec<libc::pollfd>) -> Option<Instant> {
        if !self.is_own_process() {
            return None;
        }
        let handshakes = self.handshakes.try_lock().ok()?;
        handshakes.poll_entries(out);
        handshakes.next_timeout()
    }

    /// Now and then releases the memory of peers that have exited.
    pub(super) fn sweep(&self) {
        let (now, last) = (crate::sys::tick(), self.swept.load(Ordering::Relaxed));
        if now.wrapping_sub(last) >= SWEEP_EVERY {
            self.swept.store(now, Ordering::Relaxed);
            self.ud.sweep();
        }
    }

    /// Passes the next datagrams to `take`, at most `most`. Returns how many.
    #[inline]
    pub(super) fn try_recv_up_to(&self, most: usize, take: &mut dyn FnMut(&dyn Arrived)) -> usize {
        let n = self.ud.try_recv_up_to(most, take);
        if n != 0 && !self.is_active() {
            self.is_active.store(true, Ordering::Relaxed);
        }
        n
    }
}

/// Whether several sockets may share the address. Then the kernel decides which of them receives a
/// datagram, so all of them stay on UDP.
pub(super) fn is_shared(fd: BorrowedFd<'_>) -> bool {
    use rustix::net::sockopt::{socket_reuseaddr, socket_reuseport};
    socket_reuseaddr(fd).unwrap_or(true) || socket_reuseport(fd).unwrap_or(true)
}
