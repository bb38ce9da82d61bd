//! `rsock stat` of UDP sockets: the path of their datagrams, drops, and why some stay on UDP.

use crate::table::aligned;
use rsock_core::accelerate::FallbackReason;
use rsock_core::metrics::{DatagramEvent, Process, ReceivePath, UdpSocketMetrics};
use serde::Serialize;

/// The table of all sockets; empty if there are none.
pub(super) fn table(processes: &[Process]) -> String {
    let head = [
        "PID",
        "PROGRAM",
        "UDP SOCKET",
        "CONNECTED TO",
        "PEERS soft",
        "udp",
        "SENT soft",
        "udp",
        "RECEIVED soft",
        "udp",
        "DROPPED",
        "WHY ON UDP",
    ];
    let mut rows = vec![head.map(String::from)];
    for process in processes {
        rows.extend(process.datagrams.iter().map(|socket| cells(process, socket)));
    }
    if rows.len() == 1 {
        return String::new();
    }
    aligned(&rows, |column| column == 0 || (4..11).contains(&column))
}

fn cells(process: &Process, socket: &UdpSocketMetrics) -> [String; 12] {
    let count = |what| socket.count(what).to_string();
    [
        process.pid.to_string(),
        process.program.clone(),
        socket.local.to_string(),
        socket.peer.map_or_else(|| "-".to_owned(), |peer| peer.to_string()),
        socket.n_queue_peers.to_string(),
        socket.n_kernel_peers.to_string(),
        count(DatagramEvent::Sent),
        count(DatagramEvent::ByKernel),
        count(DatagramEvent::Received),
        count(DatagramEvent::ReceivedByKernel),
        dropped(socket).to_string(),
        why(socket).to_owned(),
    ]
}

/// Datagrams that found no room, and received ones that were malformed or from a foreign sender.
fn dropped(socket: &UdpSocketMetrics) -> u64 {
    [DatagramEvent::Dropped, DatagramEvent::Foreign, DatagramEvent::Malformed]
        .into_iter()
        .fold(0, |sum, what| sum.saturating_add(socket.count(what)))
}

/// Why datagrams travel by UDP; empty if nothing prevents a queue.
fn why(socket: &UdpSocketMetrics) -> &'static str {
    match (socket.fallback, socket.receives) {
        (None, _) => "a reason that this version does not know",
        (_, Some(ReceivePath::SharedPort)) => "other sockets might get what is sent to its port",
        (Some(FallbackReason::None), Some(ReceivePath::Address)) => {
            "its address is of one link, or of many sockets"
        }
        (Some(FallbackReason::None), Some(ReceivePath::Watched)) => {
            FallbackReason::Epoll.describe()
        }
        (Some(FallbackReason::None), Some(ReceivePath::Exhausted)) => {
            FallbackReason::Resources.describe()
        }
        (Some(FallbackReason::None), Some(ReceivePath::Kernel)) if socket.n_queue_peers == 0 => {
            "no peer with a queue yet"
        }
        (Some(FallbackReason::Option), _) => {
            "an option or a later connect that only the kernel can honour"
        }
        (Some(reason), _) => reason.describe(),
    }
}

/// A socket as JSON.
#[derive(Serialize)]
pub(super) struct SocketRow {
    local: String,
    connected_to: Option<String>,
    inode: u64,
    receives_over: &'static str,
    why_on_udp: Option<&'static str>,
    peers: ByPath,
    sent: Sent,
    received: Received,
}

/// A number for each path.
#[derive(Serialize)]
struct ByPath {
    soft: u64,
    udp: u64,
}

#[derive(Serialize)]
struct Sent {
    #[serde(flatten)]
    by_path: ByPath,
    dropped: u64,
    rescued_by_udp: u64,
}

#[derive(Serialize)]
struct Received {
    #[serde(flatten)]
    by_path: ByPath,
    foreign: u64,
    malformed: u64,
}

impl SocketRow {
    pub(super) fn new(socket: &UdpSocketMetrics) -> Self {
        let count = |what| socket.count(what);
        let is_open = socket.receives == Some(ReceivePath::Queue)
            && socket.fallback == Some(FallbackReason::None);
        Self {
            local: socket.local.to_string(),
            connected_to: socket.peer.map(|peer| peer.to_string()),
            inode: socket.inode,
            receives_over: if is_open { "soft" } else { "udp" },
            why_on_udp: Some(why(socket)).filter(|text| !text.is_empty()),
            peers: ByPath { soft: socket.n_queue_peers.into(), udp: socket.n_kernel_peers.into() },
            sent: Sent {
                by_path: ByPath {
                    soft: count(DatagramEvent::Sent),
                    udp: count(DatagramEvent::ByKernel),
                },
                dropped: count(DatagramEvent::Dropped),
                rescued_by_udp: count(DatagramEvent::Rescued),
            },
            received: Received {
                by_path: ByPath {
                    soft: count(DatagramEvent::Received),
                    udp: count(DatagramEvent::ReceivedByKernel),
                },
                foreign: count(DatagramEvent::Foreign),
                malformed: count(DatagramEvent::Malformed),
            },
        }
    }
}
