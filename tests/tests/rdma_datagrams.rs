//! Datagram sockets on an RDMA device: both ends on one host, where `RSOCK_DEVICE` leaves nothing
//! else, so each test runs in a process of its own with that set. `cargo xtask test` runs this in
//! the lab.

mod rdma_datagrams_c;
mod rdma_datagrams_hostile;
mod rdma_datagrams_incast;
mod rdma_datagrams_many;

use rsock_core::datagram::{Datagram, MessageFlags};
use rsock_core::rsocket::{PollEntry, Source, poll};
use rsock_tests::datagrams::{bound, ping_pong, recv, send, talk_past_udp, try_recv};
use rsock_tests::{OwnDevice, Running, Watchdog, assert_worked, await_udp_socket, c_library};
use rustix::event::PollFlags;
use std::env;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const ADDRESSES: [&str; 2] = ["10.9.0.1", "fd09::1"];

/// Runs `test`, called `name`, in a process that has RDMA devices only.
fn on_rdma(name: &str, test: impl FnOnce()) {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    if env::var_os("RSOCK_DEVICE").is_some_and(|device| device == "rdma") {
        return test();
    }
    let mut again = Command::new(env::current_exe().expect("this program"));
    again.args([name, "--exact", "--nocapture"]).env("RSOCK_DEVICE", "rdma");
    again.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let out = Running::spawn(&mut again).expect("it starts").output().expect("it ends");
    let said = assert_worked(name, &out);
    assert!(said.contains("1 passed"), "{name} was not run:\n{said}");
}

#[test]
fn the_first_datagram_arrives_and_the_conversation_moves_to_the_device() {
    on_rdma("the_first_datagram_arrives_and_the_conversation_moves_to_the_device", || {
        for ip in ADDRESSES {
            let ((a, at_a), (b, at_b)) = (bound(ip), bound(ip));
            send(&a, at_b, b"first");
            assert_eq!(recv(&b), (b"first".to_vec(), at_a));
            assert!(try_recv(&b).is_none(), "twice");
            assert_eq!((a.counters().n_by_udp, a.counters().remote.n_sent), (1, 0));
            assert_eq!(a.max_past_udp(at_b), None);
            talk_past_udp([(&a, at_a), (&b, at_b)]);
            assert_eq!(a.counters().local, b.counters().local);
        }
    });
}

/// What fits a packet of the device and a slot of the peer's, less the header, goes over the
/// device.
#[test]
fn datagrams_of_every_length_arrive_and_long_ones_go_by_udp() {
    on_rdma("datagrams_of_every_length_arrive_and_long_ones_go_by_udp", || {
        for ip in ADDRESSES {
            datagrams_of_every_length(ip, SLOT);
        }
        for (name, mtu, ip, most) in [
            ("short", 1500, "10.78.5.1", 1024),
            ("short6", 1500, "fd78:5::1", 1024),
            ("middle", 2300, "10.78.6.1", 2048),
            ("long6", 4200, "fd78:6::1", SLOT),
        ] {
            let _device = OwnDevice::with_mtu(name, ip.parse().expect("an address"), mtu);
            datagrams_of_every_length(ip, most);
        }
    });
}

/// WIRE: bytes of a peer's slots.
const SLOT: usize = 2048;

