//! The device as a process sees it: its identity, its links, and the numbers of its queue pairs.

use super::Link;
use super::bell;
use super::hello::{HelloSender, LinkId, NodeId, random};
use super::layout::QPS;
use super::ud::UdSenders;
use super::{SoftContext, barrier};
use crate::error::Error;
use crate::family::{ProcessId, process};
use crate::types::QpNum;
use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One process's share of the device. Lives until the process ends.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: NodeId,
    /// Whether [`barrier`] works here.
    pub(super) barrier: bool,
    /// Random word by which peers verify this process's id; see [`super::foreign`].
    pub(super) word: u64,
    /// Lanes into the datagram queues of other processes.
    pub(super) ud_senders: UdSenders,
    process: ProcessId,
    links: Mutex<Links>,
    numbers: Mutex<Numbers>,
}

static NODE: AtomicPtr<Node> = AtomicPtr::new(ptr::null_mut());

/// Links without queue pairs are kept for re-use up to this many.
const IDLE_LINKS: usize = 64;

/// The links of a process.
#[derive(Debug, Default)]
struct Links {
    by_id: HashMap<LinkId, Arc<Link>>,
    /// Number of links at which all of them are next checked for dead and idle ones.
    full_check_at: usize,
    /// Position of the link that [`Self::take_dead`] checks next.
    next_check: usize,
}

impl Links {
    /// Removes unused links whose peer died; when there are many links, removes every dead and
    /// every unused one. That costs a system call per link, so it is rare. The caller drops the
    /// result without holding the lock.
    fn collect_dead_links(&mut self) -> Vec<Arc<Link>> {
        let many = self.by_id.len() >= self.full_check_at.max(IDLE_LINKS);
        let gone = |link: &Arc<Link>| {
            let unused = link.is_unused();
            (many || unused) && !link.probe() || many && unused && Arc::strong_count(link) == 1
        };
        let gone: Vec<_> = self.by_id.extract_if(|_, link| gone(link)).collect();
        if many {
            self.full_check_at = 2 * self.by_id.len();
        }
        gone.into_iter().map(|(_, link)| link).collect()
    }

    /// Checks one link, in turn, and removes it if it is idle and its peer died: no queue pair
    /// would notice, and the peer may have filled the segment before. The caller drops the result
    /// without holding the lock.
    fn take_dead(&mut self) -> Option<Arc<Link>> {
        self.next_check =
            self.next_check.checked_add(1).filter(|at| *at < self.by_id.len()).unwrap_or(0);
        let link = self.by_id.values().nth(self.next_check)?;
        let is_dead = link.is_unused() && !link.probe();
        let id = link.id();
        if is_dead { self.by_id.remove(&id) } else { None }
    }
}

impl SoftContext {
    /// Opens the device.
    ///
    /// # Errors
    /// When the system gives no random numbers, or no descriptor.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { node: node()?, write_imm: true })
    }

    /// Opens the device without RDMA WRITE WITH IMMEDIATE, as iWARP adapters are.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_without_write_imm() -> Result<Self, Error> {
        Ok(Self { node: node()?, write_imm: false })
    }

    /// A live link to process `pid` that both ends have, other than `refused`, if there is one.
    #[must_use]
    pub fn link_to_pid(&self, pid: u32, refused: Option<LinkId>) -> Option<Arc<Link>> {
        self.find(|link| link.peer_cred().pid == pid && Some(link.id()) != refused)
    }

    /// This process's end of the live link that a peer names in order to reuse it. In a process
    /// that is linked to itself this is the accepting end.
    #[must_use]
    pub fn link_by_id(&self, id: LinkId) -> Option<Arc<Link>> {
        let key = self.node.links().by_id.get(&id).map(Arc::clone)?;
        let link = key.answering_end();
        link.is_alive().then_some(link)
    }

    /// This process's end of live link `id`, to begin a connection over it.
    #[must_use]
    pub fn link_to_begin_on(&self, id: LinkId) -> Option<Arc<Link>> {
        let link = self.node.links().by_id.get(&id).map(Arc::clone)?;
        (link.is_alive() && link.may_initiate()).then_some(link)
    }

    fn find(&self, wanted: impl Fn(&Link) -> bool) -> Option<Arc<Link>> {
        let fits = |l: &&Arc<Link>| l.is_alive() && l.may_initiate() && wanted(l);
        self.node.links().by_id.values().find(fits).map(Arc::clone)
    }

    pub(super) fn node(&self) -> &'static Node {
        self.node
    }

    pub(super) fn has_write_imm(&self) -> bool {
        self.write_imm
    }
}

impl Node {
    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `link` to the table, and removes links that died or have long been unused.
    ///
    /// # Errors
    /// `PeerViolation` if the link's id is taken: ids are random, so this one was copied.
    pub(super) fn adopt(&self, link: &Arc<Link>) -> Result<(), Error> {
        let mut links = self.links();
        let gone = links.collect_dead_links();
        let links_by_id = &mut links.by_id;
        let adopted = match links_by_id.get(&link.id()) {
            None => {
                links_by_id.insert(link.id(), Arc::clone(link));
                Ok(())
            }
            // The process is linked to itself: the map has the offering end, which refers to the
            // accepting one.
            Some(other) => match Link::join_ends(other, link) {
                Some(offering) => {
                    links_by_id.insert(link.id(), offering);
                    Ok(())
                }
                None => Err(Error::PeerViolation("a link's id is in use")),
            },
        };
        drop(links);
        drop(gone);
        adopted
    }

