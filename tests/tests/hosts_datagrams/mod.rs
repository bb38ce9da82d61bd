//! Datagrams between two hosts: UDP first, then RDMA, whatever becomes of the peer.

use super::*;
use rsock_core::dgram::Datagram;
use std::collections::HashSet;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;

fn bound(ip: IpAddr, port: u16) -> Datagram {
    let socket = Datagram::bound(SocketAddr::new(ip, port)).expect("socket");
    // An answer may be lost: nobody waits for one without end.
    socket.set_recv_timeout(Some(Duration::from_millis(200))).expect("option");
    socket
}

fn send(from: &Datagram, to: SocketAddr, bytes: &[u8]) {
    let sent = from.send_to(&[IoSlice::new(bytes)], Some(to), false).expect("sent");
    assert_eq!(sent, bytes.len());
}

fn recv(at: &Datagram) -> Option<(Vec<u8>, SocketAddr)> {
    let mut buf = [0; 4096];
    match at.recv_from(&mut [IoSliceMut::new(&mut buf)], false, false) {
        Ok(received) => Some((buf[..received.len].to_vec(), received.from)),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => None,
        Err(e) => panic!("{e}"),
    }
}

/// Answers everything with the same, until it is told that it is over.
fn echo(at: &Datagram) {
    loop {
        match recv(at) {
            Some((bytes, from)) => {
                send(at, from, &bytes);
                if bytes == b"over" {
                    return;
                }
            }
            None => thread::yield_now(),
        }
    }
}

/// Asks until there is an answer to this very question.
fn ask(from: &Datagram, to: SocketAddr, question: &[u8]) {
    loop {
        send(from, to, question);
        while let Some((bytes, source)) = recv(from) {
            assert_eq!(source, to);
            if bytes == question {
                return;
            }
        }
    }
}

/// Asks until questions and answers go over the device.
fn ask_until_over_rdma(from: &Datagram, to: SocketAddr) {
    let before = from.counters().far;
    for i in 0u32.. {
        ask(from, to, &i.to_ne_bytes());
        let after = from.counters().far;
        if after.n_sent > before.n_sent && after.n_received > before.n_received {
            return;
        }
    }
}

/// Tells the other end that it is over.
fn end(from: &Datagram, to: SocketAddr) {
    // Each may be lost; so may the answer, and then nobody is there any more to give another.
    for _ in 0..20 {
        send(from, to, b"over");
        while let Some((bytes, _)) = recv(from) {
            if bytes == b"over" {
                return;
            }
        }
    }
}

/// The other host's address of the same family as `ip` is.
fn second(ip: IpAddr, v6: bool) -> IpAddr {
    let IpAddr::V4(ip) = ip else { panic!("the lab's addresses") };
    if v6 { format!("fd09::{}", ip.octets()[3]).parse().expect("address") } else { ip.into() }
}

#[test]
fn the_first_datagram_arrives_and_those_after_it_go_over_the_device() {
    const PORT: u16 = 7601;
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let guest = Guest::begin("datagrams-first");
    for v6 in [false, true] {
        let (own, peer) = (second(guest.ip(), v6), second(guest.peer_ip(), v6));
        let socket = bound(own, PORT);
        let to = SocketAddr::new(peer, PORT);
        guest.meet(&format!("bound-{v6}"));
        if guest.role == Role::A {
            let first = loop {
                if let Some(first) = recv(&socket) {
                    break first;
                }
            };
            assert_eq!(first, (b"first".to_vec(), to));
            assert!(socket.counters().n_received_by_udp >= 1);
            echo(&socket);
        } else {
            send(&socket, to, b"first");
            assert_eq!((socket.counters().n_by_udp, socket.counters().far.n_sent), (1, 0));
            ask_until_over_rdma(&socket, to);
            for len in [0, 1, 48, 49, 1400, 2000] {
                ask(&socket, to, &vec![9; len]);
            }
            end(&socket, to);
        }
        guest.meet(&format!("done-{v6}"));
        let counters = socket.counters();
        assert!(counters.far.n_sent > 0 && counters.far.n_received > 0, "{counters:?}");
        assert_eq!((counters.local.n_sent, counters.n_bad_packets, counters.n_foreign), (0, 0, 0));
    }
}

/// What arrives arrives once.
#[test]
fn a_stream_of_datagrams_arrives_once_each_and_losses_are_what_is_missing() {
    const PORT: u16 = 7602;
    const N: u32 = 5000;
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let guest = Guest::begin("datagrams-stream");
    let socket = bound(guest.ip(), PORT);
    let to = SocketAddr::new(guest.peer_ip(), PORT);
    guest.meet("bound");
    if guest.role == Role::A {
        let mut seen = HashSet::new();
        loop {
            let Some((bytes, from)) = recv(&socket) else { continue };
            if bytes == b"over" {
                break send(&socket, from, &bytes);
            }
            if let Ok(number) = <[u8; 100]>::try_from(&bytes[..]) {
                let number = u32::from_ne_bytes([number[0], number[1], number[2], number[3]]);
                assert!(seen.insert(number), "{number} twice");
            } else {
                send(&socket, from, &bytes);
            }
        }
        assert!(seen.len() > 100, "{}", seen.len());
        guest.give(&seen.len().to_string());
        guest.meet("counted");
    } else {
        ask_until_over_rdma(&socket, to);
        let before = socket.counters();
        for i in 0..N {
            let mut bytes = [0; 100];
            bytes[..4].copy_from_slice(&i.to_ne_bytes());
            send(&socket, to, &bytes);
        }
        let after = socket.counters();
        let sent = after.far.n_sent - before.far.n_sent + after.n_by_udp - before.n_by_udp;
        assert_eq!(sent, N.into());
        end(&socket, to);
        guest.meet("counted");
        let received: u64 = guest.take().parse().expect("a number");
        println!("sent {sent}, received {received}, lost {}", sent - received);
    }
}

