//! The reading side: copies another process's table through `/proc/PID/fd` and decodes it.
//!
//! Any process of the same user can show any bytes, so every number is read from a private copy,
//! and unknown values stay representable. A slot counts only if it was live with the same use count
//! before and after the copy.

use crate::metrics::bytes::Bytes;
use crate::metrics::{
    FallbackReason, MAGIC, MEMFD_NAME, RawCounters, RawHeader, RawSlot, SLOTS_AT, STATE_DATAGRAMS,
    STATE_LIVE, STATE_MASK, TABLE_LEN, Transport, UdpSocketMetrics, VERSION,
};
use rsock_verbs::rdma::Usage;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::offset_of;
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

/// A process that has a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id, as this reader sees it.
    pub pid: u32,
    /// Its command name, with control characters replaced.
    pub program: String,
    /// Sockets that found no free slot, since the start.
    pub n_dropped: u64,
    /// Its objects on RDMA devices.
    pub rdma: Usage,
    /// Its live connections.
    pub connections: Vec<StreamMetrics>,
    /// Its UDP sockets that rsock may accelerate, or might have.
    pub datagrams: Vec<UdpSocketMetrics>,
}

/// The metrics of a live connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamMetrics {
    /// The end of the process.
    pub local: SocketAddr,
    /// The peer's end.
    pub peer: SocketAddr,
    /// The peer's process, if it is known to be on this host.
    pub peer_pid: Option<u32>,
    /// Inode of the kernel socket.
    pub inode: u64,
    /// The transport of sent bytes; `None` is one that this build does not know.
    pub tx_transport: Option<Transport>,
    /// The transport of received bytes; `None` is one that this build does not know.
    pub rx_transport: Option<Transport>,
    /// Keepalive probes sent on an RDMA device. The kernel's probes on TCP are not counted.
    pub probes: u64,
    /// Why it is on TCP; `None` is a reason that this build does not know.
    pub fallback: Option<FallbackReason>,
    /// Counters of the sending direction.
    pub tx: DirectionCounters,
    /// Counters of the receiving direction.
    pub rx: DirectionCounters,
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounters {
    /// Bytes by transport, in the order of [`Transport::ALL`].
    pub bytes: [u64; 3],
    /// Returns from a sleep in the kernel.
    pub wakeups: u64,
    /// Waits that spinning ended.
    pub spins: u64,
}

/// Reads the table of one process; `None` if it has none (it does not run rsock, or has had no
/// connection yet).
///
/// # Errors
/// `ENOENT` if there is no such process, `EACCES` if it belongs to another user.
pub fn read_process(pid: u32) -> io::Result<Option<Process>> {
    let own_pid = innermost_pid(&fs::read_to_string(format!("/proc/{pid}/status"))?);
    for link in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = link?.path();
        // The process may close descriptors meanwhile.
        let Ok(target) = fs::read_link(&path) else { continue };
        let is_table = target
            .to_str()
            .and_then(|t| t.strip_prefix("/memfd:"))
            .is_some_and(|name| name.split(' ').next() == Some(MEMFD_NAME));
        if !is_table {
            continue;
        }
        let Ok(file) = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path)
        else {
            continue;
        };
        if let Some(table) = read_table(&file)?
            && Some(table.owner) == own_pid
        {
            let program = program_name(pid);
            let Table { n_dropped, rdma, connections, datagrams, .. } = table;
            return Ok(Some(Process { pid, program, n_dropped, rdma, connections, datagrams }));
        }
    }
    Ok(None)
}

/// Reads the tables of all processes that this process may read, ordered by process id. The second
/// value is the number of processes that it may not read.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn read_all() -> io::Result<(Vec<Process>, usize)> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    pids.sort_unstable();
    let mut refused = 0;
    let mut found = Vec::new();
    for pid in pids {
        match read_process(pid) {
            Ok(process) => found.extend(process),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => refused += 1,
            // The process ended meanwhile.
            Err(_) => {}
        }
    }
    Ok((found, refused))
}

