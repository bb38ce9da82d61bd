//! The device suite on real verbs: two ends on one device, over its own address. `cargo xtask test`
//! runs this in the lab.

use rsock_verbs::conformance::{Endpoint, Fixture, Watchdog};
use rsock_verbs::rdma::{Rdma, RdmaContext};
use rsock_verbs::{Arrived, Context, DatagramBackend, DatagramQueue, Error, Gid, Posted, QKey};
use std::io::IoSlice;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The lab's device, reached over one of the lab's addresses, in packets of at most so many bytes.
struct Loopback {
    over: &'static str,
    mtu: u32,
}

const OVER_IPV4: Loopback = Loopback { over: "10.9.0.1", mtu: 4096 };

fn open() -> RdmaContext {
    let name = std::env::var("LAB_DEVICE").expect("the lab names its device");
    RdmaContext::open(Some(&name)).expect("device")
}

fn gid(addr: &str) -> Gid {
    Gid::from(addr.parse::<IpAddr>().expect("address"))
}

impl Fixture for Loopback {
    type Backend = Rdma;
    fn endpoints(&self) -> [Endpoint<Rdma>; 2] {
        let ctx = open();
        let own = ctx.find_gid(gid(self.over)).expect("the lab's address");
        let path = ctx.path(&own, own.gid).expect("path").with_mtu(self.mtu);
        assert_eq!(path.mtu(), Some(self.mtu));
        [Endpoint { ctx: ctx.clone(), path: path.clone() }, Endpoint { ctx, path }]
    }
}

rsock_verbs::conformance_tests!(OVER_IPV4);

/// Datagrams, over each of the two families.
mod datagrams {
    use super::OVER_IPV4;

    rsock_verbs::conformance_tests!(@datagrams OVER_IPV4);
}

mod datagrams_over_ipv6 {
    use super::{Loopback, OVER_IPV4};

    rsock_verbs::conformance_tests!(@datagrams Loopback { over: "fd09::1", ..OVER_IPV4 });
}

#[test]
fn a_datagram_names_its_source() {
    let _dog = Watchdog::new("source");
    for over in ["10.9.0.1", "fd09::1"] {
        let [a, b] = Loopback { over, ..OVER_IPV4 }.endpoints();
        let (from, to) =
            (Rdma::create_datagrams(&a.ctx, QKey(5)), Rdma::create_datagrams(&b.ctx, QKey(5)));
        let (from, to) = (from.expect("queue"), to.expect("queue"));
        let way = from.destination(&a.path, to.qp_num(), QKey(5)).expect("destination");
        assert_eq!(from.post(&way, &[IoSlice::new(b"hello")]), Ok(Posted::Out));
        let mut source = None;
        let mut take = |arrived: &dyn Arrived| source = arrived.source();
        while !to.try_recv(&mut take) {
            to.park_since(to.wake_epoch(), Some(Duration::from_secs(1)));
        }
        assert_eq!(source, Some(over.parse().expect("address")));
    }
}

/// A handle is replaced every second; no datagram is lost by that.
#[test]
fn datagrams_go_on_while_their_address_handle_is_renewed() {
    let _dog = Watchdog::new("handles");
    let [a, b] = OVER_IPV4.endpoints();
    let to = Rdma::create_datagrams(&b.ctx, QKey(5)).expect("queue");
    let from = Rdma::create_datagrams(&a.ctx, QKey(5)).expect("queue");
    let start = Instant::now();
    let mut n = 0u32;
    while start.elapsed() < Duration::from_millis(3500) {
        let way = from.destination(&a.path, to.qp_num(), QKey(5)).expect("destination");
        let posted = from.post(&way, &[IoSlice::new(&n.to_ne_bytes())]);
        // Only the queue has the handle while this is sent.
        drop(way);
        assert_eq!(posted, Ok(Posted::Out));
        let mut got = [0; 4];
        while !to.try_recv(&mut |arrived: &dyn Arrived| arrived.copy_out(0, &mut got)) {
            to.park_since(to.wake_epoch(), Some(Duration::from_secs(1)));
        }
        assert_eq!(got, n.to_ne_bytes());
        from.sweep();
        n += 1;
    }
    assert_eq!((from.counters().n_sent, to.counters().n_received), (n.into(), n.into()));
}

#[test]
fn a_device_is_found_by_name_and_reports_its_capabilities() {
    let ctx = open();
    assert!(RdmaContext::device_names().iter().any(|name| name == ctx.name()));
    let attr = ctx.attr();
    assert!(attr.max_qp_wr >= 384 && attr.max_cqe >= 768);
    assert!(matches!(RdmaContext::open(Some("no-such-device")), Err(Error::NoDevice)));
}

#[test]
fn payloads_are_cut_into_packets_that_the_path_carries() {
    rsock_verbs::conformance::sends_of_any_length_arrive(&Loopback { mtu: 256, ..OVER_IPV4 });
}

#[test]
fn addresses_of_both_families_lead_to_the_device() {
    rsock_verbs::conformance::receives_complete_in_order(&Loopback {
        over: "fd09::1",
        ..OVER_IPV4
    });
    let ctx = open();
    let own = ctx.find_gid(gid("10.9.0.1")).expect("the lab's address");
    assert!(own.is_roce_v2 && own.port == 1);
    assert!(matches!(ctx.find_gid(gid("192.0.2.1")), Err(Error::NoDevice)));
}

/// On a host without a device, and also where rdma-core is not installed.
#[test]
fn a_device_that_is_not_there_is_an_error() {
    let error = RdmaContext::open(Some("no-such-device")).expect_err("no device");
    assert!(matches!(error, Error::NoDevice));
    assert_eq!(std::io::Error::from(error).raw_os_error(), Some(libc::ENODEV));
}
