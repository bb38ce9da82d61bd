//! Another user of a host that claims a connection between two hosts: nothing on the fabric says
//! which user speaks, so it is refused because it lacks the hosts' key. Where the hosts have none,
//! it is refused if what it says makes no sense.
//!
//! The impostor is this program once more, run by that user, which ends: a process that has used an
//! RDMA device keeps it from being removed. It knows the connection's numbers and the words on the
//! wire, and answers with a code that it has seen.

use super::{
    Trust, assert_all_arrived, await_connection, config, connections, has_used_rdma, with_shim,
};
use crate::malformed;
use rsock_cm::Error;
use rsock_cm::manager::{Connecting as _, Listening as _};
use rsock_cm::rdma::{
    RdmaConnecting as Connecting, RdmaEvent as Event, RdmaListener as Listener,
    RdmaProgress as Progress,
};
use rsock_core::accelerate::FallbackReason;
use rsock_tests::hosts::{Guest, Role};
use rsock_tests::{Blocks, Piped, Watchdog, copy_program, run, tools};
use rsock_verbs::QpNum;
use rustix::event::{PollFd, PollFlags, poll};
use std::env;
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const KEY: Trust = Trust::Key("a key that the impostor has not");
/// The server's port, and the client's.
const PORTS: [u16; 2] = [7501, 7502];
/// A queue pair that the impostor says is its own.
const QP: QpNum = QpNum(77);
/// Where the private data has the sender's port, the version and the code.
const AT_PORT: usize = 40;
const AT_VERSION: usize = 42;
const AT_CODE: usize = 44;

/// Tells this program which part it plays: `answer ADDRESS`, `ask ADDRESS ADDRESS`, or `lie ADDRESS
/// ADDRESS ADDRESS`.
const PART: &str = "IMPOSTOR";
/// The number of a user that runs neither program.
const OTHER_USER: u32 = 65534;

/// The other user's process, which plays `part` in `test`.
struct Impostor(Piped);

impl Impostor {
    fn start(test: &str, part: &str) -> Self {
        // Where every user may run it, wherever the tests were built.
        let copy = env::temp_dir().join("impostor");
        copy_program(&env::current_exe().expect("this program"), &copy);
        let test = format!("hosts_claims::{test}");
        let mut command = Command::new(copy);
        command.args(["--exact", &test, "--nocapture"]).env(PART, part).current_dir("/");
        Self(Piped::start(command.uid(OTHER_USER).gid(OTHER_USER)))
    }

    fn await_word(&mut self, word: &str) {
        assert!(self.0.says(word), "the impostor ended without having said: {word}");
    }

    /// Lets it go.
    fn end(self) {
        let _ = self.0.finish();
    }
}

/// Plays the part that this process was started for, if it is an impostor's.
fn is_impostor() -> bool {
    let Ok(part) = env::var(PART) else { return false };
    let mut words = part.split_whitespace();
    let part = words.next().expect("a part");
    let mut address =
        || -> SocketAddr { words.next().and_then(|w| w.parse().ok()).expect("where") };
    if part == "answer" {
        let at = address();
        let mut listener = Listener::at(at, 1).expect("any user may listen");
        println!("listening");
        answer_one(&mut listener, at.port());
        println!("answered");
        // Until then the answer must not be followed by an end.
        std::io::stdin().read_to_end(&mut Vec::new()).expect("the test goes on");
    } else if part == "ask" {
        let (from, to) = (address(), address());
        let is_rejected = is_rejected(from, to, &words_from(from.port()));
        println!("{}", if is_rejected { "rejected" } else { "accepted" });
    } else {
        let [from, to, elsewhere] = [(); 3].map(|()| address());
        tell_lies(from, to, elsewhere);
        println!("lied");
    }
    true
}

fn sleep_on(fd: impl AsFd) {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, None).expect("poll");
}

