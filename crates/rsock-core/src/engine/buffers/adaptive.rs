//! Adaptive receive memory, on devices that pin registered memory: two short buffers for an idle
//! stream, a larger ring while the stream is busy.
//!
//! A stream cannot recall a buffer that it has announced, so it announces buffers for its recent
//! use. It starts with two short buffers, switches to a ring of the configured size when many bytes
//! arrive in a short time, and switches back when they no longer do. While the larger rings of a
//! process are few, a stream needs fewer bytes to get one. The larger ring is freed once all of its
//! buffers have been filled and read. There is no timer: the stream decides when a buffer has been
//! filled.
//!
//! INVARIANT: the larger ring lives from before its first announcement until its last byte was
//! read.

use crate::engine::QpStream;
use crate::engine::buffers::layout::ring_of;
use crate::engine::config::Config;
use crate::engine::working_set::WorkingSet;
use rsock_proto::{RecvHalf, Span};
use rsock_verbs::{Access, Backend, MemoryRegion, ProtectionDomain};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes within [`PERIOD`] that make a stream busy.
const BUSY: u64 = 3 << 19;
/// As [`BUSY`], while all larger rings together take less than [`BUDGET`].
const BUSY_WITHIN_BUDGET: u64 = 64 << 10;
/// How long bytes are counted before the stream decides.
const PERIOD: Duration = Duration::from_secs(10);
/// Bytes of larger rings that a process may have before [`BUSY`] applies.
const BUDGET: usize = 4 << 20;
/// Length and number of the buffers of an idle stream.
const IDLE_LEN: u32 = 10 << 10;
const N_IDLE: u8 = 2;

/// Bytes of the larger rings of this process.
static LARGE: AtomicUsize = AtomicUsize::new(0);

/// The larger ring of a stream and when it is needed. Private to the process, as registered memory
/// is. Locked under the `recv` lock only.
#[derive(Debug)]
pub(in crate::engine) struct AdaptiveBuffer<B: Backend>(Mutex<AdaptiveState<B>>);

#[derive(Debug)]
pub(in crate::engine) struct AdaptiveState<B: Backend> {
    large: Option<LargeRing<B>>,
    /// Whether buffers are announced in the larger ring.
    is_busy: bool,
    /// When `n_read` began to count.
    since: Instant,
    n_read: u64,
}

/// A larger ring, counted in [`LARGE`].
#[derive(Debug)]
struct LargeRing<B: Backend>(B::Mr);

impl<B: Backend> LargeRing<B> {
    fn new(region: B::Mr) -> Self {
        LARGE.fetch_add(region.len(), Ordering::Relaxed);
        Self(region)
    }
}

impl<B: Backend> Drop for LargeRing<B> {
    fn drop(&mut self) {
        LARGE.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

impl<B: Backend> AdaptiveBuffer<B> {
    pub(in crate::engine) fn new() -> Self {
        let state = AdaptiveState { large: None, is_busy: false, since: Instant::now(), n_read: 0 };
        Self(Mutex::new(state))
    }

    fn lock(&self) -> MutexGuard<'_, AdaptiveState<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Config {
    /// Whether a stream with these sizes switches between two rings.
    fn grows<B: Backend>(&self) -> bool {
        B::PINS && self.buf_len > IDLE_LEN
    }

    /// The sizes of an idle stream, with which every stream starts.
    pub(in crate::engine) fn when_idle<B: Backend>(&self) -> Self {
        match self.grows::<B>() {
            true => Self { buf_len: IDLE_LEN, n_bufs: N_IDLE, ..*self },
            false => *self,
        }
    }
}

impl<B: Backend> QpStream<B> {
    /// The state of the larger ring, on a stream that may have one. The caller holds the `recv`
    /// lock.
    #[inline]
    pub(in crate::engine) fn lock_adaptive(&self) -> Option<MutexGuard<'_, AdaptiveState<B>>> {
        self.config.grows::<B>().then(|| self.adaptive.lock())
    }

    /// Copies received bytes out of the ring that holds them. False if `to` is not mapped memory.
    #[inline]
    pub(in crate::engine) fn copy_span(
        &self,
        adaptive: Option<&AdaptiveState<B>>,
        set: &WorkingSet,
        span: Span,
        to: &mut [u8],
    ) -> bool {
        match adaptive {
            // The old one of two rings is the one in which no buffer is announced.
            Some(AdaptiveState { large: Some(large), is_busy, .. }) if *is_busy != span.is_old => {
                large.0.try_copy_out(span.offset, to)
            }
            _ if B::PINS => {
                self.resources.region.try_copy_out(self.resources.layout.ring + span.offset, to)
            }
            _ => {
                let at = self.resources.layout.offset_of(set, span);
                self.resources.region.try_copy_out(at, to)
            }
        }
    }

    /// Counts `n` bytes that were read. Switches to the ring that recent use calls for, if a
    /// decision is due, and frees the larger ring if it is no longer needed.
    pub(in crate::engine) fn adapt(
        &self,
        state: &mut AdaptiveState<B>,
        half: &mut RecvHalf,
        n: usize,
    ) {
        state.n_read += n as u64;
        if !state.is_busy && state.large.is_some() && half.is_old_ring_free() {
            state.large = None;
        }
        if !half.can_replace_ring() {
            return;
        }
        let is_cheap = || LARGE.load(Ordering::Relaxed) < BUDGET;
        let is_used = state.n_read >= BUSY || state.n_read >= BUSY_WITHIN_BUDGET && is_cheap();
        let now = Instant::now();
        if now.duration_since(state.since) >= PERIOD || is_used && !state.is_busy {
            if is_used != state.is_busy {
                self.switch_ring(state, half, is_used);
            }
            (state.since, state.n_read) = (now, 0);
        }
    }

    fn switch_ring(&self, state: &mut AdaptiveState<B>, half: &mut RecvHalf, is_busy: bool) {
        if is_busy {
            let len = self.config.buf_len as usize * usize::from(self.config.n_bufs);
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            // Without memory, or beyond the limit of locked memory, the stream keeps its ring.
            let Ok(large) = self.resources.pd.alloc_mr(len, access) else { return };
            let ring = ring_of::<B>(&large, 0, &self.config);
            state.large = Some(LargeRing::new(large));
            state.is_busy = half.replace_ring(ring);
        } else {
            let rest = self.config.when_idle::<B>();
            let ring = self.resources.layout.ring_in::<B>(&self.resources.region, &rest, false);
            state.is_busy = !half.replace_ring(ring);
        }
    }
}
