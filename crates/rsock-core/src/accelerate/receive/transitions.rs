//! From TCP to the ring and back, as far as the receiving end decides.

use crate::accelerate::halt::is_halted;
use crate::accelerate::path::Path;
use crate::accelerate::receive::kernel::has_ended;
use crate::accelerate::receive::kernel_only_waiter;
use crate::accelerate::state::{FLAG_BROKEN, FLAG_PAIRED, FLAG_PINNED, FLAG_RX_PLAIN, Rx, RxMode};
use crate::accelerate::{AcceleratedStream, FallbackReason, offsets};
use crate::engine::ExtSeen;
use crate::interrupt::Section;
use crate::metrics::{self, Direction};
use rsock_proto::{Ext, UP_BITS};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io;

impl AcceleratedStream {
    /// Moves this direction as far as it can go now. The caller holds the lock.
    pub(in crate::accelerate) fn steer_rx(
        &self,
        fd: BorrowedFd<'_>,
        rx: &mut Rx,
        path: &Path,
    ) -> Result<(), io::Error> {
        if self.is_sole() {
            return Ok(());
        }
        loop {
            match rx.mode {
                RxMode::Tcp => {
                    if !self.invite(fd, rx, path) {
                        return Ok(());
                    }
                }
                RxMode::Invited => {
                    let seen = path.ext_seen();
                    if seen.contains(ExtSeen::UP) {
                        path.take_ext(ExtSeen::UP);
                        rx.limit = resolve(path.ext_up_offset(), rx.tcp_bytes)
                            .ok_or_else(|| io::Error::from(Errno::PROTO))?;
                        rx.mode = RxMode::Clamped;
                    } else if seen.contains(ExtSeen::DOWN) {
                        // The peer will not come: it is pinned.
                        path.take_ext(ExtSeen::DOWN);
                        rx.is_declined = true;
                        rx.mode = RxMode::Tcp;
                    } else {
                        self.settle_rx(rx);
                        return Ok(());
                    }
                }
                RxMode::Clamped => {
                    if rx.tcp_bytes != rx.limit {
                        // What has come on the ring is taken note of, or a wait that watches the
                        // ring as well would find it changed for ever.
                        path.progress();
                        return Ok(());
                    }
                    rx.mode = RxMode::Ring;
                    self.note_path(Direction::Recv, path.kind());
                }
                RxMode::Ring => {
                    self.settle_rx(rx);
                    // In this order: with `Down` seen, all that came before it is counted.
                    let down = path.ext_seen().contains(ExtSeen::DOWN);
                    if !down || path.bytes_readable() != 0 {
                        return Ok(());
                    }
                    path.take_ext(ExtSeen::DOWN);
                    rx.mode = RxMode::Tcp;
                    self.note_path(Direction::Recv, metrics::Transport::Tcp);
                    self.settle_rx(rx);
                }
            }
        }
    }

    /// Invites the peer to write to the ring, if nothing forbids it.
    fn invite(&self, fd: BorrowedFd<'_>, rx: &mut Rx, path: &Path) -> bool {
        if self.has(FLAG_PINNED) {
            self.settle_rx(rx);
            return false;
        }
        let deaf = kernel_only_waiter::is_any(&self.dirs.shared.0.deaf_waiters, rx);
        let forbidden = deaf || rx.is_declined || path.is_cut();
        if !self.has(FLAG_PAIRED) || forbidden || has_ended(fd) || is_halted() {
            return false;
        }
        match offsets::read(fd) {
            Ok(Some(n)) if n == rx.tcp_bytes => {}
            Ok(Some(n)) if n < rx.tcp_bytes => return false,
            Ok(None) => return false,
            // Somebody else reads from the descriptor, past us.
            _ => {
                self.pin_for(FallbackReason::ForeignWriter);
                self.settle_rx(rx);
                return false;
            }
        }
        let sent = path.try_send_ext(Ext::Ready);
        if sent {
            rx.mode = RxMode::Invited;
        }
        sent
    }

    /// Has the peer leave the ring: what it sends from now on is not wanted, which the kernel says with a
    /// reset.
    pub(in crate::accelerate) fn ask_to_leave(&self) {
        let Some(path) = self.path().filter(|path| !path.is_far()) else { return };
        let _section = Section::enter();
        let mut rx = self.dirs.rx.0.lock();
        if rx.mode != RxMode::Tcp && !rx.has_asked {
            rx.has_asked = path.try_send_ext(Ext::Leave);
        }
    }

    /// Does what a pinned direction has to do: ask the peer to leave the ring, or be plain.
    pub(in crate::accelerate) fn settle_rx(&self, rx: &mut Rx) {
        if !self.has(FLAG_PINNED) || self.has(FLAG_BROKEN) {
            return;
        }
        if rx.mode == RxMode::Tcp {
            self.dirs.raise(FLAG_RX_PLAIN);
            if let Some(path) = self.path() {
                // No read comes by here any more that could.
                self.quiet_stand_in(rx, path);
            }
        } else if !rx.has_asked
            && let Some(path) = self.path()
        {
            rx.has_asked = path.try_send_ext(Ext::Leave);
        }
    }
}

/// The absolute offset whose low 52 bits are `low`, if it lies a plausible way ahead of `at`.
///
/// The kernels' queues at both ends of a connection hold at most 4 GiB (`SO_SNDBUF` and
/// `SO_RCVBUF` are 31 bits wide), far less than the 2 PiB at which two offsets could be confused.
fn resolve(low: u64, at: u64) -> Option<u64> {
    const MASK: u64 = (1 << (2 * UP_BITS)) - 1;
    let ahead = low.wrapping_sub(at) & MASK;
    (ahead <= MASK / 2).then(|| at.wrapping_add(ahead))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_resolve_ahead_and_never_behind() {
        const END: u64 = 1 << (2 * UP_BITS);
        assert_eq!(resolve(5, 5), Some(5));
        assert_eq!(resolve(0, END - 1), Some(END));
        assert_eq!(resolve(4, 5), None);
        assert_eq!(resolve(7, 3 * END + 2), Some(3 * END + 7));
    }

    /// As far as two kernels' queues can ever be ahead of a reader.
    #[test]
    fn offsets_far_ahead_of_the_reader_are_exact() {
        for ahead in [48 << 20, 64 << 20, (64 << 20) + 1, 100 << 20, 4 << 30] {
            assert_eq!(resolve(1000 + ahead, 1000), Some(1000 + ahead));
        }
    }
}