/// Answers the first request that comes to `listener` as if the right one had, but for the code.
fn answer_one(listener: &mut Listener, port: u16) {
    loop {
        match listener.try_next(Instant::now()).expect("events") {
            Some(Event::Request(request)) => {
                // The client's own proof, with the port of the server that it meant.
                let mut words = request.private_data.as_bytes().to_vec();
                words[AT_PORT..AT_VERSION].copy_from_slice(&port.to_be_bytes());
                listener.accept(request.id, QP, &words).expect("an answer");
                return;
            }
            Some(_) => {}
            None => sleep_on(&*listener),
        }
    }
}

#[test]
fn another_user_at_the_address_of_a_client_is_not_believed() {
    if is_impostor() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin("impostor-answers");
    let python = || with_shim("python3", &config("impostor-answers", KEY));
    let [server, client] = PORTS.map(|port| port.to_string());
    let ends = match guest.role {
        Role::A => {
            let blocks = Blocks::serve(&guest, python(), &server, "");
            guest.meet("listening");
            await_connection(&guest, |c| c.fallback == Some(FallbackReason::Untrusted));
            guest.meet("refused");
            blocks.end(&guest)
        }
        Role::B => {
            let test = "another_user_at_the_address_of_a_client_is_not_believed";
            let at = SocketAddr::new(guest.ip(), PORTS[1]);
            let mut impostor = Impostor::start(test, &format!("answer {at}"));
            // Before the client, which will find its place on the device taken.
            impostor.await_word("listening");
            guest.meet("listening");
            let mut command = python();
            command.env("SOURCE_PORT", client);
            let to = guest.peer_ip().to_string();
            let blocks = Blocks::start(command, &["send", &to, &server]);
            impostor.await_word("answered");
            guest.meet("refused");
            impostor.end();
            blocks.end(&guest)
        }
    };
    assert_all_arrived(&ends);
}

/// Asks the owner of `to` as if from `from`, in these words; returns whether it rejected. `Refused`
/// if no listener is there.
fn ask(from: SocketAddr, to: SocketAddr, words: &[u8]) -> Result<bool, Error> {
    let now = Instant::now();
    let mut connecting = Connecting::from(from.ip(), to, now, now + Duration::from_secs(60))?;
    loop {
        match connecting.progress(Instant::now())? {
            Progress::Pending => sleep_on(&connecting),
            Progress::Path(..) => connecting.send_request(QP, words)?,
            Progress::Accepted(_) => return Ok(false),
            Progress::Rejected(_) => return Ok(true),
        }
    }
}

/// As [`ask`], until a listener is there.
fn is_rejected(from: SocketAddr, to: SocketAddr, words: &[u8]) -> bool {
    loop {
        match ask(from, to, words) {
            Err(Error::Refused) => {}
            answer => return answer.expect("an answer"),
        }
    }
}

/// What a holder of the key would say, but for the code.
fn words_from(port: u16) -> [u8; 56] {
    let mut words = [0; 56];
    // Its version, and that it understands more than C does.
    words[..2].copy_from_slice(&[1, 6]);
    // Messages that it can take; a table of 2 slots at an address; a buffer of 64 KiB at another.
    words[2..4].copy_from_slice(&64_u16.to_be_bytes());
    words[8..16].copy_from_slice(&0x1000_u64.to_be_bytes());
    words[20..24].copy_from_slice(&2_u32.to_be_bytes());
    words[24..32].copy_from_slice(&0x2000_u64.to_be_bytes());
    words[36..40].copy_from_slice(&0x1_0000_u32.to_be_bytes());
    words[AT_PORT..AT_VERSION].copy_from_slice(&port.to_be_bytes());
    words[AT_VERSION..AT_CODE].copy_from_slice(&2_u16.to_be_bytes());
    words
}

/// Says what no server may believe, key or no key, from `from` to `to`; then the truth from
/// `elsewhere`, and at last from where it is to be believed.
fn tell_lies(from: SocketAddr, to: SocketAddr, elsewhere: SocketAddr) {
    let truth = words_from(from.port());
    for (i, (what, lie)) in lies(from.port()).into_iter().enumerate() {
        // Still there after the one before.
        let answer = if i == 0 { Ok(is_rejected(from, to, &lie)) } else { ask(from, to, &lie) };
        assert!(matches!(answer, Ok(true)), "{what}: {answer:?}");
    }
    let answer = ask(elsewhere, to, &truth);
    assert!(matches!(answer, Ok(true)), "from another host: {answer:?}");
    let answer = ask(from, to, &truth);
    assert!(matches!(answer, Ok(false)), "the truth: {answer:?}");
}

