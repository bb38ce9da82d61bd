//! One try to send: asks the switch where the next byte goes, and writes it there.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::ask::{Subject, error_of};
use crate::accelerate::path::Path;
use crate::accelerate::send::{Blocked, PIECES};
use crate::accelerate::state::{FLAG_RESET, FLAG_TX_SHUT, Sending};
use crate::accelerate::tcp_socket::{has_error, kernel_send};
use crate::closing::Call;
use crate::engine::SendError;
use crate::interrupt::Section;
use crate::iov::Rest;
use crate::metrics::{self, Direction};
use crate::sys;
use rsock_proto::switch::{DirectionSwitch, Fact, FlagConditions, Room, Sender, Write};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io::IoSlice;

impl AcceleratedStream {
    /// As [`Sends::try_send`](super::Sends::try_send), by what the switch answers. Leaves a full
    /// ring if the call `spills`.
    pub(super) fn try_send_by_switch(
        &self,
        call: &Call<'_>,
        rest: &Rest<'_>,
        flags: SendFlags,
        spills: bool,
    ) -> Result<usize, Blocked> {
        let _section = Section::enter();
        let mut tx = self.dirs.tx.0.lock();
        // INVARIANT: looked up under the lock, and used under it: see `keep_for_calls`.
        let fd = call.fd()?;
        let path = self.path();
        match path {
            Some(path) => self.poll_messages_in_turn(&mut tx, path),
            None => {
                let mut calls = tx.calls;
                self.count_call(fd, &mut calls);
                tx.calls = calls;
            }
        }
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let (n, _) = rest.pieces(usize::MAX, &mut pieces);
        let pieces = &pieces[..n];
        let is_due = path.is_some_and(|path| self.begin_tick(&mut tx, path));
        if let Some(path) = path {
            let now = self.dirs.conditions().with_if(FlagConditions::SOCKET_CHECK_DUE, is_due);
            if tx.switch.writes_ring(now, path.messages())
                && let Some(n) = self.send_if_room(path, &mut tx, pieces)
            {
                return Ok(n);
            }
        }
        let mark = path.map_or(0, |path| path.mark());
        let mut subject = Subject { spills, ..Subject::new(fd, path) };
        subject.call = subject.call.with_if(FlagConditions::SOCKET_CHECK_DUE, is_due);
        let mut seen = self.begin(&*tx, &subject);
        loop {
            let next = self.ask(&mut *tx, &mut seen, &mut subject, Sender::write)?;
            self.note_answers(&tx);
            let fact = match next {
                Write::Tcp if rest.is_begun && has_error(fd) => return Err(Blocked::Stop),
                Write::Tcp => match self.send_on_tcp(
                    fd,
                    rest.whole().unwrap_or(pieces),
                    flags | SendFlags::DONTWAIT,
                ) {
                    Ok(n) => {
                        tx.switch.took_tcp(n as u64);
                        self.count_bytes(Direction::Send, metrics::Transport::Tcp, n);
                        return Ok(n);
                    }
                    Err(Errno::AGAIN) => Fact::TcpFull,
                    Err(e) => return Err(Blocked::Error(e.into())),
                },
                Write::Ring => match self.send_on_ring(&mut subject, &mut tx, pieces)? {
                    Sent::Bytes(n) => return Ok(n),
                    Sent::Nothing(fact) => fact,
                },
                Write::Wait(Room::Tcp) => return Err(Blocked::Tcp),
                Write::Wait(Room::Ring) => return Err(Blocked::Ring(mark)),
                Write::Wait(Room::Device) => return Err(Blocked::Leaving(mark)),
                Write::Reset => return Err(Blocked::Reset),
                Write::Fail => return Err(Blocked::Error(subject.take_error())),
                Write::BreakOff => return Err(Blocked::Error(self.break_off(fd, &mut tx))),
                Write::Fault(fault) => return Err(Blocked::Error(error_of(fault))),
            };
            self.note(&*tx, &mut seen, &subject, fact);
        }
    }