    /// Removes a link from the table, unless another thread holds the table's lock: then a later
    /// check removes it.
    pub(super) fn remove_link(&self, id: LinkId) {
        let gone = self.links.try_lock().ok().and_then(|mut links| links.by_id.remove(&id));
        drop(gone);
    }

    /// Checks one of the links for a dead peer, unless another thread holds the table's lock. Costs
    /// a system call. Called when streams begin and end, without holding a link's state.
    pub(super) fn collect_dead_link(&self) {
        let gone = self.links.try_lock().ok().and_then(|mut links| links.take_dead());
        drop(gone);
    }

    /// What this process says of itself in a hello.
    pub(super) fn hello_sender(&self) -> HelloSender<'_> {
        HelloSender { node: self.id, has_barrier: self.barrier, word: &self.word }
    }

    /// Whether the calling process is the node's own, not a forked child.
    pub(super) fn is_current(&self) -> bool {
        self.process == process()
    }

    pub(super) fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Queue pair numbers: 16 bits that no other live queue pair of the process has, under 8 bits
/// that change when they are used again.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    generations: Vec<u8>,
    free: Vec<u16>,
}

impl Numbers {
    pub(super) fn take(&mut self) -> Option<QpNum> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                // Slot 0 stays unused: no queue pair has number 0.
                let slot = self.generations.len().max(1);
                let taken = u16::try_from(slot).ok().filter(|s| u32::from(*s) < QPS)?;
                self.generations.resize(slot + 1, 0);
                taken
            }
        };
        let generation = self.generations[usize::from(slot)];
        Some(QpNum(u32::from(generation) << 16 | u32::from(slot)))
    }

    pub(super) fn give_back(&mut self, number: QpNum) {
        #[expect(clippy::cast_possible_truncation, reason = "the low half is the slot")]
        let slot = number.0 as u16;
        let generation = &mut self.generations[usize::from(slot)];
        *generation = generation.wrapping_add(1);
        self.free.push(slot);
    }
}

/// This process's node. A forked child makes its own and leaves its parent's untouched.
pub(super) fn node() -> Result<&'static Node, Error> {
    let here = process();
    let mut seen = NODE.load(Ordering::Acquire);
    loop {
        // SAFETY: null or published by the exchange below; nodes are never freed.
        if let Some(node) = unsafe { seen.as_ref() }
            && node.process == here
        {
            return Ok(node);
        }
        bell::prepare()?;
        let [a, b, c, d, e, f, g, h, ..] = random()?;
        let fresh = Box::into_raw(Box::new(Node {
            id: NodeId(random()?),
            barrier: barrier::register(),
            word: u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            ud_senders: UdSenders::default(),
            process: here,
            links: Mutex::default(),
            numbers: Mutex::default(),
        }));
        // SYNC(node): publishes the node. Pairs with the Acquire loads here.
        match NODE.compare_exchange(seen, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just made, and never freed from here on.
            Ok(_) => return Ok(unsafe { &*fresh }),
            Err(other) => {
                // SAFETY: made above and published nowhere.
                drop(unsafe { Box::from_raw(fresh) });
                seen = other;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cred::PeerCred;

    #[test]
    fn a_number_comes_back_changed() {
        let mut numbers = Numbers::default();
        let (a, b) = (numbers.take().expect("number"), numbers.take().expect("number"));
        assert!(a != b && a.0 != 0);
        numbers.give_back(a);
        let c = numbers.take().expect("number");
        assert!(c != a && c.0 & 0xffff == a.0 & 0xffff);
    }

    #[test]
    fn a_link_of_a_process_to_itself_is_not_found_before_it_is_complete() {
        let ctx = SoftContext::open().expect("a device");
        let me = PeerCred::own();
        let is_found = |id| ctx.find(|l| l.id() == id).is_some();
        let offer = ctx.offer().expect("an offer");
        let id = offer.id();
        let (hello, fds) = offer.hello();
        let fds = fds.map(|fd| fd.try_clone_to_owned().expect("a descriptor")).into();
        let (accepting, reply, segment) = ctx.accept(&hello, fds, me).expect("accepted");
        // A caller that used this end as the offering one would talk to itself.
        assert!(!is_found(id) && ctx.link_by_id(id).is_some_and(|l| Arc::ptr_eq(&l, &accepting)));
        let offering = offer.complete(&reply, vec![segment], me).expect("completed");
        let found = ctx.find(|l| l.id() == id);
        assert!(found.is_some_and(|l| Arc::ptr_eq(&l, &offering)));
    }

    #[test]
    fn an_accepted_link_is_found_once_the_peer_has_its_end_unless_it_is_refused() {
        let ctx = SoftContext::open().expect("a device");
        // No process has this number.
        let pid = u32::MAX;
        let offer = ctx.offer().expect("an offer");
        let (hello, fds) = offer.hello();
        let fds = fds.map(|fd| fd.try_clone_to_owned().expect("a descriptor")).into();
        let cred = PeerCred { pid, ..PeerCred::own() };
        let (link, ..) = ctx.accept(&hello, fds, cred).expect("accepted");
        // The peer would refuse a connection over it: the reply is still under way.
        assert!(ctx.link_to_pid(pid, None).is_none());
        link.note_peers_end();
        assert!(ctx.link_to_pid(pid, None).is_some_and(|found| Arc::ptr_eq(&found, &link)));
        assert!(ctx.link_to_pid(pid, Some(link.id())).is_none());
    }

    #[test]
    fn numbers_run_out() {
        let mut numbers = Numbers::default();
        let n = std::iter::from_fn(|| numbers.take()).count();
        assert_eq!(n, QPS as usize - 1);
    }
}
