//! Which epoll sets of this process watch a descriptor, and how, as the kernel tells.
//!
//! A set watches open files, not numbers: when another file takes a descriptor's place, the set goes
//! on with the old one for as long as anybody holds it. So whoever replaces a descriptor moves what
//! watches it.

mod fdinfo;

use crate::hook::{SHARED, SHOWN};
use fdinfo::Told;
use rsock_core::datagram::kernel_udp::{EpollTrigger, ProxyChange};
use rsock_verbs::raw;
use rustix::fd::RawFd;
use std::fs;
use std::io;

/// One descriptor in one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    set: RawFd,
    fd: RawFd,
    events: u32,
    data: u64,
    /// Of what is watched; none if the kernel does not tell.
    inode: Option<u64>,
}

/// Everything that watches one of `fds`. Nothing where the kernel does not tell.
pub(crate) fn watching(fds: &[RawFd]) -> Vec<Watch> {
    watches(|watch| fds.contains(&watch.fd)).unwrap_or_default()
}

/// Puts `stand_in` into all sets that watch the socket with `inode`, or takes it out of them; `None` if it is
/// not where it should be. It is not put in where only the kernel can show what such a set is to show.
pub(crate) fn put_stand_in(
    inode: u64,
    stand_in: RawFd,
    change: ProxyChange,
) -> Option<EpollTrigger> {
    let is_its = |watch: &Watch| watch.inode.is_none_or(|found| found == inode);
    let found = watches(is_its).ok()?;
    if change == ProxyChange::Remove {
        for watch in &found {
            Watch { fd: stand_in, ..*watch }.end();
        }
        return Some(EpollTrigger::Level);
    }
    let is_shared = |watch: &Watch| watch.inode.is_some() && watch.events & !SHARED == 0;
    // Under two numbers in one set: the stand-in can have the data of one only.
    let is_twice = |i: usize, watch: &Watch| found[..i].iter().any(|other| other.set == watch.set);
    if found.iter().enumerate().any(|(i, watch)| !is_shared(watch) || is_twice(i, watch)) {
        return None;
    }
    let enter = |watch: &Watch| {
        let watch = Watch { fd: stand_in, events: watch.events & SHOWN, ..*watch };
        // There is one already where two numbers name one set.
        watch.begin() || watch.control(libc::EPOLL_CTL_MOD)
    };
    let are_in = found.iter().all(enter);
    if !are_in {
        found.iter().for_each(|watch| Watch { fd: stand_in, ..*watch }.end());
    }
    let has_edges = found.iter().any(|watch| watch.events & EDGES != 0);
    are_in.then_some(if has_edges { EpollTrigger::Edge } else { EpollTrigger::Level })
}

const EDGES: u32 = libc::EPOLLET.cast_unsigned();

/// Everything in sets of this process for which `is_wanted` holds.
///
/// # Errors
/// The kernel does not tell.
fn watches(is_wanted: impl Fn(&Watch) -> bool) -> io::Result<Vec<Watch>> {
    let open = fs::read_dir("/proc/self/fd")?;
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<RawFd>().ok();
    let is_set = |set: &RawFd| {
        let link = fs::read_link(format!("/proc/self/fd/{set}"));
        link.is_ok_and(|to| to.as_os_str() == "anon_inode:[eventpoll]")
    };
    let sets = open.filter_map(|entry| number(entry.ok()?)).filter(is_set);
    let mut found = Vec::new();
    for set in sets {
        let Ok(told) = fs::read_to_string(format!("/proc/self/fdinfo/{set}")) else { continue };
        let watched = told.lines().filter_map(|line| parse(set, line));
        found.extend(watched.filter(&is_wanted));
    }
    Ok(found)
}

fn parse(set: RawFd, line: &str) -> Option<Watch> {
    let Told { fd, events, data, inode } = fdinfo::parse(line)?;
    Some(Watch { set, fd, events, data, inode })
}

impl Watch {
    /// Ends it. While the descriptor is what it was.
    pub(crate) fn end(self) {
        let _ = self.control(libc::EPOLL_CTL_DEL);
    }

    /// Begins it again, with what the descriptor has become; whether that is so now.
    pub(crate) fn begin(self) -> bool {
        self.control(libc::EPOLL_CTL_ADD)
    }

    fn control(self, operation: i32) -> bool {
        let mut event = libc::epoll_event { events: self.events, u64: self.data };
        // SAFETY: a live event; what the kernel does not like it refuses, and nothing is changed.
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
    fn a_watch_moves_to_what_takes_the_place_of_a_descriptor() {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a set");
        let mut named = eventfd(1, EventfdFlags::empty()).expect("a descriptor");
        let kept = rustix::io::dup(&named).expect("a descriptor");
        let quiet = eventfd(0, EventfdFlags::empty()).expect("a descriptor");
        let data = epoll::EventData::new_u64(0xfedc_ba98_7654_3210);
        epoll::add(&set, &named, data, epoll::EventFlags::IN).expect("added");
        let found = watching(&[named.as_raw_fd()]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].data, 0xfedc_ba98_7654_3210);
        assert_eq!(watching(&[quiet.as_raw_fd()]), []);
        found[0].end();
        dup2(&quiet, &mut named).expect("replaced");
        found[0].begin();
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
