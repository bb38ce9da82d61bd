//! `rt_sigaction`: signal actions in the kernel's form.

use super::kernel;
use super::words::{at, int};
use crate::hook::signal;
use crate::signal::{KERNEL_SIGSET, KernelAction, SIGCANCEL};
use libc::{c_int, c_long};
use std::ptr;

/// As `rt_sigaction(2)`, by the hook of `sigaction`, so that the wrapper calls the handler.
///
/// # Safety
/// As `rt_sigaction(2)`, of the kernel.
pub(super) unsafe fn rt_sigaction(all: [usize; 6]) -> c_long {
    let [number, new, old, size, ..] = all;
    let (number, new, old) = (int(number), at::<*const KernelAction>(new), at(old));
    if size != KERNEL_SIGSET || is_internal(number) {
        // SAFETY: the caller's promise; the kernel refuses another size.
        return unsafe { kernel(libc::SYS_rt_sigaction, all) };
    }
    // SAFETY: null or readable, by the caller's promise.
    let new = (!new.is_null()).then(|| unsafe { new.read_unaligned() }.to_libc());
    // SAFETY: zeroes are a valid `sigaction`.
    let mut was: libc::sigaction = unsafe { std::mem::zeroed() };
    let wanted = new.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: null or a live action, and room for the old one.
    let result = unsafe { signal::sigaction(number, wanted, &raw mut was) };
    let old: *mut KernelAction = old;
    if result == 0 && !old.is_null() {
        // SAFETY: not null, so writable by the caller's promise.
        unsafe { old.write_unaligned(KernelAction::of_libc(&was)) };
    }
    c_long::from(result)
}

/// Whether libc uses the signal itself: then its `sigaction` refuses the number, which the kernel
/// does not.
fn is_internal(number: c_int) -> bool {
    (SIGCANCEL..libc::SIGRTMIN()).contains(&number)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn handler(_: c_int) {}

    fn call(number: c_int, new: *const KernelAction, old: *mut KernelAction) -> c_long {
        let number = usize::try_from(number).expect("a signal");
        let all = [number, new.expose_provenance(), old.expose_provenance(), KERNEL_SIGSET, 0, 0];
        // SAFETY: null or live actions.
        unsafe { rt_sigaction(all) }
    }

    #[test]
    fn an_action_in_the_kernels_form_is_that_of_sigaction() {
        let mut new = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 1 << 11 };
        new.handler = handler as extern "C" fn(c_int) as usize;
        new.flags = libc::SA_NODEFER as libc::c_ulong;
        let mut old = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
        assert_eq!(call(libc::SIGUSR2, &raw const new, ptr::null_mut()), 0);
        // SAFETY: zeroes are a valid `sigaction`.
        let mut seen: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: null and a live action.
        assert_eq!(unsafe { signal::sigaction(libc::SIGUSR2, ptr::null(), &raw mut seen) }, 0);
        assert_eq!((seen.sa_sigaction, seen.sa_flags), (new.handler, libc::SA_NODEFER));
        assert_eq!(call(libc::SIGUSR2, ptr::null(), &raw mut old), 0);
        assert_eq!((old.handler, old.flags, old.mask), (new.handler, new.flags, new.mask));
        // SAFETY: null and a live action.
        let own = unsafe {
            kernel(
                libc::SYS_rt_sigaction,
                [
                    usize::try_from(libc::SIGUSR2).expect("a signal"),
                    0,
                    (&raw mut old).expose_provenance(),
                    KERNEL_SIGSET,
                    0,
                    0,
                ],
            )
        };
        assert_eq!(own, 0);
        assert_ne!(old.handler, new.handler, "the kernel calls the wrapper");
        assert_eq!(old.mask, new.mask);
    }

    #[test]
    fn a_signal_of_libc_goes_to_the_kernel() {
        let mut old = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
        assert_eq!(call(SIGCANCEL + 1, ptr::null(), &raw mut old), 0);
        assert_eq!(call(64, ptr::null(), &raw mut old), 0);
        assert_eq!(call(65, ptr::null(), &raw mut old), -1);
    }
}
