//! `rsock stat`: the live connections and UDP sockets of every process that runs rsock, read
//! without waking them.

mod datagrams;

use crate::error::Error;
use crate::output;
use crate::rdma_usage::RdmaUsage;
use crate::table::{aligned, bytes};
use datagrams::SocketRow;
use rsock_core::accelerate::FallbackReason;
use rsock_core::metrics::{self, DirectionCounters, Process, StreamMetrics, Transport};
use rsock_verbs::rdma::Usage;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;

/// Show the live connections and UDP sockets of processes that run rsock
///
/// Reads the counters of your own processes, or of all users' as root, through /proc.
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
        None => metrics::read_all().map_err(Error::io("cannot list processes"))?,
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
    match metrics::read_process(pid) {
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
    // Without connections the table of UDP sockets is enough.
    if rows.len() > 1 || sockets.is_empty() {
        out.push_str(&aligned(&rows, |column| column == 0 || (5..10).contains(&column)));
    }
    if !sockets.is_empty() && !out.is_empty() {
        out.push('\n');
    }
    out.push_str(&sockets);
    for process in processes.iter().filter(|p| p.rdma != Usage::default()) {
        let Process { pid, program, rdma, .. } = process;
        let _ = writeln!(out, "{program} ({pid}) on RDMA devices: {}", RdmaUsage::new(rdma));
    }
    for process in processes.iter().filter(|p| p.n_dropped > 0) {
        let Process { pid, program, n_dropped, .. } = process;
        let _ = writeln!(out, "{program} ({pid}): {n_dropped} more connections were not recorded");
    }
    out
}

fn cells(process: &Process, c: &StreamMetrics) -> [String; 11] {
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

/// The path of both directions if it is the same, else that of sending and that of receiving.
fn path_pair(c: &StreamMetrics) -> String {
    let name = |path: Option<Transport>| path.map_or("?".to_owned(), |path| path.to_string());
    let (tx, rx) = (name(c.tx_transport), name(c.rx_transport));
    if tx == rx { tx } else { format!("{tx}/{rx}") }
}

fn why(c: &StreamMetrics) -> &'static str {
    match c.fallback {
        Some(FallbackReason::None)
            if c.tx_transport == Some(Transport::Tcp) && c.rx_transport == Some(Transport::Tcp) =>
        {
            "not moved yet"
        }
        Some(reason) => reason.describe(),
        None => "a reason that this version does not know",
    }
}

fn total(counters: &DirectionCounters) -> u64 {
    counters.bytes.iter().fold(0, |sum, n| sum.saturating_add(*n))
}

#[derive(Serialize)]
struct ProcessRow<'a> {
    pid: u32,
    program: &'a str,
    n_not_recorded: u64,
    rdma: RdmaUsage,
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
            rdma: RdmaUsage::new(&process.rdma),
            connections: process.connections.iter().map(ConnectionRow::new).collect(),
            datagram_sockets: process.datagrams.iter().map(SocketRow::new).collect(),
        }
    }
}

impl ConnectionRow {
    fn new(c: &StreamMetrics) -> Self {
        Self {
            local: c.local.to_string(),
            peer: c.peer.to_string(),
            peer_pid: c.peer_pid,
            inode: c.inode,
            sends_over: c.tx_transport.map(|path| path.to_string()),
            receives_over: c.rx_transport.map(|path| path.to_string()),
            why_on_tcp: Some(why(c)).filter(|text| !text.is_empty()),
            keepalive_probes: c.probes,
            sent: DirectionRow::new(&c.tx),
            received: DirectionRow::new(&c.rx),
        }
    }
}

impl DirectionRow {
    fn new(counters: &DirectionCounters) -> Self {
        let named = Transport::ALL.iter().map(Transport::to_string).zip(counters.bytes);
        Self { bytes: named.collect(), wakeups: counters.wakeups, spins: counters.spins }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_moved_one_way_shows_both_paths() {
        let mut c = StreamMetrics {
            local: "127.0.0.1:1".parse().unwrap(),
            peer: "127.0.0.1:2".parse().unwrap(),
            peer_pid: None,
            inode: 1,
            tx_transport: Some(Transport::Soft),
            rx_transport: Some(Transport::Tcp),
            probes: 0,
            fallback: Some(FallbackReason::None),
            tx: DirectionCounters::default(),
            rx: DirectionCounters::default(),
        };
        assert_eq!((path_pair(&c).as_str(), why(&c)), ("soft/tcp", ""));
        c.tx_transport = Some(Transport::Tcp);
        assert_eq!((path_pair(&c).as_str(), why(&c)), ("tcp", "not moved yet"));
        c.fallback = Some(FallbackReason::Epoll);
        assert_eq!(why(&c), "in an epoll set");
    }
}
