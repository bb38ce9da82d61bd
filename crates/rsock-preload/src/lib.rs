//! `librsock_preload.so`: the libc symbols of unmodified programs, over rsock.
//!
//! The layer above `rsock_core::accelerate`: hooks and a descriptor table, nothing else. A call on
//! a descriptor that has not been adopted costs one or two loads and goes to the next definition of
//! its symbol, which is libc's.
//!
//! Words: a *candidate* is a socket that may be adopted; to *adopt* one is to make an accelerated
//! stream (or a UDP socket with a queue) of it; to *pin* one is to keep it on TCP (or UDP) with a
//! reason. A *proxy* is a socket or descriptor that takes the place of another. A stream *without
//! TCP* belongs to a peer that speaks rsockets alone.
//!
//! Invariants that span the crate:
//!
//! * nothing here calls a libc function that this library exports, except through [`next`]; the
//!   layers below make raw system calls by rustix;
//! * until [`next`] has resolved a symbol nothing is allocated, locked or logged, so hooks work
//!   before and during other constructors;
//! * no panic and no `errno` change escapes a hook that succeeds ([`guard`]);
//! * exported functions are `extern "C-unwind"`, because `pthread_cancel` unwinds through them.
//!
//! Two sections hold what a short-lived program needs of this library, so that it is few pages
//! (decision 34): `rsock_hooks` the exported functions, and what they and the constructor call
//! before a stream moves; `rsock_startup` the variables of the same. The linker would spread both
//! over the library.

#![cfg_attr(test, allow(dead_code, reason = "the test harness must not be hooked"))]

mod arg;
mod cancel;
mod cancel_state;
mod chunked;
mod epoll_interest;
mod errno;
mod event_set;
mod fdtable;
mod fork;
mod guard;
mod handoff;
mod hook;
mod log;
mod mapped;
mod native_peer;
mod next;
mod options;
mod own_fds;
mod process_handoff;
mod quiet_set;
mod raw_epoll;
mod room;
mod rows;
mod settings;
mod signal;
mod slot;
mod symbol;
mod sync;
mod tcp_only;
mod threads;
mod unwinder;
mod vfork;
mod watched;

/// Runs when the library is loaded. Hooks may have run before it.
#[unsafe(link_section = "rsock_hooks")]
extern "C" fn init() {
    next::resolve_all();
    settings::look_for_any();
    threads::find_flag();
    log::open();
    signal::defer_in_sections();
    signal::watch_faults();
    fork::register();
    rsock_core::accelerate::report_wait_settings();
    log::line(format_args!("loaded"));
}

/// Runs when the program returns from `main` or calls `exit`.
#[unsafe(link_section = "rsock_hooks")]
extern "C" fn fini() {
    fdtable::finish();
}

#[cfg(not(test))]
#[used]
// As for `INIT` below; called without arguments.
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;

#[cfg(not(test))]
#[used]
// The section holds function pointers that the loader calls once with C's calling convention;
// `init` ignores the arguments that the loader passes.
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;
