//! The kernel UDP socket of a datagram socket: packets with the protocol's header. No call here
//! waits.

use crate::datagram::header::{UdpHeader, UdpOp};
use rsock_cm::{canonical, in_family};
use rsock_verbs::QpNum;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

/// Length of the longest UDP packet.
const MAX_PACKET: usize = 65_535;
/// Packets received in one call of [`Inbox::take`].
const BATCH: usize = 32;

/// The buffer for one received packet.
#[derive(Debug)]
pub(super) struct Inbox {
    buf: Box<[u8]>,
}

/// A received packet.
#[derive(Debug)]
pub(super) struct Packet<'a> {
    /// Its canonical source.
    pub(super) from: SocketAddr,
    pub(super) header: UdpHeader,
    pub(super) payload: &'a [u8],
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self { buf: vec![0; MAX_PACKET].into_boxed_slice() }
    }

    /// Receives up to a batch of packets; `f` returns whether to continue. Returns how many were no
    /// packets of the protocol; those are dropped.
    ///
    /// # Errors
    /// As reported by the socket, for instance `ECONNREFUSED` when the peer's port is closed.
    pub(super) fn take(
        &mut self,
        udp: BorrowedFd<'_>,
        mut f: impl FnMut(Packet<'_>) -> bool,
    ) -> io::Result<u64> {
        let mut n_bad = 0;
        for _ in 0..BATCH {
            let received = net::recvfrom(udp, &mut *self.buf, RecvFlags::DONTWAIT);
            let (len, from) = match received {
                Ok((len, _, from)) => (len, from),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(e) => return Err(e.into()),
            };
            let Some(from) = from.and_then(|from| SocketAddr::try_from(from).ok()) else {
                n_bad += 1;
                continue;
            };
            let from = canonical(from);
            let packet = &self.buf[..len];
            let Some((header, at)) = UdpHeader::parse(packet, from.is_ipv6()) else {
                n_bad += 1;
                continue;
            };
            if !f(Packet { from, header, payload: &packet[at..] }) {
                break;
            }
        }
        Ok(n_bad)
    }
}

/// The sending socket: its descriptor, and its canonical address.
#[derive(Clone, Copy, Debug)]
pub(super) struct UdpSender<'a> {
    pub(super) udp: BorrowedFd<'a>,
    pub(super) is_v6: bool,
    pub(super) local: SocketAddr,
}

impl UdpSender<'_> {
    /// Sends a datagram to canonical `to`, with the number of the local queue.
    ///
    /// # Errors
    /// `EAGAIN`, `EMSGSIZE`, and others, as `sendmsg(2)`.
    pub(super) fn data(
        &self,
        to: SocketAddr,
        number: QpNum,
        payload: &[IoSlice<'_>],
    ) -> io::Result<()> {
        self.send(UdpOp::Data, to, number, payload)
    }

    /// Tells canonical `to` the number of the local queue. If the packet is lost, the peer's next
    /// datagram asks again.
    pub(super) fn control(&self, to: SocketAddr, number: QpNum) {
        let _ = self.send(UdpOp::Control, to, number, &[]);
    }

    fn send(
        &self,
        op: UdpOp,
        to: SocketAddr,
        number: QpNum,
        payload: &[IoSlice<'_>],
    ) -> io::Result<()> {
        // WIRE: of the destination's family, as its receiver expects. No receiver reads the
        // address.
        let same = self.local.is_ipv4() == to.is_ipv4();
        let addr = if same { self.local.ip() } else { to.ip() };
        let header = UdpHeader { op, qp_num: number, addr }.encode();
        let mut few = [IoSlice::new(&[]); PIECES];
        let mut many = Vec::new();
        let pieces = if payload.len() < PIECES {
            &mut few[..=payload.len()]
        } else {
            many.resize(payload.len() + 1, IoSlice::new(&[]));
            &mut many[..]
        };
        pieces[0] = IoSlice::new(header.as_bytes());
        pieces[1..].copy_from_slice(payload);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut control = SendAncillaryBuffer::default();
        let to = in_family(to, self.is_v6);
        net::sendmsg_addr(self.udp, &to, pieces, &mut control, flags)?;
        Ok(())
    }
}

/// Number of pieces that a packet may have without an allocation.
const PIECES: usize = 9;
