//! Gives `librsock_preload.so` a soname without a number: it is preloaded by this name, and no
//! program is linked to it.
//!
//! The library's own references to the functions that it exports are bound when it is linked: each
//! would cost the loader a search through every object of the program.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librsock_preload.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
