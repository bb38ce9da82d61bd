//! The examples are the files in this package's directory; `tests/run.rs` runs them. Never
//! published.

#![forbid(unsafe_code)]
