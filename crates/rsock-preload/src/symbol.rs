//! Functions of other libraries, each looked up by name when it is first needed.

use libc::c_void;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The name of a function, and its address once that is known.
pub(crate) struct Symbol {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Symbol {
    /// `name` ends with a zero byte and holds no other.
    pub(crate) const fn new(name: &'static str) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self { name, at: AtomicPtr::new(ptr::null_mut()) },
            Err(_) => panic!("a symbol name ends with its only zero byte"),
        }
    }

    /// The address, which `look_up` finds while it is not known. Null if it finds none.
    #[inline]
    pub(crate) fn get(&self, look_up: fn(&CStr) -> *mut c_void) -> *mut c_void {
        let at = self.at.load(Ordering::Relaxed);
        if at.is_null() { self.resolve(look_up) } else { at }
    }

    #[cold]
    fn resolve(&self, look_up: fn(&CStr) -> *mut c_void) -> *mut c_void {
        let at = look_up(self.name);
        // Relaxed: the pointee is code, mapped before its address was known.
        self.at.store(at, Ordering::Relaxed);
        at
    }
}
