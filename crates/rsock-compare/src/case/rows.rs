//! The table of all rows.

mod device;
mod services;

use super::{
    Calls, Case, Need, Netperf, Place, STREAM_SIZES, Service, Side, Unit, Work, size_name,
};

/// Every row, in the order in which they are run and shown.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for place in [Place::Free, Place::Two] {
        cases.extend(round_trips(place));
        cases.extend(bandwidth(place));
        cases.push(Case {
            work: netperf(Netperf::Crr(100), 1),
            need: AS_FAST_AS_TCP,
            // Samples of either side spread by 20 %, and the two sides are closer to each other.
            n_times: 3,
            ..Case::new("crr", "netperf TCP_CRR 100 B", Unit::PerSecond, place)
        });
        if place == Place::Free {
            cases.extend(own_loops());
        }
    }
    cases.extend(datagrams());
    cases.extend(many_in_poll());
    cases.extend(at_rest());
    cases.extend(device::all());
    cases.extend(services::all());
    cases
}

/// Of connections that end before they leave TCP. rsock : kernel.
const AS_FAST_AS_TCP: Need = Need::RatioAtLeast { least: 0.98, aim: 1.05 };

/// A round trip takes as long as so many of a cache line: as a part of their rate.
const TRIPS_OF_A_LINE: Need = Need::PartOfLimitAtLeast { least: 1.0 / 6.0, aim: 1.0 / 4.0 };

const fn netperf(test: Netperf, n_pairs: usize) -> Work {
    Work::Netperf { test, n_pairs }
}

const fn stream(size: usize, kernel: Calls, rsock: Calls) -> Work {
    Work::DatagramStream { size, kernel, rsock }
}

fn round_trips(place: Place) -> Vec<Case> {
    let mut cases = vec![
        Case {
            sides: &[Side::Kernel, Side::Rsock, Side::Limit],
            need: TRIPS_OF_A_LINE,
            ..Case::new("rr", "netperf TCP_RR 1 B", Unit::PerSecond, place)
        },
        Case {
            settings: &[("RSOCK_SPIN_US", "0")],
            need: Need::RatioAtLeast { least: 1.6, aim: 2.5 },
            ..Case::new("rr.nospin", "  without spinning", Unit::PerSecond, place)
        },
    ];
    if place == Place::Free {
        // Neither has a pinned row: the first is bound anyway, the second fills both CPUs.
        cases.push(Case {
            place: Place::One,
            is_also_pinned: false,
            need: Need::RatioAtLeast { least: 1.3, aim: 3.0 },
            ..Case::new("rr.onecpu", "  both ends on one CPU", Unit::PerSecond, place)
        });
        cases.push(Case {
            is_also_pinned: false,
            work: netperf(Netperf::Rr, 8),
            need: Need::RatioAtLeast { least: 1.5, aim: 6.0 },
            ..Case::new("rr.8pairs", "  8 pairs, total", Unit::PerSecond, place)
        });
    }
    cases.push(Case {
        work: Work::PerfRr,
        sides: &[Side::Kernel, Side::Unix, Side::Rsock, Side::Limit],
        need: Need::TimesLimitAtMost { most: 6.0, aim: 4.0 },
        ..Case::new("perf.rr", "perf rr 1 B, p50", Unit::Microseconds, place)
    });
    cases
}

fn bandwidth(place: Place) -> Vec<Case> {
    let mut cases = Vec::new();
    for size in STREAM_SIZES {
        let name = size_name(size);
        let ratio = |least, aim| Need::RatioAtLeast { least, aim };
        let part = |least, aim| Need::PartOfLimitAtLeast { least, aim };
        let (need, without_cache) = match size {
            64 => (ratio(7.0, 15.0), ratio(3.0, 15.0)),
            1024 => (ratio(4.0, 8.0), ratio(2.0, 8.0)),
            4096 => (part(0.5, 0.8), part(0.8, 0.9)),
            0x10_0000 => (part(0.7, 0.8), part(0.8, 0.9)),
            _ => (part(0.6, 0.8), part(0.8, 0.9)),
        };
        let label = format!("netperf TCP_STREAM {name}");
        cases.push(Case {
            work: netperf(Netperf::Stream(size), 1),
            sides: &[Side::Kernel, Side::Rsock, Side::Limit],
            need,
            need_without_cache: Some(without_cache),
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
        work: Work::Iperf(&[]),
        need: Need::RatioAtLeast { least: 3.0, aim: 5.0 },
        ..Case::new("iperf3", "iperf3", Unit::GbitPerSecond, place)
    });
    if place == Place::Free {
        cases.extend(iperf_options());
    }
    cases
}

/// iperf3 with options that change how it waits or copies. With `-l` it waits in `select` for each
/// message.
fn iperf_options() -> impl Iterator<Item = Case> {
    let table: [(&str, &str, &'static [&'static str], f64, f64); 8] = [
        ("l200", "  -l 200", &["-l", "200"], 1.2, 4.0),
        ("l1000", "  -l 1000", &["-l", "1000"], 1.2, 4.0),
        ("l12345", "  -l 12345", &["-l", "12345"], 1.5, 4.0),
        ("reverse", "  -R", &["-R"], 3.0, 5.0),
        ("parallel", "  -P 8", &["-P", "8"], 3.0, 5.0),
        ("bidir", "  --bidir", &["--bidir"], 2.0, 5.0),
        ("window", "  -w 64K", &["-w", "64K"], 1.5, 5.0),
        ("zerocopy", "  -Z", &["-Z"], 1.5, 5.0),
    ];
    table.into_iter().map(|(id, label, options, least, aim)| Case {
        is_also_pinned: false,
        work: Work::Iperf(options),
        need: Need::RatioAtLeast { least, aim },
        ..Case::new(&format!("iperf3.{id}"), label, Unit::GbitPerSecond, Place::Free)
    })
}

