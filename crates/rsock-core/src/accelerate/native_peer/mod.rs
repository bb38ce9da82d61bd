//! Peers that speak rsockets alone, without TCP: the C library, and programs under its preload library.

mod connector;
mod listener;
pub(super) mod stream;

pub use connector::{call, is_called};
pub use listener::NativeListener;
