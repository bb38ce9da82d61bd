//! Sockets that send and receive datagrams, for every measurement of them: rsock's over shared
//! memory or an RDMA device (`rsock.rs`), and kernel UDP (`udp.rs`, with `recvmmsg(2)` in
//! `recvmmsg.rs`). What the kernel counts on the whole host is in `host.rs`.

mod host;
mod recvmmsg;
mod rsock;
mod udp;

use crate::error::Error;
use clap::ValueEnum;
use rsock_core::datagram::Datagram;
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

pub(super) use rsock::OverRdma;

/// A value of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// rsock's datagram sockets: UDP first, then shared memory
    Soft,
    /// The same, then an RDMA device, also on this host
    Rdma,
    /// Kernel UDP
    Udp,
}

impl Kind {
    /// Does `work` with sockets of this kind.
    ///
    /// # Errors
    /// The error of `work`.
    pub fn run(self, work: impl Work) -> Result<(), Error> {
        match self {
            Self::Soft => work.run_on::<Datagram>(),
            Self::Rdma => {
                super::restart_on_rdma()?;
                work.run_on::<OverRdma>()
            }
            Self::Udp => work.run_on::<UdpSocket>(),
        }
    }
}

/// A measurement that is generic over the kind of socket.
pub trait Work {
    /// Runs with sockets of one kind.
    ///
    /// # Errors
    /// If the measurement fails.
    fn run_on<S: Socket>(self) -> Result<(), Error>;
}

/// Numbers by name.
pub type Counters = BTreeMap<String, u64>;

/// A socket that sends and receives datagrams. Its calls fail as those of a UDP socket do.
#[expect(clippy::missing_errors_doc, reason = "the errors are those of the system calls")]
pub trait Socket: Sized + Send + Sync {
    /// The value of `--device`.
    const NAME: &'static str;
    /// Whether its sender or its receiver counts every datagram that is lost on this host.
    const COUNTS_LOSS: bool;
    /// Whether the sender alone knows of every loss.
    const SENDER_KNOWS: bool = false;
    /// Bytes of payload unless the user gives a size.
    const USUAL_LEN: usize = 4096;
    /// Whether a receiver has separate room for each sending process.
    const HAS_LANES: bool = false;

    /// Makes a socket at `addr`.
    fn bind(addr: SocketAddr) -> io::Result<Self>;

    /// The address of a server unless the user gives one.
    fn any_local() -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// Its own address.
    fn address(&self) -> io::Result<SocketAddr>;

    /// Sets how long a call waits for a datagram.
    fn set_limit(&self, limit: Duration) -> io::Result<()>;

    /// Sends a datagram.
    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()>;

    /// Receives a datagram: its length, and its sender.
    fn recv(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)>;

    /// Sends several datagrams in one call, and returns how many were sent: one at least.
    fn send_batch(&self, batch: &[IoSlice<'_>], to: SocketAddr) -> io::Result<usize>;

    /// Waits for a datagram, then receives all that are there, each cut to its room.
    fn recv_batch(&self, batch: &mut Batch) -> io::Result<()>;

    /// Whether a datagram has come; false where only a system call could tell.
    fn has_input(&self) -> bool {
        false
    }

    /// Asks for a receive buffer of so many bytes; the system may grant less.
    fn ask_for_room(&self, bytes: usize) -> io::Result<()>;

    /// The longest datagram that can go to `to` over the path that the socket will keep; `None`
    /// until the socket has chosen it.
    fn settled_len(&self, to: SocketAddr) -> Option<usize>;

    /// Roughly how many datagrams of `len` bytes fit until the program reads: of each sending
    /// process with lanes, else of all together.
    fn room(&self, len: usize) -> Option<usize>;

    /// Datagrams that it sent and knows to be lost.
    fn lost_in_sending(&self) -> Counters {
        BTreeMap::new()
    }

    /// Datagrams that arrived for it and were dropped or refused.
    fn lost_in_receiving(&self) -> Counters;

    /// Datagrams that a kernel socket carried although another path was asked for.
    fn detours(&self) -> u64 {
        0
    }

    /// This host's counters about such sockets, those of other programs included.
    fn host_counters() -> Counters {
        BTreeMap::new()
    }
}

/// Datagrams that were received in one call, and room for as many.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Bytes for each.
    room: usize,
    /// Of each datagram, the bytes that were stored and its sender.
    received: Vec<(usize, SocketAddr)>,
}

/// Datagrams that one call sends or receives at most.
pub const MAX_BATCH: usize = 256;

impl Batch {
    /// Makes room for `n` datagrams, [`MAX_BATCH`] at most, of up to `room` bytes.
    #[must_use]
    pub fn new(n: usize, room: usize) -> Self {
        Self { bytes: vec![0; n * room], room, received: Vec::with_capacity(n) }
    }

    /// The datagrams of the last call, with their senders.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], SocketAddr)> {
        let bytes = self.bytes.chunks_exact(self.room).zip(&self.received);
        bytes.map(|(bytes, (len, from))| (&bytes[..*len], *from))
    }

    /// Returns the buffers, and an empty list for the lengths and senders of the first of them.
    fn parts(&mut self) -> (Vec<IoSliceMut<'_>>, &mut Vec<(usize, SocketAddr)>) {
        let Self { bytes, room, received } = self;
        received.clear();
        (bytes.chunks_exact_mut(*room).map(IoSliceMut::new).collect(), received)
    }
}

/// Returns by how much counters have risen, without those that have not.
#[must_use]
pub fn change(before: &Counters, after: Counters) -> Counters {
    let change = |(name, n): (String, u64)| {
        let change = n.saturating_sub(before.get(&name).copied().unwrap_or(0));
        (change != 0).then_some((name, change))
    };
    after.into_iter().filter_map(change).collect()
}

/// Whether a call ended because no datagram came within the limit.
#[must_use]
pub fn is_timeout(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Adds counters to those of the same names.
pub fn add(sum: &mut Counters, more: Counters) {
    for (name, n) in more {
        *sum.entry(name).or_default() += n;
    }
}