/// `rsock perf` over kernel TCP, Unix sockets and rsock, for orientation.
fn own_loops() -> Vec<Case> {
    let case = |id: &str, label: &str, unit, work| Case {
        is_also_pinned: false,
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
    cases.push(Case {
        need: AS_FAST_AS_TCP,
        ..case("perf.connect", label, Unit::PerSecond, Work::PerfConnect)
    });
    cases
}

/// Datagrams beside kernel UDP: `rsock perf dgram`, and unmodified netperf.
fn datagrams() -> Vec<Case> {
    let case = |id: &str, label: &str, unit, work, need| Case {
        is_also_pinned: false,
        work,
        need,
        ..Case::new(&format!("dgram.{id}"), label, unit, Place::Free)
    };
    let single = |size| stream(size, Calls::Single, Calls::Single);
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
        case("64", "perf dgram 64 B", rate, single(64), at_least(5.0, 15.0)),
        case("1400", "perf dgram 1400 B", rate, single(1400), at_least(2.0, 15.0)),
        case(
            "batch",
            "  64 B, batches : plain UDP",
            rate,
            stream(64, Calls::Single, Calls::Batches),
            at_least(10.0, 30.0),
        ),
        case(
            "mmsg",
            "  64 B, batches : sendmmsg",
            rate,
            stream(64, Calls::Batches, Calls::Batches),
            Need::Nothing,
        ),
    ];
    for (id, label, unit, test, need) in [
        ("netperf.rr", "netperf UDP_RR 1 B", rate, Netperf::UdpRr, TRIPS_OF_A_LINE),
        (
            "netperf.64",
            "netperf UDP_STREAM 64",
            Unit::GbitPerSecond,
            Netperf::UdpStream(64),
            at_least(12.0, 20.0),
        ),
        (
            "netperf.1400",
            "netperf UDP_STREAM 1400",
            Unit::GbitPerSecond,
            Netperf::UdpStream(1400),
            at_least(12.0, 20.0),
        ),
    ] {
        let settings = &[("RSOCK_DGRAM", "on")];
        let sides: &[Side] = match test {
            Netperf::UdpRr => &[Side::Kernel, Side::Rsock, Side::Limit],
            _ => &[Side::Kernel, Side::Rsock],
        };
        cases.push(Case { settings, sides, ..case(id, label, unit, netperf(test, 1), need) });
    }
    cases
}

/// An echo server of many streams that waits in `poll`, of which few are busy.
fn many_in_poll() -> impl Iterator<Item = Case> {
    [1000, 4000].into_iter().map(|n| Case {
        is_also_pinned: false,
        work: Work::Service(Service::EchoInPoll { idle: n - Service::BUSY }),
        need: Need::RatioAtLeast { least: 1.2, aim: 10.0 },
        ..Case::new(
            &format!("poll.{n}"),
            &format!("poll of {n}, 10 busy, 64 B"),
            Unit::PerSecond,
            Place::Free,
        )
    })
}

/// So many streams between two processes make the rows of many.
const MANY: u16 = 10_000;

/// Costs of streams at rest, which have no pinned rows.
fn at_rest() -> Vec<Case> {
    let case = |id: &str, label: &str, unit, work, need| Case {
        is_also_pinned: false,
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
            Need::AtMost { most: 20_480.0, aim: 8_192.0 },
        ),
        // 200 and 80 MiB for all of them.
        case(
            "many.memory",
            "  10000 that carried little",
            Unit::Bytes,
            Work::MemoryInEpoll(MANY),
            Need::AtMost { most: 20_971.0, aim: 8_388.0 },
        ),
        case(
            "many.setup",
            "10000 streams are set up",
            Unit::PerSecond,
            Work::SetUp(MANY),
            Need::AtLeast { least: 3000.0, aim: 10_000.0 },
        ),
        case(
            "cpu",
            "CPU at 100 requests/s",
            Unit::CpuMillis,
            Work::Cpu(100),
            Need::RatioAtMost { most: 1.1, aim: 0.9 },
        ),
        case(
            "cpu.10000",
            "  at 10000 requests/s",
            Unit::CpuMillis,
            Work::Cpu(10_000),
            Need::RatioAtMost { most: 0.9, aim: 0.5 },
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
    fn every_row_that_claims_a_pinned_one_has_it() {
        let ids: HashSet<_> = all().into_iter().map(|case| case.id).collect();
        for case in all().iter().filter(|case| case.is_also_pinned) {
            assert!(ids.contains(&format!("{}.pinned", case.id)), "{}", case.id);
        }
    }
}
