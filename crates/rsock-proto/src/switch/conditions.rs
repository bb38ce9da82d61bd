//! Conditions: flags of a stream and of a call, which are known without locks. An input of every
//! query.

/// The conditions of the stream, and of the call that asks, when a query begins.
///
/// The caller observes them when a try begins, and again whenever [`Seen::note`](super::Seen::note)
/// asks for them. Other threads change some of them meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Conditions(u32);

impl Conditions {
    /// Nothing holds.
    pub const NONE: Self = Self(0);
    /// The peer has been found, and this process can use the ring.
    pub const PAIRED: Self = Self(1);
    /// The stream stays on TCP for good.
    pub const PINNED: Self = Self(1 << 1);
    /// The program has ended its sending direction: on the ring first, then on the kernel's socket.
    pub const SENDING_ENDED: Self = Self(1 << 2);
    /// The program has ended its receiving direction (`SHUT_RD`).
    pub const RECEIVING_ENDED: Self = Self(1 << 3);
    /// This end has broken the connection off, because bytes under way on the ring were lost.
    pub const BROKEN: Self = Self(1 << 4);
    /// The ring leads to another host, where TCP may be faster than it, and bytes sent may be lost.
    pub const BETWEEN_HOSTS: Self = Self(1 << 5);
    /// The ring has failed: what was sent may never arrive.
    pub const RING_FAILED: Self = Self(1 << 6);
    /// The ring is disconnected.
    pub const RING_DISCONNECTED: Self = Self(1 << 7);
    /// A thread sleeps for input where only the kernel can wake it.
    pub const KERNEL_ONLY_WAITER: Self = Self(1 << 8);
    /// It is time to check the kernel's socket, although the ring gives no reason to.
    pub const SOCKET_CHECK_DUE: Self = Self(1 << 9);
    /// The ring has been full without progress for as long as a writer waits for it: a spill.
    pub const SPILL_DUE: Self = Self(1 << 10);
    /// The end of the stream has not arrived on the ring within the time that it may take after the
    /// end of TCP.
    pub const END_OVERDUE: Self = Self(1 << 11);
    /// The device has not completed what was posted for so long that it counts as lost.
    pub const DEVICE_SILENT: Self = Self(1 << 12);
    /// This call needs the kernel's socket (urgent data, and flags that the ring does not know).
    pub const KERNEL_CALL: Self = Self(1 << 13);

    /// The call has received something before, by this try or an earlier one.
    pub const HAS_RECEIVED: Self = Self(1 << 14);
    /// The call has received on both sides of a change between TCP and the ring.
    pub const CHANNEL_CHANGED: Self = Self(1 << 15);

    /// No stream of this process moves to the ring now: it is about to `exec` or to fork.
    pub const HALTED: Self = Self(1 << 16);

    /// The conditions of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These conditions, and `other` as well if `holds`.
    #[must_use]
    pub const fn with_if(self, other: Self, holds: bool) -> Self {
        if holds { self.with(other) } else { self }
    }

    /// These conditions without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether at least one of `some` holds.
    #[must_use]
    pub const fn has(self, some: Self) -> bool {
        self.0 & some.0 != 0
    }

    /// Every combination, for tests.
    #[cfg(test)]
    pub(super) fn every() -> impl Iterator<Item = Self> {
        (0..Self::HALTED.0 << 1).map(Self)
    }
}
