//! Settings from the environment.

use std::sync::OnceLock;

/// `RSOCK_SPIN_US`: longest spin in microseconds; 0 sleeps at once. Unset: adaptive.
pub(crate) fn spin_us() -> Option<u32> {
    static VALUE: OnceLock<Option<u32>> = OnceLock::new();
    *VALUE.get_or_init(|| number("RSOCK_SPIN_US"))
}

fn number(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// What `RSOCK_DEVICE` chooses for pure sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// Shared memory only.
    Soft,
    /// RDMA devices only, also between processes of this host.
    Rdma,
}

/// `RSOCK_DEVICE`: the one device that is used, if it names one.
pub(crate) fn device() -> Option<Device> {
    static VALUE: OnceLock<Option<Device>> = OnceLock::new();
    *VALUE.get_or_init(|| match std::env::var("RSOCK_DEVICE").ok()?.as_str() {
        "soft" => Some(Device::Soft),
        "rdma" => Some(Device::Rdma),
        _ => None,
    })
}

/// `RSOCK_DEVICE`: `tcp` switches every faster path off.
pub(crate) fn is_enabled() -> bool {
    static VALUE: OnceLock<bool> = OnceLock::new();
    *VALUE.get_or_init(|| std::env::var_os("RSOCK_DEVICE").is_none_or(|v| v != "tcp"))
}

/// `RSOCK_DGRAM`: `on` lets kernel UDP sockets have queues in shared memory beside them.
pub(crate) fn has_dgram_twins() -> bool {
    static VALUE: OnceLock<bool> = OnceLock::new();
    *VALUE.get_or_init(|| std::env::var_os("RSOCK_DGRAM").is_some_and(|v| v == "on"))
}

/// `RSOCK_WIRE`: `send` makes pure sockets use the soft device as one without write-with-immediate,
/// as iWARP adapters are. Both ends must say so.
pub(crate) fn is_message_send() -> bool {
    static VALUE: OnceLock<bool> = OnceLock::new();
    *VALUE.get_or_init(|| std::env::var_os("RSOCK_WIRE").is_some_and(|v| v == "send"))
}
