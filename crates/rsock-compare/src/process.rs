//! The cost of processes: memory, CPU time and wake-ups.

use rsock_cli::error::Error;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// Bytes that `pids` hold together: their proportional set size, and pages of memfds that none of
/// them maps.
pub(crate) fn memory(pids: &[u32]) -> Result<u64, Error> {
    let mut total = 0;
    let mut mapped: HashMap<u64, u64> = HashMap::new();
    let mut files: HashMap<u64, u64> = HashMap::new();
    for pid in pids {
        let smaps = read(*pid, "smaps")?;
        for mapping in mappings(&smaps) {
            total += mapping.pss;
            if mapping.name.starts_with(MEMFD) {
                *mapped.entry(mapping.inode).or_default() += mapping.pss;
                // Only root may read this link; the descriptors below serve other users.
                let link = format!("/proc/{pid}/map_files/{}", mapping.range);
                files.extend(allocated(&link));
            }
        }
        let links = fs::read_dir(format!("/proc/{pid}/fd")).map_err(Error::io("cannot look"))?;
        for link in links.flatten().map(|entry| entry.path()) {
            if fs::read_link(&link).is_ok_and(|to| to.to_string_lossy().starts_with(MEMFD)) {
                files.extend(allocated(&link.to_string_lossy()));
            }
        }
    }
    let unmapped =
        files.iter().map(|(inode, len)| len.saturating_sub(*mapped.get(inode).unwrap_or(&0)));
    Ok(total + unmapped.sum::<u64>())
}

/// CPU time of all live threads of `pids`.
pub(crate) fn cpu_time(pids: &[u32]) -> Result<Duration, Error> {
    let nanos =
        sum_over_threads(pids, "schedstat", |text| text.split_whitespace().next()?.parse().ok())?;
    Ok(Duration::from_nanos(nanos))
}

/// Context switches of all live threads of `pids`: a thread that sleeps makes none.
pub(crate) fn switches(pids: &[u32]) -> Result<u64, Error> {
    sum_over_threads(pids, "status", |text| {
        let counts = text.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
        counts.map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
    })
}

/// User CPU time of all children of this process that have ended and were waited for.
pub(crate) fn user_time_of_ended_children() -> Result<Duration, Error> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is writable.
    let rc = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    if rc != 0 {
        return Err(Error::io("getrusage")(io::Error::last_os_error()));
    }
    // SAFETY: all fields are numbers, for which zeroes are valid.
    let time = unsafe { usage.assume_init() }.ru_utime;
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    Ok(seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0)))
}

/// How `/proc` names memory files.
const MEMFD: &str = "/memfd:";

struct Mapping<'a> {
    range: &'a str,
    inode: u64,
    name: &'a str,
    pss: u64,
}

/// Mappings of an `smaps` text that hold pages.
fn mappings(smaps: &str) -> Vec<Mapping<'_>> {
    let mut found: Vec<Mapping<'_>> = Vec::new();
    for line in smaps.lines() {
        if let Some(pss) = line.strip_prefix("Pss:") {
            let kib = pss.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
            if let Some(mapping) = found.last_mut() {
                mapping.pss = kib * 1024;
            }
            continue;
        }
        let mut fields = line.split_ascii_whitespace();
        let Some(range) = fields.next().filter(|range| !range.ends_with(':')) else { continue };
        let inode = fields.nth(3).and_then(|inode| inode.parse().ok()).unwrap_or(0);
        found.push(Mapping { range, inode, name: fields.next().unwrap_or(""), pss: 0 });
    }
    found
}

/// Inode and allocated bytes of the file behind a link of `/proc`.
fn allocated(link: &str) -> Option<(u64, u64)> {
    const BLOCK: u64 = 512;
    let meta = fs::metadata(link).ok()?;
    Some((meta.ino(), meta.blocks() * BLOCK))
}

fn sum_over_threads(
    pids: &[u32],
    file: &str,
    number: impl Fn(&str) -> Option<u64>,
) -> Result<u64, Error> {
    let mut sum = 0;
    for pid in pids {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.map_err(gone(*pid))?.flatten() {
            // A thread may have ended since it was listed.
            let text = fs::read_to_string(task.path().join(file)).unwrap_or_default();
            sum += number(&text).unwrap_or(0);
        }
    }
    Ok(sum)
}

fn read(pid: u32, file: &str) -> Result<String, Error> {
    fs::read_to_string(format!("/proc/{pid}/{file}")).map_err(gone(pid))
}

fn gone(pid: u32) -> impl FnOnce(io::Error) -> Error {
    Error::io(format!("cannot look into process {pid}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;
    use std::io::{Read, Write};
    use std::os::unix::fs::FileExt;
    use std::process::{Command, Stdio};

    #[test]
    fn smaps_are_read_by_mapping() {
        let text = "7f00-7f10 rw-s 00000000 00:01 4711       /memfd:x (deleted)\n\
            Size:                 64 kB\nPss:                  12 kB\nPss_Dirty:  9 kB\n\
            VmFlags: rd wr\n\
            7f20-7f30 rw-p 00000000 00:00 0 \nPss:                   3 kB\n";
        let found: Vec<_> =
            mappings(text).iter().map(|m| (m.range, m.inode, m.name, m.pss)).collect();
        let expected = [("7f00-7f10", 4711, "/memfd:x", 12288), ("7f20-7f30", 0, "", 3072)];
        assert_eq!(found, expected);
    }

    #[test]
    fn pages_of_an_unmapped_memfd_are_counted() {
        const LEN: u64 = 8 << 20;
        let own = [std::process::id()];
        let before = memory(&own).unwrap();
        let file = fs::File::from(rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(LEN).unwrap();
        for at in (0..LEN).step_by(4096) {
            file.write_all_at(&[1], at).unwrap();
        }
        let after = memory(&own).unwrap();
        // Other tests of this process come and go, but not by megabytes.
        assert!(after > before + LEN / 2, "{before} {after}");
    }

    #[test]
    fn this_process_has_used_the_cpu() {
        assert!(cpu_time(&[std::process::id()]).unwrap() > Duration::ZERO);
    }

    /// Uses a process with one thread, since the threads of this one come and go with their counts.
    #[test]
    fn context_switches_of_a_process_that_waits_are_counted() {
        let mut cat = Command::new("cat");
        let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut to, mut from) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
        let pids = [cat.id()];
        let before = switches(&pids).unwrap();
        // It may have found one byte without waiting, but not every byte.
        let mut is_seen = false;
        for _ in 0..1000 {
            to.write_all(b"x").unwrap();
            from.read_exact(&mut [0]).unwrap();
            is_seen |= switches(&pids).unwrap() > before;
        }
        drop(to);
        assert!(cat.wait().unwrap().success() && is_seen);
    }
}
