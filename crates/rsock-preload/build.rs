//! How `librsock_preload.so` is linked, so that programs that live for a few milliseconds do not
//! pay for it (decision 21).
//!
//! * Its soname has no number: it is preloaded by this name, and no program is linked to it.
//! * Its own references to the functions that it exports are bound when it is linked: each would
//!   cost the loader a search through every object of the program.
//! * It needs no library but libc: the loader searches what a preloaded library needs before the
//!   program's own libraries, for every symbol of all of them.

use std::error::Error;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CC");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librsock_preload.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    match libc_without_loader() {
        Ok(Some(directory)) => {
            println!("cargo::rustc-cdylib-link-arg=-L{}", directory.display());
        }
        // Another C library, or another target than this machine: the usual way.
        Ok(None) => {}
        Err(e) => println!("cargo::warning=the library will need the loader by name: {e}"),
    }
}

/// A directory with a copy of the linker script `libc.so` that does not name the loader, which
/// defines `__tls_get_addr`: libc needs the loader anyway, so the symbol is found at run time.
fn libc_without_loader() -> Result<Option<PathBuf>, Box<dyn Error>> {
    if env::var("HOST")? != env::var("TARGET")? {
        return Ok(None);
    }
    let cc = env::var("CC").unwrap_or_else(|_| "cc".into());
    let answer = Command::new(cc).arg("-print-file-name=libc.so").output()?;
    let Ok(script) = fs::read_to_string(String::from_utf8(answer.stdout)?.trim()) else {
        return Ok(None);
    };
    let Some((before, rest)) = script.split_once("AS_NEEDED") else { return Ok(None) };
    let Some((_, after)) = rest.split_once(')') else { return Ok(None) };
    let directory = PathBuf::from(env::var("OUT_DIR")?).join("libc");
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("libc.so"), format!("{before}{after}"))?;
    Ok(Some(directory))
}
