//! Copies to and from a program's memory that may not be there.
//!
//! The kernel answers `EFAULT` when a program gives it memory that is not mapped, or that lies past the end of a
//! file. A copy through shared memory gets a signal instead. Here such a copy ends and says so: the handler of
//! `SIGSEGV` and `SIGBUS` calls [`recover`], which lets the interrupted thread go on behind the copy.
//!
//! Where no handler of ours is installed ([`arm`]) copies are what they always were.
//!
//! Only leaf functions are left in this way. They hold no lock, own nothing and have no destructors, so no code
//! that should run is skipped.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A copy of `len` bytes; the last argument is its own.
pub(crate) type Copy = unsafe extern "C" fn(src: *const u8, dst: *mut u8, len: usize, with: usize);

/// Whether a handler calls [`recover`].
static ARMED: AtomicBool = AtomicBool::new(false);

/// Promises that a handler of `SIGSEGV` and `SIGBUS` calls [`recover`] from now on.
pub fn arm() {
    ARMED.store(true, Ordering::Relaxed);
}

/// Whether a copy may end early.
#[inline(always)]
pub(crate) fn is_armed() -> bool {
    cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) && ARMED.load(Ordering::Relaxed)
}

/// Ordinary copy; false if it faulted. Then any part of it may have been made.
///
/// # Safety
/// `src` is as long as `len` says, and so is `dst`; either may be memory that is not there, if [`is_armed`].
/// The two do not overlap. Another process may write either meanwhile: the bytes are then torn.
#[inline]
pub(crate) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) -> bool {
    unsafe extern "C" fn plain(src: *const u8, dst: *mut u8, len: usize, _: usize) {
        // SAFETY: the promise of the caller of `copy`.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
    }
    if !is_armed() {
        // SAFETY: the caller's promise.
        unsafe { plain(src, dst, len, 0) };
        return true;
    }
    #[cfg(target_arch = "x86_64")]
    if len <= SMALL {
        // SAFETY: the caller's promise; a fault inside is recovered from.
        return unsafe { rsock_fault_copy(src, dst, len) } != 0;
    }
    // SAFETY: the caller's promise, and `plain` is a leaf.
    unsafe { attempt(plain, src, dst, len, 0) }
}

/// Loads up to 48 bytes into words, the rest zero; `None` if that faulted. For processors that have a shorter way
/// than [`copy`].
///
/// # Safety
/// As [`copy`], of `src`; [`is_armed`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn load<const N: usize>(src: *const u8, len: usize) -> Option<[u64; N]> {
    const { assert!(N == 6) };
    debug_assert!(len <= N * 8);
    let mut words = [0; N];
    // SAFETY: room for `len` bytes; a fault inside is recovered from.
    let is_done = unsafe { rsock_fault_load(src, words.as_mut_ptr(), len) } != 0;
    is_done.then_some(words)
}

/// Runs a copy; false if it faulted.
///
/// # Safety
/// As `f`, but for memory that is not there. `f` is a leaf that owns nothing: it may be left at any instruction.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline]
pub(crate) unsafe fn attempt(
    f: Copy,
    src: *const u8,
    dst: *mut u8,
    len: usize,
    with: usize,
) -> bool {
    let stack = STACK.with(Cell::as_ptr);
    // SAFETY: the caller's promise; the cell is this thread's.
    unsafe { rsock_fault_attempt(f, src, dst, len, with, stack) != 0 }
}

