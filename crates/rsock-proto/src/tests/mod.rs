//! Tests of the halves.

mod bytes;
mod half_close;
mod iomap;
mod pair;
mod recv;
mod send;
