//! Links: a link is a pair of processes that share memory. It holds the segments of both, and a
//! socket that hangs up when the peer dies.
//!
//! A link is made by a handshake that the caller carries over a Unix socket: [`Offer::hello`] goes
//! out with two descriptors, and the reply of [`SoftContext::accept`] comes back with one. From
//! then on every queue pair between the two processes uses the link.

mod memory;
mod offer;
mod peer_user;

pub use offer::Offer;

use super::Link;
#[cfg(doc)]
use super::SoftContext;
use super::alloc::Allocator;
use super::connection_table::{OwnEntries, hide_connections};
use super::context::Node;
use super::doorbell_pipe::PeerPipes;
use super::foreign::Foreign;
use super::hello::{FLAG_BARRIER, Hello, LinkId};
use super::layout::DATA;
use super::pd::SoftPd;
use super::qp::QpCore;
use super::regions::Regions;
use super::retired::{Retired, RetiredLane};
use super::segment::Mapping;
use crate::cred::{self, PeerCred};
use crate::datagram::Sender;
use crate::error::Error;
use crate::mutex::try_lock;
use crate::untrusted::PeerSocket;
use peer_user::PeerUser;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Number of the next link.
static NEXT: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
pub(super) struct Peer {
    cred: PeerCred,
    /// Tells which user the process belongs to now.
    user: OnceLock<PeerUser>,
    /// Whether it is the process at this end.
    is_self: bool,
    /// Whether this process's copies need no fence of their own; see [`barrier`](super::barrier).
    light_fence: bool,
}

#[derive(Debug)]
pub(super) struct State {
    alloc: Allocator,
    pd: Weak<SoftPd>,
    /// Live queue pairs by their numbers, and where the [heads] of their lanes are.
    ///
    /// [heads]: super::layout::LaneHead
    qps: BTreeMap<u32, (Weak<QpCore>, u64)>,
    retired: Retired,
    /// Pages of ready sets that are gone.
    ready_pages: Vec<u64>,
}

impl Drop for Link {
    /// In a process's link to itself the accepting end loses its peer here. It would otherwise keep
    /// itself alive: its retired lanes hold wait lines, and these hold the link.
    fn drop(&mut self) {
        if let Some(accepting) = self.other_end.take()
            && accepting.is_unused()
        {
            accepting.mark_dead();
        }
    }
}

impl Link {
    #[expect(clippy::too_many_arguments, reason = "the parts of a link, put together in one place")]
    fn new(
        id: LinkId,
        offering: bool,
        node: &'static Node,
        hello: &Hello,
        cred: PeerCred,
        socket: PeerSocket,
        own_segment: Mapping,
        peer_segment: Mapping,
    ) -> Result<Arc<Self>, Error> {
        let is_self = cred.pid == PeerCred::own().pid;
        if !hide_connections(&own_segment) || !hide_connections(&peer_segment) {
            return Err(Error::Exhausted("memory mappings"));
        }
        let light_fence = node.barrier && hello.flags & FLAG_BARRIER != 0;
        let link = Arc::new(Self {
            id,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            offering,
            node,
            peer: Peer { cred, user: OnceLock::new(), is_self, light_fence },
            is_dead: AtomicBool::new(false),
            has_peers_end: AtomicBool::new(offering),
            socket,
            other_end: OnceLock::new(),
            state: Mutex::new(State {
                alloc: Allocator::new(DATA, own_segment.len()),
                pd: Weak::new(),
                qps: BTreeMap::new(),
                retired: Retired::default(),
                ready_pages: Vec::new(),
            }),
            regions: Regions::new(),
            foreign: Foreign::new(cred.pid, hello.word_at, hello.word),
            doorbell_pipes: PeerPipes::new(cred),
            connections: OwnEntries::default(),
            peer_segment,
            own_segment,
        });
        link.foreign.probe(&link.peer_segment);
        node.adopt(&link)?;
        Ok(link)
    }

    /// The link's id, the same at both ends.
    #[must_use]
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// Credentials of the process at the other end, as the kernel reported them.
    #[must_use]
    pub fn peer_cred(&self) -> PeerCred {
        self.peer.cred
    }

    /// Whether the process at the other end belongs to a user with whose processes this one may
    /// share memory, now and not only when the link was made. Costs a system call. False where the
    /// kernel does not tell, and once the process is gone. To be called first while the process is
    /// known to live: its number may mean another one later.
    #[must_use]
    pub fn has_trusted_user(&self) -> bool {
        let user = self.peer.user.get().or_else(|| {
            let user = PeerUser::of(self.peer.cred.pid)?;
            Some(self.peer.user.get_or_init(|| user))
        });
        user.and_then(PeerUser::effective)
            .is_some_and(|uid| cred::check(PeerCred { uid, ..self.peer.cred }).is_ok())
    }

    /// The process at the other end, as one that sends datagrams.
    #[must_use]
    pub fn sender(&self) -> Sender {
        Sender { number: self.number, uid: self.peer.cred.uid }
    }