/// There is no way back on this processor.
///
/// # Safety
/// As `f`.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) unsafe fn attempt(
    f: Copy,
    src: *const u8,
    dst: *mut u8,
    len: usize,
    with: usize,
) -> bool {
    // SAFETY: the caller's promise.
    unsafe { f(src, dst, len, with) };
    true
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
thread_local! {
    /// The stack pointer of this thread's `rsock_fault_attempt` that is running; 0 if none is.
    static STACK: Cell<usize> = const { Cell::new(0) };
}

/// Has the interrupted thread go on behind its copy, if it was copying here. To be called by a handler of
/// `SIGSEGV` or `SIGBUS` for a signal of the thread's own doing, which then returns.
///
/// # Safety
/// `context` is that of a signal handler that the kernel has called.
#[must_use]
pub unsafe fn recover(context: *mut libc::c_void) -> bool {
    let context = context.cast::<libc::ucontext_t>();
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the kernel's own context, by the caller's promise.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        let (rip, rsp) = (libc::REG_RIP as usize, libc::REG_RSP as usize);
        let at = usize::try_from(registers[rip]).unwrap_or(0);
        let small =
            (&raw const rsock_fault_small).addr()..(&raw const rsock_fault_small_end).addr();
        if small.contains(&at) {
            // These use no stack, so the return address is on top.
            registers[rip] = word((&raw const rsock_fault_small_failed).addr());
            return true;
        }
        let Some(stack) = copying(usize::try_from(registers[rsp]).unwrap_or(0)) else {
            return false;
        };
        registers[rsp] = word(stack);
        registers[rip] = word((&raw const rsock_fault_failed).addr());
        true
    }
    #[cfg(target_arch = "aarch64")]
    {
        // SAFETY: the kernel's own context, by the caller's promise.
        let registers = unsafe { &mut (*context).uc_mcontext };
        let Some(stack) = copying(registers.sp as usize) else { return false };
        registers.sp = stack as u64;
        registers.pc = (&raw const rsock_fault_failed).addr() as u64;
        true
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = context;
        false
    }
}

/// The stack of this thread's attempt, if `now` can be that of the copy itself. A handler on top of the copy is
/// further away.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn copying(now: usize) -> Option<usize> {
    /// More than the frames of a leaf, less than the kernel's frame of a signal handler and what lies below it.
    const LEAF: usize = 640;
    let stack = STACK.with(Cell::get);
    (stack != 0 && stack.checked_sub(now).is_some_and(|below| below <= LEAF)).then_some(stack)
}

#[cfg(target_arch = "x86_64")]
fn word(address: usize) -> i64 {
    address.cast_signed() as i64
}

