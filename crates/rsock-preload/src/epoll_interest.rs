//! Which epoll sets of this process have a descriptor in their interest list, and for which events,
//! according to the kernel.
//!
//! A set refers to open files, not to numbers: when another file takes a descriptor's place, the
//! set stays with the previous file for as long as a process has it open. So code that replaces a
//! descriptor moves its entries.

mod fdinfo;

use fdinfo::Entry;
use rsock_core::datagram::kernel_udp::{EpollTrigger, ProxyChange};
use rsock_verbs::raw;
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use std::fs;
use std::io;

/// The events of an entry that its proxy has too. A proxy is always writable, which means nothing.
pub(crate) const PROXIED: u32 =
    (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLET | libc::EPOLLONESHOT).cast_unsigned();

/// The events that a set may ask of a socket with a proxy. One shot for two descriptors would be
/// two, and an exclusive wake-up of one descriptor would not count for the other.
pub(crate) const SUPPORTED: u32 = (libc::EPOLLIN
    | libc::EPOLLRDNORM
    | libc::EPOLLRDBAND
    | libc::EPOLLPRI
    | libc::EPOLLOUT
    | libc::EPOLLWRNORM
    | libc::EPOLLWRBAND
    | libc::EPOLLERR
    | libc::EPOLLHUP
    | libc::EPOLLRDHUP
    | libc::EPOLLET)
    .cast_unsigned();

/// One entry of an epoll set's interest list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    set: RawFd,
    fd: RawFd,
    events: u32,
    data: u64,
    /// The inode of the file; none if the kernel does not say.
    inode: Option<u64>,
}

/// All entries of the descriptors `fds`. None where the kernel does not say.
pub(crate) fn interests_of(fds: &[RawFd]) -> Vec<Interest> {
    find_interests(|interest| fds.contains(&interest.fd)).unwrap_or_default()
}

/// Whether the entry of `fd` in `set` reports nothing any more, because a one-shot event has been
/// reported. The set may have other entries of the same number, of files that had it before.
pub(crate) fn is_spent(set: RawFd, fd: BorrowedFd<'_>) -> bool {
    const FLAGS: u32 = 0xf << 28;
    let inode = rustix::fs::fstat(fd).map(|stat| stat.st_ino).ok();
    let is_of = |entry: &Interest| {
        let is_file = entry.inode.is_none() || entry.inode == inode;
        entry.fd == fd.as_raw_fd() && is_file
    };
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{set}")).unwrap_or_default();
    let mut entries = text.lines().filter_map(|line| parse(set, line));
    entries.any(|entry| is_of(&entry) && entry.events & !FLAGS == 0)
}

/// Whether several entries of `set` have this data, or the kernel does not say.
pub(crate) fn have_several(set: RawFd, data: u64) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/self/fdinfo/{set}")) else { return true };
    let entries = text.lines().filter_map(|line| parse(set, line));
    entries.filter(|entry| entry.data == data).nth(1).is_some()
}

/// Adds `proxy` to all sets that have the socket with `inode`, or removes it from them; `None` if
/// the sets are not as they should be then. It is not added where only the kernel can report the
/// events that such a set asks for.
pub(crate) fn set_epoll_proxy(
    inode: u64,
    proxy: RawFd,
    change: ProxyChange,
) -> Option<EpollTrigger> {
    let is_of_socket = |interest: &Interest| interest.inode.is_none_or(|found| found == inode);
    let found = find_interests(is_of_socket).ok()?;
    if change == ProxyChange::Remove {
        for interest in &found {
            Interest { fd: proxy, ..*interest }.remove();
        }
        return Some(EpollTrigger::Level);
    }
    let is_shared =
        |interest: &Interest| interest.inode.is_some() && interest.events & !SUPPORTED == 0;
    // Under two numbers in one set: the proxy can have the data of one only.
    let is_twice =
        |i: usize, interest: &Interest| found[..i].iter().any(|other| other.set == interest.set);
    if found.iter().enumerate().any(|(i, interest)| !is_shared(interest) || is_twice(i, interest)) {
        return None;
    }
    let enter = |interest: &Interest| {
        let interest = Interest { fd: proxy, events: interest.events & PROXIED, ..*interest };
        // It is in the set already where two numbers refer to one set.
        interest.add() || interest.control(libc::EPOLL_CTL_MOD)
    };
    let are_in = found.iter().all(enter);
    if !are_in {
        found.iter().for_each(|interest| Interest { fd: proxy, ..*interest }.remove());
    }
    let has_edges = found.iter().any(|interest| interest.events & EDGES != 0);
    are_in.then_some(if has_edges { EpollTrigger::Edge } else { EpollTrigger::Level })
}

