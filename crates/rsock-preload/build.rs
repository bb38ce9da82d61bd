//! Gives `librsock_preload.so` a soname without a number: it is preloaded by this name, and no
//! program is linked to it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librsock_preload.so");
}