    /// Whether the peer was alive at the last check. Costs a load.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.is_dead.load(Ordering::Relaxed)
    }

    /// Checks the link socket: whether the peer is alive. If it is dead, every queue pair of the
    /// link enters the error state and the waiters of its queues wake.
    pub fn probe(&self) -> bool {
        if !self.is_alive() {
            return false;
        }
        if !self.has_hung_up() {
            return true;
        }
        self.mark_dead();
        false
    }

    /// Whether the peer has died, as [`Self::probe`], without changing anything, so that it may be
    /// called under locks.
    #[must_use]
    pub fn has_hung_up(&self) -> bool {
        if !self.is_alive() {
            return true;
        }
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().intersects(gone)
    }

    #[cold]
    fn mark_dead(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        let Some(state) = self.try_state() else { return };
        let qps = live_qps(&state);
        drop(state);
        for qp in qps {
            qp.fail();
        }
        // The retired lanes hold wait lines, which keep this link alive: they are freed now.
        let freed = self.try_state().map(|mut state| self.reclaim_now(&mut state));
        drop(freed);
    }

    /// If `a` and `b` are the two ends of this process's link to itself, stores the accepting end
    /// in the offering one and returns the latter.
    pub(super) fn join_ends(a: &Arc<Self>, b: &Arc<Self>) -> Option<Arc<Self>> {
        if !a.peer.is_self || !b.peer.is_self {
            return None;
        }
        let (offering, accepting) = match (a.offering, b.offering) {
            (true, false) => (a, b),
            (false, true) => (b, a),
            _ => return None,
        };
        offering.other_end.set(Arc::clone(accepting)).ok()?;
        Some(Arc::clone(offering))
    }

    /// Notes that the peer has completed the link: it has sent something over it, or named it.
    pub fn note_peers_end(&self) {
        self.has_peers_end.store(true, Ordering::Relaxed);
    }

    /// Whether this end may begin connections over the link: any end may once the peer has its own.
    /// Of a process's link to itself only the offering end may, once it knows the accepting one.
    pub(super) fn may_initiate(&self) -> bool {
        self.has_peers_end.load(Ordering::Relaxed)
            && (!self.peer.is_self || self.other_end.get().is_some())
    }

    /// The end that answers what a peer begins over this one: of a process's link to itself the
    /// accepting one.
    #[must_use]
    pub fn answering_end(self: &Arc<Self>) -> Arc<Self> {
        self.accepting_end().unwrap_or_else(|| Arc::clone(self))
    }

    pub(super) fn accepting_end(&self) -> Option<Arc<Self>> {
        self.other_end.get().map(Arc::clone)
    }

    pub(super) fn node(&self) -> &'static Node {
        self.node
    }

    pub(super) fn own_segment(&self) -> &Mapping {
        &self.own_segment
    }

    pub(super) fn peer_segment(&self) -> &Mapping {
        &self.peer_segment
    }

    pub(super) fn regions(&self) -> &Regions {
        &self.regions
    }

    pub(super) fn foreign(&self) -> &Foreign {
        &self.foreign
    }

    /// The doorbell pipes of the process at the other end.
    pub(super) fn doorbell_pipes(&self) -> &PeerPipes {
        &self.doorbell_pipes
    }

    /// Bytes of the segment that are allocated.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> u64 {
        self.own_segment.len() - DATA - self.state().alloc.unused()
    }

    /// Shuts the link socket down, as the end of this process would.
    #[cfg(test)]
    pub(super) fn hang_up(&self) {
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).expect("shutdown");
    }

    /// Whether beginning a copy guard needs no fence in this process, because the peer issues it
    /// with [`barrier`](super::barrier).
    #[inline(always)]
    pub(super) fn has_light_fence(&self) -> bool {
        self.peer.light_fence
    }

    /// Fails in a forked child: it may use what it inherited, but allocates nothing from it.
    pub(super) fn check_owner(&self) -> Result<(), Error> {
        if self.node.is_current() {
            Ok(())
        } else {
            Err(Error::Invalid("the link belongs to the parent process"))
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, or `None` in a forked child if another thread of its parent held the lock at the
    /// fork. That child learns from TCP that its streams end.
    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        if self.node.is_current() {
            return Some(self.state());
        }
        try_lock(&self.state)
    }

    /// The link's protection domain, made by `make` if there is none.
    pub(super) fn pd(&self, make: impl FnOnce() -> Arc<SoftPd>) -> Arc<SoftPd> {
        let mut state = self.state();
        if let Some(pd) = state.pd.upgrade() {
            return pd;
        }
        let pd = make();
        state.pd = Arc::downgrade(&pd);
        pd
    }

    pub(super) fn add_qp(&self, qp: &Arc<QpCore>) {
        let entry = (Arc::downgrade(qp), qp.head_at());
        self.state().qps.insert(qp.number().0, entry);
        self.node.collect_dead_link();
    }

    /// Removes a queue pair from the list and retires its lane. With its last queue pair, a link to
    /// a dead process is removed too.
    pub(super) fn remove_qp(&self, qp: &Arc<QpCore>, rest: RetiredLane) {
        let mut state = self.state();
        state.qps.remove(&qp.number().0);
        state.retired.lanes.push(rest);
        let freed = self.reclaim(&mut state);
        let is_last = state.qps.is_empty();
        drop(state);
        drop(freed);
        if is_last && !self.probe() {
            self.node.remove_link(self.id);
        }
        self.node.collect_dead_link();
    }

    /// Whether no queue pair uses the link now.
    pub(super) fn is_unused(&self) -> bool {
        self.state().qps.is_empty()
    }
}

/// The live queue pairs, for use without the state's lock.
fn live_qps(state: &State) -> Vec<Arc<QpCore>> {
    state.qps.values().filter_map(|(qp, _)| qp.upgrade()).collect()
}

impl AsFd for Link {
    /// The link socket, to be polled: it hangs up when the peer dies. Nothing is read from it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
