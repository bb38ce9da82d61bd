//! The members of a set: the descriptors that the program has added.

use super::PolledEventSet;
use super::news::NewsCounter;
use libc::{c_int, epoll_event};
use rsock_core::accelerate::{RemoteWatch, RingWatch, WatchId};
use rsock_proto::event_set::{News, Watch};

/// A stream that the program has added to a set, or another set.
pub(super) struct Member {
    pub(super) fd: c_int,
    /// The number by which the program has added it.
    pub(super) added_as: c_int,
    /// The set that it is; none for a stream.
    pub(super) set: Option<PolledEventSet>,
    /// Whether the program has closed the number by which it has added the file: `fd` is another
    /// number of the same file.
    pub(super) is_renamed: bool,
    /// `epoll_event.events` and `.data`, as the program gave them.
    pub(super) events: u32,
    pub(super) data: u64,
    /// Its watch by the library; none while the kernel alone watches it.
    pub(super) ring: Option<OnRing>,
    /// Whether the program has deleted it. A member on the ring is kept for when it is added again,
    /// until its descriptor is closed: some programs delete and add one for each request.
    pub(super) is_deleted: bool,
    pub(super) is_candidate: bool,
    /// The last wait that has reported it.
    pub(super) reported_in: u64,
}

impl Member {
    /// A member that the kernel watches.
    pub(super) fn new(fd: c_int, event: epoll_event, set: Option<PolledEventSet>) -> Self {
        let (events, data) = (event.events, event.u64);
        Self {
            fd,
            added_as: fd,
            set,
            is_renamed: false,
            events,
            data,
            ring: None,
            is_deleted: false,
            is_candidate: false,
            reported_in: 0,
        }
    }
}

/// A member that the library watches.
pub(super) struct OnRing {
    pub(super) watch: Watch,
    pub(super) announced_by: AnnouncedBy,
    pub(super) news: NewsCounter,
    /// Whether the socket has to be asked at every look.
    pub(super) asks_socket: bool,
    /// Whether the socket has to be asked at the next look.
    pub(super) has_socket_event: bool,
    /// Whether the program has shut down a direction since the last look.
    pub(super) has_changed: bool,
    /// Of a set: whether the last look found it readable.
    pub(super) was_readable: bool,
    /// Of a set: what the kernel has told of so far.
    pub(super) kernel_news_in_set: u32,
    /// The news that it had when [`State::n_news`](super::State) counted it last.
    pub(super) counted: Option<News>,
}

impl OnRing {
    /// A member that no look has seen yet.
    pub(super) fn new(watch: Watch, announced_by: AnnouncedBy) -> Self {
        Self {
            watch,
            announced_by,
            news: NewsCounter::default(),
            asks_socket: false,
            has_socket_event: false,
            has_changed: false,
            was_readable: false,
            kernel_news_in_set: 0,
            counted: None,
        }
    }
}

/// How the set learns of what happens to a member on its ring.
#[derive(Debug)]
pub(super) enum AnnouncedBy {
    /// Its place in the ready set.
    ReadySet(RingWatch),
    /// A doorbell of its own, of a stream between hosts, and the last mark.
    Doorbell { watch: RemoteWatch, mark: u32 },
    /// Not at all, so it is looked at again and again: a stream that has another watch is on its
    /// way back to TCP. Sets tell by other means.
    Nothing,
    /// Not even the socket watch tells of it, because descriptors or the watches that the kernel
    /// allows have run out. It is looked at again and again until its stream is back on TCP, and
    /// the kernel watches it for the program. If it `has_entry`, the program's set has its entry
    /// already, as one of this library's own.
    Unwatched { has_entry: bool },
}

impl AnnouncedBy {
    /// The place in the ready set.
    pub(super) fn place(&self) -> Option<RingWatch> {
        match self {
            Self::ReadySet(place) => Some(*place),
            Self::Doorbell { .. } | Self::Nothing | Self::Unwatched { .. } => None,
        }
    }

    /// Whether there are announcements.
    pub(super) fn is_any(&self) -> bool {
        !matches!(self, Self::Nothing | Self::Unwatched { .. })
    }

    pub(super) fn is_unwatched(&self) -> bool {
        matches!(self, Self::Unwatched { .. })
    }

    /// Whether the program's set has an entry of the member, as one of this library's own.
    pub(super) fn has_entry(&self) -> bool {
        matches!(self, Self::Unwatched { has_entry: true })
    }
}

/// All members, by number.
#[derive(Default)]
pub(super) struct Members {
    slots: Vec<Option<Member>>,
    free: Vec<u32>,
    by_fd: ByFd,
    /// The member of each place in the ready set.
    by_place: Vec<u32>,
    /// Members that are sets.
    sets: Vec<u32>,
    /// Members that doorbells of their own announce: streams between hosts.
    pub(super) remote: Vec<u32>,
    /// Whether several members may have the same number: see [`Member::is_renamed`].
    pub(super) have_shared_numbers: bool,
}

