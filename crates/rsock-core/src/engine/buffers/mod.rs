//! The receive memory of a stream: its layout, its size, and when its pages are given back.

pub(super) mod adaptive;
pub(super) mod layout;
pub(super) mod reclaim;
mod release;
pub(super) mod ring;
