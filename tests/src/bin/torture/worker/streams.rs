//! Sending, receiving and asking, with every byte and every answer checked.

use super::Worker;
use super::pool::Call;
use crate::pattern::{self, Pattern};
use crate::rules;
use crate::schedule::{Kind, Op};
use crate::shared::{End, turn};
use crate::sys::{self, DONTWAIT, PEEK, WAITALL};
use std::sync::atomic::Ordering::SeqCst;

/// How a call for bytes came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    Bytes(usize),
    /// The stream's end, or its failure.
    Over,
    /// Nothing now, or it is not this thread's turn.
    Nothing,
}

/// Beside the bits of `sys`: let a moment pass after each call.
pub(crate) const PAUSE: u32 = 32;

impl Worker {
    pub(super) fn send_some(&mut self, op: Op) {
        let (n, calls) = match op.kind {
            Kind::Drip => (1, op.n),
            Kind::Flood => (op.n, op.n.div_ceil(FLOOD)),
            _ => (op.n, 1),
        };
        let mut left = n;
        for _ in 0..calls.max(1) * 2 {
            let Some(slot) = self.some_slot(op.slot) else { return };
            let Some(call) = self.enter(slot, op.kind, 0, op.how) else { return };
            let len = usize::try_from(left.min(FLOOD)).expect("little");
            let sent = self.send_once(&call, len, op.how);
            self.leave_call(&call);
            let Some(sent) = sent else { return };
            left -= sent as u64;
            if left == 0 && op.kind != Kind::Drip {
                return;
            }
            if op.kind == Kind::Drip {
                left = 1;
            }
            if op.how & PAUSE != 0 {
                sys::pause(300);
            }
        }
    }

    pub(super) fn receive_some(&mut self, op: Op) {
        let (n, calls) = if op.kind == Kind::Sip { (1, op.n) } else { (op.n, 1) };
        let n = usize::try_from(n).expect("little");
        let how = if op.kind == Kind::Peek { op.how | PEEK } else { op.how & !PEEK };
        for _ in 0..calls {
            let Some(slot) = self.some_slot(op.slot) else { return };
            let least = if how & WAITALL != 0 { n as u64 } else { 1 };
            let Some(call) = self.enter(slot, op.kind, least, how) else { return };
            let got = self.receive_once(&call, n, how, op.kind);
            self.leave_call(&call);
            if !matches!(got, Got::Bytes(_)) {
                return;
            }
            if op.how & PAUSE != 0 {
                sys::pause(300);
            }
        }
    }

    /// Sends the next `n` bytes; how many were sent, if the stream goes on.
    pub(super) fn send_once(&mut self, call: &Call, n: usize, how: u32) -> Option<usize> {
        let end = call.end;
        let direction = self.shared.written_by(end);
        let me = turn(self.me, self.thread);
        direction.writer.compare_exchange(0, me, SeqCst, SeqCst).ok()?;
        let give_back = || direction.writer.store(0, SeqCst);
        if direction.is_write_unsure.load(SeqCst) != 0 {
            give_back();
            return None;
        }
        let at = direction.sent.load(SeqCst);
        if self.bytes.len() < n {
            self.bytes.resize(n, 0);
        }
        Pattern::new(self.schedule.settings.nonce, end).fill(&mut self.bytes[..n], at);
        let was_shut = direction.is_shut.load(SeqCst) != 0;
        direction.attempted.store(at + n as u64, SeqCst);
        self.own().since.store(sys::now(), SeqCst);
        let returned = sys::send(call.fd, &self.bytes[..n], how);
        self.remember(Kind::Send, call.fd, Some(end), n, returned);
        let Some(sent) = returned.len() else {
            match returned.errno {
                libc::EINTR => {}
                libc::EAGAIN if how & DONTWAIT != 0 || self.is_nonblocking(end) => {}
                errno => self.judge(rules::judge_send_error(self.shared, end, errno)),
            }
            direction.attempted.store(at, SeqCst);
            give_back();
            return None;
        };
        if sent > n || (sent == 0 && n > 0) {
            self.fail(&format!("sending {n} bytes, the {end} is told that {sent} were sent"));
        }
        if was_shut && sent > 0 {
            self.fail(&format!("the {end} could send {sent} bytes after it had shut that down"));
        }
        direction.sent.store(at + sent as u64, SeqCst);
        direction.attempted.store(at + sent as u64, SeqCst);
        give_back();
        Some(sent)
    }