#[derive(Debug)]
pub(super) struct Table {
    pub(super) owner: u32,
    pub(super) n_dropped: u64,
    pub(super) rdma: Usage,
    pub(super) connections: Vec<StreamMetrics>,
    pub(super) datagrams: Vec<UdpSocketMetrics>,
}

/// `None` if the file is no table of a known version.
pub(super) fn read_table(file: &File) -> io::Result<Option<Table>> {
    let meta = file.metadata()?;
    if !meta.is_file() || meta.size() != TABLE_LEN as u64 {
        return Ok(None);
    }
    let before = copy(file)?;
    let bytes = copy(file)?;
    let after = copy(file)?;
    let header = Bytes(&bytes);
    if header.word(offset_of!(RawHeader, magic)) != MAGIC
        || header.half(offset_of!(RawHeader, version)) != VERSION
        || header.half(offset_of!(RawHeader, slot_len)) as usize != size_of::<RawSlot>()
    {
        return Ok(None);
    }
    let slots =
        [&before, &bytes, &after].map(|copy| copy[SLOTS_AT..].chunks_exact(size_of::<RawSlot>()));
    let [first, middle, last] = slots;
    let (mut connections, mut datagrams) = (Vec::new(), Vec::new());
    for ((first, slot), last) in first.zip(middle).zip(last) {
        let seq = Bytes(first).half(offset_of!(RawSlot, seq));
        if Bytes(last).half(offset_of!(RawSlot, seq)) != seq {
            continue;
        }
        match seq & STATE_MASK {
            STATE_LIVE => connections.push(connection(Bytes(slot))),
            STATE_DATAGRAMS => datagrams.push(UdpSocketMetrics::read(&Bytes(slot))),
            _ => {}
        }
    }
    Ok(Some(Table {
        owner: header.half(offset_of!(RawHeader, pid)),
        n_dropped: header.word(offset_of!(RawHeader, n_dropped)),
        rdma: Usage::from_board(std::array::from_fn(|i| {
            header.word(offset_of!(RawHeader, rdma) + i * size_of::<u64>())
        })),
        connections,
        datagrams,
    }))
}

fn copy(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; TABLE_LEN];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn connection(slot: Bytes<'_>) -> StreamMetrics {
    let [local, peer] = slot.ends();
    let peer_pid = slot.half(offset_of!(RawSlot, peer_pid));
    StreamMetrics {
        local,
        peer,
        peer_pid: (peer_pid != 0).then_some(peer_pid),
        inode: slot.word(offset_of!(RawSlot, inode)),
        tx_transport: Transport::from_byte(slot.byte(offset_of!(RawSlot, tx_transport))),
        rx_transport: Transport::from_byte(slot.byte(offset_of!(RawSlot, rx_transport))),
        probes: slot.word(offset_of!(RawSlot, probes)),
        fallback: FallbackReason::known(slot.byte(offset_of!(RawSlot, fallback))),
        tx: counters(&slot, offset_of!(RawSlot, tx)),
        rx: counters(&slot, offset_of!(RawSlot, rx)),
    }
}

fn counters(slot: &Bytes<'_>, at: usize) -> DirectionCounters {
    let word = |field: usize| slot.word(at + field);
    let bytes = offset_of!(RawCounters, bytes);
    DirectionCounters {
        bytes: [word(bytes), word(bytes + 8), word(bytes + 16)],
        wakeups: word(offset_of!(RawCounters, wakeups)),
        spins: word(offset_of!(RawCounters, spins)),
    }
}

/// The process's id in its innermost namespace: the last one of `NSpid`.
fn innermost_pid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

fn program_name(pid: u32) -> String {
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let comm = String::from_utf8_lossy(&comm);
    comm.trim_end_matches('\n')
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect()
}
