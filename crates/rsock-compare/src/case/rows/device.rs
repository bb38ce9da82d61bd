//! Rows on an RDMA device, where C's rsockets are the base.

use super::netperf;
use crate::case::{Case, Library, Need, Netperf, Place, STREAM_SIZES, Side, Unit, Work, size_name};

pub(super) fn all() -> Vec<Case> {
    let mut cases = in_place_of_librdmacm();
    cases.extend(under_preload_library());
    cases
}

/// A row with bare verbs as the limit. Both sides run the same unmodified programs, netperf through
/// librdmacm's own preload library.
fn case(id: &str, label: &str, unit: Unit, work: Work, need: Need) -> Case {
    Case {
        is_also_pinned: false,
        work,
        sides: &[Side::C, Side::Rsock, Side::Limit],
        base: Side::C,
        library: Library::Rsocket,
        settings: &[("RSOCK_DEVICE", "rdma")],
        need,
        ..Case::new(id, label, unit, Place::Free)
    }
}

/// Rows about `librsock.so` in the place of librdmacm.
fn in_place_of_librdmacm() -> Vec<Case> {
    // Samples of C differ by a factor of two: C spins for 10 us, and an answer arrives within that
    // or does not.
    let round_trips = |id: &str, label: &str, work| Case {
        n_times: 3,
        ..case(
            id,
            label,
            Unit::PerSecond,
            work,
            Need::RatioAndPartOfLimit { least: 2.0, part: 0.6, aim: 4.0 },
        )
    };
    let mut cases = vec![
        round_trips("rdma.rr", "netperf TCP_RR 1 B", netperf(Netperf::Rr, 1)),
        round_trips("rdma.rstream.rr", "rstream 1 B, blocking", Work::RstreamRr),
        // Not the limit that the rows above are judged by: `ib_write_lat` takes no receive.
        Case {
            n_times: 3,
            sides: &[Side::Limit],
            ..case(
                "rdma.send.rr",
                "ib_send_lat 1 B",
                Unit::PerSecond,
                Work::VerbsSendRr,
                Need::Nothing,
            )
        },
    ];
    for size in STREAM_SIZES {
        let name = size_name(size);
        let need = match size {
            0x1_0000 => Need::RatioAndPartOfLimit { least: 1.0, part: 0.85, aim: 1.3 },
            _ => Need::RatioAtLeast { least: 1.0, aim: 1.3 },
        };
        let work = netperf(Netperf::Stream(size), 1);
        let (id, label) = (format!("rdma.stream.{name}"), format!("netperf TCP_STREAM {name}"));
        cases.push(Case {
            // Single samples spread by 5 %, and the promise about the quotient of the two largest
            // is closer than that.
            n_times: if size >= 0x1_0000 { 3 } else { 1 },
            ..case(&id, &label, Unit::GbitPerSecond, work, need)
        });
    }
    let cliff = Work::Quotient("rdma.stream.1M", "rdma.stream.64K");
    cases.push(Case {
        sides: &[Side::Rsock],
        ..case(
            "rdma.cliff",
            "  1M against 64K",
            Unit::Ratio,
            cliff,
            Need::AtLeast { least: 1.0, aim: 1.0 },
        )
    });
    cases.push(Case {
        sides: &[Side::C, Side::Rsock],
        ..case(
            "rdma.cpu",
            "user CPU, rstream 64K",
            Unit::CpuPerKib,
            Work::RstreamCpu(64 << 10),
            Need::RatioAtMost { most: 1.0, aim: 0.8 },
        )
    });
    cases.push(Case {
        sides: &[Side::Limit],
        ..case(
            "rdma.memcpy",
            "memcpy 64K",
            Unit::GbitPerSecond,
            Work::Memcpy(64 << 10),
            Need::Nothing,
        )
    });
    cases
}

/// Rows about netperf through rsock's preload library, beside netperf through librdmacm's.
fn under_preload_library() -> Vec<Case> {
    let case = |id: &str, label: &str, unit, test, need| Case {
        sides: &[Side::C, Side::Rsock],
        library: Library::Preload,
        // In an emulated guest it takes a second to load the libraries of the device, and until
        // then the stream is on TCP.
        time_factor: 3,
        ..case(id, label, unit, netperf(test, 1), need)
    };
    let mut cases = vec![Case {
        n_times: 3,
        ..case(
            "rdma.preload.rr",
            "preload, TCP_RR 1 B",
            Unit::PerSecond,
            Netperf::Rr,
            Need::RatioAtLeast { least: 2.0, aim: 3.0 },
        )
    }];
    cases.extend(STREAM_SIZES.map(|size| {
        let name = size_name(size);
        case(
            &format!("rdma.preload.stream.{name}"),
            &format!("preload, TCP_STREAM {name}"),
            Unit::GbitPerSecond,
            Netperf::Stream(size),
            Need::RatioAtLeast { least: 1.2, aim: 2.0 },
        )
    }));
    cases
}
