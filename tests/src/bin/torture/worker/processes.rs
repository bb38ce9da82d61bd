//! Forking, becoming another program, killing and signalling.

use super::{PROCESS, Worker};
use crate::schedule::{Kind, Op};
use crate::shared::{CONNECTIONS, EMPTY, End, OPEN, PROCESSES, SLOTS, THREADS, process_of_turn};
use crate::sys;
use std::sync::atomic::Ordering::SeqCst;

/// The number of the process that is forked.
const CHILD: usize = PROCESSES - 1;

impl Worker {
    pub(super) fn fork(&mut self) {
        let child = &self.shared.processes[CHILD];
        if self.schedule.threads[CHILD].iter().all(Vec::is_empty)
            || child.is_claimed.compare_exchange(0, 1, SeqCst, SeqCst).is_err()
        {
            return;
        }
        child.parent.store(u32::try_from(self.me).expect("few") + 1, SeqCst);
        let mut ends = Vec::with_capacity(SLOTS);
        for slot in 0..SLOTS {
            self.lock(slot);
            let (from, to) = (self.slot(slot), &child.slots[slot]);
            let state = from.state.load(SeqCst);
            to.fd.store(from.fd.load(SeqCst), SeqCst);
            to.end.store(from.end.load(SeqCst), SeqCst);
            to.state.store(if state == OPEN { OPEN } else { EMPTY }, SeqCst);
            if state == OPEN {
                let end = End::of_index(from.end.load(SeqCst));
                ends.push(end);
                self.shared.state(end).n_maybe_open[CHILD].fetch_add(1, SeqCst);
            }
        }
        child.listener.store(self.process().listener.load(SeqCst), SeqCst);
        child.port.store(self.process().port.load(SeqCst), SeqCst);
        let returned = sys::fork();
        if returned.value == 0 {
            self.be_child();
        }
        self.remember(Kind::Fork, -1, None, 0, returned);
        for end in ends {
            if returned.is_ok() {
                self.shared.state(end).n_open[CHILD].fetch_add(1, SeqCst);
            } else {
                self.shared.state(end).n_maybe_open[CHILD].fetch_sub(1, SeqCst);
            }
        }
        child.pid.store(i32::try_from(returned.value).unwrap_or(0), SeqCst);
        if !returned.is_ok() {
            child.is_gone.store(1, SeqCst);
            child.is_reaped.store(1, SeqCst);
        }
        child.is_forked.store(1, SeqCst);
        for slot in 0..SLOTS {
            self.unlock(slot);
        }
    }

    fn be_child(&mut self) -> ! {
        let parent = self.process();
        let me = &self.shared.processes[CHILD];
        while me.is_forked.load(SeqCst) == 0 {
            if parent.is_gone.load(SeqCst) != 0 || me.is_gone.load(SeqCst) != 0 {
                me.is_gone.store(1, SeqCst);
                sys::exit_now(0);
            }
            sys::pause(100);
        }
        PROCESS.get_or_init(|| self.shared);
        let child = Self::new(self.shared, self.schedule, CHILD, 0);
        for fd in child.unknown_descriptors() {
            sys::close(fd);
        }
        child.play()
    }

    pub(super) fn exec(&mut self, op: Op) {
        for slot in 0..SLOTS {
            self.lock(slot);
        }
        self.process().has_lost_accepts.store(1, SeqCst);
        let without = (op.how == 1).then_some("LD_PRELOAD");
        let failed = sys::exec(&["torture", "worker", &self.me.to_string(), "resume"], without);
        self.remember(op.kind, -1, None, 0, failed);
        for slot in 0..SLOTS {
            self.unlock(slot);
        }
    }

