//! Counts of the datagrams of a socket: for its program, and for `rsock stat`.

use crate::datagram::kernel_udp::AcceleratedUdp;
use crate::metrics::DatagramEvent;
use rsock_verbs::{DatagramCounters, DatagramQueue};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a socket has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Datagrams that went into a peer's queue.
    pub n_sent: u64,
    /// Datagrams dropped because the peer's queue was full.
    pub n_dropped: u64,
    /// Datagrams for which the peer's queue was full and which went by the kernel. Those that
    /// followed them there are counted as sent by the kernel only.
    pub n_rescued: u64,
    /// Datagrams that came by the queue and were passed to the program.
    pub n_received: u64,
    /// Datagrams that came by the queue and were dropped: not from the peer that the socket is
    /// connected to.
    pub n_foreign: u64,
    /// Entries of the queue that were no valid datagram.
    pub n_malformed: u64,
    /// Datagrams that this library sent by the kernel.
    pub n_by_kernel: u64,
    /// Datagrams that this library received from the kernel.
    pub n_received_by_kernel: u64,
}

/// The events that the device does not count.
#[derive(Debug, Default)]
pub(super) struct Counts {
    by_kernel: AtomicU64,
    received_by_kernel: AtomicU64,
    rescued: AtomicU64,
    foreign: AtomicU64,
    malformed: AtomicU64,
}

impl AcceleratedUdp {
    /// Counts a datagram, for [`Self::counters`] and `rsock stat`.
    #[inline]
    pub(super) fn count(&self, what: DatagramEvent) {
        let count = match what {
            DatagramEvent::ByKernel => Some(&self.counts.by_kernel),
            DatagramEvent::ReceivedByKernel => Some(&self.counts.received_by_kernel),
            DatagramEvent::Rescued => Some(&self.counts.rescued),
            DatagramEvent::Foreign => Some(&self.counts.foreign),
            DatagramEvent::Malformed => Some(&self.counts.malformed),
            // The device counts these.
            DatagramEvent::Sent | DatagramEvent::Dropped | DatagramEvent::Received => None,
        };
        if let Some(count) = count {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.stat.count(what);
    }

    /// Counters of what was sent, received and lost.
    #[must_use]
    pub fn counters(&self) -> UdpCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let device = self.queue().map_or(DatagramCounters::default(), |queue| queue.ud.counters());
        let counts = &self.counts;
        let (foreign, malformed) = (read(&counts.foreign), read(&counts.malformed));
        UdpCounters {
            n_sent: device.n_sent - device.n_full - device.n_wrong_key,
            n_dropped: device.n_full + device.n_wrong_key - read(&counts.rescued),
            n_rescued: read(&counts.rescued),
            n_received: device.n_received.saturating_sub(foreign + malformed),
            n_foreign: foreign,
            n_malformed: malformed + device.n_malformed,
            n_by_kernel: read(&counts.by_kernel),
            n_received_by_kernel: read(&counts.received_by_kernel),
        }
    }
}