    /// Receives, or looks at, at most `n` of the next bytes.
    pub(super) fn receive_once(&mut self, call: &Call, n: usize, how: u32, kind: Kind) -> Got {
        let end = call.end;
        let direction = self.shared.read_by(end);
        let me = turn(self.me, self.thread);
        if direction.reader.compare_exchange(0, me, SeqCst, SeqCst).is_err() {
            return Got::Nothing;
        }
        let got = if direction.is_read_unsure.load(SeqCst) != 0 {
            Got::Nothing
        } else {
            self.receive_in_turn(call, n, how, kind)
        };
        direction.reader.store(0, SeqCst);
        got
    }

    fn receive_in_turn(&mut self, call: &Call, n: usize, how: u32, kind: Kind) -> Got {
        let end = call.end;
        let direction = self.shared.read_by(end);
        let at = direction.read.load(SeqCst);
        let was_ended = direction.is_ended.load(SeqCst) != 0;
        // None of the right bytes may be there already, nor any come after the last.
        self.bytes.clear();
        self.bytes.resize(n + BEYOND, 0xa5);
        self.own().since.store(sys::now(), SeqCst);
        let returned = sys::recv(call.fd, &mut self.bytes[..n], how);
        self.remember(kind, call.fd, Some(end), n, returned);
        let Some(got) = returned.len() else {
            match returned.errno {
                libc::EINTR => return Got::Nothing,
                libc::EAGAIN if how & DONTWAIT != 0 || self.is_nonblocking(end) => {
                    return Got::Nothing;
                }
                errno => self.judge(rules::judge_receive_error(self.shared, end, errno)),
            }
            direction.is_ended.store(1, SeqCst);
            return Got::Over;
        };
        if got > n || self.bytes[n..] != [0xa5; BEYOND] {
            self.fail(&format!("receiving {n} bytes, the {end} is given {got}, or more"));
        }
        if got == 0 {
            if n > 0 {
                self.judge(rules::judge_end(self.shared, end));
                direction.is_ended.store(1, SeqCst);
            }
            return if n > 0 { Got::Over } else { Got::Nothing };
        }
        // Lost meanwhile, if another process has passed the stream on.
        let is_unsure = direction.is_read_unsure.load(SeqCst) != 0;
        if !is_unsure {
            self.check(end, at, got);
        }
        if was_ended && !is_unsure && direction.is_read_shut.load(SeqCst) == 0 {
            self.fail(&format!("the {end} has received {got} bytes after the end, at {at}"));
        }
        if how & PEEK == 0 {
            direction.read.store(at + got as u64, SeqCst);
            self.shared.n_checked.fetch_add(got as u64, SeqCst);
        }
        Got::Bytes(got)
    }

    /// Checks the bytes that `end` has received at position `at`.
    fn check(&self, end: End, at: u64, got: usize) {
        let nonce = self.schedule.settings.nonce;
        let bytes = &self.bytes[..got];
        if let Some(differs) = Pattern::new(nonce, end.peer()).difference(bytes, at) {
            let what = pattern::recognised(self.shared, nonce, &bytes[differs..]);
            let place = at + differs as u64;
            self.fail(&format!(
                "WRONG BYTES: the {end} has received {got} at {at}; from {place} on {what}"
            ));
        }
        let attempted = self.shared.read_by(end).attempted.load(SeqCst);
        if at + got as u64 > attempted {
            self.fail(&format!("the {end} has received {got} bytes at {at} of {attempted}"));
        }
    }

    pub(super) fn is_nonblocking(&self, end: End) -> bool {
        self.shared.state(end).is_nonblocking.load(SeqCst) != 0
    }

