//! The budgets of a thread, for waits on several sockets at once.

use crate::engine::wait::cpu_contention::CPU_CONTENTION;
use crate::engine::wait::spin::{MAX_NS, Spin};
use crate::engine::wait::yields::{FEW_YIELDS, MOST_YIELDS};

/// As [`MAX_NS`], for more than [`MOST_FEW`] peers at once. A sleep costs little there, since one
/// wake-up serves several peers, and the kernel moves no thread to a CPU that spins. Peers that
/// send nothing count, too: the caller does not know which ones will. PERF: haproxy between nginx
/// and wrk with 64 connections, on two CPUs, served 67 to 76 thousand requests a second without
/// this limit and 78 with it; kernel TCP served 47 (medians of nine by turns).
pub(super) const MANY_MAX_NS: u32 = 15_000;
/// With no more peers than this, a wait spins for as long as with one.
const MOST_FEW: usize = 8;

thread_local! {
    /// The budget of waits for a few peers, on streams together or on datagrams.
    pub(super) static FOR_FEW: Spin = const { Spin::new(MAX_NS, FEW_YIELDS) };
    static FOR_MANY: Spin = const { Spin::new(MANY_MAX_NS, MOST_YIELDS) };
}

/// Spins as long as [`spin_on`] does before it reads the clock: about a microsecond, or not at all
/// where spinning has not helped or other processes want the CPUs.
#[inline]
pub fn spin_briefly_on(ready: impl Fn() -> bool) -> bool {
    FOR_FEW.with(|spin| spin.first_turns(false, ready))
}

/// Spins and yields within the calling thread's budget until `ready` holds. For waits on one
/// datagram socket.
///
/// A wait that is over when it begins, as it is after each sleep, teaches nothing. PERF: its first
/// yield would count as one that has let the peer run, after which no long spin is tried: round
/// trips of datagrams between two CPUs went on taking two wake-ups each, 48 us, for as long as they
/// lasted, and 0.5 us else (`rsock perf dgram`; so five runs of twelve).
pub fn spin_on(ready: impl Fn() -> bool) -> bool {
    ready() || spin_on_peers(1, || None, ready)
}

/// As [`spin_on`], for `n_peers`. `is_peer_elsewhere` tells whether the one that last woke this
/// thread ran on another CPU. It is asked only where other processes want the CPUs.
pub fn spin_on_peers(
    n_peers: usize,
    is_peer_elsewhere: impl FnOnce() -> Option<bool>,
    ready: impl Fn() -> bool,
) -> bool {
    let spin = if n_peers > MOST_FEW { &FOR_MANY } else { &FOR_FEW };
    spin.with(|spin| spin.wait_beside(Some(&CPU_CONTENTION), is_peer_elsewhere, ready))
}
