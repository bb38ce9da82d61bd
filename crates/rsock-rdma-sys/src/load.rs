//! Opening the two libraries, once for the process.
//!
//! What is open stays open: their objects hold pointers into them until the process ends. A failure
//! is remembered too, so that a host without rdma-core pays for the search once.

use crate::cm::Cm;
use crate::verbs::Verbs;
use once_cell::race::OnceBox;
use std::error::Error;
use std::fmt;

/// A library that could not be opened, or that lacks a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotLoaded {
    /// The file name that the dynamic linker searches for.
    pub library: &'static str,
    /// The dynamic linker's message.
    pub why: String,
}

impl fmt::Display for NotLoaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.library, self.why)
    }
}

impl Error for NotLoaded {}

/// libibverbs.
///
/// # Errors
/// [`NotLoaded`], the same one at every call.
pub fn open() -> Result<&'static Verbs, &'static NotLoaded> {
    static VERBS: OnceBox<Result<Verbs, NotLoaded>> = OnceBox::new();
    let open = || {
        // SAFETY: the name is libibverbs's own; its initialisers only set up its own state, and its
        // functions have the signatures that its headers of the same major version declare.
        Box::new(unsafe { Verbs::new(VERBS_LIBRARY) }.map_err(not_loaded(VERBS_LIBRARY)))
    };
    VERBS.get_or_init(open).as_ref()
}

/// librdmacm.
///
/// # Errors
/// [`NotLoaded`], the same one at every call.
pub fn open_cm() -> Result<&'static Cm, &'static NotLoaded> {
    static CM: OnceBox<Result<Cm, NotLoaded>> = OnceBox::new();
    let open = || {
        // SAFETY: as for libibverbs above.
        Box::new(unsafe { Cm::new(CM_LIBRARY) }.map_err(not_loaded(CM_LIBRARY)))
    };
    CM.get_or_init(open).as_ref()
}

fn not_loaded(library: &'static str) -> impl Fn(libloading::Error) -> NotLoaded {
    move |error| {
        // The error itself only says which call failed.
        let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        NotLoaded { library, why }
    }
}

/// With the major version, which promises the interface.
const VERBS_LIBRARY: &str = "libibverbs.so.1";
const CM_LIBRARY: &str = "librdmacm.so.1";

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    #[test]
    fn a_library_that_is_not_there_is_an_error_with_its_name() {
        let name = "libno-host-has-this.so.1";
        // SAFETY: no such library exists, so none of its code runs.
        let error = unsafe { Verbs::new(name) }.map_err(not_loaded(name)).err().unwrap();
        assert_eq!(error.library, name);
        assert!(error.why.contains("cannot open shared object file"), "{error}");
    }

    /// With or without rdma-core, the result is the same at each call.
    #[test]
    fn opening_is_done_once() {
        match (open(), open()) {
            (Ok(a), Ok(b)) => assert!(ptr::eq(a, b)),
            (Err(a), Err(b)) => assert!(ptr::eq(a, b)),
            _ => panic!("two answers"),
        }
        match (open_cm(), open_cm()) {
            (Ok(a), Ok(b)) => assert!(ptr::eq(a, b)),
            (Err(a), Err(b)) => assert!(ptr::eq(a, b)),
            _ => panic!("two answers"),
        }
    }
}
