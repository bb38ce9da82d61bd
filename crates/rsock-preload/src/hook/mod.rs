//! The exported symbols, by family.
//!
//! Each hook asks whose descriptor it is, checks its arguments, calls the core and maps the
//! result; anything else goes to the next definition, unchanged. The list of what is exported is
//! `symbols.txt`, which a test compares with the library.

mod aio;
mod datagram;
mod detour;
mod epoll;
mod epoll_wait;
mod exec;
mod fd;
mod io;
mod message;
mod poll;
mod print;
mod process;
mod select;
mod signal;
mod socket;
mod splice;
mod syscall;
mod thread;
mod transfer;
mod uring;

pub(crate) use epoll::{SHARED, SHOWN};

use crate::guard::Answer;
use crate::{fdtable, guard};
use libc::c_int;

/// As [`guard::hold`], where the table knows something of `fd`.
#[inline(always)]
fn hold_known<R>(fd: c_int, call: impl FnMut() -> Option<R>) -> Option<R>
where
    Option<R>: Answer,
{
    if fdtable::is_known(fd) { guard::hold(call) } else { None }
}

/// Exports a hook under other names that programs bind to the same function.
macro_rules! alias {
    ($($alias:ident = $name:ident ($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        $(
            /// Another name of the hook it calls.
            ///
            /// # Safety
            /// As the C function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[allow(non_snake_case, reason = "named after the C symbol")]
            pub(crate) unsafe extern "C-unwind" fn $alias($($arg: $ty),*) -> $ret {
                // SAFETY: arguments passed on unchanged.
                unsafe { $name($($arg),*) }
            }
        )*
    };
}
use alias;
