//! From TCP to the ring and back, as far as the sending end decides.

use crate::accelerate::halt::is_halted;
use crate::accelerate::path::{Fate, Path};
use crate::accelerate::send::end::is_deserted;
use crate::accelerate::state::{FLAG_PAIRED, FLAG_PINNED, FLAG_TX_PLAIN, FLAG_TX_SHUT, Tx, TxMode};
use crate::accelerate::{AcceleratedStream, FallbackReason, offsets};
use crate::engine::ExtSeen;
use crate::interrupt::Section;
use crate::metrics::{self, Direction};
use crate::sys;
use rsock_proto::Ext;
use rustix::fd::BorrowedFd;

/// Every how many-th send on the ring looks for messages from the peer.
const LISTEN_EVERY: u32 = 16;

impl AcceleratedStream {
    /// Moves this direction up or down if it is time. The caller holds the lock.
    pub(super) fn steer_tx(&self, fd: BorrowedFd<'_>, tx: &mut Tx, path: &Path) {
        if tx.mode != TxMode::Ring || self.has(FLAG_PINNED) {
            self.settle_tx(tx);
            let may_move = tx.mode == TxMode::Tcp && self.has(FLAG_PAIRED);
            if may_move && !self.has(FLAG_PINNED | FLAG_TX_SHUT) {
                self.move_up(fd, tx, path);
            }
            return;
        }
        // A sender with credit has no other reason to look at what the peer says.
        tx.calls = tx.calls.wrapping_add(1);
        let now = sys::tick();
        let due = now != tx.looked_at;
        let seen = if due || tx.calls.is_multiple_of(LISTEN_EVERY) {
            path.ext_seen()
        } else {
            path.ext_arrived()
        };
        if due {
            tx.looked_at = now;
            self.mind_fate(path);
        }
        if self.is_sole() {
            return;
        }
        let is_deserted = due && is_deserted(fd, tx, path);
        if seen.contains(ExtSeen::LEAVE) || is_deserted {
            self.move_down(tx, path);
        }
    }

    /// Moves to the ring if the reader has invited us.
    fn move_up(&self, fd: BorrowedFd<'_>, tx: &mut Tx, path: &Path) {
        let seen = path.ext_seen();
        if !seen.contains(ExtSeen::READY) || path.is_cut() || is_halted() {
            return;
        }
        if seen.contains(ExtSeen::LEAVE) {
            // The reader has taken its invitation back.
            self.settle_tx(tx);
            return;
        }
        if path.has_failed() {
            self.pin_for(FallbackReason::PathFailed);
            self.settle_tx(tx);
            return;
        }
        match offsets::written(fd) {
            Ok(Some(n)) if n == tx.tcp_bytes => {}
            // The ring would take bytes that no peer reads; the socket knows which error that is.
            Ok(None) => return,
            // Somebody else writes to the descriptor, past us.
            _ => {
                self.pin_for(FallbackReason::ForeignWriter);
                self.settle_tx(tx);
                return;
            }
        }
        if path.try_send_up(tx.tcp_bytes) {
            path.take_ext(ExtSeen::READY);
            tx.mode = TxMode::Ring;
            tx.full_since = None;
            self.note_path(Direction::Send, path.kind());
        }
    }

    /// Notes that the ring is full; moves down once the reader has been idle for long enough.
    pub(in crate::accelerate) fn ring_is_full(&self, tx: &mut Tx, path: &Path) {
        let now = sys::now();
        match tx.full_since {
            None => tx.full_since = Some(now),
            Some(since) if now.duration_since(since) >= path.patience() => {
                self.move_down(tx, path);
            }
            Some(_) => {}
        }
    }

    /// Does what a pinned direction, or one whose reader asked to be left alone, has to do.
    pub(in crate::accelerate) fn settle_tx(&self, tx: &mut Tx) {
        let Some(path) = self.path() else {
            if self.has(FLAG_PINNED) && tx.mode == TxMode::Tcp {
                self.dirs.raise(FLAG_TX_PLAIN);
            }
            return;
        };
        if tx.mode == TxMode::Leaving {
            // Not on a failure, which also ends all waiting: see `try_send`.
            if path.is_drained() && !path.has_failed() {
                tx.mode = TxMode::Tcp;
                if self.has(FLAG_PINNED) {
                    self.dirs.raise(FLAG_TX_PLAIN);
                }
            }
            return;
        }
        let asked = path.ext_arrived().contains(ExtSeen::LEAVE);
        if !self.has(FLAG_PINNED) && !asked {
            return;
        }
        // On TCP already it is an answer: do not expect us on the ring.
        if self.move_down(tx, path) && self.has(FLAG_PINNED) && tx.mode == TxMode::Tcp {
            self.dirs.raise(FLAG_TX_PLAIN);
        }
    }

    /// Leaves the ring if the reader has asked for it: one that is about to hand its stream over waits
    /// for that, and who only reads would not come by here otherwise.
    pub(in crate::accelerate) fn answer_leave(&self) {
        if self.path().is_some_and(|path| path.ext_seen().contains(ExtSeen::LEAVE)) {
            let _section = Section::enter();
            let mut tx = self.dirs.tx.0.lock();
            self.settle_tx(&mut tx);
        }
    }

    /// The path on which the reader may ask us to leave the ring. Who sleeps on TCP has to be woken
    /// by that: even if we are on TCP too, an answer is waited for.
    pub(in crate::accelerate) fn asking_path(&self) -> Option<&Path> {
        self.path().filter(|_| !self.has(FLAG_TX_PLAIN))
    }

    /// Moves to TCP, or says that we stay there. False if the ring takes no message now.
    pub(in crate::accelerate) fn move_down(&self, tx: &mut Tx, path: &Path) -> bool {
        if !path.try_send_ext(Ext::Down) {
            return false;
        }
        path.take_ext(ExtSeen::READY | ExtSeen::LEAVE);
        let overtakes = path.is_far() && tx.mode == TxMode::Ring && !path.is_drained();
        tx.mode = if overtakes { TxMode::Leaving } else { TxMode::Tcp };
        tx.leaving_since = overtakes.then(sys::now);
        tx.full_since = None;
        self.note_path(Direction::Send, metrics::Transport::Tcp);
        true
    }

    /// Leaves a device that is being taken away, as long as it still carries something.
    pub(in crate::accelerate) fn mind_fate(&self, path: &Path) {
        if path.is_far() && path.fate() == Fate::Removed {
            self.pin_for(FallbackReason::PathFailed);
        }
    }
}
