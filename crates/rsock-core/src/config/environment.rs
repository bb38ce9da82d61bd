//! Settings from the environment, which are read once.
//!
//! They are kept in cells of [`once_cell::race`], where no thread waits for another: a forked child
//! may not have that thread.

use once_cell::race::{OnceBool, OnceBox};
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};

/// What every name of a setting begins with.
pub const PREFIX: &str = "RSOCK_";

/// Whether the environment has no setting at all.
static IS_EMPTY: AtomicBool = AtomicBool::new(false);

/// The caller has found no name in the environment that begins with [`PREFIX`]: every setting has
/// its default from now on, whatever the program adds to its environment.
///
/// PERF: the first reading of a variable takes 10 us, mostly for pages of code and data that a
/// program of few connections needs for nothing else.
#[inline]
pub fn note_empty() {
    IS_EMPTY.store(true, Ordering::Relaxed);
}

fn is_empty() -> bool {
    IS_EMPTY.load(Ordering::Relaxed)
}

/// The value of a variable.
pub(super) fn value(name: &str) -> Option<OsString> {
    if is_empty() { None } else { std::env::var_os(name) }
}

/// `RSOCK_SPIN_US`: longest spin in microseconds; 0 sleeps at once. Unset: adaptive.
pub(crate) fn spin_us() -> Option<u32> {
    static VALUE: OnceBox<Option<u32>> = OnceBox::new();
    if is_empty() {
        return None;
    }
    *VALUE.get_or_init(|| Box::new(number("RSOCK_SPIN_US")))
}

fn number(name: &str) -> Option<u32> {
    value(name)?.to_str()?.trim().parse().ok()
}

/// The device that `RSOCK_DEVICE` selects for rsockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// Shared memory only.
    Soft,
    /// RDMA devices only, also between processes of this host.
    Rdma,
}

/// `RSOCK_DEVICE`: the only device to use, if it names one.
pub(crate) fn device() -> Option<Device> {
    static VALUE: OnceBox<Option<Device>> = OnceBox::new();
    if is_empty() {
        return None;
    }
    *VALUE.get_or_init(|| {
        Box::new(match value("RSOCK_DEVICE").as_ref().and_then(|v| v.to_str()) {
            Some("soft") => Some(Device::Soft),
            Some("rdma") => Some(Device::Rdma),
            _ => None,
        })
    })
}

/// `RSOCK_DEVICE`: `tcp` switches every faster connection off.
pub(crate) fn is_enabled() -> bool {
    static VALUE: OnceBool = OnceBool::new();
    is_empty() || VALUE.get_or_init(|| value("RSOCK_DEVICE").is_none_or(|v| v != "tcp"))
}

/// `RSOCK_DGRAM`: `on` lets kernel UDP sockets have queues in shared memory beside them.
pub(crate) fn has_udp_queues() -> bool {
    static VALUE: OnceBool = OnceBool::new();
    !is_empty() && VALUE.get_or_init(|| value("RSOCK_DGRAM").is_some_and(|v| v == "on"))
}

/// `RSOCK_WIRE`: `send` makes rsockets use the soft device like one without write-with-immediate,
/// such as an iWARP adapter. Both ends must set it.
pub(crate) fn is_message_send() -> bool {
    static VALUE: OnceBool = OnceBool::new();
    !is_empty() && VALUE.get_or_init(|| value("RSOCK_WIRE").is_some_and(|v| v == "send"))
}
