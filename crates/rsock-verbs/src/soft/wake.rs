//! Wakes the threads that sleep on a wait line.

use super::bell;
use crate::sync::waiter::{BELL, BELLS, FUTEX, WaitLine};
use rustix::thread::futex;

/// Wakes the waiters that the taken `bits` of `line` name, but for the ready set.
pub(super) fn wake_sleepers(line: &WaitLine, bits: u32) {
    if bits & FUTEX != 0 {
        // An error would mean that the word is not mapped, which `line` rules out.
        let _ = futex::wake(line.word(), futex::Flags::empty(), i32::MAX.cast_unsigned());
    }
    if bits & BELL != 0 {
        for i in 0..BELLS {
            match line.bell(i) {
                0 => {}
                id => bell::ring(id),
            }
        }
    }
}
