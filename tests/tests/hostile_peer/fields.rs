//! Private data with every field wrong, in requests and in answers.

use super::raw::{Answered, Raw};
use super::{Fixture, Victim, assert_served, honest, watchdog};
use crate::malformed::{self, Lie, put};
use rsock::rsockets;
use rsock_cm::Port;
use rsock_cm::manager::{Listening, Manager};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::thread;

/// These mean nothing, or something that is odd and allowed.
const ODD: [(&str, Lie); 12] = [
    ("flags of the future", |data| data[1] = 0xf8 | 2),
    ("no flags", |data| data[1] = 0),
    ("the other byte order", |data| data[1] |= 1),
    ("extensions that it does not know", |data| data[1] |= 4),
    ("reserved bytes that are not zero", |data| data[4..7].fill(0xff)),
    ("the smallest iomap table", |data| data[7] = 1),
    ("the largest iomap table", |data| data[7] = 0xff),
    ("more credits than receives", |data| data[2..4].fill(0xff)),
    ("a table of three entries", |data| put(data, 20, &[0, 0, 0, 3])),
    ("as many entries as can be", |data| data[20..24].fill(0xff)),
    ("a buffer as long as can be", |data| data[36..40].fill(0xff)),
    ("bytes behind the end", |data| data.resize(MOST, 0xff)),
];

/// What a request has room for.
const MOST: usize = 56;

pub(crate) fn malformed_requests_are_rejected_and_odd_ones_served<F: Fixture>(f: &F) {
    let _watchdog = watchdog();
    let victim = Victim::new(f.address());
    let manager = f.manager();
    let mut bystander = honest(&manager, victim.address);
    for (what, lie, _) in malformed::CONN_DATA {
        let answered = Raw::connect(&manager, victim.address, lie);
        assert!(matches!(answered, Answered::Rejected), "{what}: accepted");
    }
    for (what, lie) in ODD {
        match Raw::connect(&manager, victim.address, lie) {
            Answered::Connected(mut raw) => assert_served(&mut raw, what),
            Answered::Rejected => panic!("{what}: rejected"),
        }
    }
    assert_served(&mut bystander, "malformed requests");
    assert_served(&mut honest(&manager, victim.address), "malformed requests");
}

pub(crate) fn malformed_answers_fail_the_connect_with_a_clear_error<F: Fixture>(f: &F) {
    let _watchdog = watchdog();
    // What this process has beside its connects.
    let victim = Victim::new(f.address());
    let manager = f.manager();
    let mut bystander = honest(&manager, victim.address);
    let port = Port::open(f.address().is_ipv6()).expect("socket");
    port.bind((f.address(), 0).into()).expect("bind");
    let mut listener = manager.listen(Arc::new(port), 16).expect("listen");
    let to = listener.local_addr();
    for (what, lie, errno) in malformed::CONN_DATA {
        let connect = thread::spawn(move || rsockets::connect(to).map(drop));
        let raw: Option<Raw<F::Manager>> = Raw::accept(&mut listener, lie);
        let error = connect.join().expect("no panic").expect_err(what);
        assert_eq!(error.raw_os_error(), Some(errno), "{what}: {error}");
        assert!(raw.is_none(), "{what}: established");
    }
    for (what, lie) in ODD {
        let client = thread::spawn(move || {
            let mut stream = rsockets::connect(to)?;
            stream.write_all(b"hello")?;
            let mut answer = [0; 2];
            stream.read_exact(&mut answer)?;
            Ok::<_, io::Error>(answer)
        });
        let mut raw = Raw::<F::Manager>::accept(&mut listener, lie).expect(what);
        assert_eq!(raw.receive(5).as_deref(), Ok(&b"hello"[..]), "{what}");
        raw.send(b"hi");
        assert_eq!(client.join().expect("no panic").expect(what), *b"hi", "{what}");
    }
    assert_served(&mut bystander, "malformed answers");
}