    /// As [`kernel_send`], and notes the end of the connection.
    pub(super) fn send_on_tcp(
        &self,
        fd: BorrowedFd<'_>,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        kernel_send(fd, bufs, flags).inspect_err(|e| {
            // Without a shutdown of this end: that forbids sending alone.
            if matches!(*e, Errno::CONNRESET | Errno::PIPE) && !self.has(FLAG_TX_SHUT) {
                self.dirs.raise(FLAG_RESET);
            }
        })
    }

    /// Sends on the ring. `None` if nothing was taken: then the switch is asked what that means.
    fn send_if_room(&self, path: &Path, tx: &mut Sending, pieces: &[IoSlice<'_>]) -> Option<usize> {
        let n = path.try_send(pieces).ok()?;
        self.sent_on_ring(path, tx, n);
        Some(n)
    }

    pub(super) fn sent_on_ring(&self, path: &Path, tx: &mut Sending, n: usize) {
        tx.full_since = None;
        tx.sent_at = tx.socket_checked_at;
        tx.switch.took_ring(n as u64);
        self.count_bytes(Direction::Send, path.kind(), n);
    }

    fn send_on_ring(
        &self,
        subject: &mut Subject<'_>,
        tx: &mut Sending,
        pieces: &[IoSlice<'_>],
    ) -> Result<Sent, Blocked> {
        let Some(path) = subject.path else { return Ok(Sent::Nothing(Fact::RingClosed)) };
        match path.try_send(pieces) {
            Ok(n) => {
                self.sent_on_ring(path, tx, n);
                Ok(Sent::Bytes(n))
            }
            Err(SendError::Fault) => Err(Blocked::Error(Errno::FAULT.into())),
            Err(e) => Ok(Sent::Nothing(fact_of(e, subject, tx, path))),
        }
    }

    /// Now and then polls the device for messages of the peer: a sender with credit has no other
    /// reason to.
    #[inline]
    pub(super) fn poll_messages_in_turn(&self, tx: &mut Sending, path: &Path) {
        tx.calls = tx.calls.wrapping_add(1);
        if tx.calls.is_multiple_of(MESSAGE_POLL_INTERVAL) && tx.switch.is_on_ring() {
            path.poll_messages();
        }
    }

    /// Notes the tick of a send. Returns whether the send checks the socket.
    fn begin_tick(&self, tx: &mut Sending, path: &Path) -> bool {
        let now = sys::tick();
        let is_due = self.is_socket_check_due(tx, path, now);
        tx.socket_checked_at = now;
        if is_due {
            self.pin_if_device_removed(path);
        }
        is_due
    }

    /// Whether a send at the tick `now` checks the socket: the first one of each tick does, unless
    /// the peer has shown on the ring that it was there after the last send.
    ///
    /// PERF: a check is a system call. Of 64 connections that haproxy answers in turn each sends
    /// once in a tick or two.
    #[inline]
    pub(super) fn is_socket_check_due(&self, tx: &Sending, path: &Path, now: u32) -> bool {
        self.has(FLAG_RESET)
            || now != tx.socket_checked_at
                && !(tx.switch.is_on_ring() && path.has_read_all(tx.switch.ring_bytes()))
    }
}

/// What a write to the ring that took nothing shows about the ring.
fn fact_of(error: SendError, subject: &mut Subject<'_>, tx: &mut Sending, path: &Path) -> Fact {
    match error {
        SendError::WouldBlock | SendError::Fault => {
            tx.full_since.get_or_insert_with(sys::now);
            Fact::RingFull
        }
        SendError::Closed => Fact::RingClosed,
        SendError::Failed(libc::ECONNRESET) if !path.is_remote() => Fact::RingClosed,
        SendError::Failed(errno) => {
            subject.error = Some(Errno::from_raw_os_error(errno));
            Fact::RingFailed
        }
    }
}

/// For a call that needs the kernel's socket, if the message that leaves the ring found no room:
/// whether there can still be room.
pub(super) fn look_for_room(subject: &mut Subject<'_>, tx: &mut Sending) -> Fact {
    let Some(path) = subject.path else { return Fact::RingClosed };
    // Polls the device: the ring may turn out to have failed.
    path.poll_messages();
    let is_over = path.try_send(&[]).err();
    fact_of(is_over.unwrap_or(SendError::WouldBlock), subject, tx, path)
}

/// The outcome of one try on the ring.
enum Sent {
    Bytes(usize),
    Nothing(Fact),
}

/// One of this many sends on the ring polls for messages of the peer.
const MESSAGE_POLL_INTERVAL: u32 = 16;
