//! The end of what can be received: of which the socket, the ring, or both know.

use crate::accelerate::path::{Fate, Path};
use crate::accelerate::receive::Blocked;
use crate::accelerate::receive::kernel::{has_ended, peek_one};
use crate::accelerate::state::{FLAG_RX_SHUT, Rx, RxMode};
use crate::accelerate::{AcceleratedStream, FallbackReason};
use crate::engine::ExtSeen;
use crate::metrics::{self, Direction};
use crate::sys;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io;
use std::time::Duration;

/// How long the end of a stream on the ring may take after the socket's. The writer saw its bytes
/// arrive before it closed the socket.
const GRACE: Duration = Duration::from_secs(3);

impl AcceleratedStream {
    /// The socket has ended, and the ring was empty: what a read answers, or `None` if the ring has
    /// something after all.
    pub(super) fn at_end<'a>(
        &'a self,
        fd: BorrowedFd<'_>,
        rx: &Rx,
        path: &Path,
    ) -> Option<Result<usize, Blocked<'a>>> {
        let socket = peek_one(fd);
        // Whatever the peer did before it ended the socket is visible in the ring by now. In this order: another
        // thread may be taking it from the device, which the count waits for and the look at messages does not.
        if path.bytes_readable() != 0 || path.ext_seen().contains(ExtSeen::DOWN) {
            return None;
        }
        Some(match socket {
            Ok(0) => self.end_of_tcp(fd, rx, path),
            // The end of the stream stands in the ring; the FIN is on its way.
            Err(Errno::AGAIN) => Ok(0),
            Err(e) => Err(Blocked::Error(e.into())),
            Ok(_) => {
                // Bytes on TCP that no `Down` announced: somebody else wrote them, at a place in
                // the stream that nobody knows.
                self.pin_for(FallbackReason::ForeignWriter);
                Err(Blocked::Error(Errno::PROTO.into()))
            }
        })
    }

    /// The socket has ended, with nothing left on it: what a read answers.
    pub(super) fn end_of_tcp<'a>(
        &'a self,
        fd: BorrowedFd<'_>,
        rx: &Rx,
        path: &Path,
    ) -> Result<usize, Blocked<'a>> {
        if self.is_reset_for_reader(fd, path, rx.tcp_bytes) { Err(Blocked::Reset) } else { Ok(0) }
    }

    /// The socket of a connection between hosts has ended, and nothing is on the ring: what a read
    /// answers. Without an end on the ring too something may be lost, or on its way still.
    pub(super) fn far_end<'a>(
        &'a self,
        fd: BorrowedFd<'_>,
        rx: &mut Rx,
        path: &Path,
    ) -> Result<usize, Blocked<'a>> {
        match peek_one(fd) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(e) => return Err(Blocked::Error(e.into())),
        }
        if self.has(FLAG_RX_SHUT) {
            return Ok(0);
        }
        // In this order: what came before the cut is seen after it.
        let fate = path.fate();
        let has_end = path.has_eof();
        let news = ExtSeen::UP | ExtSeen::DOWN;
        if path.bytes_readable() != 0 || path.ext_seen().intersects(news) {
            return Err(Blocked::Short);
        }
        if path.has_failed() {
            return Err(Blocked::Error(self.break_off_rx(fd, rx)));
        }
        if has_end {
            return Ok(0);
        }
        if fate == Fate::Removed && !has_ended(fd) {
            return Err(Blocked::Both(path.mark()));
        }
        let since = *rx.ended_since.get_or_insert_with(sys::now);
        // Even of a cut connection: a device that is being taken away is cut off first, and still carries
        // what its process gives it.
        if since.elapsed() >= GRACE {
            return Err(Blocked::Error(self.break_off_rx(fd, rx)));
        }
        Err(Blocked::Short)
    }

    /// As `break_off`, met while receiving.
    pub(in crate::accelerate) fn break_off_rx(&self, fd: BorrowedFd<'_>, rx: &mut Rx) -> io::Error {
        rx.mode = RxMode::Tcp;
        self.note_path(Direction::Recv, metrics::Transport::Tcp);
        self.break_connection(fd)
    }
}
