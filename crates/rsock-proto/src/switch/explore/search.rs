//! Breadth first over all states of a model, by the fingerprint of each.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::{Duration, Instant};

/// What is explored.
pub(super) trait Model {
    type State: Clone + Hash;
    /// One of the steps that a state may have; the same numbers in every state.
    const STEPS: u16;

    fn initial(&self) -> Self::State;
    /// The state after a step, which it also describes if it is asked to. `None`: not possible.
    fn step(
        &self,
        from: &Self::State,
        step: u16,
        text: Option<&mut String>,
    ) -> Option<Stepped<Self::State>>;
    /// Whether the state is a goal of the scenario: its steps are not explored.
    fn is_done(&self, state: &Self::State) -> Result<bool, String>;
    /// Whether programs that keep calling, and the network, take this step sooner or later. Others
    /// may or may not happen.
    fn is_fair(&self, step: u16) -> bool;
}

/// The outcome of a step.
pub(super) enum Stepped<S> {
    To(S),
    /// It broke a rule that a program relies on.
    Broken(String),
}

/// What an exploration found.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) states: usize,
    pub(super) steps: usize,
    pub(super) took: Duration,
    pub(super) failure: Option<Failure>,
}

/// A rule that is broken, and the shortest way there.
pub(super) struct Failure {
    pub(super) what: String,
    pub(super) trace: Vec<String>,
}

/// The scenario has more states than were allowed.
const TOO_LARGE: &str = "there are too many states";

impl Failure {
    pub(super) fn is_too_large(&self) -> bool {
        self.what == TOO_LARGE
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        self.trace.iter().enumerate().try_for_each(|(i, step)| writeln!(f, "{:4} {step}", i + 1))
    }
}

/// Explores all states, at most `limit` of them.
pub(super) fn explore<M: Model>(model: &M, limit: usize) -> Report {
    let began = Instant::now();
    let mut search = Search::new(model);
    let failure = search.run(limit).err().or_else(|| search.find_stuck());
    Report {
        states: search.parents.len(),
        steps: search.n_steps,
        took: began.elapsed(),
        failure: failure.map(|(what, at, last)| search.explain(what, at, last)),
    }
}

struct Search<'a, M: Model> {
    model: &'a M,
    seen: HashMap<u64, u32, BuildHasherDefault<Identity>>,
    /// Of each state: where it was reached from, and by which step.
    parents: Vec<(u32, u16)>,
    /// Sure steps between states, backwards: from, to.
    edges: Vec<(u32, u32)>,
    done: Vec<u32>,
    n_steps: usize,
}

/// What is wrong, in which state, and after which further step.
type Found = (String, u32, Option<u16>);

impl<'a, M: Model> Search<'a, M> {
    fn new(model: &'a M) -> Self {
        let (seen, parents) = (HashMap::default(), Vec::new());
        Self { model, seen, parents, edges: Vec::new(), done: Vec::new(), n_steps: 0 }
    }

    fn run(&mut self, limit: usize) -> Result<(), Found> {
        let initial = self.model.initial();
        self.number(&initial, (0, 0));
        let mut level = vec![(0, initial)];
        let mut next = Vec::new();
        while !level.is_empty() {
            for (at, state) in level.drain(..) {
                self.expand(at, &state, &mut next)?;
                if self.parents.len() > limit {
                    return Err((TOO_LARGE.to_owned(), at, None));
                }
            }
            std::mem::swap(&mut level, &mut next);
        }
        Ok(())
    }

    fn expand(
        &mut self,
        at: u32,
        state: &M::State,
        next: &mut Vec<(u32, M::State)>,
    ) -> Result<(), Found> {
        if self.model.is_done(state).map_err(|what| (what, at, None))? {
            self.done.push(at);
            return Ok(());
        }
        for step in 0..M::STEPS {
            let to = match self.model.step(state, step, None) {
                None => continue,
                Some(Stepped::Broken(what)) => return Err((what, at, Some(step))),
                Some(Stepped::To(to)) => to,
            };
            self.n_steps += 1;
            let (number, is_new) = self.number(&to, (at, step));
            if self.model.is_fair(step) && number != at {
                self.edges.push((number, at));
            }
            if is_new {
                next.push((number, to));
            }
        }
        Ok(())
    }

