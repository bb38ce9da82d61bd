//! Peers that lie, over any device: a stream ends with a clear error, or goes on where what was said
//! means nothing; the process and its other connections never suffer.
//!
//! Each attack runs against a listener of `rsockets` that echoes, with an honest peer connected before
//! it, which is served after it, as is a new one.

mod raw;

use raw::{Answered, Raw};
use rsock_cm::Port;
use rsock_cm::manager::{Listening, Manager};
use rsock_core::proto::{CONN_DATA_LEN, RemoteSge};
use rsock_core::socket::rsockets::{self, Listener, Stream};
use rsock_tests::Watchdog;
use rsock_verbs::{RKey, RemoteAddr, SendOp};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// A device under test.
pub(crate) trait Fixture {
    type Manager: Manager;
    fn manager(&self) -> Self::Manager;
    /// An address that leads to this device and no other one.
    fn address(&self) -> IpAddr;
}

/// How the stream of a peer ended at the victim: the errno, or that it was an orderly end.
type Ending = Result<(), i32>;

/// A server that echoes, whatever comes, and tells how each connection ended.
struct Victim {
    address: SocketAddr,
    endings: Receiver<Ending>,
}

impl Victim {
    fn new(at: IpAddr) -> Self {
        let listener = Listener::bind((at, 0).into()).expect("listener");
        let address = listener.local_addr().expect("address");
        let (tell, endings) = channel();
        // It lives as long as the test's process.
        thread::spawn(move || serve(&listener, &tell));
        Self { address, endings }
    }
}

fn serve(listener: &Listener, tell: &Sender<Ending>) {
    loop {
        let (stream, _) = listener.accept().expect("the listener goes on");
        let tell = tell.clone();
        thread::spawn(move || {
            let ending = echo(stream).map_err(|e| e.raw_os_error().unwrap_or(-1));
            // Nobody may be interested.
            let _ = tell.send(ending);
        });
    }
}

fn echo(mut stream: Stream) -> io::Result<()> {
    let mut buf = [0; 4096];
    loop {
        match stream.read(&mut buf)? {
            0 => return Ok(()),
            n => stream.write_all(&buf[..n])?,
        }
    }
}

fn honest<M: Manager>(manager: &M, to: SocketAddr) -> Box<Raw<M>> {
    match Raw::connect(manager, to, |_| ()) {
        Answered::Connected(raw) => raw,
        Answered::Rejected => panic!("an honest peer was rejected"),
    }
}

fn assert_served<M: Manager>(raw: &mut Raw<M>, after: &str) {
    for message in [*b"an honest word..", *b"and another one."] {
        raw.send(&message);
        assert_eq!(raw.receive(message.len()).as_deref(), Ok(&message[..]), "after {after}");
    }
}