/// Words that make no sense. Where they are cut short the connection manager fills them up with
/// zeroes.
fn lies(port: u16) -> Vec<(String, Vec<u8>)> {
    let honest = words_from(port);
    let mut all: Vec<_> = malformed::CONN_DATA
        .iter()
        .map(|(what, lie, _)| {
            let mut data = honest[..AT_PORT].to_vec();
            lie(&mut data);
            data.resize(AT_PORT, 0);
            data.extend(&honest[AT_PORT..]);
            ((*what).to_owned(), data)
        })
        .collect();
    for len in [0, 1, 20, AT_PORT, AT_PORT + 1, AT_VERSION, AT_VERSION + 1] {
        all.push((format!("{len} bytes"), honest[..len].to_vec()));
    }
    for (what, at, number) in [
        ("port 0", AT_PORT, 0),
        ("another port", AT_PORT, port + 7),
        ("the client's port", AT_PORT, PORTS[1]),
        ("version 0", AT_VERSION, 0),
        ("version 1", AT_VERSION, 1),
        ("version 256", AT_VERSION, 256),
    ] {
        let mut words = honest.to_vec();
        words[at..at + 2].copy_from_slice(&number.to_be_bytes());
        all.push((what.to_owned(), words));
    }
    all
}

/// A client that listens for its server, which runs without rsock and so never comes: in its place
/// `act` does, with the addresses of the two. The client stays on TCP, and every byte arrives.
/// `wait` is how the server reads.
fn in_a_servers_place(
    name: &'static str,
    trust: Trust,
    wait: &str,
    act: impl FnOnce(SocketAddr, SocketAddr),
) {
    if is_impostor() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin(name);
    let [server, client] = PORTS.map(|port| port.to_string());
    let ends = match guest.role {
        Role::A => {
            let mut plain = tools::require("python3").command();
            plain.stdout(Stdio::piped());
            let blocks = Blocks::serve(&guest, plain, &server, wait);
            guest.meet("listening");
            act((guest.ip(), PORTS[0]).into(), (guest.peer_ip(), PORTS[1]).into());
            guest.meet("refused");
            blocks.end(&guest)
        }
        Role::B => {
            let mut command = with_shim("python3", &config(name, trust));
            command.env("SOURCE_PORT", client);
            guest.meet("listening");
            let to = guest.peer_ip().to_string();
            let blocks = Blocks::start(command, &["send", &to, &server]);
            guest.meet("refused");
            assert!(!connections(&guest).iter().any(has_used_rdma));
            blocks.end(&guest)
        }
    };
    assert_all_arrived(&ends);
}

/// The client waits for room meanwhile: it makes no call, and answers.
#[test]
fn what_makes_no_sense_is_rejected_even_where_all_are_trusted() {
    let test = "what_makes_no_sense_is_rejected_even_where_all_are_trusted";
    in_a_servers_place("impostor-lies", Trust::Network, "late", |from, to| {
        run("ip addr add 10.9.0.3/24 dev eth0");
        let part = format!("lie {from} {to} 10.9.0.3:{}", PORTS[0]);
        let mut impostor = Impostor::start(test, &part);
        impostor.await_word("lied");
        impostor.end();
        run("ip addr del 10.9.0.3/24 dev eth0");
    });
}

#[test]
fn another_user_in_a_servers_place_is_not_believed() {
    let test = "another_user_in_a_servers_place_is_not_believed";
    in_a_servers_place("impostor-asks", KEY, "", |from, to| {
        let mut impostor = Impostor::start(test, &format!("ask {from} {to}"));
        impostor.await_word("rejected");
        impostor.end();
    });
}
