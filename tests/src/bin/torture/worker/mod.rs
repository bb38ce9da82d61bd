//! A process of a run: its threads do what the schedule says, check every byte, and note all of it
//! in the shared file.

mod descriptors;
mod pool;
mod processes;
mod streams;

pub(crate) use processes::{give_child_up, give_turns_back};
pub(crate) use streams::{FOR_EVER, PAUSE};

use crate::rules;
use crate::schedule::{Kind, Op, Schedule};
use crate::shared::{End, OPEN, PROCESSES, Process, SLOTS, Shared, THREADS, Thread};
use crate::sys::{self, Returned};
use std::cell::Cell;
use std::fs;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;

/// Where the driver leaves the shared file, the schedule, and the mailboxes: two descriptors for
/// each process.
pub(crate) const SHARED_FD: RawFd = 300;
pub(crate) const SCHEDULE_FD: RawFd = 301;
pub(crate) const MAIL_FD: RawFd = 302;

/// Descriptors of the pool and of the program's own have numbers below this.
const OWN_FDS: RawFd = 200;

/// The phases of a process.
pub(crate) const WORKING: u32 = 0;
pub(crate) const DONE: u32 = 1;
pub(crate) const LEFT: u32 = 2;

/// What a thread knows.
pub(crate) struct Worker {
    shared: &'static Shared,
    schedule: &'static Schedule,
    /// The numbers of the process and of the thread in it.
    me: usize,
    thread: usize,
    bytes: Vec<u8>,
    /// The operation in progress.
    operation: u32,
}

/// Plays process `me` from the beginning; `is_resumed` if it has become this program in the middle
/// of it.
pub(crate) fn main(me: usize, is_resumed: bool) -> ! {
    let shared = sys::map_shared(SHARED_FD).expect("the shared file");
    let text = fs::read_to_string(format!("/proc/self/fd/{SCHEDULE_FD}")).expect("the schedule");
    let schedule: &'static Schedule = Box::leak(Box::new(Schedule::of_text(&text)));
    sys::handle(libc::SIGUSR1, interrupted, 0);
    sys::handle(libc::SIGUSR2, restarted, libc::SA_RESTART);
    let mut worker = Worker::new(shared, schedule, me, 0);
    if is_resumed {
        worker.resume();
    } else {
        worker.open_listener();
    }
    worker.play()
}

/// More than any call sends or receives.
const MOST_BYTES: usize = 2 << 20;

impl Worker {
    fn new(shared: &'static Shared, schedule: &'static Schedule, me: usize, thread: usize) -> Self {
        // A thread that waits for the allocator, with its call announced and not begun, would look
        // like one that sleeps in its call.
        let bytes = Vec::with_capacity(MOST_BYTES);
        Self { shared, schedule, me, thread, bytes, operation: 0 }
    }

