//! One try to receive: asks the switch where the next byte is, and takes it there.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::ask::{Subject, error_of};
use crate::accelerate::close::Break;
use crate::accelerate::kernel_only_waiter::KernelOnlyWaiter;
use crate::accelerate::path::Path;
use crate::accelerate::peer_check::SOCKET_CHECK_INTERVAL;
use crate::accelerate::receive::Blocked;
use crate::accelerate::state::{FLAG_RESET, Receiving};
use crate::accelerate::tcp_socket::{kernel_recv, queued, tcp_goes_on};
use crate::engine::RecvError;
use crate::iov::{MAX_KERNEL_PIECES, with_gap, with_tail};
use crate::metrics::{self, Direction};
use crate::sys;
use rsock_proto::switch::{
    DirectionSwitch, Fact, FlagConditions, PeekOrder, Read, Receiver, WaitFor,
};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::io::{self, IoSliceMut};

impl AcceleratedStream {
    /// Receives what the stream has next, from TCP or from the ring. Zero is the end of the stream.
    pub(super) fn receive_once(
        &self,
        subject: &mut Subject<'_>,
        rx: &mut Receiving,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<usize, Blocked<'_>> {
        // Taken before the try, for the wait if there is nothing.
        let mark = subject.path.map_or(0, |path| path.mark());
        if let Some(path) = subject.path
            && !flags.contains(RecvFlags::PEEK)
            && let Some(done) =
                self.receive_by_shortcut(path, rx, mark, || path.try_recv(bufs, false))
        {
            if done.is_err() {
                rx.count_idle();
            }
            return done;
        }
        let mut seen = self.begin(rx, subject);
        loop {
            let next = self.ask(rx, &mut seen, subject, Receiver::read)?;
            let took = match next {
                Read::Tcp { most } => self.receive_tcp(subject, rx, bufs, most, flags)?,
                Read::Ring => self.receive_ring(subject, rx, bufs, flags)?,
                Read::Wait(wait) => return Err(self.blocked(subject, rx, wait, mark)),
                Read::WaitBriefly => {
                    rx.ended_since.get_or_insert_with(sys::now);
                    return Err(Blocked::Short);
                }
                Read::Stop => return Err(Blocked::Stop),
                Read::End => {
                    if !flags.contains(RecvFlags::PEEK) && sys::is_at_mark(subject.fd) {
                        // A peek has seen the end. A read passes the urgent byte before it.
                        let mut room = [0];
                        let room = &mut [IoSliceMut::new(&mut room)];
                        let _ = kernel_recv(subject.fd, room, RecvFlags::DONTWAIT);
                    }
                    // The next call finds the end again, also if it does not wait.
                    rx.idle_reads = SOCKET_CHECK_INTERVAL - 1;
                    return Ok(0);
                }
                Read::Reset => return Err(Blocked::Reset),
                Read::BreakOff => return Err(Blocked::Error(self.break_off_rx(subject.fd, rx))),
                Read::Fail => {
                    return Err(Blocked::Error(subject.take_error()));
                }
                Read::Fault(fault) => return Err(Blocked::Error(error_of(fault))),
            };
            match took {
                Took::Bytes(n) => return Ok(n),
                Took::Nothing(fact) => self.note(rx, &mut seen, subject, fact),
            }
        }
    }

