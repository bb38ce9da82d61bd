//! Gives `librsock.so` its soname, by which a program finds it at run time.
//!
//! The number is that of the binary interface, which is `rdma/rsocket.h`'s: it changes with the
//! type of a function, not with the crate's version.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librsock.so.0");
}