#[test]
fn a_peer_that_restarts_on_its_port_with_another_queue_is_reached_again() {
    const PORT: u16 = 7603;
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let guest = Guest::begin("datagrams-restart");
    let mut socket = bound(guest.ip(), PORT);
    let to = SocketAddr::new(guest.peer_ip(), PORT);
    for life in 0..3 {
        guest.meet(&format!("life-{life}"));
        if guest.role == Role::A {
            echo(&socket);
            // Nothing of it is left, and the next one has a queue of its own.
            drop(socket);
            socket = bound(guest.ip(), PORT);
        } else {
            ask_until_over_rdma(&socket, to);
            end(&socket, to);
        }
    }
    guest.meet("done");
}

/// The address goes from one of the peer's devices to another, whose queues may have the same numbers.
#[test]
fn a_peer_whose_address_moves_to_another_device_is_reached_again() {
    const PORT: u16 = 7604;
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let guest = Guest::begin("datagrams-move");
    let run = |line: &str| {
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().expect("program"));
        assert!(command.args(words).status().expect("run").success(), "{line}");
    };
    let moving: IpAddr = [10, 9, 0, 77].into();
    if guest.role == Role::A {
        run("ip link add link eth0 name second0 type macvlan mode bridge");
        run("ip link set second0 up");
        run("rdma link add rxe_second type rxe netdev second0");
        run("ip addr add 10.9.0.77/24 dev eth0");
        let socket = bound(moving, PORT);
        guest.meet("bound");
        echo(&socket);
        // The socket stays as it is; what it is bound to is elsewhere.
        run("ip addr del 10.9.0.77/24 dev eth0");
        run("ip addr add 10.9.0.77/32 dev second0");
        // Both devices are on the same network, and either would answer for the other one.
        fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1").expect("its setting");
        run("ip route add 10.9.0.2/32 dev second0 src 10.9.0.77 table 77");
        run("ip rule add from 10.9.0.77 lookup 77");
        guest.meet("moved");
        echo(&socket);
        let received = "/sys/class/infiniband/rxe_second/ports/1/hw_counters/rcvd_pkts";
        let received = fs::read_to_string(received).expect("the device's counters");
        assert_ne!(received.trim(), "0", "nothing over the other device");
        drop(socket);
        run("ip rule del from 10.9.0.77 lookup 77");
        fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "0").expect("its setting");
        run("rdma link del rxe_second");
        run("ip link del second0");
    } else {
        let socket = bound(guest.ip(), PORT);
        let to = SocketAddr::new(moving, PORT);
        guest.meet("bound");
        ask_until_over_rdma(&socket, to);
        end(&socket, to);
        guest.meet("moved");
        // Whoever had it may still be remembered.
        run("ip neigh flush to 10.9.0.77");
        ask_until_over_rdma(&socket, to);
        end(&socket, to);
    }
    guest.meet("done");
}

/// Unmodified `udpong`, whose own rsockets do not connect on such devices: guest b's client, guest a's server.
#[test]
fn udpong_plays_between_hosts() {
    const PORT: u16 = 7605;
    let _watchdog = Watchdog::new(Duration::from_secs(200));
    let guest = Guest::begin("udpong");
    let port = PORT.to_string();
    let start = |args: &[&str]| {
        let mut command = Command::new("udpong");
        command.env("LD_PRELOAD", c_library()).args(["-p", port.as_str()]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::spawn(&mut command).expect("udpong starts")
    };
    for (i, mode) in [&[][..], &["-T", "b"], &["-T", "a"], &["-T", "n"]].into_iter().enumerate() {
        let server = (guest.role == Role::A).then(|| {
            let ip = guest.ip().to_string();
            let mut server = start(&[mode, &["-b", ip.as_str()]].concat());
            await_udp_socket(PORT, &mut server);
            server
        });
        guest.meet(&format!("listening-{i}"));
        if guest.role == Role::B {
            let ip = guest.peer_ip().to_string();
            for size in [["-S", "64", "-C", "300"], ["-S", "1400", "-C", "100"]] {
                let out = start(&[mode, &["-s", ip.as_str()], &size[..]].concat());
                let out = out.output().expect("the client ends");
                let said = assert_worked(&format!("udpong {mode:?} {size:?}"), &out);
                assert!(said.lines().count() >= 2, "no result in\n{said}");
                println!("{said}");
            }
        }
        guest.meet(&format!("done-{i}"));
        drop(server);
    }
}
