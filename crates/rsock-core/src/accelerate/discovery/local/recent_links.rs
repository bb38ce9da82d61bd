//! The links that streams of this process found their peers over lately: the next one may find its
//! peer over one of them, without a socket.

use rsock_verbs::mutex::try_lock;
use rsock_verbs::soft::{Link, LinkId, SoftContext};
use std::sync::{Arc, Mutex};

/// Links that are kept in mind.
const MOST: usize = 4;

static RECENT: Mutex<Recent> = Mutex::new(Recent { ids: [None; MOST], is_likely: false });

#[derive(Debug)]
struct Recent {
    /// The latest first.
    ids: [Option<LinkId>; MOST],
    /// Whether the last stream's peer was in a process that there was a usable link to already: the
    /// next one's probably is.
    is_likely: bool,
}

/// Notes that a stream's peer, from which something has just come, is in the process at the other
/// end of `link`. `was_there` tells whether there was this link before.
pub(super) fn note(link: &Link, was_there: bool) {
    // Asked while the process certainly lives, and where the kernel does not tell, the link serves
    // no further streams.
    remember(link.id(), link.has_trusted_user() && was_there);
}

/// Notes that a stream's peer is at the other end of link `id`, and whether the next one's
/// probably is at the other end of such a link.
pub(super) fn remember(id: LinkId, is_likely: bool) {
    // A thread that a forked child does not have may hold the lock.
    if let Some(mut recent) = try_lock(&RECENT) {
        recent.note(id, is_likely);
    }
}

/// Whether the next stream probably finds its peer over one of [`links`].
pub(in crate::accelerate) fn are_likely() -> bool {
    try_lock(&RECENT).is_some_and(|recent| recent.likely().is_some())
}

/// The links by which the next stream may find its peer; none if it had better look elsewhere.
pub(in crate::accelerate) fn links() -> Vec<Arc<Link>> {
    let Some(ids) = try_lock(&RECENT).and_then(|recent| recent.likely()) else { return Vec::new() };
    let Ok(device) = SoftContext::open() else { return Vec::new() };
    ids.into_iter().flatten().filter_map(|id| device.link_to_begin_on(id)).collect()
}

impl Recent {
    fn note(&mut self, id: LinkId, is_likely: bool) {
        self.is_likely = is_likely;
        if self.ids[0] != Some(id) {
            let known = self.ids.iter().position(|known| *known == Some(id));
            self.ids[..=known.unwrap_or(MOST - 1)].rotate_right(1);
            self.ids[0] = Some(id);
        }
    }

    fn likely(&self) -> Option<[Option<LinkId>; MOST]> {
        self.is_likely.then_some(self.ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_links_are_kept_in_mind_in_their_order() {
        let mut recent = Recent { ids: [None; MOST], is_likely: false };
        let id = |n| LinkId([n; 16]);
        (1..=5).for_each(|n| recent.note(id(n), true));
        recent.note(id(3), true);
        assert_eq!(recent.likely(), Some([3, 5, 4, 2].map(|n| Some(id(n)))));
        recent.note(id(6), false);
        assert_eq!(recent.likely(), None);
        recent.note(id(6), true);
        assert_eq!(recent.likely(), Some([6, 3, 5, 4].map(|n| Some(id(n)))));
    }
}