    fn process(&self) -> &'static Process {
        &self.shared.processes[self.me]
    }

    fn own(&self) -> &'static Thread {
        &self.process().threads[self.thread]
    }

    /// Runs all threads, waits for the other processes, and ends.
    fn play(mut self) -> ! {
        let (shared, schedule, me) = (self.shared, self.schedule, self.me);
        // Before there are threads: a child that is forked while one sets it would wait for ever.
        PROCESS.get_or_init(|| shared);
        let threads: Vec<_> = (0..THREADS)
            .filter(|&thread| !schedule.threads[me][thread].is_empty())
            .map(|thread| {
                let run = move || Self::new(shared, schedule, me, thread).run();
                spawned(run).unwrap_or_else(|| self.fail("no thread can be had"))
            })
            .collect();
        threads.into_iter().for_each(sys::join);
        self.process().phase.store(DONE, SeqCst);
        while !(0..PROCESSES).all(|other| self.has_done(other)) {
            sys::pause(200);
        }
        self.leave();
        self.process().phase.store(LEFT, SeqCst);
        self.process().is_gone.store(1, SeqCst);
        sys::exit_now(0)
    }

    fn has_done(&self, process: usize) -> bool {
        let process = &self.shared.processes[process];
        process.is_claimed.load(SeqCst) == 0
            || process.is_gone.load(SeqCst) != 0
            || process.phase.load(SeqCst) >= DONE
    }

    /// Does what the schedule has for this thread.
    fn run(mut self) {
        SELF.set(Some((self.me, self.thread)));
        self.own().tid.store(sys::thread_id(), SeqCst);
        let ops = &self.schedule.threads[self.me][self.thread];
        loop {
            let next = self.own().next.fetch_add(1, SeqCst);
            let Some(op) = ops.get(next as usize) else { break };
            self.operation = next;
            self.perform(*op);
        }
        self.own().tid.store(0, SeqCst);
    }

    fn perform(&mut self, op: Op) {
        match op.kind {
            Kind::Connect => self.connect(op),
            Kind::Accept => self.accept(op.how == 1),
            Kind::Send | Kind::Flood | Kind::Drip => self.send_some(op),
            Kind::Recv | Kind::Peek | Kind::Sip => self.receive_some(op),
            Kind::Await => self.await_ahead(op),
            Kind::Poll => self.poll(op),
            Kind::Fionread => self.ask_readable(op),
            Kind::Shutdown => self.shutdown(op),
            Kind::Close => self.close(op),
            Kind::Replace => self.replace(op),
            Kind::Dup => self.duplicate(op),
            Kind::Dup2 => self.duplicate_over(op),
            Kind::Fork => self.fork(),
            Kind::Exec => self.exec(op),
            Kind::Pass => self.pass(op),
            Kind::Take => self.take(),
            Kind::Nonblock => self.set_nonblocking(op),
            Kind::Buffer => self.set_buffer(op),
            Kind::Linger => self.set_linger(op),
            Kind::Signal => self.signal(op),
            Kind::Sleep => sys::pause(op.n),
            Kind::Kill => self.kill(op),
        }
    }

    /// What is left at the end: every stream is read to its end and checked, or closed as it is.
    fn leave(&mut self) {
        SELF.set(Some((self.me, self.thread)));
        self.own().tid.store(sys::thread_id(), SeqCst);
        self.operation = u32::MAX;
        self.collect_mail();
        self.close_listener();
        let is_abrupt = self.schedule.settings.ends_abruptly != 0;
        if !is_abrupt {
            for slot in self.open_slots() {
                self.prepare_to_leave(slot);
            }
        }
        loop {
            let left = self.open_slots();
            if left.is_empty() {
                break;
            }
            for slot in left {
                if is_abrupt || self.is_read_to_the_end(slot) {
                    self.close_slot(slot);
                }
            }
            sys::pause(200);
            self.collect_mail();
        }
        self.own().tid.store(0, SeqCst);
    }

    fn open_slots(&self) -> Vec<usize> {
        (0..SLOTS).filter(|&slot| self.process().slots[slot].state.load(SeqCst) == OPEN).collect()
    }

    /// Ends the run: the first process to find something wrong says what.
    fn fail(&self, what: &str) -> ! {
        fail(self.shared, self.me, self.thread, what)
    }

    fn judge(&self, verdict: Result<(), String>) {
        if let Err(what) = verdict {
            self.fail(&what);
        }
    }

    /// Notes what a call returned, for the report of a failure.
    fn remember(&self, kind: Kind, fd: RawFd, end: Option<End>, asked: usize, returned: Returned) {
        let own = self.own();
        let i = own.n_remembered.fetch_add(1, SeqCst) as usize % own.remembered.len();
        let place = &own.remembered[i];
        place.operation.store(self.operation, SeqCst);
        place.kind.store(kind as u32, SeqCst);
        place.fd.store(fd, SeqCst);
        place.end.store(end.map_or(u32::MAX, End::index), SeqCst);
        place.asked.store(asked as u64, SeqCst);
        place.result.store(returned.value, SeqCst);
        place.errno.store(returned.errno, SeqCst);
    }
}

fn fail(shared: &Shared, me: usize, thread: usize, what: &str) -> ! {
    let is_killed = shared.processes[me].is_killed.load(SeqCst) != 0;
    if !is_killed && shared.has_failed.compare_exchange(0, 1, SeqCst, SeqCst).is_ok() {
        let what = format!("process {me}, thread {thread}: {what}");
        let what = &what.as_bytes()[..what.len().min(shared.failure.len() * 8)];
        for (place, piece) in shared.failure.iter().zip(what.chunks(8)) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            place.store(u64::from_ne_bytes(word), SeqCst);
        }
        shared.failure_len.store(u32::try_from(what.len()).expect("short"), SeqCst);
    }
    // Stays as it is, with its connections, until the driver has looked at it.
    loop {
        sys::pause(1_000_000);
    }
}

/// A thread that runs `run`. While the process is killed, or becomes another program by a sibling,
/// none can be had.
fn spawned(run: impl FnOnce() + Clone + Send + 'static) -> Option<sys::Joining> {
    (0..1000).find_map(|_| {
        let spawned = sys::spawn(run.clone());
        if spawned.is_none() {
            sys::pause(1000);
        }
        spawned
    })
}

thread_local! {
    /// The numbers of this process and thread.
    static SELF: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

/// The shared file, for handlers.
static PROCESS: OnceLock<&'static Shared> = OnceLock::new();

/// Ends a call that nothing will end: the driver sends this signal.
extern "C" fn interrupted(_: i32) {}

/// Restarts the call, unless that is one that the kernel never restarts.
extern "C" fn restarted(_: i32) {
    if let (Some(shared), Some((me, thread))) = (PROCESS.get(), SELF.get()) {
        let thread = &shared.processes[me].threads[thread];
        thread.n_signals_handled.fetch_add(1, SeqCst);
    }
}

/// Whether `end` may be found at its end.
fn has_ended(shared: &Shared, end: End) -> bool {
    shared.read_by(end).is_ended.load(SeqCst) != 0 || rules::may_be_reset(shared, end)
}
