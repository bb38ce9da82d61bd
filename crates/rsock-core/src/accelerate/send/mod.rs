//! The sending direction.

mod end;
mod kernel;
mod transitions;
mod wait;

pub(super) use end::{is_stuck, meet};
pub(super) use kernel::is_nonblocking;

use crate::accelerate::path::Path;
use crate::accelerate::state::{FLAG_BROKEN, FLAG_PINNED, FLAG_STANDIN, FLAG_TX_PLAIN, Tx, TxMode};
use crate::accelerate::{AcceleratedStream, FallbackReason};
use crate::closing::{Call, Descriptor};
use crate::engine::SendError;
use crate::interrupt::{Section, Watch};
use crate::iov::Rest;
use crate::metrics::{self, Direction};
use kernel::kernel_send;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io::{self, IoSlice};
use wait::send_deadline;

/// Pieces handed to the kernel, or to the ring, at once.
const PIECES: usize = 16;

/// Why a try to send ended without a byte.
enum Blocked {
    /// The kernel's send buffer is full.
    Tcp,
    /// The ring is full; the mark was taken before.
    Ring(u32),
    /// TCP must not be used before what is on the ring has arrived; the mark was taken before.
    Leaving(u32),
    /// The peer has gone and left bytes unread on the ring.
    Reset,
    /// It failed.
    Error(io::Error),
}

impl From<io::Error> for Blocked {
    fn from(e: io::Error) -> Self {
        Self::Error(e)
    }
}

impl From<Errno> for Blocked {
    fn from(e: Errno) -> Self {
        if e == Errno::AGAIN { Self::Tcp } else { Self::Error(e.into()) }
    }
}

impl AcceleratedStream {
    /// As `sendmsg(2)` without control data, on a blocking or non-blocking descriptor; `flags` as
    /// given by the program. Never raises SIGPIPE itself: the caller does, on `EPIPE` without
    /// `MSG_NOSIGNAL`.
    ///
    /// # Errors
    /// As `sendmsg(2)`: `EAGAIN`, `EINTR`, `EPIPE`, `ECONNRESET`...
    pub fn send(
        &self,
        fd: BorrowedFd<'_>,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        self.send_by(Descriptor::new(fd, self.closings.count()), bufs, flags)
    }

    /// As [`Self::send`], by a descriptor that other threads may close meanwhile: see
    /// [`Self::keep_for_calls`].
    ///
    /// # Errors
    /// As `sendmsg(2)`: `EAGAIN`, `EINTR`, `EPIPE`, `ECONNRESET`...; `EBADF` if it was closed and the
    /// call could not keep the socket.
    pub fn send_by(
        &self,
        descriptor: Descriptor<'_>,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        let mut rest = Rest::new(bufs);
        if self.has(FLAG_TX_PLAIN) || rest.len == 0 {
            return Ok(kernel_send(descriptor.named(), bufs, flags)?);
        }
        if self.is_sole() {
            // Others mean nothing to a stream, as to TCP.
            if flags.intersects(KERNEL_FLAGS) {
                return Err(Errno::OPNOTSUPP.into());
            }
        } else if !flags.difference(KNOWN_FLAGS).is_empty() {
            // Urgent data and the like: only the kernel's socket can do it.
            self.pin(descriptor.named(), FallbackReason::Option);
            return Ok(kernel_send(descriptor.named(), bufs, flags)?);
        }
        let call = Call::begin(&self.closings, descriptor);
        let mut watch = Watch::begin();
        let mut deadline = None;
        let mut sent = 0;
        let error = loop {
            match self.try_send(&call, &rest, flags) {
                Ok(n) => {
                    sent += n;
                    rest.advance(n);
                    if rest.len == 0 {
                        return Ok(sent);
                    }
                }
                Err(Blocked::Error(e)) => break e,
                // Told by the next call, as on TCP, if something has been sent.
                Err(Blocked::Reset) if sent != 0 => return Ok(sent),
                Err(Blocked::Reset) => break self.tell_reset(call.fd()?),
                Err(blocked) => {
                    let fd = match call.fd() {
                        Ok(fd) => fd,
                        Err(e) => break e,
                    };
                    // Who has left for good may watch the kernel's socket alone, which has room all
                    // the time, and tells of none: such a call waits.
                    let is_watched = matches!(blocked, Blocked::Leaving(_))
                        && self.has(FLAG_PINNED)
                        && sent == 0;
                    if !is_watched && (flags.contains(SendFlags::DONTWAIT) || is_nonblocking(fd)) {
                        if self.has(FLAG_STANDIN) && self.show_full(fd) {
                            continue;
                        }
                        self.meet_before_waiting(fd, &blocked);
                        break Errno::AGAIN.into();
                    }
                    let limit = *deadline.get_or_insert_with(|| send_deadline(fd));
                    if let Err(e) = self.wait_for_room(fd, &blocked, limit, &mut watch, sent != 0) {
                        break e;
                    }
                }
            }
        };
        if sent != 0 { Ok(sent) } else { Err(error) }
    }

