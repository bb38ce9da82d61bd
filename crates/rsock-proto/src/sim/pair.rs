//! Two ends and the wire between them.

use super::end::{End, EndConfig, Flight, Write};
use super::{Op, Side};
use crate::{Imm, LifecycleEvent, Msg};
use std::collections::VecDeque;

/// Two connected ends.
#[derive(Debug)]
pub struct Pair {
    ends: [End; 2],
    /// Messages on their way to each end.
    wires: [VecDeque<Flight>; 2],
    /// Those among them that cost a credit.
    credited: [usize; 2],
    /// Completions of control messages that each end has not taken.
    completions: [Vec<Imm>; 2],
}

/// Runs `ops` on a fresh pair and lets it come to rest.
///
/// # Panics
/// When a byte is lost, doubled or moved, a window is passed, or the pair is stuck.
pub fn run_pair(cfg: [EndConfig; 2], ops: impl IntoIterator<Item = Op>) {
    let mut pair = Pair::new(cfg);
    for op in ops {
        pair.apply(op);
    }
    pair.drive();
}

impl Pair {
    /// Connects two ends.
    #[must_use]
    pub fn new(cfg: [EndConfig; 2]) -> Self {
        let [(mut a, a_data), (mut b, b_data)] = cfg.map(End::new);
        a.connect(&b_data.encode());
        b.connect(&a_data.encode());
        Self {
            ends: [a, b],
            wires: Default::default(),
            credited: [0; 2],
            completions: Default::default(),
        }
    }

    /// One step.
    ///
    /// # Panics
    /// When something is wrong that shows at once.
    pub fn apply(&mut self, op: Op) {
        match op {
            Op::Write(side, len) => {
                let end = self.end(side);
                if end.lifecycle.is_writable() {
                    // Bounded, so that a run is short.
                    end.backlog = (end.backlog + len).min(1 << 14);
                }
                self.send(side);
            }
            Op::Read(side, len) => {
                self.read(side, len);
            }
            Op::Deliver(side, n) => {
                let n = n.min(self.wires[side as usize].len());
                for _ in 0..n {
                    self.deliver(side);
                }
            }
            Op::Land(side, n) => {
                self.land(side, n);
                self.land_part(side, n);
            }
            Op::Send(side) => {
                self.send(side);
            }
            Op::Grant(side) => {
                self.control(side);
            }
            Op::Poll(side) => {
                self.poll(side);
            }
            Op::Iomap(side) => {
                if let Some(flight) = self.end(side).iomap() {
                    self.post(side, flight);
                }
            }
            Op::ReplaceRing(side) => self.end(side).replace_ring(),
            Op::ExtendRing(side) => self.end(side).extend_ring(),
            Op::ShutWr(side) => self.end_of(side, LifecycleEvent::LocalShutWr),
            Op::ShutRd(side) => self.end_of(side, LifecycleEvent::LocalShutRd),
            Op::Close(side) => self.end_of(side, LifecycleEvent::LocalShutRdWr),
            Op::Drive => self.drive(),
        }
    }

    /// Lets everything go on until nothing moves, and checks that nothing is left behind.
    ///
    /// # Panics
    /// When something is.
    pub fn drive(&mut self) {
        // Each round but the last moves something: a byte at least, of a bounded backlog.
        for round in 0.. {
            assert!(round < MOST_ROUNDS, "the pair never comes to rest");
            let mut moved = false;
            for side in [Side::A, Side::B] {
                while self.deliver(side) {
                    moved = true;
                }
                moved |= self.poll(side);
                moved |= self.read(side, usize::MAX) != 0;
                moved |= self.control(side);
                moved |= self.send(side);
            }
            if !moved {
                break;
            }
        }
        for side in [Side::A, Side::B] {
            let (end, peer) = (&self.ends[side as usize], &self.ends[side.peer() as usize]);
            assert_eq!(end.sent, peer.read, "{side:?} sent more than its peer read");
            if end.lifecycle.is_writable() {
                assert_eq!(end.backlog, 0, "{side:?} is stuck");
                assert!(end.can_send(), "{side:?} has no room although its peer has read all");
            }
        }
    }

    /// Whether this end will neither send nor receive again.
    #[must_use]
    pub fn is_over(&self, side: Side) -> bool {
        !self.ends[side as usize].lifecycle.is_connected()
    }

