//! Address handles: the destinations of datagrams, in the device's form.
//!
//! A device may read a handle as late as when it sends, so a handle outlives the sends that name
//! it. There is one handle per host in use. A handle keeps the link address that the host had when
//! it was made, so a request after some time makes a new one. Their number is bounded.
//!
//! Invariants: at most [`MOST`] handles are current. A handle that is no longer current stays as
//! long as a caller has it, and then until the sends posted by then are done, and no longer.

use super::convert::object;
use super::{RdmaPath, RdmaPd};
use crate::error::Error;
use crate::types::Gid;
use rsock_rdma_sys::verbs::ibv_ah;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An address handle.
///
/// # Invariants
/// `raw` came from `ibv_create_ah` and is destroyed exactly once, in `drop`, before the domain that
/// it lies in.
#[derive(Debug)]
pub(super) struct Address {
    raw: NonNull<ibv_ah>,
    pd: Arc<RdmaPd>,
}

// SAFETY: libibverbs's address handles may be used from any thread.
unsafe impl Send for Address {}
// SAFETY: as above, by several at once; nothing changes one.
unsafe impl Sync for Address {}

impl Address {
    fn new(pd: &Arc<RdmaPd>, path: &RdmaPath) -> Result<Self, Error> {
        let mut attr = path.address().ok_or(Error::Invalid("a path of a connection"))?;
        // SAFETY: the domain is live and `attr` is writable.
        let raw = unsafe { pd.ctx().verbs().ibv_create_ah(pd.raw(), &raw mut attr) };
        // INVARIANT: made here, destroyed by `drop`.
        Ok(Self { raw: object("ibv_create_ah", raw)?, pd: Arc::clone(pd) })
    }

    pub(super) fn raw(&self) -> *mut ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_create_ah`, and no request names it any longer.
        let _ = unsafe { self.pd.ctx().verbs().ibv_destroy_ah(self.raw.as_ptr()) };
    }
}

/// The handles of one queue.
#[derive(Debug)]
pub(super) struct AddressHandles<H = Address> {
    handles: Mutex<Handles<H>>,
    most: usize,
}

#[derive(Debug)]
struct Handles<H> {
    current: HashMap<Key, (Arc<H>, Instant)>,
    /// Handles that are no longer current. Once no caller has one, it is stored with the number of
    /// sends posted by then, and destroyed when those are done.
    retired: Vec<(Arc<H>, Option<u64>)>,
}

/// The index of the local address in the port's table, and the host's address.
type Key = (u8, Gid);

/// Most current handles of a queue.
const MOST: usize = 1024;
/// Longest age of a current handle.
const AGE: Duration = Duration::from_secs(1);

impl AddressHandles {
    /// The handle for `path`. `sends` says how many of the queue's sends are posted and done.
    ///
    /// Making one may wait for address resolution, if the kernel has no recent entry for the host.
    pub(super) fn address(
        &self,
        pd: &Arc<RdmaPd>,
        path: &RdmaPath,
        sends: impl Fn() -> (u64, u64),
    ) -> Result<Arc<Address>, Error> {
        let key = path.key().ok_or(Error::Invalid("a path of a connection"))?;
        self.handle(key, Instant::now(), || Address::new(pd, path), sends)
    }
}

impl<H> Default for AddressHandles<H> {
    fn default() -> Self {
        Self::with_room(MOST)
    }
}

impl<H> AddressHandles<H> {
    fn with_room(most: usize) -> Self {
        let handles = Handles { current: HashMap::new(), retired: Vec::new() };
        Self { handles: Mutex::new(handles), most }
    }

    fn handles(&self) -> MutexGuard<'_, Handles<H>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle for `key`; `make` makes one if there is none or it is too old at the time `now`.
    fn handle(
        &self,
        key: Key,
        now: Instant,
        make: impl FnOnce() -> Result<H, Error>,
        sends: impl Fn() -> (u64, u64),
    ) -> Result<Arc<H>, Error> {
        if let Some((handle, made)) = self.handles().current.get(&key)
            && now.saturating_duration_since(*made) < AGE
        {
            return Ok(Arc::clone(handle));
        }
        let new = Arc::new(make()?);
        let mut handles = self.handles();
        if handles.current.len() >= self.most && !handles.current.contains_key(&key) {
            let oldest = handles.current.iter().min_by_key(|(_, (_, made))| *made);
            let oldest = oldest.map(|(key, _)| *key);
            handles.retire(oldest);
        }
        handles.retire(Some(key));
        handles.current.insert(key, (Arc::clone(&new), now));
        handles.tidy(sends);
        Ok(new)
    }

    /// Frees handles that no send names any longer.
    pub(super) fn tidy(&self, sends: impl Fn() -> (u64, u64)) {
        self.handles().tidy(sends);
    }

    /// Number of handles: the current ones, and those that wait for their sends.
    pub(super) fn len(&self) -> usize {
        let handles = self.handles();
        handles.current.len() + handles.retired.len()
    }
}

impl<H> Handles<H> {
    fn retire(&mut self, key: Option<Key>) {
        if let Some((handle, _)) = key.and_then(|key| self.current.remove(&key)) {
            self.retired.push((handle, None));
        }
    }

    fn tidy(&mut self, sends: impl Fn() -> (u64, u64)) {
        self.retired.retain_mut(|(handle, last)| {
            if Arc::strong_count(handle) > 1 {
                return true;
            }
            // SYNC(address): the last caller that had it posted before it dropped it. Pairs with
            // the Release of the count's decrement, so that those sends are among the posted ones.
            fence(Ordering::Acquire);
            let (posted, done) = sends();
            *last.get_or_insert(posted) > done
        });
    }
}

#[cfg(test)]
mod tests;
