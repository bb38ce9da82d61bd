//! Receive memory where registered memory stays taken: little of it for a stream at rest, and a larger
//! ring for as long as the stream is busy.
//!
//! What a stream has announced cannot be recalled, so it announces what recent use needs: it starts with
//! two short buffers, goes over to a ring of the configured size when a lot arrives in a short time, and
//! back when that ends. The first few streams of a process that grow do so soon; where many have, it
//! takes more. The larger ring is given back once everything in it has been filled and read. There is
//! no timer: the stream looks when a buffer has been filled.
//!
//! Invariant: the larger ring lives from before its first announcement until its last byte was read.

use crate::engine::config::Config;
use crate::engine::stream::Stream;
use rsock_proto::{RecvHalf, RingConfig, Span};
use rsock_verbs::{Access, Backend, MemoryRegion, ProtectionDomain};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes within [`PERIOD`] that make a stream a busy one.
const BUSY: u64 = 3 << 19;
/// As many are enough while all larger rings take less than [`BUDGET`].
const SOON_BUSY: u64 = 64 << 10;
/// How long use is counted before it is judged.
const PERIOD: Duration = Duration::from_secs(10);
/// Bytes of larger rings that a process has without a good reason.
const BUDGET: usize = 4 << 20;
/// The buffers of a stream at rest.
const REST_LEN: u32 = 10 << 10;
const N_REST: u8 = 2;

/// Bytes of the larger rings of this process.
static LARGE: AtomicUsize = AtomicUsize::new(0);

/// Private to the process, as registered memory is. Locked under the `recv` lock only.
#[derive(Debug)]
pub(super) struct Growth<B: Backend>(Mutex<State<B>>);

#[derive(Debug)]
pub(super) struct State<B: Backend> {
    large: Option<Large<B>>,
    /// Whether buffers are announced in the larger ring.
    is_busy: bool,
    /// When `n_read` began to count.
    since: Instant,
    n_read: u64,
}

/// A larger ring, counted.
#[derive(Debug)]
struct Large<B: Backend>(B::Mr);

impl<B: Backend> Large<B> {
    fn new(region: B::Mr) -> Self {
        LARGE.fetch_add(region.len(), Ordering::Relaxed);
        Self(region)
    }
}

impl<B: Backend> Drop for Large<B> {
    fn drop(&mut self) {
        LARGE.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

impl<B: Backend> Growth<B> {
    pub(super) fn new() -> Self {
        let state = State { large: None, is_busy: false, since: Instant::now(), n_read: 0 };
        Self(Mutex::new(state))
    }

    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Config {
    /// Whether a stream of this size has two rings.
    fn grows<B: Backend>(&self) -> bool {
        B::PINS && self.buf_len > REST_LEN
    }

    /// What a stream starts with.
    pub(super) fn at_rest<B: Backend>(&self) -> Self {
        match self.grows::<B>() {
            true => Self { buf_len: REST_LEN, n_bufs: N_REST, ..*self },
            false => *self,
        }
    }
}

impl<B: Backend> Stream<B> {
    /// The larger ring, if received bytes may lie there. The caller holds the `recv` lock.
    #[inline]
    pub(super) fn growth(&self) -> Option<MutexGuard<'_, State<B>>> {
        self.config.grows::<B>().then(|| self.growth.lock())
    }

    /// Copies received bytes from where they lie.
    #[inline]
    pub(super) fn copy_span(&self, growth: Option<&State<B>>, span: Span, to: &mut [u8]) -> bool {
        match growth {
            // Of two rings the old one is the one that is not announced in.
            Some(State { large: Some(large), is_busy, .. }) if *is_busy != span.is_old => {
                large.0.try_copy_out(span.offset, to)
            }
            _ => self.parts.region.try_copy_out(self.parts.layout.ring + span.offset, to),
        }
    }

    /// `n` bytes were read. Turns to the ring that recent use asks for, if it is time to, and gives back
    /// one that is no longer needed.
    pub(super) fn adapt(&self, state: &mut State<B>, half: &mut RecvHalf, n: usize) {
        state.n_read += n as u64;
        if !state.is_busy && state.large.is_some() && half.is_old_ring_free() {
            state.large = None;
        }
        if !half.can_replace_ring() {
            return;
        }
        let is_cheap = || LARGE.load(Ordering::Relaxed) < BUDGET;
        let is_used = state.n_read >= BUSY || state.n_read >= SOON_BUSY && is_cheap();
        let now = Instant::now();
        if now.duration_since(state.since) >= PERIOD || is_used && !state.is_busy {
            if is_used != state.is_busy {
                self.turn(state, half, is_used);
            }
            (state.since, state.n_read) = (now, 0);
        }
    }

    fn turn(&self, state: &mut State<B>, half: &mut RecvHalf, is_busy: bool) {
        if is_busy {
            let len = self.config.buf_len as usize * usize::from(self.config.n_bufs);
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            // No memory, or no more that may be locked: the stream goes on with what it has.
            let Ok(large) = self.parts.pd.alloc_mr(len, access) else { return };
            let ring = ring_of::<B>(&large, 0, &self.config);
            state.large = Some(Large::new(large));
            state.is_busy = half.replace_ring(ring);
        } else {
            let rest = self.config.at_rest::<B>();
            let ring = ring_of::<B>(&self.parts.region, self.parts.layout.ring, &rest);
            state.is_busy = !half.replace_ring(ring);
        }
    }
}

fn ring_of<B: Backend>(region: &B::Mr, offset: usize, config: &Config) -> RingConfig {
    RingConfig {
        region: region.addr().wrapping_add(offset as u64),
        rkey: region.rkey(),
        buf_len: config.buf_len,
        n_bufs: config.n_bufs,
    }
}