fn datagrams_of_every_length(ip: &str, longest: usize) {
    let ((a, at_a), (b, at_b)) = (bound(ip), bound(ip));
    talk_past_udp([(&a, at_a), (&b, at_b)]);
    let most = loop {
        if let Some(most) = a.max_past_udp(at_b) {
            break most;
        }
        talk_past_udp([(&a, at_a), (&b, at_b)]);
    };
    assert_eq!(most, longest - if at_a.is_ipv4() { 8 } else { 24 });
    for len in
        [0, 1, 47, 48, 49, 100, 999, most - 1, most, most + 1, SLOT, SLOT + 1, 4096, 9000, 60_000]
    {
        let before = a.counters();
        let sent: Vec<u8> = (0u8..251).cycle().take(len).collect();
        send(&a, at_b, &sent);
        assert_eq!(recv(&b), (sent, at_a));
        let after = a.counters();
        let went = (after.remote.n_sent - before.remote.n_sent, after.n_by_udp - before.n_by_udp);
        // Now and then one goes by UDP to ask whether the peer is still there.
        assert!(went == (0, 1) || len <= most && went == (1, 0), "{len}: {went:?}");
    }
    let header = if at_a.is_ipv4() { 16 } else { 28 };
    let most = 65_507 + usize::from(at_a.is_ipv6()) * 20 - header;
    let long = vec![7; most + 1];
    send(&a, at_b, &long[..most]);
    assert_eq!(recv(&b), (long[..most].to_vec(), at_a));
    let refused = a.send_to(&[IoSlice::new(&long)], Some(at_b), MessageFlags::empty());
    assert_eq!(refused.expect_err("too long").raw_os_error(), Some(libc::EMSGSIZE));
}

/// One waits in a receive, the other in a poll.
#[test]
fn sockets_that_sleep_wake_for_what_comes_either_way() {
    const ROUNDS: u32 = 1000;
    on_rdma("sockets_that_sleep_wake_for_what_comes_either_way", || {
        let ((a, at_a), (b, at_b)) = (bound(ADDRESSES[0]), bound(ADDRESSES[0]));
        ping_pong([(&a, at_a), (&b, at_b)], ROUNDS, || {
            let events = PollFlags::IN;
            let entry =
                PollEntry { source: Source::Datagram(&a), events, revents: PollFlags::empty() };
            assert_eq!(poll(&mut [entry], None, None).expect("poll"), 1);
            try_recv(&a).expect("it says so")
        });
        let (a, b) = (a.counters(), b.counters());
        assert_eq!(a.n_by_udp + a.remote.n_sent, ROUNDS.into());
        assert!(a.remote.n_sent > u64::from(ROUNDS) / 2, "{a:?}");
        assert_eq!((a.n_bad_packets, b.n_foreign, b.remote.n_malformed), (0, 0, 0));
    });
}

/// Two threads in receives of one socket: whichever wakes first, the other one wakes too.
#[test]
fn threads_that_share_a_socket_all_get_something() {
    const EACH: u32 = 300;
    on_rdma("threads_that_share_a_socket_all_get_something", || {
        let ((a, at_a), (b, at_b)) = (bound(ADDRESSES[0]), bound(ADDRESSES[0]));
        talk_past_udp([(&a, at_a), (&b, at_b)]);
        thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while recv(&b).0 != b"end" {
                        send(&b, at_a, b"taken");
                    }
                    send(&b, at_a, b"ended");
                });
            }
            for _ in 0..EACH {
                send(&a, at_b, b"one");
                send(&a, at_b, b"two");
                assert_eq!((recv(&a).0, recv(&a).0), (b"taken".to_vec(), b"taken".to_vec()));
            }
            for _ in 0..2 {
                send(&a, at_b, b"end");
                assert_eq!(recv(&a).0, b"ended");
            }
        });
    });
}

#[test]
fn a_peer_that_restarts_on_its_port_is_reached_again() {
    on_rdma("a_peer_that_restarts_on_its_port_is_reached_again", || {
        let (a, at_a) = bound(ADDRESSES[0]);
        let (b, at_b) = bound(ADDRESSES[0]);
        talk_past_udp([(&a, at_a), (&b, at_b)]);
        drop(b);
        for _ in 0..2 {
            let b = Datagram::bound(at_b).expect("the port is free");
            // What goes to the old queue is lost, until one that goes by UDP asks.
            while try_recv(&b).is_none() {
                send(&a, at_b, b"still there?");
                thread::yield_now();
            }
            while try_recv(&b).is_some() {}
            // By then it knows the new queue.
            let before = b.counters().remote.n_received;
            while b.counters().remote.n_received == before {
                send(&a, at_b, b"there you are");
                while try_recv(&b).is_some() {}
            }
            while try_recv(&a).is_some() {}
        }
    });
}

