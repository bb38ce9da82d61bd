//! System calls that neither the standard library nor rustix wraps as rsock needs them.
//!
//! They are raw, so that none of them calls a libc symbol that the preload library exports.

mod clock;
mod descriptors;
mod forking;
mod poll;
mod procfs;
mod signals;
pub(crate) mod sock_diag;
mod socket_options;
mod stack;

pub(crate) use clock::{LazyDeadline, nanos, now, tick, time_left};
pub use descriptors::socket_inode;
pub(crate) use descriptors::{close, is_table_half_full, with_spare_descriptors};
pub(crate) use forking::{forks, get_or_make};
pub(crate) use poll::{INPUT, OUTPUT, epoll_add, poll_bits, poll_flags, poll_now, ppoll, sleep};
pub(crate) use procfs::may_have_socket;
pub(crate) use signals::{block_signals, restore_signals};
pub use socket_options::n_dropped;
pub(crate) use socket_options::{
    disconnect, is_at_mark, low_water, option, receive_buffer, set_option,
};
pub(crate) use stack::has_stack;
