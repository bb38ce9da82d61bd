//! What is known about a run that failed.

use crate::descendants::descendants;
use crate::referee;
use crate::schedule::Kind;
use crate::shared::{CONNECTIONS, End, Process, REMEMBERED, Shared, Thread};
use crate::sys;
use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::Ordering::SeqCst;

/// The states of all threads, their last calls, and the connections.
pub(crate) fn details(shared: &Shared) -> String {
    let mut text = String::new();
    for (p, process) in shared.processes.iter().enumerate() {
        if process.is_claimed.load(SeqCst) != 0 {
            process_details(&mut text, p, process);
        }
    }
    for pid in descendants() {
        kernel_details(&mut text, pid);
    }
    let n = (shared.n_connections.load(SeqCst) as usize).min(CONNECTIONS);
    for connection in 0..n {
        connection_details(&mut text, shared, connection);
    }
    text
}

fn process_details(text: &mut String, p: usize, process: &Process) {
    let _ = writeln!(
        text,
        "process {p}: pid {}, phase {}, killed {}, gone {}, reaped {}",
        process.pid.load(SeqCst),
        process.phase.load(SeqCst),
        process.is_killed.load(SeqCst),
        process.is_gone.load(SeqCst),
        process.is_reaped.load(SeqCst)
    );
    for (t, thread) in process.threads.iter().enumerate() {
        if thread.n_remembered.load(SeqCst) > 0 || thread.call.load(SeqCst) != 0 {
            thread_details(text, t, thread);
        }
    }
}

fn thread_details(text: &mut String, t: usize, thread: &Thread) {
    let call = match referee::call_of(thread) {
        None => "in no call".to_owned(),
        Some(kind) => {
            let end = End::of_index(thread.end.load(SeqCst));
            let age = sys::now().saturating_sub(thread.since.load(SeqCst)) / 1_000_000;
            format!("in `{}` on the {end} for {age} ms", kind.name())
        }
    };
    let next = thread.next.load(SeqCst);
    let _ = writeln!(text, "  thread {t} (tid {}), next {next}, {call}", thread.tid.load(SeqCst));
    let n = thread.n_remembered.load(SeqCst) as usize;
    for i in n.saturating_sub(REMEMBERED)..n {
        let call = &thread.remembered[i % REMEMBERED];
        let kind = Kind::ALL.get(call.kind.load(SeqCst) as usize).map_or("?", |kind| kind.name());
        let end = match call.end.load(SeqCst) {
            u32::MAX => "nothing".to_owned(),
            index => End::of_index(index).to_string(),
        };
        let _ = writeln!(
            text,
            "    op {}: {kind} of {end} (fd {}), {}: {} errno {}",
            call.operation.load(SeqCst).cast_signed(),
            call.fd.load(SeqCst),
            call.asked.load(SeqCst),
            call.result.load(SeqCst),
            call.errno.load(SeqCst)
        );
    }
}

/// The descriptors of a process; of TCP sockets the ports and the state too, as `/proc/net/tcp` has
/// them.
fn descriptor_details(text: &mut String, pid: i32) {
    let sockets = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let sockets: Vec<Vec<&str>> =
        sockets.lines().map(|line| line.split_whitespace().collect()).collect();
    for fd in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let Ok(file) = fs::read_link(fd.path()) else { continue };
        let file = file.display().to_string();
        let inode = file.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        let socket = sockets.iter().find(|words| words.get(9).copied() == inode && inode.is_some());
        let details = socket.and_then(|words| words.get(1..4)).unwrap_or_default().join(" ");
        let _ = writeln!(text, "  descriptor {}: {file} {details}", fd.file_name().display());
    }
}

/// What the kernel says of a process's threads.
fn kernel_details(text: &mut String, pid: i32) {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let name = read(format!("/proc/{pid}/comm"));
    let _ = writeln!(text, "kernel: {name} ({pid})");
    descriptor_details(text, pid);
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let at = |file: &str| read(task.path().join(file).display().to_string());
        let stat = at("stat");
        let state = stat.rsplit(')').next().unwrap_or_default().trim().chars().next();
        let _ = writeln!(
            text,
            "  task {}: state {}, wchan {}, syscall {}",
            task.file_name().to_string_lossy(),
            state.unwrap_or('?'),
            at("wchan"),
            at("syscall")
        );
        if let Some(place) = futex_place(pid, &at("syscall")) {
            let _ = writeln!(text, "    waits for a word at {place}");
        }
        for line in at("stack").lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
}

/// Which mapping the word of a futex call lies in, and where: a static variable can be told by
/// that.
fn futex_place(pid: i32, call: &str) -> Option<String> {
    let hexadecimal = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let mut words = call.split(' ');
    let is_futex = words.next()?.parse() == Ok(libc::SYS_futex);
    let at = hexadecimal(words.next()?).filter(|_| is_futex)?;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let mapping = maps.lines().find(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        range.is_some_and(|(begin, end)| {
            hexadecimal(begin).is_some_and(|begin| begin <= at)
                && hexadecimal(end).is_some_and(|end| at < end)
        })
    })?;
    Some(format!("{at:#x} in {mapping}"))
}

fn connection_details(text: &mut String, shared: &Shared, connection: usize) {
    let it = &shared.connections[connection];
    let _ = writeln!(
        text,
        "connection {connection}: port {}, connected {}, accepted {}",
        it.port.load(SeqCst),
        it.is_connected.load(SeqCst),
        it.is_accepted.load(SeqCst)
    );
    for side in 0..2 {
        let end = End { connection, side };
        let (direction, state) = (shared.written_by(end), shared.state(end));
        let open: Vec<i32> = state.n_open.iter().map(|n| n.load(SeqCst)).collect();
        let maybe: Vec<i32> = state.n_maybe_open.iter().map(|n| n.load(SeqCst)).collect();
        let _ = writeln!(
            text,
            "  {}: sent {}, attempted {}, read by the peer {}, shut {}, peer's reading shut {}, \
             ended {}, unsure {} {}, turns {} {}, open {open:?}, maybe {maybe:?}, mailed {}, \
             abortive {}",
            ["client", "server"][side],
            direction.sent.load(SeqCst),
            direction.attempted.load(SeqCst),
            direction.read.load(SeqCst),
            direction.has_shut_begun.load(SeqCst),
            direction.is_read_shut.load(SeqCst),
            direction.is_ended.load(SeqCst),
            direction.is_write_unsure.load(SeqCst),
            direction.is_read_unsure.load(SeqCst),
            direction.writer.load(SeqCst),
            direction.reader.load(SeqCst),
            state.n_mailed.load(SeqCst),
            state.is_abortive.load(SeqCst)
        );
    }
}
