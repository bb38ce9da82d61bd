//! Room for the program's descriptors, where it has reached its limit.

use crate::{cancel, errno, guard, vfork};
use libc::c_int;
use rsock_core::accelerate::close_searches;

/// Calls `open`, which opens a descriptor for the program. If there is no number left for it, and
/// the library has some that it can do without, calls it again.
#[unsafe(link_section = "rsock_hooks")]
pub(crate) fn with_room(open: impl Fn() -> c_int) -> c_int {
    let before = errno::read();
    let fd = open();
    if fd >= 0 || errno::read() != libc::EMFILE || guard::is_in_core() || vfork::is_child() {
        return fd;
    }
    let mut has_more = false;
    cancel::hold(|| has_more = guard::call_core(|| Ok(close_searches())) == Ok(true));
    if !has_more {
        return errno::fail_int(libc::EMFILE);
    }
    errno::set(before);
    open()
}
