//! Receiving: from the queues past UDP and from the UDP socket, whose control packets are answered
//! here.

use crate::datagram::flags::MessageFlags;
use crate::datagram::header::{MAX_QUEUE_HEADER, QueueHeader, UdpOp};
use crate::datagram::source_check::SourceCheck;
use crate::datagram::udp::Inbox;
use crate::datagram::{Datagram, Received, errno};
use crate::interrupt::{Section, Watch};
use crate::sys;
use rsock_cm::{canonical, in_family};
use rsock_verbs::{Arrived, QpNum};
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Datagrams that came by UDP, or were peeked at, and wait for a receive.
#[derive(Debug)]
pub(super) struct PendingDatagrams {
    pub(super) inbox: Inbox,
    pub(super) datagrams: VecDeque<(SocketAddr, Vec<u8>)>,
    /// An error of the UDP socket, for the next call.
    pub(super) error: Option<io::Error>,
}

/// Most datagrams kept between the UDP socket and the program.
const MAX_PENDING: usize = 256;
/// Receptions from the queues before UDP and handshakes are polled.
const UDP_EVERY: u32 = 64;
/// Most datagrams that one receive drops.
const MAX_DROPPED: u32 = 1024;
/// How often one receive spins for a datagram and finds none that it may take, before it looks at
/// UDP and its time limit. A peer may send what has to be dropped without end.
const MOST_SPINS: u32 = 16;

impl Datagram {
    /// As `recvfrom(2)` into several buffers. A datagram that is longer than the buffers is
    /// truncated, which [`Received::full_len`] shows.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`; errors of UDP, for instance `ECONNREFUSED`.
    #[doc(alias = "rrecvfrom")]
    pub fn recv_from(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        flags: MessageFlags,
    ) -> io::Result<Received> {
        let mut received = match self.try_recv_local(bufs, flags.is_peek())? {
            Some(received) => received,
            None => self.recv_slow(bufs, flags)?,
        };
        received.from = in_family(received.from, self.is_v6());
        Ok(received)
    }

