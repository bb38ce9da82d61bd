//! Protection domains.

use super::Pool;
use super::convert::object;
use super::{RdmaContext, RdmaPath};
use crate::error::Error;
use crate::types::Gid;
use rsock_rdma_sys::verbs::ibv_pd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A protection domain, for queue pairs over one port to one host: a peer reaches by their keys the
/// regions of streams with its own host, and no others.
///
/// # Invariants
/// `raw` came from `ibv_alloc_pd` and is freed exactly once, in `drop`; every object in the domain
/// holds this value.
#[derive(Debug)]
pub struct RdmaPd {
    raw: NonNull<ibv_pd>,
    port: u8,
    peer: Gid,
    /// Memory for the sends of queue pairs, which hold it.
    pool: Mutex<Weak<Pool>>,
    ctx: RdmaContext,
}

// SAFETY: libibverbs's domains may be used from any thread.
unsafe impl Send for RdmaPd {}
// SAFETY: as above, by several at once.
unsafe impl Sync for RdmaPd {}

impl RdmaPd {
    pub(super) fn new(ctx: &RdmaContext, path: &RdmaPath) -> Result<Arc<Self>, Error> {
        // SAFETY: the context is open.
        let raw = unsafe { ctx.verbs().ibv_alloc_pd(ctx.raw()) };
        // INVARIANT: made here, freed by `drop`.
        let raw = object("ibv_alloc_pd", raw)?;
        let (port, peer, pool) = (path.port, path.peer, Mutex::default());
        Ok(Arc::new(Self { raw, port, peer, pool, ctx: ctx.clone() }))
    }

    pub(super) fn ctx(&self) -> &RdmaContext {
        &self.ctx
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    pub(super) fn port(&self) -> u8 {
        self.port
    }

    /// Whether it is for queue pairs on this path.
    pub(super) fn leads_to(&self, path: &RdmaPath) -> bool {
        (self.port, self.peer) == (path.port, path.peer)
    }

    /// Memory for a queue pair's sends.
    pub(super) fn pool(&self) -> Arc<Pool> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.upgrade().unwrap_or_else(|| {
            let new = Arc::<Pool>::default();
            *pool = Arc::downgrade(&new);
            new
        })
    }
}

impl Drop for RdmaPd {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_alloc_pd`, and nothing in it is left.
        let _ = unsafe { self.ctx.verbs().ibv_dealloc_pd(self.raw.as_ptr()) };
    }
}
