//! Settings from the environment, which are read once.
//!
//! They are kept in cells of [`once_cell::race`], where no thread waits for another: a forked child
//! may not have that thread.

use once_cell::race::{OnceBool, OnceBox};

/// `RSOCK_SPIN_US`: longest spin in microseconds; 0 sleeps at once. Unset: adaptive.
pub(crate) fn spin_us() -> Option<u32> {
    static VALUE: OnceBox<Option<u32>> = OnceBox::new();
    *VALUE.get_or_init(|| Box::new(number("RSOCK_SPIN_US")))
}

fn number(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.trim().parse().ok()
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
    *VALUE.get_or_init(|| {
        Box::new(match std::env::var("RSOCK_DEVICE").as_deref() {
            Ok("soft") => Some(Device::Soft),
            Ok("rdma") => Some(Device::Rdma),
            _ => None,
        })
    })
}

/// `RSOCK_DEVICE`: `tcp` switches every faster connection off.
pub(crate) fn is_enabled() -> bool {
    static VALUE: OnceBool = OnceBool::new();
    VALUE.get_or_init(|| std::env::var_os("RSOCK_DEVICE").is_none_or(|v| v != "tcp"))
}

/// `RSOCK_DGRAM`: `on` lets kernel UDP sockets have queues in shared memory beside them.
pub(crate) fn has_udp_queues() -> bool {
    static VALUE: OnceBool = OnceBool::new();
    VALUE.get_or_init(|| std::env::var_os("RSOCK_DGRAM").is_some_and(|v| v == "on"))
}

/// `RSOCK_WIRE`: `send` makes rsockets use the soft device like one without write-with-immediate,
/// such as an iWARP adapter. Both ends must set it.
pub(crate) fn is_message_send() -> bool {
    static VALUE: OnceBool = OnceBool::new();
    VALUE.get_or_init(|| std::env::var_os("RSOCK_WIRE").is_some_and(|v| v == "send"))
}
