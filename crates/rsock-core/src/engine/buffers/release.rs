//! Giving pages of a receive ring back while a peer may write to it.
//!
//! rsock-models runs this file under loom, with the device's own slots and busy words.

/// Calls `punch`, which discards the ring's contents, if no byte of them is needed: none is unread,
/// and no message waits or is being written. `exclusively` runs its argument while the peer cannot
/// write, or not at all if that cannot be arranged. The caller holds the lock under which messages
/// are taken.
pub(crate) fn release_pages(
    has_unread: bool,
    is_ready: impl Fn() -> bool,
    exclusively: impl FnOnce(&mut dyn FnMut()),
    mut punch: impl FnMut(),
) {
    if has_unread || is_ready() {
        return;
    }
    exclusively(&mut || {
        // Again: a message may have been written and announced before the peer was kept out. A
        // message that is not announced by now is not written either, since a sender announces
        // before it ends its copy.
        if !is_ready() {
            punch();
        }
    });
}
