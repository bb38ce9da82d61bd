//! `rsock stat`: the live connections and UDP sockets of every process that runs rsock, read without waking them.

mod datagrams;

use crate::error::Error;
use crate::on_rdma::OnRdma;
use crate::output;
use datagrams::SocketRow;
use rsock_core::stat::{self, Connection, Counters, Path, Process};
use rsock_core::twin::PinReason;
use rsock_verbs::rdma::Usage;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;

/// Show the live connections and UDP sockets of processes that run rsock
///
/// Reads the counters of your own processes, or of everybody's as root, through /proc.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only this process
    pid: Option<u32>,
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let (processes, refused) = match args.pid {
        Some(pid) => (vec![one(pid)?], 0),
        None => stat::read_all().map_err(Error::io("cannot list processes"))?,
    };
    if args.json {
        let rows: Vec<_> = processes.iter().map(ProcessRow::new).collect();
        return output::print_json(&rows);
    }
    output::print(&table(&processes))?;
    if refused > 0 && processes.is_empty() {
        eprintln!("rsock: {refused} processes of other users were not looked into");
    }
    Ok(())
}

fn one(pid: u32) -> Result<Process, Error> {
    match stat::read_process(pid) {
        Ok(Some(process)) => Ok(process),
        Ok(None) => Err(Error::Usage(format!(
            "process {pid} does not run rsock, or has had no connection yet"
        ))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(Error::Usage(format!("there is no process {pid}")))
        }
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            Err(Error::Usage(format!("process {pid} belongs to another user")))
        }
        Err(e) => Err(Error::io(format!("cannot read process {pid}"))(e)),
    }
}

fn table(processes: &[Process]) -> String {
    let mut rows = vec![
        [
            "PID", "PROGRAM", "LOCAL", "PEER", "PATH", "SENT", "RECEIVED", "WAKEUPS", "SPINS",
            "PROBES", "WHY",
        ]
        .map(String::from),
    ];
    for process in processes {
        rows.extend(process.connections.iter().map(|c| cells(process, c)));
    }
    let sockets = datagrams::table(processes);
    let mut out = String::new();
    // Who has UDP sockets only has no use for a table of none.
    if rows.len() > 1 || sockets.is_empty() {
        out.push_str(&aligned(&rows, |column| column == 0 || (5..10).contains(&column)));
    }
    if !sockets.is_empty() && !out.is_empty() {
        out.push('\n');
    }
    out.push_str(&sockets);
    for process in processes.iter().filter(|p| p.rdma != Usage::default()) {
        let Process { pid, program, rdma, .. } = process;
        let _ = writeln!(out, "{program} ({pid}) on RDMA devices: {}", OnRdma::new(rdma));
    }
    for process in processes.iter().filter(|p| p.n_dropped > 0) {
        let Process { pid, program, n_dropped, .. } = process;
        let _ = writeln!(out, "{program} ({pid}): {n_dropped} more connections were not recorded");
    }
    out
}

/// The rows, each column as wide as its widest cell; numbers end where their columns end.
fn aligned<const N: usize>(rows: &[[String; N]], is_number: impl Fn(usize) -> bool) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Writing to a string cannot fail.
            let _ = if is_number(column) {
                write!(line, "{cell:>width$}  ")
            } else {
                write!(line, "{cell:<width$}  ")
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn cells(process: &Process, c: &Connection) -> [String; 11] {
    [
        process.pid.to_string(),
        process.program.clone(),
        c.local.to_string(),
        c.peer.to_string(),
        path_pair(c),
        bytes(total(&c.tx)),
        bytes(total(&c.rx)),
        c.tx.wakeups.saturating_add(c.rx.wakeups).to_string(),
        c.tx.spins.saturating_add(c.rx.spins).to_string(),
        c.probes.to_string(),
        why(c).to_owned(),
    ]
}

/// One word where both directions travel alike, else sending then receiving.
fn path_pair(c: &Connection) -> String {
    let name = |path: Option<Path>| path.map_or("?".to_owned(), |path| path.to_string());
    let (tx, rx) = (name(c.tx_path), name(c.rx_path));
    if tx == rx { tx } else { format!("{tx}/{rx}") }
}

fn why(c: &Connection) -> &'static str {
    match c.pin {
        Some(PinReason::None) if c.tx_path == Some(Path::Tcp) && c.rx_path == Some(Path::Tcp) => {
            "not moved yet"
        }
        Some(reason) => stat::describe(reason),
        None => "a reason that this version does not know",
    }
}

