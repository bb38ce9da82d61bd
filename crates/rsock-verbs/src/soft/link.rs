//! Links: a link is a pair of processes that share memory. It holds the segments of both, and a
//! socket that hangs up when the peer dies.
//!
//! A link is made by a handshake that the caller carries over a Unix socket: [`Offer::hello`] goes
//! out with two descriptors, and the reply of [`SoftContext::accept`] comes back with one. From
//! then on every queue pair between the two processes uses the link.

use super::alloc::{Allocator, is_block};
use super::barrier;
use super::context::Node;
use super::doorbell_pipe::PeerPipes;
use super::foreign::Foreign;
use super::hello::{FLAG_BARRIER, HELLO_LEN, Hello, LinkId, random};
use super::layout::{DATA, LaneHead, PAGE};
use super::pd::SoftPd;
use super::qp::QpCore;
use super::regions::Regions;
use super::retired::{Retired, RetiredLane};
use super::segment::{self, Mapping};
use super::{Link, SoftContext};
use crate::cred::{self, PeerCred};
use crate::datagram::Sender;
use crate::error::Error;
use crate::high_fd::{HighFd, verb};
use crate::untrusted::{PeerSocket, UntrustedFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};

/// Number of the next link.
static NEXT: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
pub(super) struct Peer {
    cred: PeerCred,
    /// Whether this process's copies need no fence of their own; see [`barrier`].
    light_fence: bool,
}

#[derive(Debug)]
pub(super) struct State {
    alloc: Allocator,
    pd: Weak<SoftPd>,
    /// Live queue pairs by their numbers, and where their [`LaneHead`]s are.
    qps: BTreeMap<u32, (Weak<QpCore>, u64)>,
    retired: Retired,
    /// Pages of ready sets that are gone.
    ready_pages: Vec<u64>,
}

/// An offered link that waits for the peer's reply.
#[derive(Debug)]
pub struct Offer {
    id: LinkId,
    node: &'static Node,
    hello: [u8; HELLO_LEN],
    socket: PeerSocket,
    peer_socket: HighFd,
    file: HighFd,
    own_segment: Mapping,
}

impl SoftContext {
    /// Begins a link to a process.
    ///
    /// # Errors
    /// When memory, address space or descriptors run out.
    pub fn offer(&self) -> Result<Offer, Error> {
        let node = self.node();
        let id = LinkId(random()?);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, peer_socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(verb("socketpair"))?;
        let (file, own_segment) = segment::create()?;
        let hello = Hello::new(id, &node.hello_sender(), &own_segment).to_bytes();
        let mut socket = PeerSocket::new(socket);
        // The peer may take its time to reply.
        let (peer_socket, file) = (HighFd::new(peer_socket), HighFd::new(file));
        // Nothing is ever read from this socket. Best effort: if the kernel cannot refuse
        // descriptors, `drop` checks for them.
        socket.refuse_descriptors();
        Ok(Offer { id, node, hello, socket, peer_socket, file, own_segment })
    }

    /// Answers an offer: `hello` and `fds` are what the peer got from [`Offer::hello`], `cred` is
    /// what the kernel says about the sending process. The reply and the descriptor go back for
    /// [`Offer::complete`].
    ///
    /// # Errors
    /// `PeerViolation` for anything but an honest offer, `Unsupported` for a peer of another user
    /// or version, or the error of a system call.
    pub fn accept(
        &self,
        hello: &[u8],
        fds: Vec<impl Into<UntrustedFd>>,
        cred: PeerCred,
    ) -> Result<(Arc<Link>, [u8; HELLO_LEN], OwnedFd), Error> {
        let fds: Vec<UntrustedFd> = fds.into_iter().map(Into::into).collect();
        cred::check(cred)?;
        let peer_hello = Hello::parse(hello)?;
        let [file, socket] = <[UntrustedFd; 2]>::try_from(fds)
            .map_err(|_| Error::PeerViolation("an offer carries two descriptors"))?;
        let socket =
            socket.into_socket().ok_or(Error::PeerViolation("an offer carries a socket"))?;
        let peer_segment = segment::adopt(&file, peer_hello.size)?;
        drop(file);
        let node = self.node();
        let id = LinkId(peer_hello.link);
        let (file, own_segment) = segment::create()?;
        let reply = Hello::new(id, &node.hello_sender(), &own_segment).to_bytes();
        let link =
            Link::new(id, false, node, &peer_hello, cred, socket, own_segment, peer_segment)?;
        Ok((link, reply, file))
    }
}