    fn try_send(
        &self,
        call: &Call<'_>,
        rest: &Rest<'_>,
        flags: SendFlags,
    ) -> Result<usize, Blocked> {
        let _section = Section::enter();
        let mut tx = self.dirs.tx.0.lock();
        // INVARIANT: looked up under the lock, and used under it: see `keep_for_calls`.
        let fd = call.fd()?;
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let (n, _) = rest.pieces(usize::MAX, &mut pieces);
        let pieces = &pieces[..n];
        if let Some(path) = self.path() {
            let mark = path.mark();
            self.steer_tx(fd, &mut tx, path);
            match tx.mode {
                // As TCP after a reset that a read has told of.
                TxMode::Ring if self.is_sole() && self.has(FLAG_BROKEN) => {
                    return Err(Blocked::Error(Errno::PIPE.into()));
                }
                TxMode::Ring => match self.ring_send(fd, &mut tx, path, pieces) {
                    // Moved to TCP: below.
                    Err(Blocked::Ring(_)) if tx.mode == TxMode::Tcp => {}
                    Err(Blocked::Ring(mark)) if tx.mode == TxMode::Leaving => {
                        return Err(Blocked::Leaving(mark));
                    }
                    done => return done,
                },
                TxMode::Leaving if is_stuck(&tx, path) => {
                    return Err(Blocked::Error(self.break_off(fd, &mut tx)));
                }
                TxMode::Leaving => return Err(Blocked::Leaving(mark)),
                TxMode::Tcp => {}
            }
            if tx.ring_bytes != 0 && self.is_reset_for_writer(fd, path, &tx) {
                return Err(Blocked::Reset);
            }
        } else if tx.mode != TxMode::Tcp {
            // The parent's stream: only the parent can go on with it.
            return Err(Blocked::Error(Errno::CONNRESET.into()));
        } else {
            let mut calls = tx.calls;
            self.count(fd, &mut calls);
            tx.calls = calls;
        }
        let all = rest.whole().unwrap_or(pieces);
        let n = kernel_send(fd, all, flags | SendFlags::DONTWAIT)?;
        tx.tcp_bytes += n as u64;
        self.count_bytes(Direction::Send, metrics::Transport::Tcp, n);
        Ok(n)
    }

    fn ring_send(
        &self,
        fd: BorrowedFd<'_>,
        tx: &mut Tx,
        path: &Path,
        pieces: &[IoSlice<'_>],
    ) -> Result<usize, Blocked> {
        let mark = path.mark();
        match path.try_send(pieces) {
            Ok(n) => {
                tx.full_since = None;
                tx.ring_bytes += n as u64;
                tx.sent_at = tx.looked_at;
                self.count_bytes(Direction::Send, path.kind(), n);
                Ok(n)
            }
            Err(SendError::WouldBlock) if self.is_sole() => {
                if path.is_cut() {
                    return Err(Blocked::Error(self.break_off(fd, tx)));
                }
                Err(Blocked::Ring(mark))
            }
            Err(SendError::Closed) if self.is_sole() => Err(Blocked::Error(Errno::PIPE.into())),
            Err(SendError::WouldBlock) => {
                self.ring_is_full(tx, path);
                if is_stuck(tx, path) {
                    return Err(Blocked::Error(self.break_off(fd, tx)));
                }
                Err(Blocked::Ring(mark))
            }
            Err(SendError::Fault) => Err(Blocked::Error(Errno::FAULT.into())),
            // What has been sent may not have arrived, and TCP cannot know.
            Err(SendError::Failed(_)) if path.is_far() => {
                Err(Blocked::Error(self.break_off(fd, tx)))
            }
            // The end of the connection, seen from the ring: TCP knows what to answer.
            Err(SendError::Closed | SendError::Failed(libc::ECONNRESET)) => {
                tx.mode = TxMode::Tcp;
                self.note_path(Direction::Send, metrics::Transport::Tcp);
                Err(Blocked::Ring(mark))
            }
            Err(SendError::Failed(errno)) => {
                Err(Blocked::Error(io::Error::from_raw_os_error(errno)))
            }
        }
    }
}

/// Flags that the ring can honour, or may ignore as TCP does.
const KNOWN_FLAGS: SendFlags = SendFlags::DONTWAIT
    .union(SendFlags::NOSIGNAL)
    .union(SendFlags::MORE)
    .union(SendFlags::EOR)
    .union(SendFlags::CONFIRM)
    .union(SendFlags::DONTROUTE);

/// Flags that only the kernel's TCP can honour.
const KERNEL_FLAGS: SendFlags = SendFlags::OOB.union(SendFlags::from_bits_retain(
    libc::MSG_ZEROCOPY.cast_unsigned() | libc::MSG_FASTOPEN.cast_unsigned(),
));