const EDGES: u32 = libc::EPOLLET.cast_unsigned();

/// All entries of sets of this process for which `is_wanted` holds.
///
/// # Errors
/// The kernel does not say.
fn find_interests(is_wanted: impl Fn(&Interest) -> bool) -> io::Result<Vec<Interest>> {
    let open = fs::read_dir("/proc/self/fd")?;
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<RawFd>().ok();
    let is_set = |set: &RawFd| {
        let link = fs::read_link(format!("/proc/self/fd/{set}"));
        link.is_ok_and(|to| to.as_os_str() == "anon_inode:[eventpoll]")
    };
    let sets = open.filter_map(|entry| number(entry.ok()?)).filter(is_set);
    let mut found = Vec::new();
    for set in sets {
        let Ok(text) = fs::read_to_string(format!("/proc/self/fdinfo/{set}")) else { continue };
        let watched = text.lines().filter_map(|line| parse(set, line));
        found.extend(watched.filter(&is_wanted));
    }
    Ok(found)
}

fn parse(set: RawFd, line: &str) -> Option<Interest> {
    let Entry { fd, events, data, inode } = fdinfo::parse(line)?;
    Some(Interest { set, fd, events, data, inode })
}

impl Interest {
    /// Removes the entry, while the descriptor is what it was.
    pub(crate) fn remove(self) {
        let _ = self.control(libc::EPOLL_CTL_DEL);
    }

    /// Adds the entry for what the descriptor has become; returns whether it is in the set now.
    pub(crate) fn add(self) -> bool {
        self.control(libc::EPOLL_CTL_ADD)
    }

    fn control(self, operation: i32) -> bool {
        let mut event = libc::epoll_event { events: self.events, u64: self.data };
        // SAFETY: a live event; a call that the kernel refuses changes nothing.
        let done = unsafe {
            raw::syscall!(libc::SYS_epoll_ctl, self.set, operation, self.fd, &raw mut event)
        };
        done.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, epoll, eventfd};
    use rustix::fd::AsRawFd;
    use rustix::io::dup2;
    use rustix::time::Timespec;

    #[test]
    fn an_entry_moves_to_the_new_file_of_a_descriptor() {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a set");
        let mut named = eventfd(1, EventfdFlags::empty()).expect("a descriptor");
        let kept = rustix::io::dup(&named).expect("a descriptor");
        let quiet = eventfd(0, EventfdFlags::empty()).expect("a descriptor");
        let data = epoll::EventData::new_u64(0xfedc_ba98_7654_3210);
        epoll::add(&set, &named, data, epoll::EventFlags::IN).expect("added");
        let found = interests_of(&[named.as_raw_fd()]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].data, 0xfedc_ba98_7654_3210);
        assert_eq!(interests_of(&[quiet.as_raw_fd()]), []);
        found[0].remove();
        dup2(&quiet, &mut named).expect("replaced");
        found[0].add();
        let ready = || {
            let mut events = Vec::with_capacity(4);
            let now = Timespec::default();
            epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&now))
                .expect("wait")
        };
        assert_eq!(ready(), 0);
        rustix::io::write(&quiet, &1u64.to_ne_bytes()).expect("write");
        assert_eq!(ready(), 1);
        drop(kept);
    }
}
