//! The handles, with model handles, and a list as the queue.

use super::*;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

const ROOM: usize = 4;

fn key(host: u8) -> Key {
    (1, Gid([host; 16]))
}

/// The live handles, by number.
type Alive = Rc<RefCell<BTreeSet<u64>>>;

/// A handle that records whether it is alive.
struct Handle {
    number: u64,
    alive: Alive,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.alive.borrow_mut().remove(&self.number);
    }
}

/// A queue and its handles: which handles exist, which are in use, and what its sends name.
struct Queue {
    handles: AddressHandles<Handle>,
    alive: Alive,
    n_made: u64,
    now: Instant,
    held: Vec<Arc<Handle>>,
    /// The handle that each send names, in the order in which they were posted.
    posted: Vec<u64>,
    n_done: Cell<usize>,
}

impl Queue {
    fn new() -> Self {
        Self {
            handles: AddressHandles::with_room(ROOM),
            alive: Alive::default(),
            n_made: 0,
            now: Instant::now(),
            held: Vec::new(),
            posted: Vec::new(),
            n_done: Cell::new(0),
        }
    }

    fn sends(&self) -> (u64, u64) {
        (self.posted.len() as u64, self.n_done.get() as u64)
    }

    fn ask(&mut self, host: u8) -> u64 {
        let number = self.n_made;
        let make = || {
            self.alive.borrow_mut().insert(number);
            Ok(Handle { number, alive: Rc::clone(&self.alive) })
        };
        let handle = self.handles.handle(key(host), self.now, make, || self.sends());
        let handle = handle.expect("made");
        self.n_made += u64::from(handle.number == number);
        self.held.push(handle);
        self.held[self.held.len() - 1].number
    }

    fn post(&mut self, holder: usize) {
        if let Some(handle) = self.held.get(holder) {
            self.posted.push(handle.number);
        }
    }

    fn complete(&self, n: usize) {
        self.n_done.set(self.n_done.get().saturating_add(n).min(self.posted.len()));
    }

    fn tidy(&self) {
        self.handles.tidy(|| self.sends());
    }

    fn is_alive(&self, number: u64) -> bool {
        self.alive.borrow().contains(&number)
    }
}

#[test]
fn the_oldest_handle_goes_when_there_are_too_many() {
    let mut queue = Queue::new();
    let mut first = Vec::new();
    for host in 0..=u8::try_from(ROOM).expect("few") {
        first.push(queue.ask(host));
        queue.now += Duration::from_millis(1);
    }
    queue.held.clear();
    queue.tidy();
    assert!(!queue.is_alive(first[0]), "the first is still there");
    assert_eq!(queue.handles.len(), ROOM);
    // The others are still current.
    for (host, number) in (0..).zip(&first).skip(1) {
        assert_eq!(queue.ask(host), *number);
    }
    assert_ne!(queue.ask(0), first[0]);
}

#[test]
fn an_old_handle_is_replaced() {
    let mut queue = Queue::new();
    let first = queue.ask(1);
    queue.now += AGE - Duration::from_millis(1);
    assert_eq!(queue.ask(1), first);
    queue.now += Duration::from_millis(1);
    let second = queue.ask(1);
    assert_ne!(second, first);
    assert!(queue.is_alive(first), "a caller has it");
    queue.held.clear();
    queue.tidy();
    assert!(!queue.is_alive(first) && queue.is_alive(second));
}

#[test]
fn a_handle_stays_until_the_sends_that_name_it_are_done() {
    let mut queue = Queue::new();
    let first = queue.ask(1);
    queue.post(0);
    queue.post(0);
    queue.held.clear();
    queue.now += AGE;
    queue.ask(1);
    for _ in 0..2 {
        queue.tidy();
        assert!(queue.is_alive(first));
        queue.complete(1);
    }
    // Those that are posted later do not name it.
    queue.post(0);
    queue.tidy();
    assert!(!queue.is_alive(first));
}

#[test]
fn a_handle_that_cannot_be_made_changes_nothing() {
    let mut queue = Queue::new();
    let first = queue.ask(1);
    let later = queue.now + AGE;
    let refuse = || Err(Error::Exhausted("handles"));
    for host in [1, 2] {
        assert!(queue.handles.handle(key(host), later, refuse, || (0, 0)).is_err());
    }
    assert_eq!(queue.ask(1), first);
    assert_eq!(queue.handles.len(), 1);
}

#[derive(Clone, Debug)]
enum Op {
    Ask(u8),
    Post(usize),
    LetGo(usize),
    Complete(usize),
    Wait(u64),
    Tidy,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u8..9).prop_map(Op::Ask),
        3 => (0usize..6).prop_map(Op::Post),
        3 => (0usize..6).prop_map(Op::LetGo),
        2 => (1usize..4).prop_map(Op::Complete),
        1 => (1u64..1200).prop_map(Op::Wait),
        2 => Just(Op::Tidy),
    ]
}

proptest! {
    #[test]
    fn no_handle_goes_while_it_is_needed_and_all_others_do(
        ops in proptest::collection::vec(op(), 0..300),
    ) {
        let mut queue = Queue::new();
        for op in ops {
            match op {
                Op::Ask(host) => _ = queue.ask(host),
                Op::Post(holder) => queue.post(holder),
                Op::LetGo(holder) if holder < queue.held.len() => _ = queue.held.remove(holder),
                Op::LetGo(_) => {}
                Op::Complete(n) => queue.complete(n),
                Op::Wait(ms) => queue.now += Duration::from_millis(ms),
                Op::Tidy => queue.tidy(),
            }
            let n_for_use = queue.handles.handles().current.len();
            prop_assert!(n_for_use <= ROOM);
            for number in &queue.posted[queue.n_done.get()..] {
                prop_assert!(queue.is_alive(*number), "{number} is named by a send");
            }
            prop_assert_eq!(queue.handles.len(), queue.alive.borrow().len());
        }
        queue.held.clear();
        // Finds that no caller has them, and posts more, which do not name them.
        queue.tidy();
        queue.complete(usize::MAX);
        queue.tidy();
        prop_assert_eq!(queue.handles.len(), queue.handles.handles().current.len());
    }
}
