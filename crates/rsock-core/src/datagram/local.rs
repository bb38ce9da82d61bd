//! The part of a datagram socket that peers on this host reach: a queue in shared memory, and the
//! handshakes that lead to it and from it.
//!
//! It belongs to the process that made it. A child forked from that one goes on receiving from the lanes
//! that exist and sending over the routes that exist, meets nobody new, and has UDP for the rest.

use crate::datagram::handshake::{Handshakes, KEY, Outcome};
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
    /// Whether anything has come this route: then it pays to look here first.
    is_active: AtomicBool,
    /// When the peers were last asked whether they live.
    swept: AtomicU32,
}

/// Milliseconds between two looks for peers that died.
const SWEEP_EVERY: u32 = 200;

impl Local {
    /// For the socket at `port`, which is bound; `None` where peers on this host use UDP too.
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

    /// Whether the calling process may meet peers.
    pub(super) fn is_own_process(&self) -> bool {
        self.owner == process()
    }

    pub(super) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Begins to look for a peer's queue; false if that cannot be now.
    pub(super) fn begin(&self, peer: SocketAddr, number: rsock_verbs::QpNum, now: Instant) -> bool {
        // Whoever holds the lock makes handshakes progress: not a moment to wait for.
        let Ok(mut handshakes) = self.handshakes.try_lock() else { return false };
        self.is_own_process() && handshakes.begin(peer, number, now)
    }

    /// Makes handshakes progress, unless another thread does.
    pub(super) fn progress(&self, now: Instant, done: impl FnMut(Outcome)) {
        if !self.is_own_process() {
            return;
        }
        if let Ok(mut handshakes) = self.handshakes.try_lock() {
            handshakes.progress((&self.ud, &self.sources), now, done);
        }
    }

    /// What to poll besides the bell; and when to call [`Self::progress`] at the latest.
    pub(super) fn poll_entries(&self, out: &mut Vec<libc::pollfd>) -> Option<Instant> {
        if !self.is_own_process() {
            return None;
        }
        let handshakes = self.handshakes.try_lock().ok()?;
        handshakes.poll_entries(out);
        handshakes.next_timeout()
    }

    /// Now and then lets go of what belongs to peers that died.
    pub(super) fn sweep(&self) {
        let (now, last) = (crate::sys::tick(), self.swept.load(Ordering::Relaxed));
        if now.wrapping_sub(last) >= SWEEP_EVERY {
            self.swept.store(now, Ordering::Relaxed);
            self.ud.sweep();
        }
    }

    /// Hands the next datagrams to `take`, `most` at most; how many.
    #[inline]
    pub(super) fn try_recv_up_to(&self, most: usize, take: &mut dyn FnMut(&dyn Arrived)) -> usize {
        let n = self.ud.try_recv_up_to(most, take);
        if n != 0 && !self.is_active() {
            self.is_active.store(true, Ordering::Relaxed);
        }
        n
    }
}

/// Whether several sockets may have one address: who of them gets a datagram is the kernel's to say then,
/// so all of them stay on UDP.
pub(super) fn is_shared(fd: BorrowedFd<'_>) -> bool {
    use rustix::net::sockopt::{socket_reuseaddr, socket_reuseport};
    socket_reuseaddr(fd).unwrap_or(true) || socket_reuseport(fd).unwrap_or(true)
}
