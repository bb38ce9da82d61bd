//! The shortcuts of sends and receives: what goes by them, and what is left to the switch.

use crate::accelerate::path::Path;
use crate::accelerate::tests::*;
use crate::closing::Descriptor;
use crate::engine::RecvError;
use rsock_proto::Ext;

impl End {
    fn send_by_shortcut(&self, bufs: &[&[u8]]) -> bool {
        let descriptor = Descriptor::new(self.socket.as_fd(), self.stream.closings.count());
        let bufs = Vec::from_iter(bufs.iter().map(|buf| IoSlice::new(buf)));
        self.stream.send_by_shortcut(descriptor, &bufs, bufs.iter().map(|buf| buf.len()).sum())
    }

    /// What a receive of `len` bytes by the shortcut returns: `None` if that is left to the switch,
    /// and `Some(None)` if there is nothing.
    fn recv_by_shortcut(&self, len: usize, flags: RecvFlags) -> Option<Option<Vec<u8>>> {
        let descriptor = Descriptor::new(self.socket.as_fd(), self.stream.closings.count());
        let mut room = vec![0; len];
        let bufs = &mut [IoSliceMut::new(&mut room)];
        let received = self.stream.recv_by_shortcut(descriptor, bufs, flags)?.ok();
        Some(received.map(|n| room[..n].to_vec()))
    }
}

#[test]
fn bytes_on_the_ring_go_by_the_shortcuts() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        a.send(&[1]).expect("send");
        b.recv_all(&mut [0]);
        assert_eq!(b.recv_by_shortcut(10, RecvFlags::empty()), Some(None), "nothing is there");
        for len in [1, 48, 49, 5000, 16 << 10] {
            let bytes = pattern(0, len);
            let (first, second) = bytes.split_at(len / 2);
            assert!(a.send_by_shortcut(&[&bytes]), "{len} bytes");
            assert_eq!(b.recv_by_shortcut(len, RecvFlags::empty()), Some(Some(bytes.clone())));
            assert!(a.send_by_shortcut(&[first, &[], second]), "{len} bytes in pieces");
            assert_eq!(b.recv_by_shortcut(len + 1, RecvFlags::empty()), Some(Some(bytes.clone())));
        }
    });
}

#[test]
fn a_receive_takes_what_comes_while_it_waits() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        a.send(&[1]).expect("send");
        b.recv_all(&mut [0]);
        let stream = b.stream.path().and_then(Path::soft).expect("on the ring");
        let mut room = [0; 2];
        let _section = Section::enter();
        let received = stream.try_recv_to(&mut room, |_| a.send(&[7]).is_ok());
        assert_eq!((received, room), (Ok(1), [7, 0]));
        assert_eq!(stream.try_recv_to(&mut room, |_| false), Err(RecvError::WouldBlock));
        a.send(&[8]).expect("send");
        let received = stream.try_recv_to(&mut room, |_| unreachable!("a byte is there"));
        assert_eq!((received, room), (Ok(1), [8, 0]));
    });
}

/// One byte by the shortcut, in a tick of its own. False if the socket is to be checked first.
fn send_in_new_tick(end: &End) -> bool {
    end.stream.dirs.tx.0.lock().socket_checked_at = sys::tick().wrapping_sub(100);
    end.send_by_shortcut(&[&[1]])
}

#[test]
fn a_send_after_an_answer_of_the_peer_checks_no_socket() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        a.send(&[1]).expect("send");
        assert!(!send_in_new_tick(&a), "a byte is unread");
        a.stream.dirs.note_answer();
        assert!(send_in_new_tick(&a), "the peer has answered");
        assert!(!send_in_new_tick(&a), "it has not answered since");
        a.stream.dirs.note_answer();
        b.stream.shutdown(b.socket.as_fd(), Shutdown::Write).expect("shutdown");
        assert!(!send_in_new_tick(&a), "its end came after the answer");
    });
}

#[test]
fn what_needs_more_is_left_to_the_switch() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        a.send(&[1]).expect("send");
        assert!(!a.send_by_shortcut(&[&pattern(0, (16 << 10) + 1)]), "several messages");
        assert!(!a.send_by_shortcut(&[&[1][..]; 5]), "more pieces than a message takes");
        a.stream.dirs.tx.0.lock().socket_checked_at = sys::tick().wrapping_sub(100);
        assert!(!a.send_by_shortcut(&[&[2]]), "the socket is to be checked: a byte is unread");
        a.send(&[2]).expect("send");
        assert_eq!(b.recv_by_shortcut(10, RecvFlags::PEEK), None);
        assert_eq!(b.recv_by_shortcut(10, RecvFlags::empty()), Some(Some(vec![1, 2])));
        // Both directions of a pinned stream go back to TCP.
        a.pin();
        assert!(!a.send_by_shortcut(&[&[3]]));
        a.send(&[3]).expect("send");
        assert_eq!(b.recv_by_shortcut(10, RecvFlags::empty()), None, "the byte is on TCP");
        let mut byte = [0];
        b.recv_all(&mut byte);
        assert_eq!(byte, [3]);
    });
}

/// One thread's poll takes note of the room that another thread is about to sleep for.
#[test]
fn room_that_the_peer_has_granted_is_news_although_a_poll_has_noted_it() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        let [a, b] = [&a, &b].map(|end| end.stream.path().and_then(Path::soft).expect("the ring"));
        let mark = loop {
            let mark = a.mark();
            if !a.try_send_ext(Ext::Ready) {
                break mark;
            }
        };
        assert!(!a.has_changed(mark));
        b.progress();
        let _ = a.poll_messages();
        assert!(a.has_changed(mark));
    });
}

#[test]
fn a_send_that_finds_too_little_room_is_left_to_the_switch() {
    watchdog(|| {
        let (a, b) = connect_on_ring();
        let bytes = pattern(0, 16 << 10);
        let mut sent = 0;
        // A tick of the clock leaves a send to the switch, too.
        let rest = loop {
            let n = match a.send_by_shortcut(&[&bytes]) {
                true => bytes.len(),
                false => a.try_send(&bytes).unwrap_or(0),
            };
            if n < bytes.len() {
                break n;
            }
            sent += n;
        };
        let mut received = vec![0; sent + rest];
        b.recv_all(&mut received);
        let whole = Vec::from_iter(bytes.iter().copied().cycle().take(sent));
        assert!(received[..sent] == whole[..] && received[sent..] == bytes[..rest]);
    });
}