impl Offer {
    /// What the peer's [`SoftContext::accept`] needs: the hello, and the descriptors of this
    /// process's segment and of the peer's end of the link socket, in this order.
    #[must_use]
    pub fn hello(&self) -> ([u8; HELLO_LEN], [BorrowedFd<'_>; 2]) {
        (self.hello, [self.file.as_fd(), self.peer_socket.as_fd()])
    }

    /// The link's id.
    #[must_use]
    pub fn id(&self) -> LinkId {
        self.id
    }

    /// Completes the link with the peer's reply.
    ///
    /// # Errors
    /// As [`SoftContext::accept`].
    pub fn complete(
        self,
        hello: &[u8],
        fds: Vec<impl Into<UntrustedFd>>,
        cred: PeerCred,
    ) -> Result<Arc<Link>, Error> {
        let fds: Vec<UntrustedFd> = fds.into_iter().map(Into::into).collect();
        cred::check(cred)?;
        let peer_hello = Hello::parse(hello)?;
        if peer_hello.link != self.id.0 {
            return Err(Error::PeerViolation("the reply belongs to another offer"));
        }
        let [file] = <[UntrustedFd; 1]>::try_from(fds)
            .map_err(|_| Error::PeerViolation("a reply carries one descriptor"))?;
        let peer_segment = segment::adopt(&file, peer_hello.size)?;
        drop(file);
        // Only the peer may hold its end, or the socket would not hang up when it dies.
        drop((self.peer_socket, self.file));
        Link::new(
            self.id,
            true,
            self.node,
            &peer_hello,
            cred,
            self.socket,
            self.own_segment,
            peer_segment,
        )
    }
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
        let light_fence = node.barrier && hello.flags & FLAG_BARRIER != 0;
        let link = Arc::new(Self {
            id,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            offering,
            node,
            peer: Peer { cred, light_fence },
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
        let me = PeerCred::own().pid;
        if a.peer.cred.pid != me || b.peer.cred.pid != me {
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
            && (self.peer.cred.pid != PeerCred::own().pid || self.other_end.get().is_some())
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

    /// Waits, for a bounded time, until every copy of the peer that began before this call has
    /// ended.
    #[cold]
    pub(super) fn wait_for_copies(&self) {
        /// Number of checks, each a load per queue pair, with a pause after each. A peer whose copy
        /// takes longer is hostile or stopped; it gains nothing that it could not write without
        /// this library.
        const LOOKS: u32 = 300;
        /// Checks before the pauses become a millisecond.
        const SHORT: u32 = 100;
        let state = self.state();
        let heads: Vec<_> = lane_heads(&state).collect();
        drop(state);
        // One fence is enough: copies that begin after it find the region's key withdrawn.
        let Some(mut copies) = self.copies_under_way(&heads) else { return };
        for look in 0..LOOKS {
            copies.retain(|(head_at, count)| {
                let head = self.own_segment.at::<LaneHead>(*head_at);
                head.is_some_and(|head| head.copier.guard.is_still(*count))
            });
            if copies.is_empty() || look >= SHORT && !self.probe() {
                return;
            }
            if look < SHORT {
                rustix::thread::sched_yield();
            } else {
                let pause = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                let _ = rustix::thread::nanosleep(&pause);
            }
        }
    }

    /// For each lane at `heads` through which the peer may be copying now: its head and the copy
    /// guard's count. `None` if the peer is dead.
    fn copies_under_way(&self, heads: &[u64]) -> Option<Vec<(u64, u32)>> {
        if !self.is_alive() {
            return None;
        }
        // SYNC(copy-guard): as in `is_quiet`. If the barrier failed, every lane counts as copying
        // until its count changes.
        let is_fenced = self.fence_copies();
        let copies = heads.iter().filter_map(|&at| {
            let guard = &self.own_segment.at::<LaneHead>(at)?.copier.guard;
            let count = guard.count();
            (!is_fenced || !count.is_multiple_of(2)).then_some((at, count))
        });
        Some(copies.collect())
    }

    /// Orders the withdrawal of a region, or a pause, before the loads of the copy guards that
    /// follow. False if that failed.
    pub(super) fn fence_copies(&self) -> bool {
        if self.has_light_fence() {
            return barrier::full();
        }
        std::sync::atomic::fence(Ordering::SeqCst);
        true
    }

    /// Whether beginning a copy guard needs no fence in this process, because the peer issues it
    /// with [`barrier`].
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
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
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

    /// `len` zeroed bytes: a small block, or whole pages.
    pub(super) fn alloc(&self, len: u64) -> Result<u64, Error> {
        self.check_owner()?;
        let mut state = self.state();
        let mut freed = self.reclaim(&mut state);
        let mut at = state.alloc.alloc(len);
        if at.is_none() {
            freed.extend(self.reclaim_now(&mut state));
            at = state.alloc.alloc(len);
        }
        drop(state);
        // A wait line locks the state when it is dropped.
        drop(freed);
        let at = at.ok_or(Error::Exhausted("segment"))?;
        if is_block(len) {
            self.own_segment.clear(at, len);
        }
        Ok(at)
    }

    /// Frees memory that is no longer written.
    pub(super) fn free(&self, at: u64, len: u64) {
        self.punch_pages(at, len);
        self.state().alloc.free(at, len);
    }

    /// Punches an allocation of whole pages, so that the next owner finds zeroes.
    fn punch_pages(&self, at: u64, len: u64) {
        if !is_block(len) {
            self.own_segment.punch(at, len.next_multiple_of(PAGE));
        }
    }

    /// Frees memory that the peer may still be writing, once it no longer can be.
    pub(super) fn retire_region(&self, at: u64, len: u64) {
        let mut state = self.state();
        state.retired.regions.push((at, len));
        let freed = self.reclaim(&mut state);
        drop(state);
        drop(freed);
    }

    /// A page for a [`ReadySet`](crate::sync::ready_set::ReadySet): without bits, or with stray
    /// ones.
    pub(super) fn alloc_ready_page(&self) -> Result<u64, Error> {
        self.check_owner()?;
        let mut state = self.state();
        match state.ready_pages.pop() {
            Some(at) => Ok(at),
            None => state.alloc.alloc(PAGE).ok_or(Error::Exhausted("segment")),
        }
    }

    /// Keeps a page for the next ready set: the peer may still set bits in it, so that it cannot
    /// serve anything else.
    pub(super) fn free_ready_page(&self, at: u64) {
        self.state().ready_pages.push(at);
    }

    /// Pages that serve no ready set now.
    #[cfg(test)]
    pub(super) fn n_ready_pages(&self) -> usize {
        self.state().ready_pages.len()
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

    /// Keeps the lane of a closed datagram queue until the peer has detached from it.
    pub(super) fn retire_lane(&self, rest: RetiredLane) {
        let mut state = self.state();
        state.retired.lanes.push(rest);
        let freed = self.reclaim(&mut state);
        drop(state);
        drop(freed);
    }

    /// Whether no queue pair uses the link now.
    pub(super) fn is_unused(&self) -> bool {
        self.state().qps.is_empty()
    }

    /// As [`Self::reclaim_now`], if there is enough to reclaim that the search is worth its time.
    #[must_use]
    fn reclaim(&self, state: &mut State) -> Vec<RetiredLane> {
        if state.retired.is_search_due(state.qps.len()) {
            self.reclaim_now(state)
        } else {
            Vec::new()
        }
    }

    /// Frees retired lanes from which the peer has detached, and retired regions into which no copy
    /// is under way. The caller drops the result after it has unlocked the state, because wait
    /// lines lock it in their own `drop`.
    #[must_use]
    fn reclaim_now(&self, state: &mut State) -> Vec<RetiredLane> {
        let is_detached = |lane: &RetiredLane| {
            !self.is_alive()
                || self.own_segment.at::<LaneHead>(lane.head_at).is_none_or(|head| {
                    let claim = head.producer.claim.load(Ordering::Acquire);
                    // SYNC(detach): the peer's last accesses come before. Pairs with the Release
                    // in `QpCore::enter_error`.
                    claim == super::layout::REVOKED
                        || head.producer.detached.load(Ordering::Acquire) != 0
                })
        };
        let freed: Vec<_> = state.retired.lanes.extract_if(.., |lane| is_detached(lane)).collect();
        for lane in &freed {
            for &(at, len) in &lane.spans {
                self.punch_pages(at, len);
                state.alloc.free(at, len);
            }
        }
        if !state.retired.regions.is_empty() && self.is_quiet(state) {
            for (at, len) in std::mem::take(&mut state.retired.regions) {
                self.punch_pages(at, len);
                state.alloc.free(at, len);
            }
        }
        state.retired.note_search(state.qps.len());
        freed
    }

    /// Whether no copy of the peer that began before this call is under way.
    fn is_quiet(&self, state: &State) -> bool {
        if !self.is_alive() {
            return true;
        }
        // SYNC(copy-guard): the withdrawal of the region's key is ordered before the loads of the
        // copy guards. Pairs with the sender's store of an odd number before it reads the key:
        // either this load sees the odd number, or the sender sees that the key is gone.
        self.fence_copies()
            && lane_heads(state).all(|at| {
                self.own_segment.at::<LaneHead>(at).is_some_and(|h| h.copier.guard.is_quiet())
            })
    }
}

/// Offsets of the heads of all lanes that the peer may be writing.
fn lane_heads(state: &State) -> impl Iterator<Item = u64> {
    let live = state.qps.values().map(|(_, at)| *at);
    live.chain(state.retired.lanes.iter().map(|lane| lane.head_at))
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
