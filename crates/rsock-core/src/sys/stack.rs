//! How much of its stack the calling thread has left.

use rustix::process::getpid;
use rustix::thread::gettid;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;

rsock_verbs::per_thread! {
    /// The lowest address of this thread's stack; 0 before it is asked for, and [`UNKNOWN`] where
    /// libc does not know it.
    LOWEST: Cell<usize>, "rsock_lowest_of_stack"
}

const UNKNOWN: usize = usize::MAX;

/// Whether the calling thread has `len` bytes of stack left. True where that is not known: in the
/// process's first thread, whose stack grows, and on a stream of execution whose stack the program
/// has made itself.
pub(crate) fn has_stack(len: usize) -> bool {
    let lowest = LOWEST.with(|lowest| {
        if lowest.get() == 0 {
            lowest.set(lowest_of_thread().unwrap_or(UNKNOWN));
        }
        lowest.get()
    });
    let here = ptr::from_ref(&lowest).addr();
    here < lowest || here - lowest >= len
}

/// The lowest address of the calling thread's stack, above its guard pages.
fn lowest_of_thread() -> Option<usize> {
    // PERF: for the first thread libc would read the list of the process's mappings.
    if gettid() == getpid() {
        return None;
    }
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: the call has no conditions.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: the calling thread is alive, and the attributes are writable.
    if unsafe { libc::pthread_getattr_np(this, attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut lowest, mut len) = (ptr::null_mut(), 0);
    // SAFETY: the call above has initialized the attributes; both results are writable.
    let rc =
        unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut len) };
    // SAFETY: initialized above, and not used again.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (rc == 0 && len != 0).then(|| lowest.addr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_has_less_than_its_stack_and_more_than_nothing() {
        const STACK: usize = 256 << 10;
        let look = || [1, STACK / 2, STACK].map(has_stack);
        let seen = thread::Builder::new().stack_size(STACK).spawn(look).unwrap().join().unwrap();
        assert_eq!(seen, [true, true, false]);
    }

    #[test]
    fn what_a_thread_has_used_is_not_left() {
        fn deeper(pad: usize) -> bool {
            let room = [0u8; 64 << 10];
            std::hint::black_box(&room);
            if pad == 0 { has_stack(128 << 10) } else { deeper(pad - 1) }
        }
        let look = || [deeper(0), deeper(3)];
        let seen =
            thread::Builder::new().stack_size(320 << 10).spawn(look).unwrap().join().unwrap();
        assert_eq!(seen, [true, false]);
    }
}
