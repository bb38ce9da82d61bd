//! Runs one schedule: starts its processes, judges their sleeps, waits for their ends.

use crate::descendants::descendants;
use crate::referee;
use crate::schedule::Schedule;
use crate::shared::{PROCESSES, Shared};
use crate::worker::{MAIL_FD, SCHEDULE_FD, SHARED_FD, give_child_up, give_turns_back};
use crate::{kernel_tcp, report, sys};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{FromRawFd, IntoRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;

/// Which of the two processes run the library: bit 0 the first, bit 1 the second. A fork does as
/// its parent.
pub(crate) type Mode = u32;

pub(crate) const MODES: [&str; 4] = ["neither", "first", "second", "both"];

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) failure: Option<Failure>,
    /// Whether a process was killed.
    pub(crate) has_kills: bool,
    pub(crate) n_connections: u32,
    pub(crate) n_ports: u32,
    pub(crate) n_checked: u64,
    /// Resets that kernel TCP lost: see [`kernel_tcp`].
    pub(crate) n_lost_resets: u64,
}

/// What was found, and all that is known about it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) what: String,
    pub(crate) details: String,
}

/// How long a run may go on without an operation or a byte, and how long it may take.
const QUIET_LIMIT: u64 = 25_000_000_000;
const LIMIT: u64 = 300_000_000_000;
/// How long a process of the library's may stay after the others.
const STRAY_LIMIT: u64 = 15_000_000_000;

/// Runs `schedule`, with its ports from `port` on.
pub(crate) fn run(schedule: &Schedule, mode: Mode, library: &Path, port: u16) -> Outcome {
    let mut schedule = schedule.clone();
    schedule.settings.port = port.into();
    let shared = open_files(&schedule).expect("files for a run");
    let failure = played(shared, mode, library).err();
    let failure = failure.map(|what| {
        let details = report::details(shared);
        Failure { what, details }
    });
    kill_descendants();
    close_files();
    let outcome = Outcome {
        failure,
        has_kills: shared.processes.iter().any(|p| p.is_killed.load(SeqCst) != 0),
        n_connections: shared.n_connections.load(SeqCst),
        n_ports: shared.n_ports.load(SeqCst),
        n_checked: shared.n_checked.load(SeqCst),
        n_lost_resets: kernel_tcp::lost_resets(shared),
    };
    sys::unmap_shared(shared);
    outcome
}

/// The files and mailboxes, under the numbers by which the processes inherit them.
fn open_files(schedule: &Schedule) -> io::Result<&'static Shared> {
    let shared = sys::memory_file(size_of::<Shared>())?;
    let text = sys::memory_file(0)?;
    // SAFETY: just made, and nothing else owns it.
    let mut file = unsafe { File::from_raw_fd(text) };
    file.write_all(schedule.to_text().as_bytes())?;
    move_to(shared, SHARED_FD);
    move_to(file.into_raw_fd(), SCHEDULE_FD);
    for process in 0..PROCESSES {
        let first = MAIL_FD + 2 * RawFd::try_from(process).expect("few");
        let [a, b] = sys::mailbox()?;
        move_to(a, first);
        move_to(b, first + 1);
    }
    sys::map_shared(SHARED_FD)
}

fn move_to(fd: RawFd, to: RawFd) {
    sys::dup2(fd, to);
    sys::close(fd);
}

fn close_files() {
    for fd in SHARED_FD..MAIL_FD + 2 * RawFd::try_from(PROCESSES).expect("few") {
        sys::close(fd);
    }
}

fn played(shared: &'static Shared, mode: Mode, library: &Path) -> Result<(), String> {
    for process in &shared.processes[..2] {
        process.is_claimed.store(1, SeqCst);
        process.is_forked.store(1, SeqCst);
    }
    for process in 0..2 {
        let preload = (mode >> process & 1 == 1).then_some(library.as_os_str());
        let pid = start(process, preload).map_err(|e| format!("starting a process: {e}"))?;
        shared.processes[process].pid.store(pid, SeqCst);
    }
    // Only the processes hold descriptors that are sent, so that those go with them.
    for fd in MAIL_FD..MAIL_FD + 2 * RawFd::try_from(PROCESSES).expect("few") {
        sys::close(fd);
    }
    let begin = sys::now();
    let mut ended = None;
    let mut seen = (0, begin);
    loop {
        let is_alone = reap(shared)?;
        if is_alone {
            return found(shared).map_or(Ok(()), Err);
        }
        mark_ended(shared);
        if let Some(what) = found(shared) {
            return Err(what);
        }
        referee::look(shared)?;
        let now = sys::now();
        if ended.is_none() && has_all_ended(shared) {
            ended = Some(now);
        }
        if ended.is_some_and(|ended| now - ended > STRAY_LIMIT) {
            return Err(format!("processes are left: {}", names(&descendants()).join(", ")));
        }
        let so_far = progress(shared);
        if so_far != seen.0 {
            seen = (so_far, now);
        }
        if now - seen.1 > QUIET_LIMIT && referee::is_kernels_own(shared) {
            seen.1 = now;
        }
        if now - begin > LIMIT || now - seen.1 > QUIET_LIMIT {
            return Err("HANG: the run does not end".to_owned());
        }
        sys::pause(1000);
    }
}

