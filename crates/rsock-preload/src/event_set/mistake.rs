//! Mistakes that are made on purpose, to show that random programs find them
//! (`cargo xtask lockstep --epoll --mistakes`). Only a build with `--cfg rsock_mistakes` can make
//! one, which `EPOLL_MISTAKE` in the environment names.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mistake {
    /// Of some edges no wait tells.
    LostEdge,
    /// Some edges are reported twice.
    DoubledEdge,
    /// A one-shot watch reports on.
    RearmedOneShot,
    /// While rings have something, the kernel is not asked.
    StarvedListener,
    /// A member stays when its number is closed.
    StaleNumber,
    /// `EPOLLHUP` is not reported.
    MissingHangUp,
    /// An event has the data of the one before.
    DataOfAnother,
    /// A thread that sleeps is not announced.
    LostWakeUp,
    /// With room for few events, the same members are always first.
    UnfairOrder,
    /// A wait ends after half of its time.
    EarlyTimeout,
}

/// Whether the mistake is to be made: never, and known to the compiler, in an ordinary build.
macro_rules! is_mistaken {
    ($mistake:ident) => {{
        #[cfg(rsock_mistakes)]
        let is_mistaken =
            $crate::event_set::mistake::is_chosen($crate::event_set::mistake::Mistake::$mistake);
        #[cfg(not(rsock_mistakes))]
        let is_mistaken = {
            let _ = $crate::event_set::mistake::Mistake::$mistake;
            false
        };
        is_mistaken
    }};
}

pub(super) use is_mistaken;

/// Whether `EPOLL_MISTAKE` names this one.
#[cfg(rsock_mistakes)]
pub(super) fn is_chosen(mistake: Mistake) -> bool {
    static CHOSEN: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var("EPOLL_MISTAKE").unwrap_or_default());
    *chosen == format!("{mistake:?}")
}

/// Every fourth time, for mistakes that would be found too easily.
pub(super) fn is_fourth_time() -> bool {
    use std::sync::atomic::{AtomicU32, Ordering};
    static TIMES: AtomicU32 = AtomicU32::new(0);
    TIMES.fetch_add(1, Ordering::Relaxed) % 4 == 3
}

/// The data of the event before.
pub(super) fn exchanged(data: u64) -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.swap(data, Ordering::Relaxed)
}
