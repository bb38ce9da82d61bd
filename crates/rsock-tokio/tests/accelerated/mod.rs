//! Tests of accelerated streams, in runtimes of both kinds.

mod adopted;
mod faults;
mod like_tcp;
mod owned;
mod streams;