fn start(process: usize, preload: Option<&OsStr>) -> io::Result<i32> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["worker", &process.to_string()]).stdin(Stdio::null());
    command.env_remove("LD_PRELOAD").env("RUST_BACKTRACE", "1");
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let prepare = || {
        sys::die_with_parent();
        Ok(())
    };
    // SAFETY: one system call, which a fork of a single-threaded process may make.
    unsafe { command.pre_exec(prepare) };
    let child = command.spawn()?;
    Ok(i32::try_from(child.id()).expect("a process number"))
}

/// Reaps what has ended; whether no child is left.
fn reap(shared: &Shared) -> Result<bool, String> {
    loop {
        let (returned, status) = sys::reap();
        match returned.value {
            0 => return Ok(false),
            pid if pid > 0 => {
                let mut all = shared.processes.iter().enumerate();
                let Some((p, process)) =
                    all.find(|(_, process)| i64::from(process.pid.load(SeqCst)) == pid)
                else {
                    continue;
                };
                gone(shared, p);
                let was_killed = process.is_killed.load(SeqCst) != 0;
                if status != 0 && !(was_killed && status == libc::SIGKILL) {
                    return Err(format!("process {p} has ended with status {status:#x}"));
                }
            }
            _ => return Ok(true),
        }
    }
}

/// Notes which processes have ended, though their parents have not reaped them.
fn mark_ended(shared: &Shared) {
    for (p, process) in shared.processes.iter().enumerate() {
        let pid = process.pid.load(SeqCst);
        let may_have =
            process.is_gone.load(SeqCst) != 0 && process.is_reaped.load(SeqCst) == 0 && pid != 0;
        if may_have && has_ended(pid) {
            gone(shared, p);
        }
    }
}

fn gone(shared: &Shared, process: usize) {
    shared.processes[process].is_gone.store(1, SeqCst);
    give_turns_back(shared, process);
    give_child_up(shared, process);
    shared.processes[process].is_reaped.store(1, SeqCst);
}

/// Whether nothing of a process is left but its number.
fn has_ended(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let is_zombie = stat.rsplit(')').next().is_some_and(|state| state.starts_with(" Z"));
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    is_zombie && threads <= 1
}

fn has_all_ended(shared: &Shared) -> bool {
    shared
        .processes
        .iter()
        .all(|process| process.is_claimed.load(SeqCst) == 0 || process.is_reaped.load(SeqCst) != 0)
}

/// A number that grows with everything that happens.
fn progress(shared: &Shared) -> u64 {
    let processes = shared.processes.iter();
    let steps = processes.map(|p| {
        let operations: u32 = p.threads.iter().map(|t| t.next.load(SeqCst)).sum();
        u64::from(operations + p.phase.load(SeqCst) + p.is_reaped.load(SeqCst))
    });
    steps.sum::<u64>() + shared.n_checked.load(SeqCst)
}

/// What a process has found.
fn found(shared: &Shared) -> Option<String> {
    let len = shared.failure_len.load(SeqCst) as usize;
    (len > 0).then(|| {
        let words = shared.failure.iter().flat_map(|word| word.load(SeqCst).to_ne_bytes());
        let bytes: Vec<u8> = words.take(len).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn names(pids: &[i32]) -> Vec<String> {
    let name = |pid: &i32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{} ({pid})", name.trim())
    };
    pids.iter().map(name).collect()
}

/// Ends all that is left of a run.
fn kill_descendants() {
    loop {
        for pid in descendants() {
            sys::kill(pid, libc::SIGKILL);
        }
        loop {
            let (returned, _) = sys::reap();
            match returned.value {
                0 => break,
                n if n > 0 => {}
                _ => return,
            }
        }
        sys::pause(1000);
    }
}
