//! Conditions: flags and observations of a stream and of a call, which are known without its locks.
//! An input of every query.

/// The conditions of the stream, and of the call that asks, when a query begins.
///
/// The caller observes them when a try begins, and again whenever [`Seen::note`](super::Seen::note)
/// asks for them. Other threads change some of them meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Conditions(u32);

/// The conditions that are flags of the stream or of the call.
///
/// The shortcuts ([`Sender::writes_ring`](super::Sender::writes_ring) and those of the receiver)
/// take these alone: a shortcut cannot depend on a condition that is observed, which its caller
/// would not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FlagConditions(u32);

/// What both kinds of sets can do.
macro_rules! impl_set {
    ($set:ident) => {
        impl $set {
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

            /// Whether at least one of `some` holds.
            #[must_use]
            pub const fn has(self, some: Self) -> bool {
                self.0 & some.0 != 0
            }
        }
    };
}

impl_set!(Conditions);
impl_set!(FlagConditions);

impl FlagConditions {
    /// No flag is set.
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
    /// It is time to check the kernel's socket, although the ring gives no reason to.
    pub const SOCKET_CHECK_DUE: Self = Self(1 << 5);
    /// This call needs the kernel's socket (urgent data, and flags that the ring does not know).
    pub const KERNEL_CALL: Self = Self(1 << 6);
    /// The call has received something before, by this try or an earlier one.
    pub const HAS_RECEIVED: Self = Self(1 << 7);
    /// The call has received on both sides of a change between TCP and the ring.
    pub const CHANNEL_CHANGED: Self = Self(1 << 8);

    /// As a number, for flags that are kept in one word.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// What [`Self::bits`] gave.
    #[must_use]
    pub const fn of_bits(bits: u32) -> Self {
        Self(bits)
    }

    const fn all(self) -> Conditions {
        Conditions(self.0)
    }
}

impl From<FlagConditions> for Conditions {
    fn from(flags: FlagConditions) -> Self {
        flags.all()
    }
}

impl Conditions {
    /// Nothing holds.
    pub const NONE: Self = Self(0);

    /// As [`FlagConditions::PAIRED`].
    pub const PAIRED: Self = FlagConditions::PAIRED.all();
    /// As [`FlagConditions::PINNED`].
    pub const PINNED: Self = FlagConditions::PINNED.all();
    /// As [`FlagConditions::SENDING_ENDED`].
    pub const SENDING_ENDED: Self = FlagConditions::SENDING_ENDED.all();
    /// As [`FlagConditions::RECEIVING_ENDED`].
    pub const RECEIVING_ENDED: Self = FlagConditions::RECEIVING_ENDED.all();
    /// As [`FlagConditions::BROKEN`].
    pub const BROKEN: Self = FlagConditions::BROKEN.all();
    /// As [`FlagConditions::SOCKET_CHECK_DUE`].
    pub const SOCKET_CHECK_DUE: Self = FlagConditions::SOCKET_CHECK_DUE.all();
    /// As [`FlagConditions::KERNEL_CALL`].
    pub const KERNEL_CALL: Self = FlagConditions::KERNEL_CALL.all();
    /// As [`FlagConditions::HAS_RECEIVED`].
    pub const HAS_RECEIVED: Self = FlagConditions::HAS_RECEIVED.all();
    /// As [`FlagConditions::CHANNEL_CHANGED`].
    pub const CHANNEL_CHANGED: Self = FlagConditions::CHANNEL_CHANGED.all();

    /// The ring leads to another host, where TCP may be faster than it, and bytes sent may be lost.
    pub const BETWEEN_HOSTS: Self = Self(1 << 9);
    /// The ring has failed: what was sent may never arrive.
    pub const RING_FAILED: Self = Self(1 << 10);
    /// The ring is disconnected.
    pub const RING_DISCONNECTED: Self = Self(1 << 11);
    /// A thread sleeps for input where only the kernel can wake it.
    pub const KERNEL_ONLY_WAITER: Self = Self(1 << 12);
    /// The ring is full, and a writer is not to wait for it any longer: a spill.
    pub const SPILL_DUE: Self = Self(1 << 13);
    /// The end of the stream has not arrived on the ring within the time that it may take after the
    /// end of TCP.
    pub const END_OVERDUE: Self = Self(1 << 14);
    /// The device has not completed what was posted for so long that it counts as lost.
    pub const DEVICE_SILENT: Self = Self(1 << 15);
    /// No stream of this process moves to the ring now: it is about to `exec` or to fork.
    pub const HALTED: Self = Self(1 << 16);

    /// These conditions without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Those that are flags, for tests.
    #[cfg(test)]
    pub(super) fn flags(self) -> FlagConditions {
        FlagConditions(self.0 & (Self::BETWEEN_HOSTS.0 - 1))
    }

    /// Every combination, for tests.
    #[cfg(test)]
    pub(super) fn every() -> impl Iterator<Item = Self> {
        (0..Self::HALTED.0 << 1).map(Self)
    }
}