    /// The number of a state, and whether it is new.
    fn number(&mut self, state: &M::State, from: (u32, u16)) -> (u32, bool) {
        let mut hasher = Mix::default();
        state.hash(&mut hasher);
        let new = u32::try_from(self.parents.len()).expect("fewer states");
        let number = *self.seen.entry(hasher.finish()).or_insert(new);
        if number == new {
            self.parents.push(from);
        }
        (number, number == new)
    }

    /// A state from which sure steps alone lead to no end: the first that was found.
    fn find_stuck(&mut self) -> Option<Found> {
        let n = self.parents.len();
        self.edges.sort_unstable();
        let mut starts = vec![0u32; n + 1];
        for (to, _) in &self.edges {
            starts[*to as usize + 1] += 1;
        }
        for i in 0..n {
            starts[i + 1] += starts[i];
        }
        let mut reaches = vec![false; n];
        let mut open = self.done.clone();
        self.done.iter().for_each(|at| reaches[*at as usize] = true);
        while let Some(at) = open.pop() {
            let (from, to) = (starts[at as usize] as usize, starts[at as usize + 1] as usize);
            for (_, before) in &self.edges[from..to] {
                if !std::mem::replace(&mut reaches[*before as usize], true) {
                    open.push(*before);
                }
            }
        }
        let stuck = u32::try_from(reaches.iter().position(|reaches| !reaches)?).expect("few");
        Some(("the programs keep calling, and never get there".to_owned(), stuck, None))
    }

    fn explain(&self, what: String, at: u32, last: Option<u16>) -> Failure {
        let mut steps: Vec<u16> = last.into_iter().collect();
        let mut at = at;
        while at != 0 {
            let (before, step) = self.parents[at as usize];
            steps.push(step);
            at = before;
        }
        let mut state = self.model.initial();
        let mut trace = Vec::new();
        for step in steps.into_iter().rev() {
            let mut text = String::new();
            if let Some(Stepped::To(to)) = self.model.step(&state, step, Some(&mut text)) {
                state = to;
            }
            trace.push(text);
        }
        Failure { what, trace }
    }
}

/// A fast hash of good quality over whole states, whose parts are mostly small.
#[derive(Default)]
struct Mix {
    state: (u64, u64),
    /// Bits that have not been mixed in yet.
    pending: u128,
    n_bits: u32,
}

impl Mix {
    #[inline]
    fn add(&mut self, bits: u64, n_bits: u32) {
        self.pending |= u128::from(bits) << self.n_bits;
        self.n_bits += n_bits;
        if self.n_bits >= 64 {
            #[expect(clippy::cast_possible_truncation, reason = "the rest stays")]
            self.mix(self.pending as u64);
            self.pending >>= 64;
            self.n_bits -= 64;
        }
    }

    #[inline]
    fn mix(&mut self, word: u64) {
        let (a, b) = self.state;
        let left = a ^ word ^ 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(left) * u128::from(b ^ 0xd6e8_feb8_6659_fd93);
        #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
        let folded = product as u64 ^ (product >> 64) as u64;
        let other = b.rotate_left(23) ^ word.wrapping_mul(0xa076_1d64_78bd_642f);
        self.state = (folded ^ left.rotate_left(29), other);
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        let mut last = Self { state: self.state, pending: 0, n_bits: 0 };
        #[expect(clippy::cast_possible_truncation, reason = "fewer than 64 bits are pending")]
        last.mix(self.pending as u64);
        let mut x = last.state.0 ^ last.state.1.rotate_left(32);
        x = (x ^ (x >> 31)).wrapping_mul(0x7fb5_d329_728e_a185);
        x = (x ^ (x >> 27)).wrapping_mul(0x81da_def4_bc2d_d44d);
        x ^ (x >> 33)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u8(*byte));
    }

    #[inline]
    fn write_u8(&mut self, word: u8) {
        self.add(word.into(), 8);
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.add(word.into(), 32);
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.add(word, 64);
    }

    /// Lengths, which are all small.
    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.add(word as u64 & 0xff, 8);
    }

    /// The kinds of enumerations, which are all small.
    #[inline]
    fn write_isize(&mut self, word: isize) {
        self.add(word.cast_unsigned() as u64 & 0xff, 8);
    }
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only whole fingerprints")
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}