fn total(counters: &Counters) -> u64 {
    counters.bytes.iter().fold(0, |sum, n| sum.saturating_add(*n))
}

/// Three digits and a binary unit.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => n.to_string(),
        _ if value < 10.0 => format!("{value:.1}{}", UNITS[unit]),
        _ => format!("{value:.0}{}", UNITS[unit]),
    }
}

#[derive(Serialize)]
struct ProcessRow<'a> {
    pid: u32,
    program: &'a str,
    n_not_recorded: u64,
    rdma: OnRdma,
    connections: Vec<ConnectionRow>,
    datagram_sockets: Vec<SocketRow>,
}

#[derive(Serialize)]
struct ConnectionRow {
    local: String,
    peer: String,
    peer_pid: Option<u32>,
    inode: u64,
    sends_over: Option<String>,
    receives_over: Option<String>,
    why_on_tcp: Option<&'static str>,
    keepalive_probes: u64,
    sent: DirectionRow,
    received: DirectionRow,
}

#[derive(Serialize)]
struct DirectionRow {
    bytes: BTreeMap<String, u64>,
    wakeups: u64,
    spins: u64,
}

impl<'a> ProcessRow<'a> {
    fn new(process: &'a Process) -> Self {
        Self {
            pid: process.pid,
            program: &process.program,
            n_not_recorded: process.n_dropped,
            rdma: OnRdma::new(&process.rdma),
            connections: process.connections.iter().map(ConnectionRow::new).collect(),
            datagram_sockets: process.datagrams.iter().map(SocketRow::new).collect(),
        }
    }
}

impl ConnectionRow {
    fn new(c: &Connection) -> Self {
        Self {
            local: c.local.to_string(),
            peer: c.peer.to_string(),
            peer_pid: c.peer_pid,
            inode: c.inode,
            sends_over: c.tx_path.map(|path| path.to_string()),
            receives_over: c.rx_path.map(|path| path.to_string()),
            why_on_tcp: Some(why(c)).filter(|text| !text.is_empty()),
            keepalive_probes: c.probes,
            sent: DirectionRow::new(&c.tx),
            received: DirectionRow::new(&c.rx),
        }
    }
}

impl DirectionRow {
    fn new(counters: &Counters) -> Self {
        let named = Path::ALL.iter().map(Path::to_string).zip(counters.bytes);
        Self { bytes: named.collect(), wakeups: counters.wakeups, spins: counters.spins }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_have_at_most_three_digits() {
        let shown = [0, 999, 1000, 1536, 10 << 10, 999 << 10, 1 << 30, u64::MAX].map(bytes);
        assert_eq!(shown, ["0", "999", "1.0K", "1.5K", "10K", "999K", "1.0G", "16E"]);
    }

    #[test]
    fn a_connection_that_moved_one_way_shows_both_paths() {
        let mut c = Connection {
            local: "127.0.0.1:1".parse().unwrap(),
            peer: "127.0.0.1:2".parse().unwrap(),
            peer_pid: None,
            inode: 1,
            tx_path: Some(Path::Soft),
            rx_path: Some(Path::Tcp),
            probes: 0,
            pin: Some(PinReason::None),
            tx: Counters::default(),
            rx: Counters::default(),
        };
        assert_eq!((path_pair(&c).as_str(), why(&c)), ("soft/tcp", ""));
        c.tx_path = Some(Path::Tcp);
        assert_eq!((path_pair(&c).as_str(), why(&c)), ("tcp", "not moved yet"));
        c.pin = Some(PinReason::Epoll);
        assert_eq!(why(&c), "in an epoll set");
    }
}
