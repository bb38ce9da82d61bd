//! Resources of processes, as the kernel counts them.

use crate::descendants::descendants;
use std::fmt;
use std::fs;

/// What the processes of a soak have when no connection is open.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    descriptors: usize,
    /// Anonymous memory in use, in bytes: what a program leaks by.
    memory: u64,
    /// Of them and of what they have started.
    processes: usize,
    /// Unix sockets of the network namespace, which have the names by which processes find each
    /// other.
    unix_sockets: usize,
    shared_files: usize,
    mappings: usize,
    /// Whether something of the library's is shared between them.
    pub(super) has_moved: bool,
}

impl Figures {
    pub(super) fn of(pids: &[u32]) -> Self {
        let entries = |dir: String| fs::read_dir(dir).map_or(0, Iterator::count);
        let maps: Vec<String> = pids
            .iter()
            .map(|pid| fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default())
            .collect();
        let unix = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        Self {
            descriptors: pids.iter().map(|pid| entries(format!("/proc/{pid}/fd"))).sum(),
            memory: pids.iter().map(|pid| anonymous_memory(*pid)).sum(),
            processes: descendants().len(),
            unix_sockets: unix.lines().count(),
            shared_files: entries("/dev/shm".to_owned()),
            mappings: maps.iter().map(|maps| maps.lines().count()).sum(),
            has_moved: maps.iter().all(|maps| maps.contains("/memfd:rsock")),
        }
    }

    fn counts(&self) -> [(&'static str, usize); 5] {
        [
            ("descriptors", self.descriptors),
            ("processes", self.processes),
            ("Unix sockets", self.unix_sockets),
            ("files in /dev/shm", self.shared_files),
            ("mappings", self.mappings),
        ]
    }

    /// Whether `now` has no more than this of what can be counted.
    pub(super) fn counts_are_met(&self, now: &Self) -> bool {
        self.left_in(now, u64::MAX / 2).is_none()
    }

    /// What `now` has more than this; of memory, more than `bytes` more.
    pub(super) fn left_in(&self, now: &Self, bytes: u64) -> Option<String> {
        let counts = self.counts().into_iter().zip(now.counts());
        let mut more = counts.filter(|((_, before), (name, now))| *now > before + slack(name));
        if let Some(((name, before), (_, now))) = more.next() {
            return Some(format!("there are {now} {name} where there were {before}"));
        }
        let (before, now) = (self.memory, now.memory);
        (now > before + bytes)
            .then(|| format!("there are {now} bytes of memory where there were {before}"))
    }
}

/// What may be there more at one time than at another. The allocator maps and unmaps memory of its
/// own accord. The link to a forked child that has ended stays until the next streams come: a
/// descriptor, which is a Unix socket.
fn slack(name: &str) -> usize {
    match name {
        "mappings" => 40,
        "descriptors" | "Unix sockets" => 4,
        _ => 0,
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, n) in self.counts() {
            write!(f, "{n} {name}, ")?;
        }
        write!(f, "{} KiB of memory", self.memory >> 10)
    }
}

fn anonymous_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}
