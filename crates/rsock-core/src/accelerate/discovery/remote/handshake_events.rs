//! What a listener says once a request has been accepted.

#![forbid(unsafe_code)]

use crate::sys;
use rsock_cm::Error;
use rsock_cm::manager::{Event, Listening, Manager, RequestId};

/// What has become of the accepted request.
#[derive(Debug)]
pub(in crate::accelerate) enum Heard<C> {
    /// Nothing so far.
    Nothing,
    /// The peer's queue pair runs.
    Established(C),
    /// The peer went away.
    Abandoned,
}

/// Listens for news of `accepted`; whoever else asks meanwhile is rejected.
///
/// # Errors
/// The listener is of no use any more: its device is being taken away, say, which is said only once.
pub(in crate::accelerate) fn hear<M: Manager>(
    listener: &mut impl Listening<M>,
    accepted: RequestId,
) -> Result<Heard<M::Connection>, Error> {
    while let Some(event) = listener.try_next(sys::now())? {
        match event {
            Event::Established { id, connection } if id == accepted => {
                return Ok(Heard::Established(connection));
            }
            Event::Abandoned { id, .. } if id == accepted => return Ok(Heard::Abandoned),
            Event::Request(request) => {
                let _ = listener.reject(request.id, &[]);
            }
            _ => {}
        }
    }
    Ok(Heard::Nothing)
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

    /// A listener that says what it was told to.
    #[derive(Debug)]
    struct Told(VecDeque<Result<Event<SoftManager>, Error>>, File);

    impl Told {
        fn new<const N: usize>(says: [Result<Event<SoftManager>, Error>; N]) -> Self {
            Self(says.into(), File::open("/dev/null").expect("a descriptor"))
        }
    }

    impl AsFd for Told {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.1.as_fd()
        }
    }

    impl Listening<SoftManager> for Told {
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
    fn only_what_is_said_of_the_accepted_request_counts() {
        let mut listener = Told::new([abandoned(ANOTHER), abandoned(ACCEPTED), abandoned(ANOTHER)]);
        assert!(matches!(hear(&mut listener, ACCEPTED), Ok(Heard::Abandoned)));
        assert!(matches!(hear(&mut listener, ACCEPTED), Ok(Heard::Nothing)));
    }

    /// The request's own end follows, and must not be what is heard first.
    #[test]
    fn a_device_that_goes_is_heard_of_although_it_is_said_once() {
        let mut listener = Told::new([abandoned(ANOTHER), removed(), abandoned(ACCEPTED)]);
        assert!(matches!(hear(&mut listener, ACCEPTED), Err(Error::Device(_))));
    }
}
