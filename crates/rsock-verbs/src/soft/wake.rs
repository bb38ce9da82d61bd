//! Wakes the threads that sleep on a wait line.

use super::bell;
use super::doorbell_pipe::PeerPipes;
use crate::sync::waiter::{BELL, BELLS, BellName, FUTEX, WaitLine};
use rustix::thread::futex;

/// Wakes the waiters that the taken `bits` of `line` name, but for the ready set. `pipes` are the
/// doorbell pipes of the line's owner.
pub(super) fn wake_sleepers(line: &WaitLine, bits: u32, pipes: Option<&PeerPipes>) {
    if bits & FUTEX != 0 {
        // An error would mean that the word is not mapped, which `line` rules out.
        let _ = futex::wake(line.word(), futex::Flags::empty(), i32::MAX.cast_unsigned());
    }
    if bits & BELL != 0 {
        for i in 0..BELLS {
            match line.bell(i) {
                BellName { id: 0, .. } => {}
                BellName { pipe, .. } if pipes.is_some_and(|pipes| pipes.ring(pipe)) => {}
                BellName { id, .. } => bell::ring(id),
            }
        }
    }
}