    fn receive_tcp(
        &self,
        subject: &mut Subject<'_>,
        rx: &mut Receiving,
        bufs: &mut [IoSliceMut<'_>],
        most: u64,
        flags: RecvFlags,
    ) -> Result<Took, Blocked<'static>> {
        if let Some(path) = subject.path
            && rx.switch.is_on_tcp()
        {
            self.quiet_epoll_proxy(rx, path);
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        match kernel_recv_at_most(subject.fd, bufs, most, flags) {
            Ok(0) => Ok(Took::Nothing(Fact::TcpEof)),
            Ok(n) if flags.contains(RecvFlags::PEEK) => {
                Ok(Took::Bytes(self.peek_behind_moves(subject, rx, bufs, PeekedFirst::Tcp(n))?))
            }
            Ok(n) => {
                if rx.switch.took_tcp(n as u64)
                    && let Some(path) = subject.path
                {
                    // The next byte comes from the ring, which announced it before this.
                    path.wake_waiters();
                }
                self.count_bytes(Direction::Recv, metrics::Transport::Tcp, n);
                Ok(Took::Bytes(n))
            }
            Err(Errno::AGAIN) => Ok(Took::Nothing(Fact::TcpEmpty)),
            Err(e) => Err(Blocked::Error(e.into())),
        }
    }

    /// Receives by `take` from the ring, or finds it empty, where the switch needs no observation
    /// for that. `None`: it is to be asked, as if nothing had been tried.
    #[inline]
    pub(super) fn receive_by_shortcut(
        &self,
        path: &Path,
        rx: &mut Receiving,
        mark: u32,
        take: impl FnOnce() -> Result<usize, RecvError>,
    ) -> Option<Result<usize, Blocked<'_>>> {
        let now = self.dirs.conditions();
        if !rx.switch.reads_ring(now, path.messages()) {
            return None;
        }
        let n_answers = self.dirs.n_answers();
        match take() {
            Ok(n) if n != 0 => {
                let n_spins = self.dirs.n_answers().wrapping_sub(n_answers);
                self.received_on_ring(path, rx, n, n_spins);
                Some(Ok(n))
            }
            Err(RecvError::WouldBlock) => {
                let is_due = rx.is_socket_check_due() || self.has(FLAG_RESET);
                let now = now.with_if(FlagConditions::SOCKET_CHECK_DUE, is_due);
                // In this order: what the peer did before the try is among the messages.
                if !rx.switch.waits_for_ring(now, path.messages()) {
                    return None;
                }
                self.quiet_epoll_proxy(rx, path);
                Some(Err(Blocked::Ring(mark)))
            }
            _ => None,
        }
    }

    /// Notes that a read of the ring has taken `n` bytes, for which it has spun so often.
    #[inline]
    fn received_on_ring(&self, path: &Path, rx: &mut Receiving, n: usize, n_spins: u32) {
        rx.idle_reads = 0;
        rx.switch.took_ring(n as u64);
        if let Some(stat) = self.stat.get() {
            stat.add_received(path.kind(), n as u64, n_spins);
        }
    }

    fn receive_ring(
        &self,
        subject: &mut Subject<'_>,
        rx: &mut Receiving,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<Took, Blocked<'static>> {
        let Some(path) = subject.path else { return Ok(Took::Nothing(Fact::RingBroke)) };
        match path.try_recv(bufs, flags.contains(RecvFlags::PEEK)) {
            Ok(0) => Ok(Took::Nothing(Fact::RingEof)),
            Ok(n) => {
                if flags.contains(RecvFlags::PEEK) {
                    rx.idle_reads = 0;
                    return Ok(Took::Bytes(self.peek_behind_moves(
                        subject,
                        rx,
                        bufs,
                        PeekedFirst::Ring(n),
                    )?));
                }
                self.received_on_ring(path, rx, n, 0);
                Ok(Took::Bytes(n))
            }
            Err(RecvError::WouldBlock) => {
                rx.count_idle();
                Ok(Took::Nothing(Fact::RingEmpty))
            }
            Err(RecvError::Fault) => Err(Blocked::Error(Errno::FAULT.into())),
            // The device noticed the peer's death: TCP knows how the connection ended.
            Err(RecvError::Failed(libc::ECONNRESET)) if !path.is_remote() => {
                Ok(Took::Nothing(Fact::RingBroke))
            }
            Err(RecvError::Failed(errno)) => {
                subject.error = Some(Errno::from_raw_os_error(errno));
                Ok(Took::Nothing(Fact::RingFailed))
            }
        }
    }

