//! System calls without libc.
//!
//! libc's `syscall` is a symbol that the preload library exports, and this library's own calls must
//! not reach its own hooks. rustix makes raw system calls, too; this module has those that rustix
//! does not wrap in the form needed here.

use std::io;

/// The `ioctl` request that asks whether the next byte is an urgent one (`asm-generic/sockios.h`).
/// libc lacks it.
pub const SIOCATMARK: libc::c_ulong = 0x8905;

/// A word that a system call takes.
pub trait Arg {
    /// As the kernel expects it in a register.
    fn word(self) -> usize;
}

impl Arg for usize {
    fn word(self) -> usize {
        self
    }
}

impl Arg for u32 {
    fn word(self) -> usize {
        self as usize
    }
}

impl Arg for i32 {
    fn word(self) -> usize {
        (self as isize).cast_unsigned()
    }
}

impl Arg for i64 {
    #[expect(clippy::cast_possible_truncation, reason = "a register has 64 bits")]
    fn word(self) -> usize {
        (self as isize).cast_unsigned()
    }
}

impl Arg for u64 {
    #[expect(clippy::cast_possible_truncation, reason = "a register has 64 bits")]
    fn word(self) -> usize {
        self as usize
    }
}

impl<T> Arg for *const T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

impl<T> Arg for *mut T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

/// Makes system call `number` with `args`; the rest is 0. Does not touch `errno`.
///
/// # Errors
/// What the kernel answers.
///
/// # Safety
/// As the system call.
#[inline]
pub unsafe fn call<const N: usize>(number: libc::c_long, args: [usize; N]) -> io::Result<usize> {
    const { assert!(N <= 6) };
    let mut all = [0; 6];
    all[..N].copy_from_slice(&args);
    // SAFETY: the caller's promise.
    let result = unsafe { instruction(number, all) };
    match result {
        -4095..=-1 => Err(io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(0))),
        result => Ok(result.cast_unsigned()),
    }
}

/// [`call`] with arguments of different types, as C's `syscall` takes them.
#[macro_export]
macro_rules! syscall {
    ($number:expr $(, $arg:expr)* $(,)?) => {
        $crate::raw::call($number, [$($crate::raw::Arg::word($arg)),*])
    };
}
pub use crate::syscall;

/// # Safety
/// As the system call.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn instruction(number: libc::c_long, args: [usize; 6]) -> isize {
    let result;
    // SAFETY: the kernel's convention: it changes rax, rcx and r11 and what the caller vouches for.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// # Safety
/// As the system call.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn instruction(number: libc::c_long, args: [usize; 6]) -> isize {
    let result;
    // SAFETY: the kernel's convention: it changes x0 and what the caller vouches for.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] => result,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            in("x5") args[5],
            options(nostack),
        );
    }
    result
}

/// Elsewhere the preload library does not export `syscall`.
///
/// # Safety
/// As the system call.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn instruction(number: libc::c_long, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    #[expect(clippy::disallowed_methods, reason = "never hooked by the preload library")]
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result != -1 {
        return result as isize;
    }
    -(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL) as isize)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_answers_and_errors_come_back_without_errno() {
        // SAFETY: takes nothing.
        let pid = unsafe { syscall!(libc::SYS_getpid) }.expect("its own");
        assert_eq!(u32::try_from(pid), Ok(std::process::id()));
        let mut pipe = [0i32; 2];
        // SAFETY: room for two descriptors.
        unsafe { syscall!(libc::SYS_pipe2, &raw mut pipe, libc::O_CLOEXEC) }.expect("a pipe");
        // SAFETY: one byte of a live array.
        let n = unsafe { syscall!(libc::SYS_write, pipe[1], b"x".as_ptr(), 1usize) };
        assert_eq!(n.ok(), Some(1));
        for fd in pipe {
            // SAFETY: made above.
            unsafe { syscall!(libc::SYS_close, fd) }.expect("open");
        }
        // SAFETY: no descriptor.
        let error = unsafe { syscall!(libc::SYS_close, -1) }.expect_err("not open");
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}
