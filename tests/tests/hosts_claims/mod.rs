//! Another user of a host who claims a connection between two hosts: nothing on the fabric says who
//! speaks, so what refuses him is that he lacks the hosts' key.
//!
//! He is a thread of the test with another user's rights. He knows the connection's numbers and the
//! words on the wire, and answers with a code that he has seen.

use super::{
    Blocks, Trust, assert_all_arrived, await_connection, config, connections, has_used_rdma,
    with_shim,
};
use rsock_cm::manager::{Connecting as _, Listening as _};
use rsock_cm::rdma::{Connecting, Event, Listener, Progress};
use rsock_core::twin::PinReason;
use rsock_tests::hosts::{Guest, Role};
use rsock_tests::{Watchdog, tools};
use rsock_verbs::QpNum;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const KEY: Trust = Trust::Key("a key that the impostor has not");
/// The server's port, and the client's.
const PORTS: [u16; 2] = [7501, 7502];
/// A queue pair that the impostor says is his.
const QP: QpNum = QpNum(77);
/// Where the private data has the port of who speaks, the version and the code.
const AT_PORT: usize = 40;
const AT_VERSION: usize = 42;
const AT_CODE: usize = 44;

/// Takes another user's rights, who has nothing to do with either program, for the calling thread.
fn become_another_user() {
    let (user, group) = (Uid::from_raw(65534), Gid::from_raw(65534));
    set_thread_res_gid(group, group, group).expect("another group");
    set_thread_res_uid(user, user, user).expect("another user");
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
                // The asker's own proof, with the port of who should have been asked.
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
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin("impostor-answers");
    let python = || with_shim("python3", &config("impostor-answers", KEY));
    let [server, client] = PORTS.map(|port| port.to_string());
    let ends = match guest.role {
        Role::A => {
            let blocks = Blocks::serve(&guest, python(), &server, "");
            guest.meet("listening");
            await_connection(&guest, |c| c.pin == Some(PinReason::Untrusted));
            guest.meet("refused");
            blocks.end(&guest)
        }
        Role::B => thread::scope(|scope| {
            let at = SocketAddr::new(guest.ip(), PORTS[1]);
            let (listens, is_listening) = channel();
            let impostor = scope.spawn(move || {
                become_another_user();
                // Before the client, who will find its place on the device taken.
                let mut listener = Listener::at(at, 1).expect("anybody may listen");
                listens.send(()).expect("the test waits");
                answer_one(&mut listener, at.port());
                listener
            });
            is_listening.recv().expect("the impostor listens");
            guest.meet("listening");
            let mut command = python();
            command.env("SOURCE_PORT", client);
            let to = guest.peer_ip().to_string();
            let blocks = Blocks::start(command, &["send", &to, &server]);
            let listener = impostor.join().expect("the impostor's end");
            guest.meet("refused");
            drop(listener);
            blocks.end(&guest)
        }),
    };
    assert_all_arrived(&ends);
}

/// Asks the owner of `to` as if from `from`, until a listener has answered; whether it said no.
fn is_rejected(from: SocketAddr, to: SocketAddr) -> bool {
    loop {
        let now = Instant::now();
        let connecting = Connecting::from(from.ip(), to, now, now + Duration::from_secs(60));
        let mut connecting = connecting.expect("a connect begins");
        loop {
            match connecting.progress(Instant::now()) {
                Ok(Progress::Pending) => sleep_on(&connecting),
                Ok(Progress::Path(..)) => {
                    connecting.send_request(QP, &words(from.port())).expect("a request");
                }
                Ok(Progress::Accepted(_)) => return false,
                Ok(Progress::Rejected(_)) => return true,
                // Nobody listens there yet.
                Err(rsock_cm::Error::Refused) => break,
                Err(e) => panic!("{e}"),
            }
        }
    }
}

/// What somebody with the key would say, but for the code.
fn words(port: u16) -> [u8; 56] {
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
    words[AT_VERSION..AT_CODE].copy_from_slice(&1_u16.to_be_bytes());
    words
}

#[test]
fn another_user_who_comes_in_a_servers_place_is_not_believed() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin("impostor-asks");
    let [server, client] = PORTS.map(|port| port.to_string());
    let ends = match guest.role {
        Role::A => {
            // A server without rsock, so the client's listener waits for somebody.
            let mut plain = tools::require("python3").command();
            plain.stdout(Stdio::piped());
            let blocks = Blocks::serve(&guest, plain, &server, "");
            guest.meet("listening");
            let [from, to] =
                [(guest.ip(), PORTS[0]), (guest.peer_ip(), PORTS[1])].map(SocketAddr::from);
            let rejected = thread::spawn(move || {
                become_another_user();
                is_rejected(from, to)
            });
            assert!(rejected.join().expect("the impostor's end"), "the client took a stranger");
            guest.meet("refused");
            blocks.end(&guest)
        }
        Role::B => {
            let mut command = with_shim("python3", &config("impostor-asks", KEY));
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
