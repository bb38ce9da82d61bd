//! Tests of the halves.

mod half_close;
mod iomap;
mod pair;
mod recv;
mod send;
