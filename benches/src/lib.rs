//! What the benchmarks share. Never published; the benchmarks are in `benches/benches/`.
//!
//! Groups are named `group/case/size`. Judge a change by instruction counts, and a claim by wall
//! time of both sides in one run: docs/benchmarking.md.

#![forbid(unsafe_code)]

pub mod cases;
pub mod chart;
pub mod device;
pub mod memory;
mod meter;
pub mod net;
pub mod services;
pub mod transport;
