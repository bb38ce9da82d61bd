//! Sizes of a stream.

use rsock_verbs::{Backend, cpu_cache};

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// RDMA WRITE WITH IMMEDIATE, as on InfiniBand and RoCE.
    WriteImm,
    /// RDMA WRITE followed by a 4-byte SEND, as on iWARP, which has no immediate.
    MsgSend,
}

/// Sizes of a new stream. Each end chooses its own; the connection data tells them to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of one receive buffer.
    pub buf_len: u32,
    /// Number of receive buffers. Two are announced at a time, the others are filled or free.
    pub n_bufs: u8,
    /// Receive buffers of a stream that keeps its reader busy in a process where no other does, on
    /// a device that does not pin memory; at least `n_bufs`.
    pub most_bufs: u8,
    /// Data messages that may be under way to this end; fewer in memory that is shared.
    pub window: u16,
    /// Largest message to send, in bytes.
    pub max_message: usize,
    /// First message of a large write, in bytes; each next one is twice as large, so that the
    /// receiver starts copying early.
    pub first_message: usize,
    /// Entries for the peer's iomaps.
    pub iomap_slots: u16,
    /// Whether to offer the extension messages to the peer.
    pub extensions: bool,
    /// Whether to begin with short receive buffers, on a device that does not pin memory. The peer
    /// then has room for less, so that bytes beyond need another way, as TCP is.
    pub begins_short: bool,
}

/// Whether the second-level cache of a core has 1 MiB or more.
fn has_large_cache() -> bool {
    cpu_cache::second_level().is_some_and(|len| len >= 1 << 20)
}

impl Default for Config {
    fn default() -> Self {
        Self {
            buf_len: 128 << 10,
            n_bufs: 4,
            most_bufs: 4,
            window: 112,
            max_message: 64 << 10,
            first_message: 16 << 10,
            iomap_slots: 0,
            extensions: true,
            begins_short: false,
        }
    }
}

impl Config {
    /// Receives kept beyond the window, for control messages.
    pub(super) const SPARE: u16 = 16;

    /// Most messages under way in shared memory, with the spare ones one page of a lane, or four.
    ///
    /// PERF: on an EPYC of which each core has 512 KiB of second-level cache, more do not make
    /// streams faster. On a Zen 4 with 1 MiB netperf has, with 48 and with 240 messages under way,
    /// 2.6 and 5.4 Gbit/s with 64 bytes and 31 and 54 with 1 KiB where the CPUs share no cache or
    /// other guests slow them down; 5.3 and 5.3, and 42 and 46, where they share one.
    const MOST_IN_MEMORY: u16 = 48;
    const MOST_WITH_LARGE_CACHE: u16 = 240;

    /// These sizes with receive buffers for a TCP connection on one host, where memory costs
    /// nothing before it is used.
    ///
    /// PERF: one end is often kept from its CPU for some tens of microseconds; the bytes that are
    /// announced, two buffers, keep the other one busy meanwhile. Netperf on an EPYC, two CPUs that
    /// share a cache, medians of seven to nine runs by turns, against four buffers of 128 KiB:
    /// messages of 16 KiB 1.26 times the bytes per second, 64 KiB 1.33, 1 MiB 1.54; four buffers of
    /// 32 KiB: 0.71, 0.66, 0.75; of 512 KiB: 1.20, 1.37, 1.30. With two buffers of 256 KiB or three
    /// it is about the same as with four.
    ///
    /// PERF: that CPU has a second-level cache of 512 KiB. Bytes that the writer's cache still
    /// holds reach the reader at a third of the speed of bytes that have left it for the shared
    /// cache, so the buffers must be more than it holds. On a Zen 4 with 1 MiB three buffers of 512
    /// KiB had 170 to 220 Gbit/s where three of 256 KiB had 95 to 115 (netperf, 16 KiB to 1 MiB,
    /// runs by turns). Twice as many bytes had 215 to 235, but nginx with bodies of 1 MiB on eight
    /// connections had 0.82 of its rate: so many buffers are for a stream that is alone.
    #[must_use]
    pub fn on_one_host(&self) -> Self {
        let sizes = Self { n_bufs: 3, begins_short: true, ..*self };
        match has_large_cache() {
            true => Self {
                buf_len: 512 << 10,
                most_bufs: 6,
                window: Self::MOST_WITH_LARGE_CACHE,
                ..sizes
            },
            false => Self { buf_len: 256 << 10, most_bufs: 4, ..sizes },
        }
    }

    /// The sizes on the device `B`.
    pub(super) fn on_device<B: Backend>(&self) -> Self {
        let most = match B::PINS {
            true => u16::MAX,
            false if has_large_cache() => Self::MOST_WITH_LARGE_CACHE,
            false => Self::MOST_IN_MEMORY,
        };
        Self { window: self.window.min(most), ..*self }
    }

    /// Receives to keep posted.
    pub(super) fn recv_depth(&self) -> u32 {
        u32::from(self.window) + u32::from(Self::SPARE)
    }
}