/// The member that each descriptor number names. Short connections come and go here, so it is an
/// array: the kernel gives out the smallest numbers.
#[derive(Default)]
struct ByFd(Vec<u32>);

impl ByFd {
    const NONE: u32 = u32::MAX;

    fn get(&self, fd: c_int) -> Option<u32> {
        let number = *self.0.get(usize::try_from(fd).ok()?)?;
        (number != Self::NONE).then_some(number)
    }

    fn set(&mut self, fd: c_int, number: u32) {
        let Ok(at) = usize::try_from(fd) else { return };
        if self.0.len() <= at {
            self.0.resize(at + 1, Self::NONE);
        }
        self.0[at] = number;
    }

    fn clear(&mut self, fd: c_int) {
        if let Some(number) = usize::try_from(fd).ok().and_then(|fd| self.0.get_mut(fd)) {
            *number = Self::NONE;
        }
    }
}

impl Members {
    pub(super) fn insert(&mut self, member: Member) -> u32 {
        let fd = member.fd;
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        if member.set.is_some() {
            self.sets.push(number);
        }
        self.slots[number as usize] = Some(member);
        self.by_fd.set(fd, number);
        number
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Member> {
        let member = self.slots.get_mut(number as usize)?.take()?;
        if member.set.is_some() {
            self.sets.retain(|&other| other != number);
        }
        self.remote.retain(|&other| other != number);
        if !member.is_renamed {
            self.by_fd.clear(member.fd);
        }
        self.free.push(number);
        Some(member)
    }

    pub(super) fn get(&self, number: u32) -> Option<&Member> {
        self.slots.get(number as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Member> {
        self.slots.get_mut(number as usize)?.as_mut()
    }

    pub(super) fn number_of(&self, fd: c_int) -> Option<u32> {
        self.by_fd.get(fd)
    }

    /// Members that the program has added by `fd`, which was closed since.
    pub(super) fn renamed_from(&self, fd: c_int) -> impl Iterator<Item = (u32, &Member)> {
        let has_any = self.have_shared_numbers;
        let all = has_any.then(|| self.all()).into_iter().flatten();
        all.filter(move |(_, member)| member.is_renamed && member.added_as == fd)
    }

    /// The members that `fd` names: those that the program has added by this number, and those
    /// whose file has no other number that is known.
    pub(super) fn all_of(&self, fd: c_int) -> Vec<u32> {
        if !self.have_shared_numbers {
            return self.number_of(fd).into_iter().collect();
        }
        let is_of = |member: &Option<Member>| member.as_ref().is_some_and(|m| m.fd == fd);
        let numbers = self.slots.iter().enumerate().filter(|(_, member)| is_of(member));
        numbers.filter_map(|(number, _)| u32::try_from(number).ok()).collect()
    }

    /// Gives a member another number of the same file.
    pub(super) fn rename(&mut self, number: u32, to: c_int) {
        if let Some(member) = self.get_mut(number) {
            let from = std::mem::replace(&mut member.fd, to);
            if let Some(set) = &mut member.set {
                set.fd = to;
            }
            let was_renamed = std::mem::replace(&mut member.is_renamed, true);
            if !was_renamed {
                self.by_fd.clear(from);
            }
        }
    }

    pub(super) fn any(&self) -> Option<u32> {
        let number = self.slots.iter().position(Option::is_some)?;
        u32::try_from(number).ok()
    }

    /// All members, with their numbers.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &Member)> {
        (0..).zip(&self.slots).filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }

    /// Members that the library watches.
    pub(super) fn watched(&self) -> impl Iterator<Item = u32> {
        self.all().filter(|(_, member)| member.ring.is_some()).map(|(number, _)| number)
    }

    /// Members that are sets and that the library watches.
    pub(super) fn watched_sets(&self) -> Vec<u32> {
        self.sets.clone()
    }

    /// Notes that `place` of the ready set is the member's.
    pub(super) fn note_place(&mut self, place: RingWatch, number: u32) {
        let at = place.0.0 as usize;
        if self.by_place.len() <= at {
            self.by_place.resize(at + 1, u32::MAX);
        }
        self.by_place[at] = number;
    }

    /// The member at `place`, which may be outdated.
    pub(super) fn at_place(&self, place: RingWatch) -> Option<u32> {
        let number = *self.by_place.get(place.0.0 as usize)?;
        let ring = self.get(number)?.ring.as_ref()?;
        (ring.announced_by.place() == Some(place)).then_some(number)
    }
}

/// The watch of a member, as the core knows it: not zero.
pub(super) fn watch_id(set: u32, member: u32) -> WatchId {
    WatchId((u64::from(set) + 1) << 32 | u64::from(member))
}

/// The set and the member of a watch.
pub(super) fn split(watch: WatchId) -> (u32, u32) {
    #[expect(clippy::cast_possible_truncation, reason = "each half is meant")]
    let (set, member) = ((watch.0 >> 32) as u32, watch.0 as u32);
    (set.wrapping_sub(1), member)
}
