//! Control messages toward a peer that keeps no receives for them, as C's rsockets do: four are
//! under way at most, and what had to wait is said once there is room.
//!
//! The peer is made of bare verbs. It has no receives at all at first, so that every message of
//! ours waits at our end, and it sends no more than it was allowed before that.

use super::hostile_peer::{Answered, Raw};
use rsock::rsockets::{Listener, Stream};
use rsock_cm::rdma::RdmaManager;
use rsock_proto::{CTRL_DEPTH, Ctrl, Imm, Msg};
use rsock_tests::Watchdog;
use std::io::Read;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::thread;
use std::time::Duration;

type Peer = Box<Raw<RdmaManager>>;

/// A stream of ours, and its peer, which has sent everything that it may, of which the stream has
/// read all.
fn pair(ip: &str) -> (Stream, Peer) {
    let ip: IpAddr = ip.parse().expect("an address");
    let listener = Listener::bind((ip, 0)).expect("listener");
    let address: SocketAddr = listener.local_addr().expect("address");
    let accepting = thread::spawn(move || listener.accept().expect("a client").0);
    let Answered::Connected(mut raw) = Raw::connect_with(&RdmaManager, address, |_| (), 0) else {
        panic!("an honest peer was rejected");
    };
    let mut stream = accepting.join().expect("accepted");
    // One message at a time, so that each half of the window is something to say; and the last one
    // fills the buffer, so that another can be announced.
    let (len, n) = (raw.theirs.data_buf.len, u32::from(raw.theirs.credits));
    for i in 0..n {
        let mut piece = vec![b'x'; (len / n + u32::from(i < len % n)) as usize];
        raw.send(&piece);
        stream.read_exact(&mut piece).expect("a message");
        raw.hear().expect("nothing failed");
    }
    (stream, raw)
}

/// What comes to `raw` until DISCONNECT; it makes room for one message at a time.
fn until_disconnect(raw: &Raw<RdmaManager>) -> Vec<Msg> {
    let mut words = Vec::new();
    while words.last() != Some(&Msg::Ctrl(Ctrl::Disconnect)) {
        raw.make_room(1);
        let word: Imm = raw.next_word().expect("a message");
        words.push(word.decode().expect("one that is known"));
    }
    words
}

#[test]
fn no_more_than_four_wait_for_a_peer_without_receives() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let (stream, raw) = pair(super::IPV4);
    stream.shutdown(Shutdown::Write).expect("shut down");
    stream.shutdown(Shutdown::Read).expect("shut down");
    let words = until_disconnect(&raw);
    let ends = [Msg::Ctrl(Ctrl::Shutdown), Msg::Ctrl(Ctrl::Disconnect)];
    assert!(words.ends_with(&ends), "{words:?}");
    assert!(words.len() <= usize::from(CTRL_DEPTH), "{words:?}");
}

#[test]
fn a_delayed_control_message_is_sent_once_there_is_room() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let (mut stream, raw) = pair(super::IPV4);
    // A reader that waits is all it takes.
    let reading = thread::spawn(move || stream.read(&mut [0]).expect("the end"));
    let newest = raw.theirs.credits.wrapping_mul(2);
    let mut n = 0;
    loop {
        raw.make_room(1);
        n += 1;
        match raw.next_word().expect("a message").decode() {
            Ok(Msg::Credit { limit }) if limit.0 == newest => break,
            Ok(Msg::Credit { .. }) => assert!(n < 16, "not said in {n} messages"),
            other => panic!("{other:?}"),
        }
    }
    raw.say(Imm::ctrl(Ctrl::Disconnect).0);
    assert_eq!(reading.join().expect("read"), 0);
}