/// What is lost is not known; what arrives is in order, and once.
#[test]
fn a_fast_sender_waits_for_its_device_alone() {
    const N: u32 = 20_000;
    on_rdma("a_fast_sender_waits_for_its_device_alone", || {
        let ((a, at_a), (b, at_b)) = (bound(ADDRESSES[0]), bound(ADDRESSES[0]));
        talk_past_udp([(&a, at_a), (&b, at_b)]);
        let before = [a.counters(), b.counters()];
        let is_over = AtomicBool::new(false);
        thread::scope(|s| {
            s.spawn(|| {
                for i in 0..N {
                    send(&a, at_b, &[&i.to_ne_bytes()[..], &[0; 500]].concat());
                }
                while !is_over.load(Ordering::Relaxed) {
                    send(&a, at_b, b"end");
                }
            });
            let mut seen = std::collections::HashSet::new();
            loop {
                let bytes = recv(&b).0;
                if bytes == b"end" {
                    break is_over.store(true, Ordering::Relaxed);
                }
                let i = u32::from_ne_bytes(bytes[..4].try_into().expect("number"));
                assert!(seen.insert(i), "{i} twice");
            }
            assert!(seen.len() > 100, "{}", seen.len());
        });
        while try_recv(&b).is_some() {}
        let (sent, got) = (a.counters(), b.counters());
        assert!(sent.remote.n_sent - before[0].remote.n_sent > u64::from(N) / 2, "{sent:?}");
        let n_sent = sent.remote.n_sent + sent.n_by_udp;
        assert!(got.remote.n_received + got.n_received_by_udp <= n_sent);
        assert!(got.remote.n_received > before[1].remote.n_received);
    });
}

/// What has come for a sender, and is not taken, must not hide from it what its device has sent.
#[test]
fn a_sender_with_unread_input_goes_on_over_its_device() {
    const N: u64 = 2000;
    on_rdma("a_sender_with_unread_input_goes_on_over_its_device", || {
        let ((a, at_a), (b, at_b)) = (bound(ADDRESSES[0]), bound(ADDRESSES[0]));
        talk_past_udp([(&a, at_a), (&b, at_b)]);
        for _ in 0..40 {
            send(&b, at_a, b"unread");
        }
        let before = a.counters();
        for _ in 0..N {
            send(&a, at_b, &[7; 100]);
        }
        let after = a.counters();
        let went = (after.remote.n_sent - before.remote.n_sent, after.n_by_udp - before.n_by_udp);
        // One in a second goes by UDP and asks whether the peer is still there.
        assert!(went.0 + went.1 == N && went.0 > N / 10 * 9, "{went:?}");
        assert_eq!(recv(&a), (b"unread".to_vec(), at_b));
    });
}

/// A socket that is bound to no address talks over the device from the one that leads to its peer.
#[test]
fn a_wildcard_socket_of_either_family_has_the_right_source() {
    on_rdma("a_wildcard_socket_of_either_family_has_the_right_source", || {
        for (any, ip) in [("0.0.0.0", ADDRESSES[0]), ("::", ADDRESSES[0]), ("::", ADDRESSES[1])] {
            let (a, at_any) = bound(any);
            let (b, at_b) = bound(ip);
            let at_a = SocketAddr::new(b.local_addr().expect("address").ip(), at_any.port());
            let seen = |at: SocketAddr| match at.ip() {
                IpAddr::V4(ip) if at_any.is_ipv6() => {
                    SocketAddr::new(ip.to_ipv6_mapped().into(), at.port())
                }
                _ => at,
            };
            while a.counters().remote.n_sent == 0 || b.counters().remote.n_sent == 0 {
                send(&a, seen(at_b), b"from any");
                assert_eq!(recv(&b), (b"from any".to_vec(), at_a));
                send(&b, at_a, b"back");
                assert_eq!(recv(&a), (b"back".to_vec(), seen(at_b)));
            }
        }
    });
}

