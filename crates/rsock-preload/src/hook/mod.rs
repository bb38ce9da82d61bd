//! The exported symbols, by family.
//!
//! Each hook looks its descriptor up in the table, checks its arguments, calls the core and maps
//! the result; any other call goes to the next definition, unchanged. The list of exported symbols
//! is `symbols.txt`, which a test compares with the library.

mod accept;
mod aio;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod clone;
mod close;
mod connect;
mod control;
mod datagram;
mod detour;
mod dup;
mod epoll;
mod epoll_wait;
mod exec;
mod file_buffer;
mod library;
mod message;
mod message_batch;
mod named_file;
mod native_aio;
mod passed_fds;
mod poll;
mod print;
mod read;
mod rw_flags;
mod seccomp;
mod select;
mod sendfile;
mod shortcut;
mod signal;
mod socket;
mod sockopt;
mod spawn;
mod splice;
mod stdio;
mod syscall;
mod thread;
mod transfer;
mod uring;
mod write;

use crate::cancel::HookResult;
use crate::native_peer::listeners;
use crate::{cancel, event_set, fdtable, vfork};
use libc::c_int;
use std::cell::LazyCell;

/// As [`cancel::without_cancel`], where the table has an entry for `fd`.
#[inline(always)]
fn call_known<R>(fd: c_int, call: impl FnMut() -> Option<R>) -> Option<R>
where
    Option<R>: HookResult,
{
    if fdtable::is_known(fd) { cancel::without_cancel(call) } else { None }
}

/// `fd` is about to be closed: ends what the library knows of it.
fn note_closing(fd: c_int) {
    // A system call, made once, and only where something is known of `fd`.
    let is_vfork_child = LazyCell::new(vfork::is_child);
    listeners::note_closing(fd);
    event_set::note_closing(fd, || *is_vfork_child);
    fdtable::note_closing(fd, || *is_vfork_child);
}

/// Exports a hook under other names that programs bind to the same function.
macro_rules! alias {
    ($($alias:ident = $name:ident ($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        $(
            /// Another name of the hook that it calls.
            ///
            /// # Safety
            /// As the C function.
            #[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
            #[allow(non_snake_case, reason = "named after the C symbol")]
            pub(crate) unsafe extern "C-unwind" fn $alias($($arg: $ty),*) -> $ret {
                // SAFETY: arguments passed on unchanged.
                unsafe { $name($($arg),*) }
            }
        )*
    };
}
use alias;
