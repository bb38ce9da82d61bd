//! Tests of the halves.

mod iomap;
mod recv;
mod send;
