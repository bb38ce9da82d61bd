use super::*;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use std::sync::Once;

const PAGE: usize = 4096;

extern "C" fn handle(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's context.
    if !unsafe { recover(context) } {
        // SAFETY: sets the default action, which the next access then triggers.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

fn armed() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: zeroes are a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: a live action whose handler is async-signal-safe.
            let done = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
            assert_eq!(done, 0);
        }
        arm();
    });
}

/// Two pages, of which the second is not there.
fn half() -> *mut u8 {
    let flags = MapFlags::PRIVATE;
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * PAGE, rw, flags) }.expect("pages");
    // SAFETY: inside the mapping.
    let second = unsafe { at.cast::<u8>().add(PAGE) };
    // SAFETY: a page of this test.
    unsafe { mprotect(second.cast(), PAGE, MprotectFlags::empty()) }.expect("protected");
    at.cast()
}

/// Byte `i` of what is copied.
fn byte(i: usize) -> u8 {
    u8::try_from(i % 251).unwrap_or(0)
}

#[test]
fn a_copy_of_any_length_is_whole_or_reports_the_fault() {
    armed();
    let pages = half();
    for len in (0..200).chain([1000, 3000, 4096]) {
        let first: Vec<u8> = (0..PAGE).map(byte).collect();
        // SAFETY: the first page, which is as long.
        unsafe { std::ptr::copy_nonoverlapping(first.as_ptr(), pages, PAGE) };
        let mut got = vec![0u8; len + 1];
        // SAFETY: ends with the first page.
        let src = unsafe { pages.add(PAGE - len) };
        // SAFETY: readable and writable.
        assert!(unsafe { copy(src, got.as_mut_ptr(), len) });
        let want: Vec<u8> = (PAGE - len..PAGE).map(byte).collect();
        assert_eq!((&got[..len], got[len]), (&want[..], 0));
        if len == 0 {
            continue;
        }
        let whole = vec![7; len];
        for over in [1, len.div_ceil(2), len] {
            // SAFETY: inside the two pages.
            let src = unsafe { pages.add(PAGE - len + over) };
            // SAFETY: what is not there is what is tried.
            assert!(!unsafe { copy(src, got.as_mut_ptr(), len) }, "{len} {over}");
            // SAFETY: as above, and the lengths fit.
            assert!(!unsafe { copy(whole.as_ptr(), src, len) }, "{len} {over}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn words_are_loaded_to_the_byte() {
    armed();
    let pages = half();
    for len in 0..=48usize {
        // SAFETY: ends with the first page.
        let src = unsafe { pages.add(PAGE - len) };
        let mut want = [0u8; 48];
        (0..len).for_each(|i| want[i] = byte(i + 1));
        // SAFETY: as above, and the array is longer.
        unsafe { std::ptr::copy_nonoverlapping(want.as_ptr(), src, len) };
        // SAFETY: readable.
        let words = unsafe { load::<6>(src, len) }.expect("there");
        let got: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert_eq!(got, want, "{len}");
        if len != 0 {
            // SAFETY: inside the two pages.
            let over = unsafe { src.add(1) };
            // SAFETY: what is not there is what is tried.
            assert!(unsafe { load::<6>(over, len) }.is_none(), "{len}");
        }
    }
}
