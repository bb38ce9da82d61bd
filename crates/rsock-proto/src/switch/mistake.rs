//! Seeded mistakes, which the explorer has to find: each is a rule that is left out, or wrong, in
//! one place.

/// A mistake in the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(unnameable_types, reason = "only tests name it")]
pub enum Mistake {
    /// Invites the peer while a thread sleeps where only the kernel can wake it.
    InviteWhileKernelOnlyWaits,
    /// An invited receiver reads all bytes of TCP, not only those that were there before it checked
    /// for `Up`.
    InvitedReadsAll,
    /// The queue is observed after the check for `Up`.
    QueueAfterMessages,
    /// The end of TCP counts without another check of the ring.
    NoSecondCheckAtEnd,
    /// The receiver reads TCP past the offset of `Up`.
    LimitIgnored,
    /// `Down` counts before the ring is empty.
    DownBeforeRingIsEmpty,
    /// The low bits of an offset count as all of it.
    OffsetNotUnwrapped,
    /// The sender counts the bytes of the ring among those of TCP.
    OffsetOfRingAndTcp,
    /// The sender does not compare the kernel's count with its own.
    KernelNotAsked,
    /// The sender moves to the ring uninvited.
    UpWithoutReady,
    /// An invitation serves twice.
    ReadyUsedTwice,
    /// A sender on TCP does not answer `Leave`.
    LeaveNotAnswered,
    /// A pinned sender leaves the ring, and does not refuse it from then on.
    RefusedByOneDown,
    /// The end on the ring counts although the sender went back to TCP before it.
    RingEndIsTheEnd,
    /// The end of the stream reaches the kernel's socket alone.
    EndOnTcpFirst,
    /// Between hosts: the sender does not wait for the ring before it goes on with TCP.
    TcpOvertakesRing,
    /// Between hosts: the end of TCP counts without an end on the ring.
    EndOfTcpBetweenHosts,
    /// All `Down` messages that have arrived count as one.
    DownsMerge,
    /// A call for the kernel's socket does not wait until the ring has been left.
    KernelCallOvertakes,
    /// The lock of the direction is free between the end on the ring and the end of TCP.
    EndWithoutLock,
    /// A thread that reads the last byte of TCP before the ring does not wake the others.
    ReaderWakesNoOther,
    /// A handoff treats a ring that is empty at the moment as left.
    EmptyRingCountsAsLeft,
    /// Between hosts: a sender that finds the ring drained does not check whether the ring has
    /// failed.
    DrainedByFailure,
    /// Between hosts: the same of a receiver that finds the end of the ring.
    EndedByFailure,
    /// A read that finds the end of TCP does not check whether this process has ended TCP.
    OwnEndUnnoticed,
    /// Between hosts: a sender does not give up a device that reports no completions.
    SilenceIgnored,
    /// An error that a peek took from the kernel's socket is forgotten.
    ErrorForgotten,
    /// Between hosts: a connection that is broken off ends as one that is closed.
    BreakIsAnEnd,
    /// Between hosts: a thread that waits does not check whether sent bytes are lost.
    FailureNotSettled,
}

impl Mistake {
    /// All of them.
    pub(super) const ALL: [Self; 29] = [
        Self::InviteWhileKernelOnlyWaits,
        Self::InvitedReadsAll,
        Self::QueueAfterMessages,
        Self::NoSecondCheckAtEnd,
        Self::LimitIgnored,
        Self::DownBeforeRingIsEmpty,
        Self::OffsetNotUnwrapped,
        Self::OffsetOfRingAndTcp,
        Self::KernelNotAsked,
        Self::UpWithoutReady,
        Self::ReadyUsedTwice,
        Self::LeaveNotAnswered,
        Self::RefusedByOneDown,
        Self::RingEndIsTheEnd,
        Self::EndOnTcpFirst,
        Self::TcpOvertakesRing,
        Self::EndOfTcpBetweenHosts,
        Self::DownsMerge,
        Self::KernelCallOvertakes,
        Self::EndWithoutLock,
        Self::ReaderWakesNoOther,
        Self::EmptyRingCountsAsLeft,
        Self::DrainedByFailure,
        Self::EndedByFailure,
        Self::OwnEndUnnoticed,
        Self::SilenceIgnored,
        Self::ErrorForgotten,
        Self::BreakIsAnEnd,
        Self::FailureNotSettled,
    ];
}
