//! The rows of the comparison: what is run, over what, and what rsock promises.

use serde::Serialize;

/// What a number was measured over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    /// Kernel TCP.
    Kernel,
    /// A Unix stream socket.
    Unix,
    /// The rsockets of librdmacm, on an RDMA device.
    C,
    /// rsock.
    Rsock,
    /// What this machine could do at best, without a protocol; on an RDMA device, bare verbs.
    Limit,
}

/// What a number means, and which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// Round trips or connections per second.
    PerSecond,
    GbitPerSecond,
    Microseconds,
    /// Bytes per stream.
    Bytes,
    /// Milliseconds of CPU time per second, both ends.
    CpuMillis,
    /// Nanoseconds of user CPU time for 1024 bytes, both ends.
    CpuPerKib,
    /// Context switches per second, both ends.
    WakeupsPerSecond,
    /// One number over another.
    Ratio,
}

/// What rsock promises for a row; the aim is what it strives for. "base" is what a row compares with:
/// kernel TCP, or C's rsockets on an RDMA device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Need {
    /// Shown for orientation.
    Nothing,
    /// rsock : base.
    RatioAtLeast { least: f64, aim: f64 },
    /// rsock : base, or that part of the limit.
    RatioOrPartOfLimit { least: f64, part: f64, aim: f64 },
    /// rsock : base, and that part of the limit.
    RatioAndPartOfLimit { least: f64, part: f64, aim: f64 },
    /// rsock : base.
    RatioAtMost { most: f64, aim: f64 },
    /// rsock : limit.
    TimesLimitAtMost { most: f64, aim: f64 },
    /// The number itself.
    AtMost { most: f64, aim: f64 },
    /// The number itself.
    AtLeast { least: f64, aim: f64 },
}

/// Where the two ends run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    /// Wherever the scheduler puts them, on two CPUs.
    Free,
    /// Bound to a CPU each.
    Two,
    /// Bound to one CPU together.
    One,
}

/// A netperf test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Netperf {
    /// One-byte request and answer.
    Rr,
    /// Sends of this many bytes.
    Stream(usize),
    /// Connect, request and answer of this many bytes, close.
    Crr(usize),
    /// One-byte request and answer, over UDP.
    UdpRr,
    /// Datagrams of this many bytes, received.
    UdpStream(usize),
}

/// What is run for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Unmodified netperf, so many at once.
    Netperf { test: Netperf, n_pairs: usize },
    /// Unmodified iperf3 with its defaults.
    Iperf,
    /// Unmodified rstream, blocking: round trips of one byte.
    RstreamRr,
    /// The same: user CPU time while it sends this many bytes at a time to and fro.
    RstreamCpu(usize),
    /// An ordinary copy of this many bytes, again and again, on one CPU.
    Memcpy(usize),
    /// `rsock perf rr`, 1 byte: p50.
    PerfRr,
    /// `rsock perf stream` with this many bytes per write.
    PerfStream(usize),
    /// `rsock perf connect`, 100 bytes.
    PerfConnect,
    /// `rsock perf dgram` with this many bytes: round trips.
    DatagramRr(usize),
    /// The same: p99 of a round trip over p50.
    DatagramTail(usize),
    /// The same: datagrams received one way. Batches are of [`BATCH`].
    DatagramStream {
        size: usize,
        /// Whether the kernel's side sends batches, and ours.
        batches: [bool; 2],
    },
    /// Memory of both ends per stream, after each of 1000 carried 1 MiB and rested.
    Memory,
    /// CPU time of both ends at 100 requests per second.
    Cpu,
    /// Wake-ups of both ends with 100 idle streams.
    Idle,
    /// rsock's medians of two other rows, the first over the second; next to each other, these take turns.
    Quotient(&'static str, &'static str),
}