    /// Questions and answers of 16 bytes on a connection that no other thread knows yet. Each end
    /// gives up where the other does.
    pub(super) fn warm_up(&mut self, call: &Call, rounds: u32) {
        for _ in 0..rounds {
            let steps = if call.end.side == 0 { [true, false] } else { [false, true] };
            for sends in steps {
                let mut left = 16;
                while left > 0 {
                    self.begin(if sends { Kind::Send } else { Kind::Recv }, call.end, 1);
                    let done = if sends {
                        self.send_once(call, left, 0)
                    } else {
                        match self.receive_once(call, left, 0, Kind::Recv) {
                            Got::Bytes(n) => Some(n),
                            _ => None,
                        }
                    };
                    self.own().call.store(0, SeqCst);
                    let Some(done) = done else { return };
                    left -= done;
                }
            }
        }
    }

    /// Waits, without a call on the stream, until `n` bytes are under way to one of its ends, or
    /// that does not come about.
    pub(super) fn await_ahead(&mut self, op: Op) {
        for _ in 0..1500 {
            let Some(slot) = self.some_slot(op.slot) else { return };
            let end = End::of_index(self.slot(slot).end.load(SeqCst));
            let direction = self.shared.read_by(end);
            let ahead = direction.sent.load(SeqCst).saturating_sub(direction.read.load(SeqCst));
            if ahead >= op.n || super::has_ended(self.shared, end) {
                return;
            }
            sys::pause(1000);
        }
    }

    pub(super) fn poll(&mut self, op: Op) {
        let Some(slot) = self.some_slot(op.slot) else { return };
        let mut events = if op.how & 1 != 0 { libc::POLLIN } else { 0 };
        events |= if op.how & 2 != 0 { libc::POLLOUT } else { 0 };
        let selects = op.how & 4 != 0;
        if !selects {
            events |= libc::POLLRDHUP;
        }
        let limit =
            if op.n == FOR_EVER && !selects { -1 } else { i32::try_from(op.n).unwrap_or(0) };
        let least = u64::from(op.how & 1);
        let Some(call) = self.enter(slot, op.kind, least, 0) else { return };
        let read = self.shared.read_by(call.end).read.load(SeqCst);
        let (returned, revents) = if selects {
            sys::select(call.fd, events, limit.min(50))
        } else if op.how & 8 != 0 {
            sys::poll_among_many(call.fd, events, limit)
        } else {
            sys::poll(call.fd, events, limit)
        };
        self.remember(op.kind, call.fd, Some(call.end), op.how as usize, returned);
        if returned.is_ok() {
            self.judge(rules::judge_readiness(self.shared, call.end, revents, read));
        } else if returned.errno != libc::EINTR {
            self.fail(&format!("polling the {}: errno {}", call.end, returned.errno));
        }
        self.leave_call(&call);
    }

    pub(super) fn ask_readable(&mut self, op: Op) {
        let Some(slot) = self.some_slot(op.slot) else { return };
        let Some(call) = self.enter(slot, op.kind, 0, 0) else { return };
        let direction = self.shared.read_by(call.end);
        let read = direction.read.load(SeqCst);
        let (returned, n) = sys::bytes_readable(call.fd);
        self.remember(op.kind, call.fd, Some(call.end), 0, returned);
        let most = direction.attempted.load(SeqCst) - read;
        let is_unsure = direction.is_read_unsure.load(SeqCst) != 0;
        if returned.is_ok() && !is_unsure && u64::try_from(n).is_ok_and(|n| n > most) {
            let end = call.end;
            self.fail(&format!("the {end} is told that {n} bytes are there, of {most} at most"));
        }
        self.leave_call(&call);
    }
}

/// A limit of `poll` that means none.
pub(crate) const FOR_EVER: u64 = 9999;

/// Bytes of each call of a flood.
const FLOOD: u64 = 1 << 20;

/// Bytes after a buffer that must stay as they are.
const BEYOND: usize = 16;