    /// Goes on after an exec: all other threads ended in the middle of what they did.
    pub(super) fn resume(&mut self) {
        let process = self.process();
        for slot in &process.slots {
            if slot.state.load(SeqCst) != OPEN {
                slot.state.store(EMPTY, SeqCst);
            }
            slot.lock.store(0, SeqCst);
        }
        let open: Vec<u32> =
            self.open_slots().into_iter().map(|s| self.slot(s).end.load(SeqCst)).collect();
        for connection in 0..CONNECTIONS {
            for side in 0..2 {
                let end = End { connection, side };
                let n = open.iter().filter(|&&index| index == end.index()).count();
                let n = i32::try_from(n).expect("few");
                let state = self.shared.state(end);
                state.n_maybe_open[self.me].store(n, SeqCst);
                state.n_open[self.me].store(n, SeqCst);
            }
        }
        // Only once they are not counted any more.
        for fd in self.unknown_descriptors() {
            sys::close(fd);
        }
        give_turns_back(self.shared, self.me);
        give_child_up(self.shared, self.me);
        for thread in &process.threads {
            thread.call.store(0, SeqCst);
            thread.slots.store(0, SeqCst);
            thread.tid.store(0, SeqCst);
            thread.n_signals_sent.store(thread.n_signals_handled.load(SeqCst), SeqCst);
        }
    }

    /// Signals a thread in a call whose descriptor is what it was when the call began: a restarted
    /// call reads the number again. The slot may have another descriptor of the same end by now,
    /// while the number belongs to another connection.
    pub(super) fn signal(&mut self, op: Op) {
        let n = usize::try_from(op.n).unwrap_or(0) % THREADS;
        let thread = &self.process().threads[n];
        let slots = thread.slots.load(SeqCst);
        if n == self.thread || slots == 0 {
            return;
        }
        let slot = slots.trailing_zeros() as usize;
        self.lock(slot);
        let place = self.slot(slot);
        let is_same = thread.slots.load(SeqCst) == slots
            && place.state.load(SeqCst) == OPEN
            && place.fd.load(SeqCst) == thread.fd.load(SeqCst)
            && place.end.load(SeqCst) == thread.end.load(SeqCst);
        let tid = thread.tid.load(SeqCst);
        if is_same && tid != 0 {
            thread.n_signals_sent.fetch_add(1, SeqCst);
            let pid = self.process().pid.load(SeqCst);
            if !sys::signal_thread(pid, tid, libc::SIGUSR2).is_ok() {
                thread.n_signals_sent.fetch_sub(1, SeqCst);
            }
        }
        self.unlock(slot);
    }

    pub(super) fn kill(&mut self, op: Op) {
        let n = usize::try_from(op.n).unwrap_or(0) % PROCESSES;
        let process = &self.shared.processes[n];
        let pid = process.pid.load(SeqCst);
        let is_there = process.is_claimed.load(SeqCst) != 0 && pid != 0;
        if !is_there || process.is_gone.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
            return;
        }
        process.is_killed.store(1, SeqCst);
        self.remember(op.kind, -1, None, n, sys::Returned { value: 0, errno: 0 });
        sys::kill(pid, libc::SIGKILL);
    }
}

/// Takes back a fork that a process has not completed, and never will.
pub(crate) fn give_child_up(shared: &crate::shared::Shared, process: usize) {
    let child = &shared.processes[CHILD];
    if child.parent.load(SeqCst) as usize == process + 1 && child.is_forked.load(SeqCst) == 0 {
        child.is_gone.store(1, SeqCst);
        child.is_reaped.store(1, SeqCst);
    }
}

/// Frees the turns of a process that will not go on with what it did: where it stopped is not
/// known.
pub(crate) fn give_turns_back(shared: &crate::shared::Shared, process: usize) {
    for connection in &shared.connections {
        for direction in &connection.directions {
            let is_its = |turn: u32| process_of_turn(turn) == Some(process);
            if is_its(direction.writer.load(SeqCst)) {
                direction.is_write_unsure.store(1, SeqCst);
                direction.writer.store(0, SeqCst);
            }
            if is_its(direction.reader.load(SeqCst)) {
                direction.is_read_unsure.store(1, SeqCst);
                direction.reader.store(0, SeqCst);
            }
        }
    }
}
