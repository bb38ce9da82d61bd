//! Peers that speak rsockets alone, without TCP: the C library, and programs under its preload
//! library.

mod connector;
mod listener;
mod placeholder;
mod poll;
mod state;
mod stream;
mod transfer;

pub use listener::NativeListener;
pub use stream::NativeStream;