/// What the victim makes of an attack.
enum Outcome {
    /// The stream ends with one of these.
    Ends(&'static [i32]),
    /// It goes on, as if nothing had been said.
    GoesOn,
}

use Outcome::{Ends, GoesOn};

/// The peer broke the protocol.
const BROKEN: Outcome = Ends(&[libc::EPROTO]);
/// The device refused what was asked of it, at one end or the other.
const REFUSED: Outcome = Ends(&[libc::ECONNRESET, libc::EIO, libc::EPROTO]);

/// Runs one attack of a connected peer, and looks after everybody else.
fn attack<F: Fixture>(
    f: &F,
    victim: &Victim,
    what: &str,
    lie: impl Fn(&mut [u8; CONN_DATA_LEN]),
    act: impl FnOnce(&mut Raw<F::Manager>),
    outcome: &Outcome,
) {
    let manager = f.manager();
    let mut bystander = honest(&manager, victim.address);
    let Answered::Connected(mut raw) = Raw::connect(&manager, victim.address, lie) else {
        panic!("{what}: rejected");
    };
    act(&mut raw);
    match outcome {
        GoesOn => {
            assert_served(&mut raw, what);
            assert!(victim.endings.try_recv().is_err(), "{what}: a stream has ended");
        }
        Ends(errnos) => {
            let ending = victim.endings.recv().expect("the victim lives");
            let is_right = ending.is_err_and(|errno| errnos.contains(&errno));
            assert!(is_right, "{what}: ended with {ending:?}");
        }
    }
    assert_served(&mut bystander, what);
    assert_served(&mut honest(&manager, victim.address), what);
    // Their ends are orderly or not, as the device has it; each is told once.
    let n_left = if matches!(outcome, GoesOn) { 3 } else { 2 };
    drop((raw, bystander));
    for _ in 0..n_left {
        let _ = victim.endings.recv().expect("the victim lives");
    }
}

fn watchdog() -> Watchdog {
    Watchdog::new(Duration::from_secs(240))
}

/// Immediate words of every kind.
pub(crate) fn words_that_break_the_protocol_end_the_stream<F: Fixture>(f: &F) {
    let _watchdog = watchdog();
    let victim = Victim::new(f.address());
    let room = |raw: &Raw<F::Manager>| raw.theirs.data_buf.len;
    for word in [0, 0x2000_0000, 0x6000_0000, 0xa000_0000] {
        let what = format!("a data message of length zero, {word:#x}");
        attack(f, &victim, &what, |_| (), |raw| raw.say(word), &BROKEN);
    }
    let act = |raw: &mut Raw<F::Manager>| raw.say(room(raw) + 1);
    attack(f, &victim, "one byte beyond the buffer", |_| (), act, &BROKEN);
    attack(f, &victim, "the longest message", |_| (), |raw| raw.say(0x1fff_ffff), &BROKEN);
    for index in [0, 1, 128, 0x1fff_ffff] {
        let what = format!("iomap entry {index} of none");
        attack(f, &victim, &what, |_| (), |raw| raw.say(0xc000_0000 | index), &BROKEN);
    }
}

/// Words that nobody understands, and limits that are odd.
pub(crate) fn words_that_mean_nothing_change_nothing<F: Fixture>(f: &F) {
    let _watchdog = watchdog();
    let victim = Victim::new(f.address());
    for word in [0xe000_0001, 0xe000_0003, 0xffff_ffff, 0x5c00_0009, 0x5fff_ffff] {
        let what = format!("the word {word:#x}");
        attack(f, &victim, &what, |_| (), |raw| raw.say(word), &GoesOn);
    }
    for limit in [0x8000_ffff, 0x9fff_ffff, 0x8001_0040] {
        let what = format!("the credit limit {limit:#x}");
        attack(f, &victim, &what, |_| (), |raw| raw.say(limit), &GoesOn);
    }
    let empty = |raw: &mut Raw<F::Manager>| raw.announce(1, RemoteSge { len: 0, ..raw.memory() });
    attack(f, &victim, "a table entry of no bytes", |_| (), empty, &GoesOn);
}

/// Buffers announced that make no sense: the victim finds out when it wants to send.
pub(crate) fn table_entries_out_of_range_end_the_stream<F: Fixture>(f: &F) {
    let _watchdog = watchdog();
    let victim = Victim::new(f.address());
    let wrapping = |raw: &mut Raw<F::Manager>| {
        raw.announce(1, RemoteSge { addr: RemoteAddr(u64::MAX - 9), len: 100, ..raw.memory() });
        raw.send(b"answer this");
    };
    attack(f, &victim, "a buffer past the address space", |_| (), wrapping, &BROKEN);
    let too_many = |raw: &mut Raw<F::Manager>| {
        raw.announce(1, raw.memory());
        raw.send(b"answer this");
        assert_eq!(raw.receive(11).as_deref(), Ok(&b"answer this"[..]));
        raw.announce(0, raw.memory());
        raw.send(b"and this");
    };
    attack(f, &victim, "more buffers than the table holds", |_| (), too_many, &BROKEN);
}

/// Keys and addresses that are not the peer's to name, in either direction.
pub(crate) fn memory_that_is_not_theirs_ends_the_stream<F: Fixture>(f: &F) {
    let _watchdog = watchdog();
    let victim = Victim::new(f.address());
    let speak = |raw: &mut Raw<F::Manager>| raw.send(b"answer this");
    // What the victim is told to write to.
    let foreign_buffer = |data: &mut [u8; CONN_DATA_LEN]| data[32] ^= 0x5a;
    attack(f, &victim, "a buffer's key that is not ours", foreign_buffer, speak, &REFUSED);
    let far_buffer = |data: &mut [u8; CONN_DATA_LEN]| data[24..32].fill(0x11);
    attack(f, &victim, "a buffer's address that is not ours", far_buffer, speak, &REFUSED);
    // What we write to.
    let write = |change: fn(RemoteSge) -> RemoteSge| {
        move |raw: &mut Raw<F::Manager>| {
            let RemoteSge { addr, key, .. } = change(raw.theirs.data_buf);
            raw.post(SendOp::WriteImm { remote: addr, rkey: key, imm: 8 }, b"not here");
            raw.failure();
        }
    };
    let key = write(|sge| RemoteSge { key: RKey(sge.key.0 ^ 0x5a5a), ..sge });
    attack(f, &victim, "a key that is not theirs", |_| (), key, &REFUSED);
    let far = write(|sge| RemoteSge { addr: sge.addr.wrapping_add(1 << 40), ..sge });
    attack(f, &victim, "an address outside of their region", |_| (), far, &REFUSED);
    let send = |raw: &mut Raw<F::Manager>| raw.post(SendOp::Send, b"with a payload");
    attack(f, &victim, "a message where none belongs", |_| (), send, &REFUSED);
}

/// A peer that breaks in the middle.
pub(crate) fn a_peer_that_breaks_ends_its_stream_alone<F: Fixture>(f: &F) {
    let _watchdog = watchdog();
    let victim = Victim::new(f.address());
    let manager = f.manager();
    let mut bystander = honest(&manager, victim.address);
    let mut raw = honest(&manager, victim.address);
    assert_served(&mut raw, "nothing");
    raw.fail();
    drop(raw);
    let _ = victim.endings.recv().expect("the victim lives");
    assert_served(&mut bystander, "a peer broke");
    assert_served(&mut honest(&manager, victim.address), "a peer broke");
}

/// Changes of honest private data that nobody may accept: where, and the new bytes.
const BAD_DATA: [(&str, usize, &[u8]); 9] = [
    ("version 0", 0, &[0]),
    ("version 2", 0, &[2]),
    ("version 255", 0, &[255]),
    ("a table of no entry", 20, &[0, 0, 0, 0]),
    ("a table of one entry", 20, &[0, 0, 0, 1]),
    ("a table past the address space", 8, &[0xff; 8]),
    ("a table that ends past the address space", 8, &[0xff; 16]),
    ("a buffer past the address space", 24, &[0xff; 8]),
    ("nothing but ones", 0, &[0xff; CONN_DATA_LEN]),
];

/// Changes that mean nothing, or something that is odd and allowed.
const ODD_DATA: [(&str, usize, &[u8]); 4] = [
    ("flags of the future", 1, &[0xf8 | 2]),
    ("reserved bytes that are not zero", 4, &[0xff; 3]),
    ("the largest iomap table", 7, &[0xff]),
    ("more credits than receives", 2, &[0xff, 0xff]),
];

fn change(at: usize, bytes: &'static [u8]) -> impl Fn(&mut [u8; CONN_DATA_LEN]) {
    move |data| data[at..at + bytes.len()].copy_from_slice(bytes)
}

pub(crate) fn malformed_requests_are_rejected_and_odd_ones_served<F: Fixture>(f: &F) {
    let _watchdog = watchdog();
    let victim = Victim::new(f.address());
    let manager = f.manager();
    let mut bystander = honest(&manager, victim.address);
    let nothing = [("nothing but zeroes", 0, &[0; CONN_DATA_LEN][..])];
    for (what, at, bytes) in BAD_DATA.into_iter().chain(nothing) {
        let answered = Raw::connect(&manager, victim.address, change(at, bytes));
        assert!(matches!(answered, Answered::Rejected), "{what}: accepted");
    }
    for (what, at, bytes) in ODD_DATA {
        match Raw::connect(&manager, victim.address, change(at, bytes)) {
            Answered::Connected(mut raw) => assert_served(&mut raw, what),
            Answered::Rejected => panic!("{what}: rejected"),
        }
    }
    assert_served(&mut bystander, "malformed requests");
}

pub(crate) fn malformed_answers_fail_the_connect_with_a_clear_error<F: Fixture>(f: &F) {
    let _watchdog = watchdog();
    let port = Port::open(f.address().is_ipv6()).expect("socket");
    port.bind((f.address(), 0).into()).expect("bind");
    let mut listener = f.manager().listen(Arc::new(port), 16).expect("listen");
    let to = listener.local_addr();
    for (what, at, bytes) in BAD_DATA {
        let connect = thread::spawn(move || rsockets::connect(to).map(drop));
        let raw: Option<Raw<F::Manager>> = Raw::accept(&mut listener, change(at, bytes));
        let error = connect.join().expect("no panic").expect_err(what);
        let expected = if at == 0 { libc::ENOTSUP } else { libc::EPROTO };
        assert_eq!(error.raw_os_error(), Some(expected), "{what}: {error}");
        assert!(raw.is_none(), "{what}: established");
    }
    for (what, at, bytes) in ODD_DATA {
        let client = thread::spawn(move || {
            let mut stream = rsockets::connect(to)?;
            stream.write_all(b"hello")?;
            let mut answer = [0; 2];
            stream.read_exact(&mut answer)?;
            Ok::<_, io::Error>(answer)
        });
        let mut raw = Raw::<F::Manager>::accept(&mut listener, change(at, bytes)).expect(what);
        assert_eq!(raw.receive(5).as_deref(), Ok(&b"hello"[..]), "{what}");
        raw.send(b"hi");
        assert_eq!(client.join().expect("no panic").expect(what), *b"hi", "{what}");
    }
}

/// One test function for each of the suite.
macro_rules! hostile_peer_tests {
    ($fixture:expr) => {
        hostile_peer_tests! { @each $fixture;
            words_that_break_the_protocol_end_the_stream
            words_that_mean_nothing_change_nothing
            table_entries_out_of_range_end_the_stream
            memory_that_is_not_theirs_ends_the_stream
            a_peer_that_breaks_ends_its_stream_alone
            malformed_requests_are_rejected_and_odd_ones_served
            malformed_answers_fail_the_connect_with_a_clear_error
        }
    };
    (@each $fixture:expr; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                hostile_peer::$name(&$fixture);
            }
        )*
    };
}
pub(crate) use hostile_peer_tests;
