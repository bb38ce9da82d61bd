//! Kernel UDP, with `sendmmsg(2)` and `recvmmsg(2)` for batches.

use super::{Batch, Counters, Socket, host, recvmmsg};
use rsock_core::datagram::n_dropped;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg};
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::slice;
use std::time::Duration;

impl Socket for UdpSocket {
    const NAME: &'static str = "udp";
    const COUNTS_LOSS: bool = true;

    fn bind(addr: SocketAddr) -> io::Result<Self> {
        Self::bind(addr)
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        self.send_to(bytes, to).map(drop)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buf)
    }

    fn send_batch(&self, batch: &[IoSlice<'_>], to: SocketAddr) -> io::Result<usize> {
        let to = SocketAddrAny::from(to);
        let mut controls: Vec<_> = batch.iter().map(|_| SendAncillaryBuffer::default()).collect();
        let messages = batch.iter().zip(&mut controls);
        let mut messages: Vec<_> = messages
            .map(|(piece, control)| MMsgHdr::new_with_addr(&to, slice::from_ref(piece), control))
            .collect();
        Ok(sendmmsg(self, &mut messages, SendFlags::empty())?)
    }

    fn recv_batch(&self, batch: &mut Batch) -> io::Result<()> {
        let (mut bufs, received) = batch.parts();
        recvmmsg::recvmmsg(self.as_fd(), &mut bufs, received)
    }

    fn settled_len(&self, _to: SocketAddr) -> Option<usize> {
        Some(MAX_LEN)
    }

    fn ask_for_room(&self, bytes: usize) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_socket_recv_buffer_size(self, bytes)?)
    }

    /// The kernel charges what it allocates for a packet: a power of two with headers, and its own
    /// bookkeeping. It returns up to a quarter of the buffer late.
    fn room(&self, len: usize) -> Option<usize> {
        const HEADERS: usize = 512;
        let buffer = rustix::net::sockopt::socket_recv_buffer_size(self).ok()?;
        let each = (len + HEADERS).next_power_of_two() + HEADERS;
        Some((buffer / 4 * 3 / each).max(1))
    }

    fn lost_in_receiving(&self) -> Counters {
        [(host::UDP_DROPS.to_owned(), n_dropped(self.as_fd()))].into()
    }

    fn host_counters() -> Counters {
        host::counters()
    }
}

/// Longest payload over IPv4 and IPv6.
const MAX_LEN: usize = 65_507;
