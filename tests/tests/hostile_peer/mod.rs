//! Peers that lie, over any device: a stream ends with a clear error, or goes on where what was
//! said means nothing; the process and its other connections never suffer.
//!
//! Each attack runs against a listener of `rsockets` that echoes, with an honest peer connected
//! before it, which is served after it, as is a new one.

mod fields;
mod raw;

pub(crate) use fields::{
    malformed_answers_fail_the_connect_with_a_clear_error,
    malformed_requests_are_rejected_and_odd_ones_served,
};
use raw::CREDITS;
pub(crate) use raw::{Answered, Raw};
use rsock::rsockets::{Listener, Stream};
use rsock_cm::manager::Manager;
use rsock_proto::RemoteSge;
use rsock_tests::Watchdog;
use rsock_verbs::{RKey, RemoteAddr, SendOp};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
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
pub(crate) type Ending = Result<(), i32>;

/// A server that echoes, whatever comes, and tells how each connection ended.
pub(crate) struct Victim {
    pub(crate) address: SocketAddr,
    pub(crate) endings: Receiver<Ending>,
}

impl Victim {
    pub(crate) fn new(at: IpAddr) -> Self {
        let listener = Listener::bind((at, 0)).expect("listener");
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
            // The test may not wait for it.
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

pub(crate) fn honest<M: Manager>(manager: &M, to: SocketAddr) -> Box<Raw<M>> {
    match Raw::connect(manager, to, |_| ()) {
        Answered::Connected(raw) => raw,
        Answered::Rejected => panic!("an honest peer was rejected"),
    }
}

pub(crate) fn assert_served<M: Manager>(raw: &mut Raw<M>, after: &str) {
    for message in [*b"an honest word..", *b"and another one."] {
        raw.send(&message);
        assert_eq!(raw.receive(message.len()).as_deref(), Ok(&message[..]), "after {after}");
    }
}

/// What the victim makes of an attack.
pub(crate) enum Outcome {
    /// The stream ends with one of these.
    Ends(&'static [i32]),
    /// It ends in good order.
    EndsWell,
    /// It goes on, as if nothing had been said.
    GoesOn,
}

pub(crate) use Outcome::{Ends, EndsWell, GoesOn};

/// The peer broke the protocol.
const BROKEN: Outcome = Ends(&[libc::EPROTO]);
/// The device refused what was asked of it, at one end or the other.
pub(crate) const REFUSED: Outcome = Ends(&[libc::ECONNRESET, libc::EIO, libc::EPROTO]);

/// Runs one attack of a connected peer, and checks that other connections work.
pub(crate) fn attack<F: Fixture>(
    f: &F,
    victim: &Victim,
    what: &str,
    lie: impl Fn(&mut Vec<u8>),
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
        EndsWell => {
            let ending = victim.endings.recv().expect("the victim lives");
            assert_eq!(ending, Ok(()), "{what}");
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

/// Runs a peer that leaves the victim no way to answer, and checks meanwhile that other connections
/// work; then lets the victim answer.
fn stall<F: Fixture>(
    f: &F,
    victim: &Victim,
    what: &str,
    lie: impl Fn(&mut Vec<u8>),
    begin: impl FnOnce(&mut Raw<F::Manager>),
    relieve: impl FnOnce(&Raw<F::Manager>),
) {
    const WORDS: &[u8] = b"answer this";
    let manager = f.manager();
    let mut bystander = honest(&manager, victim.address);
    let Answered::Connected(mut raw) = Raw::connect(&manager, victim.address, lie) else {
        panic!("{what}: rejected");
    };
    begin(&mut raw);
    raw.send(WORDS);
    assert_served(&mut bystander, what);
    assert_served(&mut honest(&manager, victim.address), what);
    assert!(raw.hear().is_ok_and(|n| n < WORDS.len()), "{what}: there was a way to answer");
    relieve(&raw);
    assert_eq!(raw.receive(WORDS.len()).as_deref(), Ok(WORDS), "{what}");
    assert_served(&mut raw, what);
    drop((raw, bystander));
    for _ in 0..3 {
        let _ = victim.endings.recv().expect("the victim lives");
    }
}

pub(crate) fn watchdog() -> Watchdog {
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

/// Undefined words, and odd limits.
pub(crate) fn words_that_mean_nothing_change_nothing<F: Fixture>(f: &F) {
    let _watchdog = watchdog();
    let victim = Victim::new(f.address());
    for word in [0xe000_0001, 0xe000_0003, 0xffff_ffff, 0x5c00_0009, 0x5fff_ffff] {
        let what = format!("the word {word:#x}");
        attack(f, &victim, &what, |_| (), |raw| raw.say(word), &GoesOn);
    }
    // Messages for accelerated streams mean nothing to a stream without TCP, from any peer.
    for flags in [2, 2 | 4] {
        for word in [0x4000_0000, 0x4400_0001, 0x47ff_ffff, 0x4800_0000, 0x4c00_0000] {
            let what = format!("the word {word:#x} and flags {flags}");
            attack(f, &victim, &what, |data| data[1] = flags, |raw| raw.say(word), &GoesOn);
        }
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
    let foreign_buffer = |data: &mut Vec<u8>| data[32] ^= 0x5a;
    attack(f, &victim, "a buffer's key that is not ours", foreign_buffer, speak, &REFUSED);
    let far_buffer = |data: &mut Vec<u8>| data[24..32].fill(0x11);
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

/// Tables, buffers and lengths that lead out of the peer's memory: the victim writes there in good
/// faith, and the device says no.
pub(crate) fn announced_memory_that_is_not_there_ends_the_stream<F: Fixture>(f: &F) {
    let _watchdog = watchdog();
    let victim = Victim::new(f.address());
    let speak = |raw: &mut Raw<F::Manager>| raw.send(b"answer this");
    let foreign_table = |data: &mut Vec<u8>| data[16] ^= 0x5a;
    attack(f, &victim, "a table's key that is not ours", foreign_table, speak, &REFUSED);
    let far_table = |data: &mut Vec<u8>| data[8..16].fill(0x11);
    attack(f, &victim, "a table's address that is not ours", far_table, speak, &REFUSED);
    let short_buffer = |data: &mut Vec<u8>| data[36..40].copy_from_slice(&4u32.to_be_bytes());
    let entry = |change: fn(RemoteSge) -> RemoteSge| {
        move |raw: &mut Raw<F::Manager>| {
            raw.announce(1, change(raw.memory()));
            raw.send(b"answer this");
        }
    };
    let key = entry(|sge| RemoteSge { key: RKey(sge.key.0 ^ 0x5a5a), ..sge });
    attack(f, &victim, "an entry's key that is not ours", short_buffer, key, &REFUSED);
    let far = entry(|sge| RemoteSge { addr: sge.addr.wrapping_add(1 << 40), ..sge });
    attack(f, &victim, "an entry's address that is not ours", short_buffer, far, &REFUSED);
    // The first two bytes of the rest of the answer have room.
    let huge = entry(|sge| RemoteSge {
        addr: sge.addr.wrapping_add(u64::from(sge.len) - 2),
        len: 0xFEFF_FFFF,
        ..sge
    });
    attack(f, &victim, "an entry as long as can be", short_buffer, huge, &REFUSED);
}

/// Limits and buffers that leave no room: the victim waits, and no other connection does.
pub(crate) fn a_peer_that_takes_nothing_holds_up_its_stream_alone<F: Fixture>(f: &F) {
    let _watchdog = watchdog();
    let victim = Victim::new(f.address());
    let limit = |limit: u16| 0x8000_0000 | u32::from(limit);
    let no_credit = |data: &mut Vec<u8>| data[2..4].fill(0);
    let give = |raw: &Raw<F::Manager>| raw.say(limit(CREDITS));
    stall(f, &victim, "no credits", no_credit, |_| (), give);
    let take_back = |raw: &mut Raw<F::Manager>| {
        assert_served(raw, "nothing");
        // As many as the victim has sent.
        raw.say(limit(2));
    };
    stall(f, &victim, "a limit that leaves nothing", |_| (), take_back, give);
    let one_credit = |data: &mut Vec<u8>| data[2..4].copy_from_slice(&1u16.to_be_bytes());
    let use_up = |raw: &mut Raw<F::Manager>| {
        raw.send(b"x");
        assert_eq!(raw.receive(1).as_deref(), Ok(&b"x"[..]));
    };
    stall(f, &victim, "one credit", one_credit, use_up, give);
    let buffer =
        |len: u32| move |data: &mut Vec<u8>| data[36..].copy_from_slice(&len.to_be_bytes());
    // What follows a buffer comes in the slot after it; nothing has been announced in the first one
    // yet.
    let room = |slot: u64| move |raw: &Raw<F::Manager>| raw.announce(slot, raw.memory());
    stall(f, &victim, "a first buffer of no bytes", buffer(0), |_| (), room(0));
    // A device writes an entry in pieces, and another message may arrive meanwhile.
    for part in [8..16, 0..13, 0..15] {
        let what = format!("bytes {part:?} of an entry");
        let begin = |raw: &mut Raw<F::Manager>| {
            raw.write_entry(0, raw.memory(), part);
            give(raw);
        };
        stall(f, &victim, &what, buffer(0), begin, room(0));
    }
    let behind = |raw: &Raw<F::Manager>| {
        let memory = raw.memory();
        raw.announce(
            1,
            RemoteSge { addr: memory.addr.wrapping_add(1), len: memory.len - 1, ..memory },
        );
    };
    stall(f, &victim, "a first buffer of one byte", buffer(1), |_| (), behind);
}

/// More than was allowed.
pub(crate) fn a_flood_ends_its_stream_alone<F: Fixture>(f: &F) {
    let _watchdog = watchdog();
    let victim = Victim::new(f.address());
    // A victim that cannot answer reads nothing, and so gives no credits.
    let no_credit = |data: &mut Vec<u8>| data[2..4].fill(0);
    let flood = |raw: &mut Raw<F::Manager>| raw.flood(3 * u32::from(raw.theirs.credits), 1);
    attack(f, &victim, "more messages than credits", no_credit, flood, &BROKEN);
    let words = |raw: &mut Raw<F::Manager>| {
        for word in [0xe000_0002, 0xe000_0002, 0xe000_0000, 0xe000_0002, 0xe000_0000] {
            raw.say(word);
        }
    };
    attack(f, &victim, "ends again and again", |_| (), words, &EndsWell);
}

/// What opened memory once, and does so no more.
pub(crate) fn keys_of_streams_that_are_over_open_nothing<F: Fixture>(f: &F) {
    let _watchdog = watchdog();
    let victim = Victim::new(f.address());
    let manager = f.manager();
    let mut over = honest(&manager, victim.address);
    assert_served(&mut over, "nothing");
    let RemoteSge { addr, key, .. } = over.theirs.data_buf;
    drop(over);
    let _ = victim.endings.recv().expect("the victim lives");
    let write = |raw: &mut Raw<F::Manager>| {
        raw.post(SendOp::WriteImm { remote: addr, rkey: key, imm: 8 }, b"not here");
        raw.failure();
    };
    attack(f, &victim, "a key of the past", |_| (), write, &REFUSED);
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

/// One test function for each of the suite.
macro_rules! hostile_peer_tests {
    ($fixture:expr) => {
        hostile_peer_tests! { @each $fixture;
            words_that_break_the_protocol_end_the_stream
            words_that_mean_nothing_change_nothing
            table_entries_out_of_range_end_the_stream
            memory_that_is_not_theirs_ends_the_stream
            announced_memory_that_is_not_there_ends_the_stream
            a_peer_that_takes_nothing_holds_up_its_stream_alone
            a_flood_ends_its_stream_alone
            keys_of_streams_that_are_over_open_nothing
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
