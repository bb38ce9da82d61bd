//! The events of a listener after a request has been accepted.

#![forbid(unsafe_code)]

use crate::sys;
use rsock_cm::Error;
use rsock_cm::manager::{Event, Listening, Manager, RequestId};

/// The state of the accepted request.
#[derive(Debug)]
pub(in crate::accelerate) enum HandshakeState<C> {
    /// No event so far.
    Pending,
    /// The peer's queue pair runs.
    Established(C),
    /// The peer went away.
    Abandoned,
}

/// Takes the listener's events and returns the one of `accepted`; other requests are rejected
/// meanwhile.
///
/// # Errors
/// The listener cannot be used any more: for example its device is being removed, which is reported
/// only once.
pub(in crate::accelerate) fn poll_handshake<M: Manager>(
    listener: &mut impl Listening<M>,
    accepted: RequestId,
) -> Result<HandshakeState<M::Connection>, Error> {
    while let Some(event) = listener.try_next(sys::now())? {
        match event {
            Event::Established { id, connection } if id == accepted => {
                return Ok(HandshakeState::Established(connection));
            }
            Event::Abandoned { id, .. } if id == accepted => return Ok(HandshakeState::Abandoned),
            Event::Request(request) => {
                let _ = listener.reject(request.id, &[]);
            }
            _ => {}
        }
    }
    Ok(HandshakeState::Pending)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rsock_cm::soft::SoftManager;
    use rsock_verbs::QpNum;
    use std::collections::VecDeque;
    use std::fs::File;
    use std::net::SocketAddr;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::time::Instant;

    const ACCEPTED: RequestId = RequestId(7);
    const ANOTHER: RequestId = RequestId(8);

    /// A listener with prepared events.
    #[derive(Debug)]
    struct ScriptedListener(VecDeque<Result<Event<SoftManager>, Error>>, File);

    impl ScriptedListener {
        fn new<const N: usize>(events: [Result<Event<SoftManager>, Error>; N]) -> Self {
            Self(events.into(), File::open("/dev/null").expect("a descriptor"))
        }
    }

    impl AsFd for ScriptedListener {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.1.as_fd()
        }
    }

    impl Listening<SoftManager> for ScriptedListener {
        fn local_addr(&self) -> SocketAddr {
            SocketAddr::from(([0; 4], 0))
        }

        fn set_backlog(&mut self, _: u32) -> Result<(), Error> {
            Ok(())
        }

        fn try_next(&mut self, _: Instant) -> Result<Option<Event<SoftManager>>, Error> {
            self.0.pop_front().transpose()
        }

        fn accept(&mut self, _: RequestId, _: QpNum, _: &[u8]) -> Result<(), Error> {
            Err(Error::PeerGone)
        }

        fn reject(&mut self, _: RequestId, _: &[u8]) -> Result<(), Error> {
            Ok(())
        }

        fn n_pending(&self) -> usize {
            0
        }
    }

    fn abandoned(id: RequestId) -> Result<Event<SoftManager>, Error> {
        Ok(Event::Abandoned { id, error: Error::PeerGone })
    }

    fn removed() -> Result<Event<SoftManager>, Error> {
        Err(Error::Device(rsock_verbs::Error::NoDevice))
    }

    #[test]
    fn only_events_of_the_accepted_request_count() {
        let mut listener =
            ScriptedListener::new([abandoned(ANOTHER), abandoned(ACCEPTED), abandoned(ANOTHER)]);
        assert!(matches!(poll_handshake(&mut listener, ACCEPTED), Ok(HandshakeState::Abandoned)));
        assert!(matches!(poll_handshake(&mut listener, ACCEPTED), Ok(HandshakeState::Pending)));
    }

    /// The end of the accepted request follows the removal, and must not be reported in its place.
    #[test]
    fn a_removed_device_is_reported_although_its_event_comes_once() {
        let mut listener =
            ScriptedListener::new([abandoned(ANOTHER), removed(), abandoned(ACCEPTED)]);
        assert!(matches!(poll_handshake(&mut listener, ACCEPTED), Err(Error::Device(_))));
    }
}
