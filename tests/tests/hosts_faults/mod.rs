//! The way between two hosts breaks while a connection uses it: an error or a continuation on TCP,
//! never a hang, never a wrong byte.
//!
//! Every test leaves the device as it found it.

use super::{Trust, await_connection, begin_transfer, connections, is_over_rdma, transfer};
use rsock_core::metrics::{StreamMetrics, Transport};
use rsock_tests::hosts::{Guest, Role};
use rsock_tests::{Running, Watchdog, run};
use std::cell::Cell;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Either the stream survived, whole, or an end says that it did not. Never less than was sent,
/// with a clean end.
fn assert_nothing_lost_unsaid([received, sent]: &[String; 2]) {
    if received.ends_with(" end") || sent.ends_with(" end") {
        assert_eq!(received, sent);
    }
}

pub(super) fn start(command: &str) -> Running {
    let mut words = command.split_whitespace();
    let mut run = Command::new(words.next().expect("a program"));
    Running::spawn(run.args(words)).expect("it starts")
}

pub(super) const REMOVE: &str = "rdma link del rxe0";

pub(super) fn bring_device_back() {
    run("rdma link add rxe0 type rxe netdev eth0");
}

/// Undoes what `ip link set eth0 down` does. The IPv6 address goes with it; and the kernel's soft
/// RoCE (seen in Linux 6.1) may answer no connection request any more, to any program, if one was
/// to be sent meanwhile: the queue pair for those fails, and nothing mends it.
fn bring_wire_back(guest: &Guest) {
    run("ip link set eth0 up");
    let last = if guest.role == Role::A { 1 } else { 2 };
    run(&format!("ip addr replace fd09::{last}/64 dev eth0 nodad"));
}

fn renew_device() {
    run(REMOVE);
    bring_device_back();
}

/// The device goes once no process uses it any more, so a stream that uses it must let go of it, or
/// end.
fn remove_device_in_mid_transfer(name: &'static str, how: &str, client: &str) {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin(name);
    let removing = Cell::new(None);
    let ends = transfer(&guest, Trust::Network, how, client, |guest| {
        is_over_rdma(guest);
        if guest.role == Role::B {
            removing.set(Some(start(REMOVE)));
        }
    });
    assert_nothing_lost_unsaid(&ends);
    if let Some(removing) = removing.take() {
        assert!(removing.wait().expect("its end").success());
        bring_device_back();
    }
    guest.meet("device is back");
}

#[test]
fn the_device_is_removed_in_mid_transfer() {
    remove_device_in_mid_transfer("removed", "", "send");
}

#[test]
fn the_device_is_removed_while_both_ends_wait_in_epoll() {
    remove_device_in_mid_transfer("removed-epoll", "epoll", "epoll-send");
}

fn take_wire_down_in_mid_transfer(name: &'static str, how: &str, client: &str) {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin(name);
    let ends = transfer(&guest, Trust::Network, how, client, |guest| {
        is_over_rdma(guest);
        if guest.role == Role::B {
            run("ip link set eth0 down");
            thread::park_timeout(Duration::from_secs(4));
            bring_wire_back(guest);
        }
    });
    assert_nothing_lost_unsaid(&ends);
    if guest.role == Role::B {
        renew_device();
    }
    guest.meet("device is back");
}

#[test]
fn the_wire_goes_down_in_mid_transfer() {
    take_wire_down_in_mid_transfer("down", "", "send");
}

#[test]
fn the_wire_goes_down_while_both_ends_wait_in_epoll() {
    take_wire_down_in_mid_transfer("down-epoll", "epoll", "epoll-send");
}

/// Drops whatever this guest sends from now on. Without an interface that goes down or an address
/// that is asked for in vain: what waits for either may outlive a queue pair, which the kernel's
/// soft RoCE (seen in Linux 6.1) does not survive.
fn fall_silent(guest: &Guest) {
    let last = if guest.role == Role::A { 2 } else { 1 };
    let neighbour = format!("10.9.0.{last} lladdr 52:54:00:00:09:0{last}");
    run(&format!("ip neigh replace {neighbour} dev eth0 nud permanent"));
    run("tc qdisc replace dev eth0 root netem loss 100%");
}

fn speak_again() {
    run("tc qdisc del dev eth0 root");
}

/// Both guests fall silent, at a moment when guest b sends over RDMA.
///
/// A receiver that falls behind, as on a busy host, leaves the ring full, and its sender uses TCP
/// meanwhile: there a silent peer is an error after a quarter of an hour only. A sender on the ring
/// does not go to TCP any more, because the peer's device would have to confirm what was sent.
fn fall_silent_while_rdma_is_used(guest: &Guest) {
    let sends_on_rdma = |c: &StreamMetrics| c.tx_transport == Some(Transport::Rdma);
    for round in 0.. {
        if guest.role == Role::B {
            await_connection(guest, sends_on_rdma);
        }
        guest.meet(&format!("over rdma, {round}"));
        fall_silent(guest);
        guest.meet(&format!("silent, {round}"));
        let mut is_on_rdma = connections(guest).iter().any(sends_on_rdma);
        guest.give(&is_on_rdma.to_string());
        guest.meet(&format!("seen, {round}"));
        if guest.role == Role::A {
            is_on_rdma = guest.take() == "true";
        }
        if is_on_rdma {
            return;
        }
        speak_again();
        guest.meet(&format!("not silent, {round}"));
    }
}

/// As when the host is powered off: it sends nothing any more.
fn silence_is_an_error(name: &'static str, how: &str, client: &str) {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin(name);
    let blocks = begin_transfer(&guest, Trust::Network, how, client);
    fall_silent_while_rdma_is_used(&guest);
    if guest.role == Role::B {
        let sent = blocks.outcome();
        assert!(!sent.ends_with(" end"), "{sent}");
        guest.meet("noticed");
        speak_again();
    } else {
        guest.meet("noticed");
        speak_again();
        // The sender's host resets as soon as its packets arrive.
        let received = blocks.outcome();
        assert!(!received.ends_with(" end"), "{received}");
    }
    guest.meet("over");
}

#[test]
fn a_receiver_that_falls_silent_is_an_error_to_the_sender() {
    silence_is_an_error("silent", "", "trickle");
}

#[test]
fn a_receiver_that_falls_silent_is_an_error_to_a_sender_that_waits_in_epoll() {
    silence_is_an_error("silent-epoll", "epoll", "epoll-trickle");
}