/// One row.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Unique, short, stable.
    pub(super) id: String,
    pub(super) label: String,
    pub(super) unit: Unit,
    pub(super) place: Place,
    /// Whether there is the same row with [`Place::Two`].
    pub(super) has_pinned_twin: bool,
    pub(super) work: Work,
    /// In the order of the columns.
    pub(super) sides: &'static [Side],
    /// What rsock is compared with.
    pub(super) base: Side,
    /// Environment of the rsock side, beside the library.
    pub(super) settings: &'static [(&'static str, &'static str)],
    pub(super) need: Need,
    /// Samples for each that other rows get: more where single samples are far apart.
    pub(super) n_times: u32,
}

/// Message sizes, in bytes, of the bandwidth rows.
pub(crate) const STREAM_SIZES: [usize; 6] = [64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20];

/// Every row, in the order in which they are run and shown.
pub(super) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for place in [Place::Free, Place::Two] {
        cases.extend(round_trips(place));
        cases.extend(bandwidth(place));
        cases.push(Case {
            work: netperf(Netperf::Crr(100), 1),
            need: Need::RatioAtLeast { least: 0.9, aim: 1.0 },
            // Those of either side spread by 20 %, and the two are closer to each other than that.
            n_times: 3,
            ..Case::new("crr", "netperf TCP_CRR 100 B", Unit::PerSecond, place)
        });
        if place == Place::Free {
            cases.extend(own_loops());
        }
    }
    cases.extend(datagrams());
    cases.extend(at_rest());
    cases.extend(on_device());
    cases
}

/// As it appears in names and labels: 64, 1K, 1M.
pub(crate) fn size_name(size: usize) -> String {
    match size {
        0..1024 => size.to_string(),
        1024..0x10_0000 => format!("{}K", size >> 10),
        _ => format!("{}M", size >> 20),
    }
}

impl Case {
    /// Whether the rsock side needs no library because it calls rsock itself.
    pub(super) fn uses_rust_interface(&self) -> bool {
        matches!(self.work, Work::PerfRr | Work::PerfStream(_) | Work::PerfConnect)
            || self.is_perf_dgram()
    }

    /// Whether it is measured by `rsock perf dgram`.
    pub(super) fn is_perf_dgram(&self) -> bool {
        let Self { work, .. } = self;
        matches!(work, Work::DatagramRr(_) | Work::DatagramTail(_) | Work::DatagramStream { .. })
    }

    /// Whether it is measured on an RDMA device.
    pub(super) fn is_on_device(&self) -> bool {
        self.base == Side::C
    }

    /// A row about netperf's round trips without a promise.
    fn new(id: &str, label: &str, unit: Unit, place: Place) -> Self {
        let suffix = if place == Place::Two { ".pinned" } else { "" };
        Self {
            id: format!("{id}{suffix}"),
            label: label.to_owned(),
            unit,
            place,
            has_pinned_twin: place == Place::Free,
            work: netperf(Netperf::Rr, 1),
            sides: &[Side::Kernel, Side::Rsock],
            base: Side::Kernel,
            settings: &[],
            need: Need::Nothing,
            n_times: 1,
        }
    }
}

const fn netperf(test: Netperf, n_pairs: usize) -> Work {
    Work::Netperf { test, n_pairs }
}

fn round_trips(place: Place) -> Vec<Case> {
    let mut cases = vec![
        Case {
            need: Need::RatioAtLeast { least: 20.0, aim: 150.0 },
            ..Case::new("rr", "netperf TCP_RR 1 B", Unit::PerSecond, place)
        },
        Case {
            settings: &[("RSOCK_SPIN_US", "0")],
            need: Need::RatioAtLeast { least: 1.5, aim: 2.5 },
            ..Case::new("rr.nospin", "  without spinning", Unit::PerSecond, place)
        },
    ];
    if place == Place::Free {
        // One row each: the first is bound by definition, the second fills both CPUs anyway.
        cases.push(Case {
            place: Place::One,
            has_pinned_twin: false,
            need: Need::RatioAtLeast { least: 1.0, aim: 3.0 },
            ..Case::new("rr.onecpu", "  both ends on one CPU", Unit::PerSecond, place)
        });
        cases.push(Case {
            has_pinned_twin: false,
            work: netperf(Netperf::Rr, 8),
            need: Need::RatioAtLeast { least: 1.5, aim: 6.0 },
            ..Case::new("rr.8pairs", "  8 pairs, total", Unit::PerSecond, place)
        });
    }
    cases.push(Case {
        work: Work::PerfRr,
        sides: &[Side::Kernel, Side::Unix, Side::Rsock, Side::Limit],
        need: Need::TimesLimitAtMost { most: 12.0, aim: 4.0 },
        ..Case::new("perf.rr", "perf rr 1 B, p50", Unit::Microseconds, place)
    });
    cases
}

