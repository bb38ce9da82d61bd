//! rsock's datagram sockets, through shared memory and over RDMA devices.

use super::{Batch, Counters, Socket, host};
use crate::rdma_devices;
use rsock_core::datagram::{Datagram, MessageFlags};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::Duration;

impl Socket for Datagram {
    const NAME: &'static str = "soft";
    const COUNTS_LOSS: bool = true;
    const SENDER_KNOWS: bool = true;
    const HAS_LANES: bool = true;

    fn bind(addr: SocketAddr) -> io::Result<Self> {
        Self::bound(addr)
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.set_recv_timeout(Some(limit))
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        self.send_to(&[IoSlice::new(bytes)], Some(to), MessageFlags::empty()).map(drop)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.recv_from(&mut [IoSliceMut::new(buf)], MessageFlags::empty())?;
        Ok((received.len, received.from))
    }

    fn send_batch(&self, batch: &[IoSlice<'_>], to: SocketAddr) -> io::Result<usize> {
        Self::send_batch(self, batch, Some(to))
    }

    fn recv_batch(&self, batch: &mut Batch) -> io::Result<()> {
        let (mut bufs, received) = batch.parts();
        let mut out = vec![None; bufs.len()];
        let n = Self::recv_batch(self, &mut bufs, &mut out)?;
        received.extend(out[..n].iter().flatten().map(|one| (one.len, one.from)));
        Ok(())
    }

    fn settled_len(&self, to: SocketAddr) -> Option<usize> {
        self.max_past_udp(to)
    }

    fn has_input(&self) -> bool {
        Self::has_input(self)
    }

    fn ask_for_room(&self, bytes: usize) -> io::Result<()> {
        Ok(set_socket_recv_buffer_size(self, bytes)?)
    }

    fn room(&self, len: usize) -> Option<usize> {
        self.room_past_udp(len)
    }

    fn lost_in_sending(&self) -> Counters {
        let local = self.counters().local;
        let named = [("queue full", local.n_full), ("wrong key", local.n_wrong_key)];
        named.map(|(name, n)| (name.to_owned(), n)).into()
    }

    fn lost_in_receiving(&self) -> Counters {
        let counters = self.counters();
        let named = [
            ("malformed", counters.local.n_malformed + counters.remote.n_malformed),
            ("malformed, by UDP", counters.n_bad_packets),
            ("foreign", counters.n_foreign),
            (host::UDP_DROPS, counters.n_dropped_by_udp),
        ];
        named.map(|(name, n)| (name.to_owned(), n)).into()
    }

    fn detours(&self) -> u64 {
        let counters = self.counters();
        counters.n_by_udp + counters.n_received_by_udp
    }
}

/// A datagram socket that uses RDMA devices and UDP alone, as this process's environment asks.
#[derive(Debug)]
pub(in crate::perf) struct OverRdma(Datagram);

impl Socket for OverRdma {
    const NAME: &'static str = "rdma";
    /// A device does not tell a sender of losses.
    const COUNTS_LOSS: bool = false;
    /// Fits the packets of soft RoCE on Ethernet with its usual MTU, over IPv4 and IPv6.
    const USUAL_LEN: usize = 1000;

    fn bind(addr: SocketAddr) -> io::Result<Self> {
        Datagram::bound(addr).map(Self)
    }

    fn any_local() -> io::Result<SocketAddr> {
        let devices = rdma_devices::devices()?;
        let none = || io::Error::from_raw_os_error(libc::ENODEV);
        let (_, ip) = rdma_devices::first_address(&devices).ok_or_else(none)?;
        Ok(SocketAddr::new(ip, 0))
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.0.address()
    }

    fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.0.set_limit(limit)
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        Socket::send(&self.0, bytes, to)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        Socket::recv(&self.0, buf)
    }

    fn send_batch(&self, batch: &[IoSlice<'_>], to: SocketAddr) -> io::Result<usize> {
        Socket::send_batch(&self.0, batch, to)
    }

    fn recv_batch(&self, batch: &mut Batch) -> io::Result<()> {
        Socket::recv_batch(&self.0, batch)
    }

    fn settled_len(&self, to: SocketAddr) -> Option<usize> {
        self.0.settled_len(to)
    }

    fn ask_for_room(&self, bytes: usize) -> io::Result<()> {
        self.0.ask_for_room(bytes)
    }

    fn room(&self, len: usize) -> Option<usize> {
        self.0.room(len)
    }

    fn lost_in_receiving(&self) -> Counters {
        self.0.lost_in_receiving()
    }

    fn detours(&self) -> u64 {
        self.0.detours()
    }

    fn host_counters() -> Counters {
        rdma_devices::counters().unwrap_or_default()
    }
}
