//! The state of an accelerated stream.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::ask::Subject;
use crate::accelerate::kernel_only_waiter::KernelOnlyWaiter;
use crate::accelerate::path::Path;
use crate::accelerate::peer_check::check_peer;
use crate::accelerate::poll_state::State;
use crate::accelerate::state::{FLAG_PINNED, Receiving};
use crate::interrupt::Section;
use crate::sys::{self, INPUT, OUTPUT};
use rsock_proto::switch::{
    DirectionSwitch, Fact, KernelInput, Output, Receiver, RingInput, Sender,
};
use rustix::event::PollFlags;
use rustix::fd::BorrowedFd;

impl AcceleratedStream {
    /// The state of this stream's entry. The result is written to `state`: PERF: to return it
    /// would copy what has just been stored.
    pub(in crate::accelerate) fn poll_state<'a>(
        &'a self,
        fd: BorrowedFd<'_>,
        events: PollFlags,
        state: &mut State<'a>,
    ) {
        let _section = Section::enter();
        state.kernel = events.difference(INPUT | OUTPUT);
        let path = self.path();
        let mark = path.map_or(0, |p| p.mark());
        let look = self.begin_look(mark);
        let is_quiet = events.intersects(INPUT) && self.poll_input(fd, path, mark, events, state);
        self.answer_leave(fd);
        if let Some(path) = path.filter(|_| is_quiet) {
            self.note_quiet(look, path);
        }
        if events.intersects(OUTPUT) {
            self.poll_output(fd, path, mark, events, state);
        }
        if state.ring.is_none() {
            state.asking = self.asking_path().map(|path| (path, mark));
        }
    }

    /// Whether nothing is there, and the next byte comes from the ring.
    fn poll_input<'a>(
        &'a self,
        fd: BorrowedFd<'_>,
        path: Option<&'a Path>,
        mark: u32,
        events: PollFlags,
        state: &mut State<'a>,
    ) -> bool {
        let mut rx = self.dirs.rx.0.lock();
        let mut subject = Subject::new(fd, path);
        let mut seen = self.begin(&*rx, &subject);
        let asked = self.ask(&mut *rx, &mut seen, &mut subject, Receiver::poll_input);
        let Ok(input) = asked else {
            // The kernel's `ppoll` reports the error of the descriptor.
            state.kernel |= events & INPUT;
            return false;
        };
        if input.fault.is_some() {
            state.ready |= events & INPUT;
        }
        match input.kernel {
            KernelInput::Bytes => state.kernel |= events & INPUT,
            KernelInput::End => {
                state.kernel |= PollFlags::RDHUP;
                state.end_is_input = true;
            }
        }
        let is_settled = rx.switch.is_settled(seen.now());
        match (input.ring, path) {
            (RingInput::Unused, _) | (_, None) => {
                if !is_settled && input.fault.is_none() {
                    let waiters = &self.dirs.shared.0.kernel_only_waiters;
                    state.kernel_only = Some(KernelOnlyWaiter::new(waiters, &*rx));
                }
            }
            (RingInput::WakeOnly, Some(path)) => state.ring = Some((path, mark)),
            (RingInput::AfterTcp | RingInput::Input, Some(path)) => {
                state.ring = Some((path, mark));
                let has_end = input.ring == RingInput::Input && path.has_eof();
                let is_enough = |rx: &mut Receiving, subject: &mut Subject<'_>| {
                    !self.has(FLAG_PINNED) || has_end || self.reaches_low_water(rx, subject)
                };
                let has_input = path.has_input();
                if has_input && !path.has_end_alone() && is_enough(&mut rx, &mut subject) {
                    state.ready |= events & INPUT;
                }
                return !has_input && input.fault.is_none() && input.kernel == KernelInput::End;
            }
        }
        false
    }

    fn poll_output<'a>(
        &'a self,
        fd: BorrowedFd<'_>,
        path: Option<&'a Path>,
        mark: u32,
        events: PollFlags,
        state: &mut State<'a>,
    ) {
        let mut tx = self.dirs.tx.0.lock();
        let mut subject = Subject::new(fd, path);
        let mut seen = self.begin(&*tx, &subject);
        loop {
            let asked = self.ask(&mut *tx, &mut seen, &mut subject, Sender::poll_output);
            self.note_answers(&tx);
            match (asked, path) {
                (Ok(Output::Kernel), _) | (Err(_), _) => state.kernel |= events & OUTPUT,
                (Ok(Output::Now), _) => state.ready |= events & OUTPUT,
                (Ok(Output::Ring), Some(path)) if path.has_room() => {
                    tx.full_since = None;
                    state.ready |= events & OUTPUT;
                }
                (Ok(Output::Ring), Some(path)) => {
                    check_peer(fd, &mut tx, path);
                    tx.full_since.get_or_insert_with(sys::now);
                    self.note(&*tx, &mut seen, &subject, Fact::RingFull);
                    continue;
                }
                (Ok(Output::WaitForRing), Some(path)) => {
                    state.ring = Some((path, mark));
                    state.impatient = true;
                }
                (Ok(Output::Ring | Output::WaitForRing), None) => state.ready |= events & OUTPUT,
            }
            return;
        }
    }
}