fn bandwidth(place: Place) -> Vec<Case> {
    let mut cases = Vec::new();
    for size in STREAM_SIZES {
        let name = size_name(size);
        let need = match size {
            64 => Need::RatioAtLeast { least: 3.0, aim: 15.0 },
            1024 => Need::RatioAtLeast { least: 1.5, aim: 6.0 },
            0x10_0000 => Need::RatioOrPartOfLimit { least: 1.3, part: 0.7, aim: 4.0 },
            _ => Need::RatioAtLeast { least: 2.0, aim: 5.0 },
        };
        let label = format!("netperf TCP_STREAM {name}");
        cases.push(Case {
            work: netperf(Netperf::Stream(size), 1),
            sides: &[Side::Kernel, Side::Rsock, Side::Limit],
            need,
            ..Case::new(&format!("stream.{name}"), &label, Unit::GbitPerSecond, place)
        });
    }
    let (large, small) = match place {
        Place::Two => ("stream.1M.pinned", "stream.64K.pinned"),
        _ => ("stream.1M", "stream.64K"),
    };
    cases.push(Case {
        work: Work::Quotient(large, small),
        sides: &[Side::Rsock],
        need: Need::AtLeast { least: 0.95, aim: 1.0 },
        ..Case::new("cliff", "  1M against 64K", Unit::Ratio, place)
    });
    cases.push(Case {
        work: Work::Iperf,
        need: Need::RatioAtLeast { least: 2.0, aim: 5.0 },
        ..Case::new("iperf3", "iperf3", Unit::GbitPerSecond, place)
    });
    cases
}

/// `rsock perf` over all three, for orientation.
fn own_loops() -> Vec<Case> {
    let case = |id: &str, label: &str, unit, work| Case {
        has_pinned_twin: false,
        work,
        sides: &[Side::Kernel, Side::Unix, Side::Rsock],
        ..Case::new(id, label, unit, Place::Free)
    };
    let mut cases: Vec<_> = STREAM_SIZES
        .into_iter()
        .map(|size| {
            let name = size_name(size);
            let (id, label) = (format!("perf.stream.{name}"), format!("perf stream {name}"));
            case(&id, &label, Unit::GbitPerSecond, Work::PerfStream(size))
        })
        .collect();
    let label = "perf connect 100 B";
    cases.push(case("perf.connect", label, Unit::PerSecond, Work::PerfConnect));
    cases
}

