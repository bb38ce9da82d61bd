//! The receive memory of a stream: its layout and its size, and how its pages are given back.

pub(super) mod adaptive;
mod change_over;
pub(super) mod layout;
mod release;
pub(super) mod ring;