    /// Bytes that this end can read now.
    #[must_use]
    pub fn readable(&self, side: Side) -> usize {
        self.ends[side as usize].readable()
    }

    /// Bytes that this end has written and could not send.
    #[must_use]
    pub fn backlog(&self, side: Side) -> usize {
        self.ends[side as usize].backlog
    }

    /// Bytes that this end has read so far.
    #[must_use]
    pub fn total_read(&self, side: Side) -> u64 {
        self.ends[side as usize].read
    }

    fn end(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }

    fn end_of(&mut self, side: Side, event: LifecycleEvent) {
        self.end(side).event(event);
        self.control(side);
    }

    fn send(&mut self, side: Side) -> bool {
        let mut moved = false;
        while let Some(flight) = self.end(side).send(value_of(side)) {
            self.post(side, flight);
            moved = true;
        }
        moved
    }

    fn control(&mut self, side: Side) -> bool {
        let mut moved = false;
        // Bounded by the control window.
        while let Some(flight) = self.end(side).control() {
            self.post(side, flight);
            moved = true;
        }
        moved
    }

    fn post(&mut self, from: Side, flight: Flight) {
        let to = from.peer();
        self.credited[to as usize] += usize::from(self.needs_credit(from, &flight));
        self.wires[to as usize].push_back(flight);
        let window = self.ends[to as usize].window();
        assert!(self.credited[to as usize] <= window, "{from:?} passes the window of its peer");
    }

    fn needs_credit(&self, from: Side, flight: &Flight) -> bool {
        match flight.imm.decode() {
            Ok(Msg::Data { .. }) => true,
            // This crate's iomap messages need no credit, C's do.
            Ok(Msg::Iomap { .. }) => !self.ends[from as usize].is_rsock(),
            _ => false,
        }
    }

    fn land(&mut self, to: Side, n: usize) {
        for flight in self.wires[to as usize].iter_mut().take(n) {
            if let Some(write) = flight.write.take() {
                self.ends[to as usize].land(&write);
            }
        }
    }

    /// The device is writing the next payload. That of side A writes bytes upwards: the first are
    /// there, `n` of them modulo the length. That of side B writes words in any order: all but the
    /// first are there.
    fn land_part(&mut self, to: Side, n: usize) {
        let end = &mut self.ends[to as usize];
        let next = self.wires[to as usize].iter().find_map(|flight| flight.write.as_ref());
        // COMPAT: C takes an entry by its length alone, however much of that is there.
        if let Some(write) = next.filter(|_| end.is_rsock()) {
            let len = write.bytes.len();
            let part = match to {
                Side::A => 0..n % len,
                Side::B => len.min(8)..len,
            };
            let addr = write.addr.wrapping_add(part.start as u64);
            end.land(&Write { addr, key: write.key, bytes: write.bytes[part].to_vec() });
        }
    }

    fn deliver(&mut self, to: Side) -> bool {
        self.land(to, 1);
        let Some(flight) = self.wires[to as usize].pop_front() else { return false };
        self.credited[to as usize] -= usize::from(self.needs_credit(to.peer(), &flight));
        if flight.is_ctrl {
            self.completions[to.peer() as usize].push(flight.imm);
        }
        self.end(to).handle(flight.imm);
        true
    }

    fn poll(&mut self, side: Side) -> bool {
        let done = std::mem::take(&mut self.completions[side as usize]);
        for imm in &done {
            self.end(side).control_done(*imm);
        }
        !done.is_empty()
    }

    fn read(&mut self, side: Side, want: usize) -> usize {
        let value = value_of(side.peer());
        let end = self.end(side);
        end.peek_all(value);
        end.read(want, value)
    }
}

/// More rounds than a full backlog takes when each moves one byte each way.
const MOST_ROUNDS: u32 = 1 << 16;

/// The bytes that `side` writes, by their place in its stream.
fn value_of(side: Side) -> impl Fn(u64) -> u8 + Copy {
    let salt = match side {
        Side::A => 0x9E37_79B9_7F4A_7C15,
        Side::B => 0xC2B2_AE3D_27D4_EB4F,
    };
    // Never 0, which is what fresh memory holds.
    move |at| (at + 1).wrapping_mul(salt).to_le_bytes()[5].max(1)
}