/// Datagrams beside kernel UDP: `rsock perf dgram`, and unmodified netperf.
fn datagrams() -> Vec<Case> {
    let case = |id: &str, label: &str, unit, work, need| Case {
        has_pinned_twin: false,
        work,
        need,
        ..Case::new(&format!("dgram.{id}"), label, unit, Place::Free)
    };
    let stream = |size, batches| Work::DatagramStream { size, batches };
    let plain = [false, false];
    let rate = Unit::PerSecond;
    let at_least = |least, aim| Need::RatioAtLeast { least, aim };
    let rr = at_least(20.0, 150.0);
    let mut cases = vec![
        case("rr", "perf dgram rr 64 B", rate, Work::DatagramRr(64), rr),
        Case {
            sides: &[Side::Kernel, Side::Rsock],
            ..case(
                "tail",
                "  p99 of it over p50",
                Unit::Ratio,
                Work::DatagramTail(64),
                Need::AtMost { most: 3.0, aim: 2.0 },
            )
        },
        case("64", "perf dgram 64 B", rate, stream(64, plain), at_least(5.0, 15.0)),
        case("1400", "perf dgram 1400 B", rate, stream(1400, plain), at_least(2.0, 15.0)),
        case(
            "batch",
            "  64 B, batches : plain UDP",
            rate,
            stream(64, [false, true]),
            at_least(10.0, 30.0),
        ),
        case("mmsg", "  64 B, batches : sendmmsg", rate, stream(64, [true, true]), Need::Nothing),
    ];
    for (id, label, unit, test, need) in [
        ("netperf.rr", "netperf UDP_RR 1 B", rate, Netperf::UdpRr, rr),
        (
            "netperf.64",
            "netperf UDP_STREAM 64",
            Unit::GbitPerSecond,
            Netperf::UdpStream(64),
            at_least(5.0, 15.0),
        ),
        (
            "netperf.1400",
            "netperf UDP_STREAM 1400",
            Unit::GbitPerSecond,
            Netperf::UdpStream(1400),
            at_least(2.0, 15.0),
        ),
    ] {
        let settings = &[("RSOCK_DGRAM", "on")];
        cases.push(Case { settings, ..case(id, label, unit, netperf(test, 1), need) });
    }
    cases
}

/// Datagrams in a batch.
pub(super) const BATCH: u16 = 32;

/// Rows that nobody pins.
fn at_rest() -> Vec<Case> {
    let case = |id: &str, label: &str, unit, work, need| Case {
        has_pinned_twin: false,
        work,
        need,
        ..Case::new(id, label, unit, Place::Free)
    };
    vec![
        case(
            "memory",
            "memory per stream at rest",
            Unit::Bytes,
            Work::Memory,
            Need::AtMost { most: 65_536.0, aim: 8_192.0 },
        ),
        case(
            "cpu",
            "CPU at 100 requests/s",
            Unit::CpuMillis,
            Work::Cpu,
            Need::RatioAtMost { most: 1.5, aim: 1.0 },
        ),
        case(
            "idle",
            "wake-ups, 100 idle streams",
            Unit::WakeupsPerSecond,
            Work::Idle,
            Need::AtMost { most: 0.0, aim: 0.0 },
        ),
    ]
}

/// Rows on an RDMA device, where C's rsockets are what rsock is compared with and bare verbs are the
/// limit. Both run the same unmodified programs, netperf through librdmacm's own preload library.
fn on_device() -> Vec<Case> {
    let case = |id: &str, label: &str, unit, work, need| Case {
        has_pinned_twin: false,
        work,
        sides: &[Side::C, Side::Rsock, Side::Limit],
        base: Side::C,
        settings: &[("RSOCK_DEVICE", "rdma")],
        need,
        ..Case::new(id, label, unit, Place::Free)
    };
    // A sample of C's has half or twice the rate of another: C spins for 10 us, and an answer is there by then or not.
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
            // The quotient of these two is promised more exactly than single samples agree, which spread by 5 %.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_quotients_name_rows_that_precede_them() {
        let mut seen = HashSet::new();
        for case in all() {
            if let Work::Quotient(a, b) = case.work {
                assert!(seen.contains(a) && seen.contains(b), "{}", case.id);
            }
            assert!(seen.insert(case.id.clone()), "{} occurs twice", case.id);
        }
    }

    #[test]
    fn every_row_that_has_a_pinned_twin_has_it() {
        let ids: HashSet<_> = all().into_iter().map(|case| case.id).collect();
        for case in all().iter().filter(|case| case.has_pinned_twin) {
            assert!(ids.contains(&format!("{}.pinned", case.id)), "{}", case.id);
        }
    }
}