    fn recv_slow(&self, bufs: &mut [IoSliceMut<'_>], flags: MessageFlags) -> io::Result<Received> {
        let nonblocking = flags.is_dont_wait() || self.is_nonblocking();
        let watch = Watch::begin();
        self.local()?;
        // Read when it is first needed: it takes a system call.
        let mut deadline = None;
        let mut n_spins = 0;
        loop {
            // PERF: a socket that receives past UDP spins there for a while before a system call.
            let spun = !nonblocking && n_spins < MOST_SPINS && self.spin();
            n_spins += u32::from(spun);
            if !spun {
                self.poll_udp();
            }
            if let Some(received) = self.try_recv_local(bufs, flags.is_peek())? {
                return Ok(received);
            }
            if self.is_closed.load(Ordering::Acquire) {
                return Err(errno(libc::EBADF));
            }
            if nonblocking {
                return Err(errno(libc::EAGAIN));
            }
            if spun {
                continue;
            }
            let limit = || self.receive_timeout().and_then(|limit| sys::now().checked_add(limit));
            let deadline = *deadline.get_or_insert_with(limit);
            if sys::time_left(deadline) == Some(Duration::ZERO) {
                return Err(errno(libc::EAGAIN));
            }
            self.sleep(deadline, watch)?;
        }
    }

    /// Receives as many datagrams as there are, one into each of `bufs`; waits for the first as
    /// [`Self::recv_from`] does. Describes them in the first entries of `out`, and returns their
    /// number. As `recvmmsg(2)` with `MSG_WAITFORONE`.
    ///
    /// # Errors
    /// As [`Self::recv_from`].
    #[doc(alias = "recvmmsg")]
    pub fn recv_batch(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        out: &mut [Option<Received>],
    ) -> io::Result<usize> {
        self.recv_up_to(bufs, out, MessageFlags::empty())
    }

    /// As [`Self::recv_batch`], with flags.
    pub(super) fn recv_up_to(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        out: &mut [Option<Received>],
        flags: MessageFlags,
    ) -> io::Result<usize> {
        let most = bufs.len().min(out.len());
        let (bufs, out) = (&mut bufs[..most], &mut out[..most]);
        let (Some(buf), Some(place)) = (bufs.first_mut(), out.first_mut()) else { return Ok(0) };
        *place = Some(self.recv_from(&mut [IoSliceMut::new(buf)], flags)?);
        let mut n = 1;
        // First those in shared memory, at once.
        n += self.recv_more(&mut bufs[n..], &mut out[n..]);
        for (buf, place) in bufs.iter_mut().zip(out).skip(n) {
            // An error is left for the next call.
            let Ok(Some(received)) = self.try_recv_local(&mut [IoSliceMut::new(buf)], false) else {
                break;
            };
            *place = Some(Received { from: in_family(received.from, self.is_v6()), ..received });
            n += 1;
        }
        Ok(n)
    }

    /// Receives datagrams from shared memory, one into each of `bufs`, unless one from elsewhere
    /// must come first. Returns how many.
    fn recv_more(&self, bufs: &mut [IoSliceMut<'_>], out: &mut [Option<Received>]) -> usize {
        let _section = Section::enter();
        let Some(Some(local)) = self.local.get() else { return 0 };
        if self.n_pending.load(Ordering::Acquire) != 0 {
            return 0;
        }
        let until_udp = UDP_EVERY.saturating_sub(self.since_udp.load(Ordering::Relaxed));
        let most = bufs.len().min(until_udp as usize);
        let peer = self.routes().peer;
        let is_v6 = self.is_v6();
        let mut places = bufs.iter_mut().zip(out);
        let (mut n, mut n_foreign) = (0, 0);
        local.try_recv_up_to(most, &mut |arrived| match local_source(arrived, &local.sources) {
            Some((from, at)) if peer.is_none_or(|peer| peer == from) => {
                if let Some((buf, place)) = places.next() {
                    let received = scatter(arrived, from, at, &mut [IoSliceMut::new(buf)]);
                    *place = Some(Received { from: in_family(from, is_v6), ..received });
                    n += 1;
                }
            }
            _ => n_foreign += 1,
        });
        if n_foreign != 0 {
            self.counts.n_foreign.fetch_add(n_foreign, Ordering::Relaxed);
        }
        self.since_udp.fetch_add(u32::try_from(n).unwrap_or(UDP_EVERY), Ordering::Relaxed);
        n
    }

    /// Receives a datagram that is there, without a system call as a rule.
    #[inline]
    fn try_recv_local(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        peek: bool,
    ) -> io::Result<Option<Received>> {
        let _section = Section::enter();
        if self.n_pending.load(Ordering::Acquire) != 0
            && let Some(received) = self.take_pending(bufs, peek)?
        {
            return Ok(Some(received));
        }
        if self.since_udp.load(Ordering::Relaxed) >= UDP_EVERY {
            self.poll_udp();
        }
        if peek {
            return self.peek_past_udp(bufs);
        }
        let peer = self.routes().peer;
        // Bounded: a peer whose datagrams are all dropped must not keep the caller here.
        for _ in 0..MAX_DROPPED {
            let mut received = None;
            let next = self.next(peer, |arrived, from, at| {
                received = Some(scatter(arrived, from, at, bufs));
            });
            match next {
                Next::Nothing => return Ok(None),
                Next::Dropped => _ = self.counts.n_foreign.fetch_add(1, Ordering::Relaxed),
                Next::Taken => {
                    self.since_udp.fetch_add(1, Ordering::Relaxed);
                    return Ok(received);
                }
            }
        }
        Ok(None)
    }

    /// Takes the next datagram past UDP. `take` gets the datagram, its source and the offset of its
    /// payload, if it is from `peer` where there is one.
    #[inline]
    fn next(
        &self,
        peer: Option<SocketAddr>,
        mut take: impl FnMut(&dyn Arrived, SocketAddr, usize),
    ) -> Next {
        let mut next = Next::Nothing;
        let mut take = |arrived: &dyn Arrived, source: Option<(SocketAddr, usize)>| {
            next = Next::Dropped;
            if let Some((from, at)) = source
                && peer.is_none_or(|peer| peer == from)
            {
                take(arrived, from, at);
                next = Next::Taken;
            }
        };
        if let Some(Some(local)) = self.local.get() {
            let sources = &local.sources;
            let mut take = |arrived: &dyn Arrived| take(arrived, local_source(arrived, sources));
            if local.try_recv_up_to(1, &mut take) != 0 {
                return next;
            }
        }
        if let Some(Some(remote)) = self.remote.get() {
            remote.try_recv(&mut |arrived| take(arrived, rdma_source(arrived)));
        }
        next
    }

    /// Moves a datagram to the pending ones, where it can be read twice.
    fn peek_past_udp(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<Option<Received>> {
        let peer = self.routes().peer;
        for _ in 0..MAX_DROPPED {
            let mut pending = self.pending();
            let next = self.next(peer, |arrived, from, at| {
                let mut bytes = vec![0; arrived.len() - at];
                arrived.copy_out(at, &mut bytes);
                pending.datagrams.push_back((from, bytes));
            });
            self.note_pending(&pending);
            drop(pending);
            match next {
                Next::Taken => return self.take_pending(bufs, true),
                Next::Nothing => return Ok(None),
                Next::Dropped => _ = self.counts.n_foreign.fetch_add(1, Ordering::Relaxed),
            }
        }
        Ok(None)
    }

    #[cold]
    fn take_pending(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        peek: bool,
    ) -> io::Result<Option<Received>> {
        let mut pending = self.pending();
        let received = match pending.datagrams.front() {
            Some((from, bytes)) => {
                let mut rest = &bytes[..];
                for buf in bufs {
                    let n = buf.len().min(rest.len());
                    buf[..n].copy_from_slice(&rest[..n]);
                    rest = &rest[n..];
                }
                let full_len = bytes.len();
                Some(Received { len: full_len - rest.len(), full_len, from: *from })
            }
            None => match pending.error.take() {
                Some(e) => {
                    self.note_pending(&pending);
                    return Err(e);
                }
                None => None,
            },
        };
        if !peek && received.is_some() {
            pending.datagrams.pop_front();
        }
        self.note_pending(&pending);
        Ok(received)
    }

    fn note_pending(&self, pending: &PendingDatagrams) {
        let n = pending.datagrams.len() + usize::from(pending.error.is_some());
        self.n_pending.store(n, Ordering::Release);
    }

    /// Takes packets from the UDP socket, answers them, and advances the handshakes. Never waits.
    pub(crate) fn poll_udp(&self) {
        let _section = Section::enter();
        self.since_udp.store(0, Ordering::Relaxed);
        let Ok(local) = self.local() else { return };
        if let Some(local) = local {
            self.progress_handshakes(local);
        }
        // Created when there is a packet to answer: it takes a system call.
        let mut sender = None;
        let mut pending = self.pending();
        let PendingDatagrams { inbox, datagrams, error } = &mut *pending;
        if datagrams.len() >= MAX_PENDING || error.is_some() {
            return;
        }
        let taken = inbox.take(self.port.as_fd(), |packet| {
            let mut routes = self.routes();
            let (from, now) = (packet.from, sys::now());
            let number = packet.header.qp_num;
            match packet.header.op {
                UdpOp::Control => drop(routes.learn(from, |t| t.handle_control(from, number, now))),
                UdpOp::Data => {
                    drop(routes.learn(from, |t| t.handle_data(from, number, now)));
                    let own = self.number_for(&mut routes, local, from);
                    // A peer that cannot reach a queue of this socket gets no answer.
                    if own != QpNum(0)
                        && let Some(sender) = sender.get_or_insert_with(|| self.sender().ok())
                    {
                        sender.control(from, own);
                    }
                    self.counts.n_received_by_udp.fetch_add(1, Ordering::Relaxed);
                    datagrams.push_back((from, packet.payload.to_vec()));
                }
            }
            datagrams.len() < MAX_PENDING
        });
        match taken {
            Ok(n_bad) => _ = self.counts.n_bad_packets.fetch_add(n_bad, Ordering::Relaxed),
            Err(e) => *error = Some(e),
        }
        self.note_pending(&pending);
    }
}

/// The result of taking a datagram past UDP.
#[derive(Debug)]
enum Next {
    Nothing,
    /// A datagram was passed on.
    Taken,
    /// A datagram that is not for this socket was dropped.
    Dropped,
}

/// The source that the header names, and the offset of the payload; `None` without a valid header.
#[inline]
fn claimed_source(arrived: &dyn Arrived) -> Option<(SocketAddr, usize)> {
    let mut front = [0; MAX_QUEUE_HEADER];
    let front = &mut front[..arrived.len().min(MAX_QUEUE_HEADER)];
    arrived.copy_out(0, front);
    let (header, at) = QueueHeader::parse(front)?;
    Some((canonical(header.source), at))
}

/// The same of a datagram in shared memory; `None` if its sender may not use that address.
#[inline]
fn local_source(arrived: &dyn Arrived, sources: &SourceCheck) -> Option<(SocketAddr, usize)> {
    let sender = arrived.sender()?;
    claimed_source(arrived).filter(|(from, _)| sources.is_verified(sender, *from))
}

/// The same of a datagram from the network; `None` if it came from another address.
#[inline]
fn rdma_source(arrived: &dyn Arrived) -> Option<(SocketAddr, usize)> {
    claimed_source(arrived).filter(|(from, _)| arrived.source() == Some(from.ip()))
}

/// Stores a datagram, whose payload begins at `at`, as far as `bufs` have room.
pub(crate) fn scatter(
    arrived: &dyn Arrived,
    from: SocketAddr,
    at: usize,
    bufs: &mut [IoSliceMut<'_>],
) -> Received {
    let full_len = arrived.len() - at;
    let mut len = 0;
    for buf in bufs {
        let n = buf.len().min(full_len - len);
        arrived.copy_out(at + len, &mut buf[..n]);
        len += n;
    }
    Received { len, full_len, from }
}