/// Most bytes of `rsock_fault_copy`.
#[cfg(target_arch = "x86_64")]
const SMALL: usize = 64;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe extern "C" {
    /// Calls the function with its four arguments and keeps a way back at the last one. 0 if it was taken.
    fn rsock_fault_attempt(
        f: Copy,
        src: *const u8,
        dst: *mut u8,
        len: usize,
        with: usize,
        stack: *mut usize,
    ) -> usize;
    /// Where it goes on if the copy faulted.
    static rsock_fault_failed: u8;
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    /// Copies at most 64 bytes. 0 if that faulted.
    fn rsock_fault_copy(src: *const u8, dst: *mut u8, len: usize) -> usize;
    /// Stores bytes as words, whole words only; what they have beyond `len` is 0. 0 if that faulted.
    fn rsock_fault_load(src: *const u8, words: *mut u64, len: usize) -> usize;
    /// From here to the next the two above lie, which may fault at any load and store.
    static rsock_fault_small: u8;
    static rsock_fault_small_end: u8;
    /// Returns 0.
    static rsock_fault_small_failed: u8;
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.rsock_fault, \"ax\", @progbits",
    ".p2align 4",
    ".globl rsock_fault_attempt",
    ".hidden rsock_fault_attempt",
    ".type rsock_fault_attempt, @function",
    "rsock_fault_attempt:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push r9",
    "push qword ptr [r9]",
    "sub rsp, 8",
    "mov [r9], rsp",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov rcx, r8",
    "call rax",
    "mov eax, 1",
    "2:",
    "add rsp, 8",
    "pop rcx",
    "pop r9",
    "mov [r9], rcx",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".globl rsock_fault_failed",
    ".hidden rsock_fault_failed",
    "rsock_fault_failed:",
    "cld",
    "xor eax, eax",
    "jmp 2b",
    ".size rsock_fault_attempt, . - rsock_fault_attempt",
    ".p2align 4",
    ".globl rsock_fault_small",
    ".hidden rsock_fault_small",
    "rsock_fault_small:",
    // Source, destination, length in rdi, rsi, rdx.
    ".globl rsock_fault_copy",
    ".hidden rsock_fault_copy",
    ".type rsock_fault_copy, @function",
    "rsock_fault_copy:",
    "cmp rdx, 16",
    "jb 4f",
    "movups xmm0, [rdi + rdx - 16]",
    "xor ecx, ecx",
    "sub rdx, 16",
    "3:",
    "cmp rcx, rdx",
    "jae 5f",
    "movups xmm1, [rdi + rcx]",
    "movups [rsi + rcx], xmm1",
    "add rcx, 16",
    "jmp 3b",
    "5:",
    "movups [rsi + rdx], xmm0",
    "mov eax, 1",
    "ret",
    "4:",
    "cmp rdx, 8",
    "jb 6f",
    "mov rax, [rdi]",
    "mov rcx, [rdi + rdx - 8]",
    "mov [rsi], rax",
    "mov [rsi + rdx - 8], rcx",
    "mov eax, 1",
    "ret",
    "6:",
    "cmp rdx, 4",
    "jb 7f",
    "mov eax, [rdi]",
    "mov ecx, [rdi + rdx - 4]",
    "mov [rsi], eax",
    "mov [rsi + rdx - 4], ecx",
    "mov eax, 1",
    "ret",
    "7:",
    "test rdx, rdx",
    "je 8f",
    "movzx eax, byte ptr [rdi]",
    "mov rcx, rdx",
    "shr rcx",
    "movzx r8d, byte ptr [rdi + rcx]",
    "movzx r9d, byte ptr [rdi + rdx - 1]",
    "mov [rsi], al",
    "mov [rsi + rcx], r8b",
    "mov [rsi + rdx - 1], r9b",
    "8:",
    "mov eax, 1",
    "ret",
    ".size rsock_fault_copy, . - rsock_fault_copy",
    // Source, words, length in rdi, rsi, rdx. The words are 0.
    ".p2align 4",
    ".globl rsock_fault_load",
    ".hidden rsock_fault_load",
    ".type rsock_fault_load, @function",
    "rsock_fault_load:",
    "xor r8d, r8d",
    "cmp rdx, 8",
    "jb 4f",
    "3:",
    "mov rax, [rdi + r8]",
    "mov [rsi + r8], rax",
    "add r8, 8",
    "lea r9, [r8 + 8]",
    "cmp r9, rdx",
    "jbe 3b",
    "mov rcx, r9",
    "sub rcx, rdx",
    "cmp rcx, 8",
    "je 8f",
    "mov rax, [rdi + rdx - 8]",
    "shl ecx, 3",
    "shr rax, cl",
    "mov [rsi + r8], rax",
    "8:",
    "mov eax, 1",
    "ret",
    "4:",
    "cmp rdx, 4",
    "jb 5f",
    "mov eax, [rdi]",
    "mov r9d, [rdi + rdx - 4]",
    "lea ecx, [rdx * 8 - 32]",
    "shl r9, cl",
    "or rax, r9",
    "mov [rsi], rax",
    "mov eax, 1",
    "ret",
    "5:",
    "test rdx, rdx",
    "je 8b",
    "movzx eax, byte ptr [rdi]",
    "lea rcx, [rdx * 8 - 8]",
    "movzx r9d, byte ptr [rdi + rdx - 1]",
    "shl r9, cl",
    "or rax, r9",
    "shr rdx",
    "movzx r9d, byte ptr [rdi + rdx]",
    "lea rcx, [rdx * 8]",
    "shl r9, cl",
    "or rax, r9",
    "mov [rsi], rax",
    "mov eax, 1",
    "ret",
    ".size rsock_fault_load, . - rsock_fault_load",
    ".globl rsock_fault_small_end",
    ".hidden rsock_fault_small_end",
    "rsock_fault_small_end:",
    ".globl rsock_fault_small_failed",
    ".hidden rsock_fault_small_failed",
    "rsock_fault_small_failed:",
    "xor eax, eax",
    "ret",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .text.rsock_fault, \"ax\", %progbits",
    ".p2align 4",
    ".globl rsock_fault_attempt",
    ".hidden rsock_fault_attempt",
    ".type rsock_fault_attempt, %function",
    "rsock_fault_attempt:",
    "stp x29, x30, [sp, #-176]!",
    "stp x19, x20, [sp, #16]",
    "stp x21, x22, [sp, #32]",
    "stp x23, x24, [sp, #48]",
    "stp x25, x26, [sp, #64]",
    "stp x27, x28, [sp, #80]",
    "stp d8, d9, [sp, #96]",
    "stp d10, d11, [sp, #112]",
    "stp d12, d13, [sp, #128]",
    "stp d14, d15, [sp, #144]",
    "ldr x9, [x5]",
    "stp x5, x9, [sp, #160]",
    "mov x9, sp",
    "str x9, [x5]",
    "mov x9, x0",
    "mov x0, x1",
    "mov x1, x2",
    "mov x2, x3",
    "mov x3, x4",
    "blr x9",
    "mov x0, #1",
    "2:",
    "ldp x5, x9, [sp, #160]",
    "str x9, [x5]",
    "ldp d14, d15, [sp, #144]",
    "ldp d12, d13, [sp, #128]",
    "ldp d10, d11, [sp, #112]",
    "ldp d8, d9, [sp, #96]",
    "ldp x27, x28, [sp, #80]",
    "ldp x25, x26, [sp, #64]",
    "ldp x23, x24, [sp, #48]",
    "ldp x21, x22, [sp, #32]",
    "ldp x19, x20, [sp, #16]",
    "ldp x29, x30, [sp], #176",
    "ret",
    ".globl rsock_fault_failed",
    ".hidden rsock_fault_failed",
    "rsock_fault_failed:",
    "mov x0, #0",
    "b 2b",
    ".size rsock_fault_attempt, . - rsock_fault_attempt",
    ".popsection",
);

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
    use std::sync::Once;

    const PAGE: usize = 4096;

    extern "C" fn handle(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel's context.
        if !unsafe { recover(context) } {
            // SAFETY: the default action, which the instruction then meets.
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
                // SAFETY: a live action whose handler does what a handler may.
                let done =
                    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
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
        let at =
            unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * PAGE, rw, flags) }.expect("pages");
        // SAFETY: inside the mapping.
        let second = unsafe { at.cast::<u8>().add(PAGE) };
        // SAFETY: our own page.
        unsafe { mprotect(second.cast(), PAGE, MprotectFlags::empty()) }.expect("protected");
        at.cast()
    }

    #[test]
    fn a_copy_of_any_length_is_whole_or_says_that_it_faulted() {
        armed();
        let pages = half();
        for i in 0..PAGE {
            // SAFETY: the first page.
            unsafe { pages.add(i).write((i % 251) as u8) };
        }
        for len in (0..200).chain([1000, 3000, 4096]) {
            let mut got = vec![0u8; len + 1];
            // SAFETY: ends with the first page.
            let src = unsafe { pages.add(PAGE - len) };
            // SAFETY: readable and writable.
            assert!(unsafe { copy(src, got.as_mut_ptr(), len) });
            let want: Vec<u8> = (PAGE - len..PAGE).map(|i| (i % 251) as u8).collect();
            assert_eq!((&got[..len], got[len]), (&want[..], 0));
            if len == 0 {
                continue;
            }
            for over in [1, len.div_ceil(2), len] {
                // SAFETY: inside the two pages.
                let src = unsafe { pages.add(PAGE - len + over) };
                // SAFETY: what is not there is what is tried.
                assert!(!unsafe { copy(src, got.as_mut_ptr(), len) }, "{len} {over}");
                // SAFETY: as above, and the lengths fit.
                assert!(!unsafe { copy(got.as_ptr(), src, len) }, "{len} {over}");
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
            for i in 0..len {
                // SAFETY: as above.
                unsafe { src.add(i).write(i as u8 + 1) };
            }
            let mut want = [0u8; 48];
            (0..len).for_each(|i| want[i] = i as u8 + 1);
            // SAFETY: readable.
            let words = unsafe { load::<6>(src, len) }.expect("there");
            let got: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
            assert_eq!(got, want, "{len}");
            if len != 0 {
                // SAFETY: inside the two pages; what is not there is what is tried.
                assert!(unsafe { load::<6>(src.add(1), len) }.is_none(), "{len}");
            }
        }
    }
}
