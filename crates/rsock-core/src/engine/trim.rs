//! Giving pages of a receive ring back while a peer may write to it.
//!
//! rsock-models runs this file under loom, with the device's own slots and busy words.

/// Calls `punch`, which forgets what the ring holds, if none of that is needed: nothing is unread, and no
/// message waits or is being written. `exclusively` runs its argument with the peer kept out, unless that
/// cannot be. The caller holds the lock under which messages are taken.
pub(super) fn trim(
    has_unread: bool,
    is_ready: impl Fn() -> bool,
    exclusively: impl FnOnce(&mut dyn FnMut()),
    mut punch: impl FnMut(),
) {
    if has_unread || is_ready() {
        return;
    }
    exclusively(&mut || {
        // Once more: a message may have been written and announced before the peer was kept out. What is
        // not announced then is not written either, since a sender announces before it ends its copy.
        if !is_ready() {
            punch();
        }
    });
}