    /// Nothing is there. Returns what the call waits for.
    fn blocked(
        &self,
        subject: &Subject<'_>,
        rx: &Receiving,
        wait: WaitFor,
        mark: u32,
    ) -> Blocked<'_> {
        if let Some(path) = subject.path {
            self.quiet_epoll_proxy(rx, path);
        }
        match wait {
            WaitFor::Tcp => {
                Blocked::Tcp(KernelOnlyWaiter::new(&self.dirs.shared.0.kernel_only_waiters, rx))
            }
            WaitFor::TcpOrRing => Blocked::Both(mark),
            WaitFor::Ring => Blocked::Ring(mark),
        }
    }

    /// After a peek (`MSG_PEEK`): also peeks at the bytes behind moves between TCP and the ring.
    /// Returns the number of bytes peeked at.
    fn peek_behind_moves(
        &self,
        subject: &mut Subject<'_>,
        rx: &mut Receiving,
        bufs: &mut [IoSliceMut<'_>],
        peeked: PeekedFirst,
    ) -> Result<usize, Blocked<'static>> {
        let (PeekedFirst::Tcp(first) | PeekedFirst::Ring(first)) = peeked;
        let room: usize = bufs.iter().map(|b| b.len()).sum();
        let Some(path) = subject.path else { return Ok(first) };
        let mut seen = self.begin(rx, subject);
        let ahead = self.ask(rx, &mut seen, subject, |switch, seen| switch.peek_order(seen))?;
        let PeekOrder { on_tcp, on_ring, tcp_follows } = ahead;
        let on_tcp = usize::try_from(on_tcp).unwrap_or(usize::MAX);
        let (head, mut got) = match peeked {
            PeekedFirst::Ring(n) => (0, n),
            PeekedFirst::Tcp(n) if n < on_tcp || n == room => return Ok(n),
            PeekedFirst::Tcp(n) => {
                let more = with_tail(bufs, n, usize::MAX, |tail| path.try_recv(tail, true));
                (n, n + more.unwrap_or(0))
            }
        };
        let on_ring = usize::try_from(on_ring).unwrap_or(usize::MAX);
        if !tcp_follows
            || got == room
            || on_ring != got - head
            || queued(subject.fd).is_ok_and(|n| n <= head)
            || head == 0 && sys::is_at_mark(subject.fd)
        {
            return Ok(got);
        }
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        // The kernel's answer begins with the bytes before the ring's, which are in the buffers
        // already.
        let peek = |bufs: &mut [IoSliceMut<'_>]| kernel_recv(subject.fd, bufs, flags);
        let seen = with_gap(bufs, head, got, peek).unwrap_or(head);
        got += seen.saturating_sub(head);
        Ok(got)
    }

    /// As `break_off`, for a failure found while receiving.
    pub(in crate::accelerate) fn break_off_rx(
        &self,
        fd: BorrowedFd<'_>,
        rx: &mut Receiving,
    ) -> io::Error {
        // The lock of the other direction is only tried, as this one is held. A thread that holds
        // it may be about to leave the ring, and then only a reset is safe.
        let tx = self.dirs.tx.0.try_lock();
        let how = tx.as_ref().map_or(Break::Reset, |tx| self.how_to_break(tx));
        rx.switch.break_off();
        self.note_transport(Direction::Recv, metrics::Transport::Tcp);
        self.break_connection(fd, how)
    }
}

/// Where the first bytes of a peek came from.
#[derive(Clone, Copy)]
enum PeekedFirst {
    /// This many bytes, from TCP.
    Tcp(usize),
    /// This many bytes, from the ring.
    Ring(usize),
}

/// What TCP or the ring had.
enum Took {
    Bytes(usize),
    Nothing(Fact),
}

/// Receives from the kernel at most `most` bytes, without waiting.
fn kernel_recv_at_most(
    fd: BorrowedFd<'_>,
    bufs: &mut [IoSliceMut<'_>],
    most: usize,
    flags: RecvFlags,
) -> Result<usize, Errno> {
    let flags = flags.difference(RecvFlags::WAITALL) | RecvFlags::DONTWAIT;
    let room: usize = bufs.iter().map(|b| b.len()).sum();
    if most >= room && bufs.len() <= MAX_KERNEL_PIECES {
        return kernel_recv(fd, bufs, flags);
    }
    recv_up_to(fd, bufs, most.min(room), flags)
}

/// Receives at most `limit` bytes, which `bufs` have room for.
fn recv_up_to(
    fd: BorrowedFd<'_>,
    bufs: &mut [IoSliceMut<'_>],
    limit: usize,
    flags: RecvFlags,
) -> Result<usize, Errno> {
    let mut got = 0;
    loop {
        let tried = with_tail(bufs, got, limit - got, |bufs| {
            let room: usize = bufs.iter().map(|b| b.len()).sum();
            kernel_recv(fd, bufs, flags).map(|n| (n, n == room))
        });
        let (n, is_full) = match tried {
            Err(e) if got == 0 => return Err(e),
            Err(_) => return Ok(got),
            Ok(tried) => tried,
        };
        got += n;
        // There are more pieces than one call of the kernel takes. Checked first, as an error would
        // be lost.
        let goes_on = is_full && n != 0 && got < limit && !flags.contains(RecvFlags::PEEK);
        if !goes_on || !tcp_goes_on(fd) {
            return Ok(got);
        }
    }
}