/// The queue is the parent's alone: the child has UDP, and does no harm.
#[test]
fn a_forked_child_uses_udp_and_leaves_the_queue_alone() {
    on_rdma("a_forked_child_uses_udp_and_leaves_the_queue_alone", || {
        let ((a, at_a), (b, at_b)) = (bound(ADDRESSES[0]), bound(ADDRESSES[0]));
        talk_past_udp([(&a, at_a), (&b, at_b)]);
        let by_udp = b.counters().n_received_by_udp;
        // SAFETY: the child makes calls of ours, which take no lock that another thread of this
        // test's process has: the test is its only user.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let sent =
                a.send_to(&[IoSlice::new(b"from the child")], Some(at_b), MessageFlags::empty());
            drop(a);
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(sent.is_err())) };
        }
        assert!(child > 0, "fork");
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(recv(&b), (b"from the child".to_vec(), at_a));
        assert_eq!(b.counters().n_received_by_udp, by_udp + 1);
        talk_past_udp([(&a, at_a), (&b, at_b)]);
    });
}

/// `udpong` with `library`, on RDMA devices only.
fn udpong(library: Option<&Path>, args: &[&str]) -> Running {
    let mut command = Command::new("udpong");
    if let Some(library) = library {
        command.env("LD_PRELOAD", library).env("RSOCK_DEVICE", "rdma");
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::spawn(&mut command).expect("udpong starts")
}

/// On a device of their own: what it counts is theirs alone.
#[test]
fn udpong_plays_over_the_device_in_every_way_of_waiting() {
    let _watchdog = Watchdog::new(Duration::from_secs(200));
    let ip = "10.78.1.1";
    let library = c_library();
    let device = OwnDevice::new("pong", ip.parse().expect("an address"));
    for mode in [&[][..], &["-T", "b"], &["-T", "a"], &["-T", "n"]] {
        for (size, count) in [("64", 300), ("1400", 100)] {
            let port = rsock_tests::free_port(ip.parse().expect("an address")).to_string();
            let args = [&["-p", port.as_str()], mode].concat();
            let mut server = udpong(Some(&library), &[&args[..], &["-b", ip]].concat());
            await_udp_socket(port.parse().expect("a port"), &mut server);
            let before = device.received();
            let count_arg = count.to_string();
            let client = ["-s", ip, "-S", size, "-C", count_arg.as_str()];
            let client = udpong(Some(&library), &[&args[..], &client].concat());
            let out = client.output().expect("the client ends");
            let said = assert_worked(&format!("udpong {mode:?} {size}"), &out);
            assert!(said.lines().count() >= 2, "no result in\n{said}");
            // There and back, but for those before both knew each other and one now and then.
            let over_device = device.received() - before;
            assert!(over_device > count, "{over_device} of {} messages, {mode:?}", 2 * count);
        }
    }
}

/// Without our library: as far as its first packet it never gets.
#[test]
fn udpong_of_c_fails_on_such_a_device() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    let ip = ADDRESSES[0];
    let port = rsock_tests::free_port(ip.parse().expect("an address")).to_string();
    let mut server = udpong(None, &["-p", &port, "-b", ip]);
    await_udp_socket(port.parse().expect("a port"), &mut server);
    let out = udpong(None, &["-p", &port, "-s", ip, "-S", "64", "-C", "10"]).output();
    let out = out.expect("the client ends");
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(!out.status.success(), "{said}");
    assert!(server.try_wait().expect("its state").is_none(), "no client reached the server");
}

/// Runs until `done`, at most as long as the watchdog waits.
fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(100), "never");
        thread::yield_now();
    }
}
