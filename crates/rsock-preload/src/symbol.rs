//! Functions of other libraries, each looked up by name when it is first needed.

use libc::c_void;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function's address once that is known. PERF: without the function's name, a pointer that the
/// loader would have to write in each process.
pub(crate) struct Symbol {
    at: AtomicPtr<c_void>,
}

impl Symbol {
    pub(crate) const fn new() -> Self {
        Self { at: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The address of the function `name`, which `look_up` finds while it is not known. Null if it
    /// finds none.
    #[inline]
    pub(crate) fn get(
        &self,
        name: &'static CStr,
        look_up: fn(&CStr) -> *mut c_void,
    ) -> *mut c_void {
        let at = self.at.load(Ordering::Relaxed);
        if at.is_null() { self.resolve(name, look_up) } else { at }
    }

    #[cold]
    fn resolve(&self, name: &CStr, look_up: fn(&CStr) -> *mut c_void) -> *mut c_void {
        let at = look_up(name);
        // Relaxed: the pointee is code, mapped before its address was known.
        self.at.store(at, Ordering::Relaxed);
        at
    }
}

/// `name`, which ends with a zero byte and holds no other, as a C string.
pub(crate) const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a symbol name ends with its only zero byte"),
    }
}
