//! The end of descriptors: the program closes them, or they turn out to refer to another file.

use super::word::Word;
use super::{claim, datagrams, entry, key};
use crate::slot::{self, Direction, Handle, Key};
use crate::{guard, log, quiet_set, vfork};
use libc::c_int;
use rsock_core::accelerate::FallbackReason;
use rsock_core::interrupt::Section;
use std::sync::atomic::Ordering;

/// How a descriptor of an adopted socket ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The program is closing the descriptor.
    Close,
    /// The descriptor referred to another file already.
    Stale,
}

pub(super) fn release_descriptor(key: Key, fd: c_int, ending: Ending) {
    let section = Section::enter();
    let handle = slot::begin_call(key, Direction::Send, fd);
    if let Some(handle) = &handle {
        quiet_set::leave(handle, fd);
        let _ = guard::call_core(|| {
            handle.keep_for_calls();
            Ok(())
        });
    }
    let last = match handle {
        Some(handle) if handle.udp().is_some() => {
            let is_last = handle.remove_descriptor();
            if is_last {
                datagrams::note_end(&handle);
                // Not left to the last call inside: one that a longjmp has left never ends.
                if let Some(udp) = handle.udp() {
                    let _ = guard::call_core(|| {
                        udp.pin(FallbackReason::Passed);
                        Ok(())
                    });
                }
            }
            is_last
        }
        Some(handle) if handle.remove_descriptor() => {
            handle.stream().note_released();
            // With other calls in flight the socket stays open for them, and they may still receive
            // what is unread now. What they leave unread makes the end a reset all the same: the
            // peer compares what it has sent with what was received.
            let is_end = ending == Ending::Close && handle.is_only_call();
            if is_end && handle.is_same_socket() == Some(true) {
                let _ = guard::call_core(|| {
                    handle.stream().close(handle.fd());
                    Ok(())
                });
            }
            true
        }
        _ => false,
    };
    if last {
        // Drops the socket, here or in the last call that is still inside.
        let _ = guard::call_core(|| {
            slot::retire(key);
            Ok(())
        });
    }
    drop(section);
}

/// Removes the entry of `fd`. To be called before the kernel closes the number, because another
/// thread may be given it at once.
pub(crate) fn note_closing(fd: c_int, is_vfork_child: impl Fn() -> bool) {
    let Some(entry) = entry(fd) else { return };
    let word = Word(entry.load(Ordering::Relaxed));
    if word == Word::NOTHING || guard::is_in_core() || is_vfork_child() {
        return;
    }
    let old = Word(claim::take(entry));
    if let Some(key) = old.key() {
        log::line(format_args!("fd {fd}: closing"));
        release_descriptor(key, fd, Ending::Close);
    }
}

/// The kernel has just given out `fd`: an entry that the number still has is outdated.
#[unsafe(link_section = "rsock_hooks")]
pub(crate) fn note_made(fd: c_int) {
    if let Some(entry) = entry(fd)
        && entry.load(Ordering::Relaxed) != 0
        && !vfork::is_child()
    {
        let old = Word(claim::take(entry));
        if let Some(key) = old.key() {
            log::line(format_args!("fd {fd}: reused without a hooked close"));
            release_descriptor(key, fd, Ending::Stale);
        }
    }
}

/// The program has disconnected the socket (`connect` to `AF_UNSPEC`).
pub(crate) fn note_disconnected(fd: c_int) {
    if let Some(entry) = entry(fd)
        && !datagrams::is_udp(fd)
        && let Some(key) = Word(claim::take(entry)).key()
    {
        release_descriptor(key, fd, Ending::Stale);
    }
}

/// For calls that fail with an error which the adopted stream cannot have: returns whether the
/// number may refer to another file by now, and removes its entry then.
#[cold]
pub(crate) fn was_reused(handle: &Handle, fd: c_int) -> bool {
    // Another thread has closed the number, and the call could not keep its socket: it ends, as the
    // number's next owner is none of its business.
    if handle.call().was_closed() || handle.is_same_socket() == Some(true) {
        return false;
    }
    // Unless the table knows the number's successor already.
    if key(fd) == Some(handle.key()) {
        note_made(fd);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Socket;
    use rsock_core::accelerate::{AcceleratedStream, Side};
    use rustix::net::{RecvFlags, SendFlags};
    use std::io::{self, IoSlice, IoSliceMut};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};

    /// A socket in a slot, as the table has one.
    fn insert(socket: &TcpStream, side: Side) -> Key {
        let stream = AcceleratedStream::adopt(socket.as_fd(), Some(side)).expect("memory");
        slot::insert(Socket::Accelerated(stream)).expect("a slot")
    }

    fn begin(key: Key, direction: Direction, socket: &TcpStream) -> Handle {
        slot::begin_call(key, direction, socket.as_raw_fd()).expect("not retired")
    }

    fn send(call: &Handle, bytes: &[u8]) {
        let bufs = [IoSlice::new(bytes)];
        let sent = call.stream().send_by(call.descriptor(), &bufs, SendFlags::empty());
        assert_eq!(sent.expect("send"), bytes.len());
    }

    fn receive(call: &Handle, room: usize) -> io::Result<Vec<u8>> {
        let mut buf = vec![0; room];
        let bufs = &mut [IoSliceMut::new(&mut buf)];
        let n = call.stream().recv_by(call.descriptor(), bufs, RecvFlags::empty())?;
        buf.truncate(n);
        Ok(buf)
    }

    #[test]
    fn what_a_call_in_flight_receives_after_the_close_makes_no_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let a = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let (b, _) = listener.accept().expect("accept");
        let (key_a, key_b) = (insert(&a, Side::Connected), insert(&b, Side::Accepted));
        // More calls than it takes to find the peer and to move both directions.
        for _ in 0..2_000 {
            for (from, to) in [((key_a, &a), (key_b, &b)), ((key_b, &b), (key_a, &a))] {
                send(&begin(from.0, Direction::Send, from.1), &[1]);
                let byte = receive(&begin(to.0, Direction::Recv, to.1), 1).expect("a byte");
                assert_eq!(byte, [1]);
            }
        }
        send(&begin(key_b, Direction::Send, &b), b"last");
        let call = begin(key_a, Direction::Recv, &a);
        release_descriptor(key_a, a.as_raw_fd(), Ending::Close);
        drop(a);
        assert_eq!(receive(&call, 4).expect("the call keeps its socket"), b"last");
        drop(call);
        let end = receive(&begin(key_b, Direction::Recv, &b), 1).expect("no reset");
        assert!(end.is_empty());
        release_descriptor(key_b, b.as_raw_fd(), Ending::Close);
    }

    #[test]
    fn a_call_whose_number_was_closed_is_not_made_on_the_next_owner() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let socket = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let (key, fd) = (insert(&socket, Side::Connected), socket.as_raw_fd());
        let call = begin(key, Direction::Recv, &socket);
        release_descriptor(key, fd, Ending::Close);
        // In one step, so that no other test gets the number.
        let mut number = OwnedFd::from(socket);
        rustix::io::dup2(listener.as_fd(), &mut number).expect("another file");
        assert!(!was_reused(&call, fd));
    }
}
