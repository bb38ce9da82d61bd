//! Sockets that send and receive datagrams, for every test of `rsock perf` that measures them: rsock's
//! over shared memory or an RDMA device (`rsock.rs`), and kernel UDP (`udp.rs`, with the
//! system calls that nobody wraps in `system.rs` and what the kernel counts in `host.rs`).

mod host;
mod rsock;
mod system;
mod udp;

use crate::error::Error;
use clap::ValueEnum;
use rsock_core::dgram::Datagram;
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

pub(super) use rsock::OverRdma;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// rsock's datagram sockets: UDP first, then shared memory
    Soft,
    /// The same, then an RDMA device, also on this host
    Rdma,
    /// Kernel UDP
    Udp,
}

impl Kind {
    /// Does `work` with sockets of this kind.
    pub(super) fn run(self, work: impl Work) -> Result<(), Error> {
        match self {
            Self::Soft => work.run_on::<Datagram>(),
            Self::Rdma => {
                super::choose_rdma()?;
                work.run_on::<OverRdma>()
            }
            Self::Udp => work.run_on::<UdpSocket>(),
        }
    }
}

/// What is done with sockets of any kind.
pub(super) trait Work {
    fn run_on<S: Socket>(self) -> Result<(), Error>;
}

/// Numbers by name.
pub(super) type Counters = BTreeMap<String, u64>;

/// A socket that sends and receives datagrams.
pub(super) trait Socket: Sized + Send + Sync {
    const NAME: &'static str;
    /// Whether every datagram that is lost on this host is counted by its sender or its receiver.
    const COUNTS_LOSS: bool;
    /// Whether its sender alone knows.
    const SENDER_KNOWS: bool = false;
    /// Bytes of payload where nobody says.
    const USUAL_LEN: usize = 4096;
    /// Whether a receiver has room for each sending process, which others do not take.
    const HAS_LANES: bool = false;
    fn bind(addr: SocketAddr) -> io::Result<Self>;
    /// Where a server is that nobody gave an address.
    fn any_local() -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], 0)))
    }
    fn address(&self) -> io::Result<SocketAddr>;
    /// How long a call waits for a datagram.
    fn set_limit(&self, limit: Duration) -> io::Result<()>;
    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()>;
    fn recv(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)>;
    /// Sends several at once; how many were sent, one at least.
    fn send_batch(&self, batch: &[IoSlice<'_>], to: SocketAddr) -> io::Result<usize>;
    /// Receives as many as there are, but waits for the first; what is longer than the room for it is cut.
    fn recv_batch(&self, batch: &mut Batch) -> io::Result<()>;
    /// Whether something has come, if that can be told without a system call.
    fn has_input(&self) -> bool {
        false
    }
    /// Asks for a receive buffer of so many bytes, of which it may get less.
    fn ask_for_room(&self, bytes: usize) -> io::Result<()>;
    /// Bytes of the longest datagram that goes to `to` the way that it will keep; nothing as long as they
    /// go another way.
    fn settled_len(&self, to: SocketAddr) -> Option<usize>;
    /// How many datagrams of `len` bytes it has room for before it is read, roughly: of each sending process
    /// if it has lanes, else of all.
    fn room(&self, len: usize) -> Option<usize>;
    /// Datagrams that it sent and knows to be lost.
    fn lost_in_sending(&self) -> Counters {
        BTreeMap::new()
    }
    /// Datagrams that came for it, and that it did not get or take.
    fn lost_in_receiving(&self) -> Counters;
    /// Of what it sent and received, what went through a kernel socket though that was not asked for.
    fn detours(&self) -> u64 {
        0
    }
    /// What this host has counted so far that concerns such sockets; it is not theirs alone.
    fn host_counters() -> Counters {
        BTreeMap::new()
    }
}

/// Datagrams that were received together, and room for as many.
#[derive(Debug)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// Bytes for each.
    room: usize,
    /// Bytes of each that were stored, and where it came from.
    got: Vec<(usize, SocketAddr)>,
}

/// Datagrams that one call sends or receives at most.
pub(super) const MAX_BATCH: usize = 256;

impl Batch {
    /// Room for `n` datagrams, [`MAX_BATCH`] at most, of up to `room` bytes.
    pub(super) fn new(n: usize, room: usize) -> Self {
        Self { bytes: vec![0; n * room], room, got: Vec::with_capacity(n) }
    }

    /// What was received last.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], SocketAddr)> {
        let bytes = self.bytes.chunks_exact(self.room).zip(&self.got);
        bytes.map(|(bytes, (len, from))| (&bytes[..*len], *from))
    }

    /// The buffers, and a list to be filled with what was stored in the first of them.
    fn parts(&mut self) -> (Vec<IoSliceMut<'_>>, &mut Vec<(usize, SocketAddr)>) {
        let Self { bytes, room, got } = self;
        got.clear();
        (bytes.chunks_exact_mut(*room).map(IoSliceMut::new).collect(), got)
    }
}

/// What has changed from one reading of counters to the next; what has not is left out.
pub(super) fn change(before: &Counters, after: Counters) -> Counters {
    let change = |(name, n): (String, u64)| {
        let change = n.saturating_sub(before.get(&name).copied().unwrap_or(0));
        (change != 0).then_some((name, change))
    };
    after.into_iter().filter_map(change).collect()
}

/// Whether nothing has come within the limit.
pub(super) fn is_timeout(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Adds counters of the same names.
pub(super) fn add(sum: &mut Counters, more: Counters) {
    for (name, n) in more {
        *sum.entry(name).or_default() += n;
    }
}
