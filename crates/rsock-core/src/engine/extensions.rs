//! Extension messages: rsock's own control messages, between two ends that both know them.

use crate::engine::QpStream;
use crate::engine::resources::PLAIN;
use crate::interrupt::Section;
use rsock_proto::switch::ReceivedMessages;
use rsock_proto::{Ext, UP_BITS, UP_MASK};
use rsock_verbs::{Backend, SendFlags};

impl<B: Backend> QpStream<B> {
    /// Whether both ends know the extension messages.
    #[must_use]
    pub fn has_extensions(&self) -> bool {
        self.extensions
    }

    /// Sends an extension message. Control messages need no credit; false if there is no room now.
    #[must_use]
    pub fn try_send_ext(&self, ext: Ext) -> bool {
        let _section = Section::enter();
        // The last message before the bytes go by TCP, which must not overtake it: see
        // `is_drained`.
        let is_last = B::SENDS_WAIT && ext == Ext::Down;
        let flags = if is_last { SendFlags::SIGNALED } else { SendFlags::empty() };
        let word = rsock_proto::Msg::Ext(ext).encode();
        self.resources.post_flagged(PLAIN, None, &[], word, flags).is_ok()
    }

    /// Ends every sleep on this stream in this process and its forked children: each sleeper tries
    /// again.
    pub fn wake_waiters(&self) {
        let _section = Section::enter();
        self.announce();
    }

    /// Tells the peer that this direction moves to the stream at byte `offset`. False if there is
    /// no room now; then the caller sends the whole message again.
    #[must_use]
    pub fn try_send_up(&self, offset: u64) -> bool {
        let bits = |n: u64| u32::try_from(n & u64::from(UP_MASK)).unwrap_or(0);
        let (high26, offset26) = (bits(offset >> UP_BITS), bits(offset));
        // INVARIANT: `offset` only grows, so bits that are zero now were zero in every message
        // before.
        (high26 == 0 || self.try_send_ext(Ext::UpHigh { high26 }))
            && self.try_send_ext(Ext::Up { offset26 })
    }

    /// The messages of the switch that have arrived. Dispatches completions first if there are any,
    /// unless another thread does so now.
    #[must_use]
    pub fn poll_messages(&self) -> ReceivedMessages {
        let _section = Section::enter();
        self.pump_if_free();
        self.messages()
    }

    /// The messages of the switch that were dispatched so far, by any thread.
    #[must_use]
    pub fn messages(&self) -> ReceivedMessages {
        self.ring.shared.mail.messages()
    }
}
