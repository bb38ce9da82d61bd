//! Reads and changes the context of the code that a signal handler has interrupted.
//!
//! The only code that depends on the processor. All of it serves cancellation (`cancel`); on a
//! processor that is not listed here a cancelled thread may notice later.

use libc::{c_long, c_void, ucontext_t};

/// The stack pointer of the interrupted code.
///
/// # Safety
/// The context of a signal handler that the kernel has called.
pub(crate) unsafe fn stack(context: *const c_void) -> usize {
    let context = context.cast::<ucontext_t>();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel's own context, by the caller's promise.
    let stack = unsafe { (*context).uc_mcontext.gregs[libc::REG_RSP as usize] };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel's own context, by the caller's promise.
    let stack = unsafe { (*context).uc_mcontext.sp };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    // The handler's own stack, which is a little lower.
    let stack = context.addr();
    usize::try_from(stack).unwrap_or(usize::MAX)
}

/// If the interrupted code is about to make a system call that transfers data, whether for the
/// first time or because the kernel restarts it, then the call ends with `EINTR` instead.
///
/// # Safety
/// As [`stack`]; and the interrupted code accepts that result of its call.
pub(crate) unsafe fn interrupt_transfer(context: *mut c_void) {
    let context = context.cast::<ucontext_t>();
    #[cfg(target_arch = "x86_64")]
    {
        const SYSCALL: [u8; 2] = [0x0f, 0x05];
        // SAFETY: the kernel's own context, by the caller's promise.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        let at = std::ptr::with_exposed_provenance::<[u8; 2]>(
            usize::try_from(registers[libc::REG_RIP as usize]).unwrap_or(0),
        );
        // SAFETY: the code that runs next is mapped, and bytes need no alignment.
        let next = unsafe { at.read() };
        if next == SYSCALL && is_transfer(registers[libc::REG_RAX as usize]) {
            registers[libc::REG_RAX as usize] = i64::from(-libc::EINTR);
            registers[libc::REG_RIP as usize] += 2;
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        const SVC: u32 = 0xd400_0001;
        // SAFETY: the kernel's own context, by the caller's promise.
        let registers = unsafe { &mut (*context).uc_mcontext };
        let at = std::ptr::with_exposed_provenance::<u32>(registers.pc as usize);
        // SAFETY: the code that runs next is mapped, and instructions are aligned.
        let next = unsafe { at.read() };
        if next == SVC && is_transfer(registers.regs[8].cast_signed()) {
            registers.regs[0] = i64::from(-libc::EINTR).cast_unsigned();
            registers.pc += 4;
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = context;
}

fn is_transfer(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_recvmsg
            | libc::SYS_sendmsg
            | libc::SYS_recvfrom
            | libc::SYS_sendto
            | libc::SYS_read
            | libc::SYS_write
            | libc::SYS_readv
            | libc::SYS_writev
    )
}
