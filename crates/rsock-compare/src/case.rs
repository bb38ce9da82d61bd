//! A row of the comparison: what is run, over what, and what rsock promises. [`all`] has every row.

mod rows;
mod service;

use crate::limit::Placement;
use serde::Serialize;
use std::time::Duration;

pub(crate) use rows::all;
pub(crate) use service::{Connections, Echo, RedisCommand, Service};

/// What a figure was measured over.
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
    /// The best that this machine could do without a protocol; on an RDMA device, bare verbs.
    Limit,
    /// rsock at the client alone.
    ClientAlone,
    /// rsock at the server alone.
    ServerAlone,
    /// rsock at both ends, with `RSOCK_DEVICE=tcp`.
    OnTcp,
}

impl Side {
    /// Whether an end that runs over it has the library, see [`Self::at_server`].
    pub(crate) fn has_library(self) -> bool {
        matches!(self, Self::Rsock | Self::OnTcp)
    }

    /// What the server of a side runs over.
    pub(crate) fn at_server(self) -> Self {
        match self {
            Self::ClientAlone => Self::Kernel,
            Self::ServerAlone => Self::Rsock,
            other => other,
        }
    }

    /// What the client of a side runs over.
    pub(crate) fn at_client(self) -> Self {
        match self {
            Self::ClientAlone => Self::Rsock,
            Self::ServerAlone => Self::Kernel,
            other => other,
        }
    }
}

/// The unit of a row's figures.
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
    /// Microseconds of CPU time for a request, both ends.
    CpuPerRequest,
    /// One number over another.
    Ratio,
}

/// What rsock promises for a row; the aim is what it strives for. The base is what a row compares
/// with: kernel TCP or UDP, or C's rsockets on an RDMA device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Need {
    /// No promise: the row is for orientation.
    Nothing,
    /// rsock : base.
    RatioAtLeast { least: f64, aim: f64 },
    /// rsock : base, and rsock is that part of the limit.
    RatioAndPartOfLimit { least: f64, part: f64, aim: f64 },
    /// rsock : base.
    RatioAtMost { most: f64, aim: f64 },
    /// rsock : limit.
    PartOfLimitAtLeast { least: f64, aim: f64 },
    /// rsock : limit.
    TimesLimitAtMost { most: f64, aim: f64 },
    /// The figure itself.
    AtMost { most: f64, aim: f64 },
    /// The figure itself.
    AtLeast { least: f64, aim: f64 },
}

/// How long a round trip over the kernel's TCP takes on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KernelSpeed {
    /// Less than 20 us.
    Fast,
    /// 20 us or more. The kernel's wake-ups are slow then, so what spares them gains more.
    Slow,
}

impl KernelSpeed {
    pub(crate) fn of(round_trip: Duration) -> Self {
        const SLOW: Duration = Duration::from_micros(20);
        if round_trip < SLOW { Self::Fast } else { Self::Slow }
    }
}

/// Where the two ends run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    /// The scheduler chooses, among two CPUs.
    Free,
    /// Bound to a CPU each.
    Two,
    /// Bound to one CPU together.
    One,
}

/// A netperf test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Netperf {
    /// One-byte request and answer.
    Rr,
    /// Sends of this many bytes.
    Stream(usize),
    /// Connect, request and answer of this many bytes, close.
    Crr(usize),
    /// One-byte request and answer over UDP.
    UdpRr,
    /// Datagrams of this many bytes; those received count.
    UdpStream(usize),
}

/// Which library a row's rsock side has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// The preload library, below programs that call sockets.
    Preload,
    /// `librsock.so` in the place of librdmacm, below programs that call rsockets.
    Rsocket,
}

/// What is run for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Unmodified netperf, so many at once.
    Netperf { test: Netperf, n_pairs: usize },
    /// Unmodified iperf3 with these options.
    Iperf(&'static [&'static str]),
    /// Unmodified rstream, blocking: round trips of one byte.
    RstreamRr,
    /// Unmodified `ib_send_lat`: the same without a protocol, with sends and receives.
    VerbsSendRr,
    /// As [`Self::RstreamRr`]: user CPU time while both ends send this many bytes at a time.
    RstreamCpu(usize),
    /// Ordinary copies of this many bytes on one CPU.
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
    /// The same: datagrams received in one direction.
    DatagramStream { size: usize, kernel: Calls, rsock: Calls },
    /// An event-driven service: requests per second.
    Service(Service),
    /// Memory of both ends per stream, after each of 1000 carried 1 MiB and rested.
    Memory,
    /// CPU time of both ends at so many requests per second.
    Cpu(u32),
    /// Context switches of both ends with 100 idle streams.
    Idle,
    /// CPU time of redis and of a client that makes [`PACED_RATE`] requests per second.
    CpuPerRequest,
    /// Context switches of both ends with so many idle streams, which both hold in epoll sets.
    IdleInEpoll(u16),
    /// Memory of both ends per stream, with so many of them in epoll sets, each of which has
    /// carried some small messages and rests.
    MemoryInEpoll(u16),
    /// Streams that are set up in a second, so many of them, with some small messages on each.
    SetUp(u16),
    /// The median of rsock in one row over that in another. Neighbouring rows take turns.
    Quotient(&'static str, &'static str),
}

/// How datagrams of one direction are sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// One datagram in a call.
    Single,
    /// [`BATCH`] datagrams in a call.
    Batches,
}

/// One row.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Unique, short, stable.
    pub(crate) id: String,
    pub(crate) label: String,
    pub(crate) unit: Unit,
    pub(crate) place: Place,
    /// Whether the same row exists with [`Place::Two`].
    pub(crate) is_also_pinned: bool,
    pub(crate) work: Work,
    /// The sides, in the order of the columns.
    pub(crate) sides: &'static [Side],
    /// Further sides, on which the connections stay on TCP: each is to be [`AS_FAST`].
    pub(crate) on_tcp: Vec<Side>,
    /// The side that rsock is compared with.
    pub(crate) base: Side,
    pub(crate) library: Library,
    /// Environment of the rsock side, beside the library.
    pub(crate) settings: &'static [(&'static str, &'static str)],
    /// The promise for a machine with a [`KernelSpeed::Fast`] kernel.
    pub(crate) need: Need,
    /// The promise for one with a slow kernel, if that differs.
    pub(crate) need_beside_slow: Option<Need>,
    /// The promise where the CPUs share no cache, if that differs.
    pub(crate) need_without_cache: Option<Need>,
    /// How much longer than one of other rows a sample takes.
    pub(crate) time_factor: u32,
    /// How many samples it gets for one of other rows: more where single samples are far apart.
    pub(crate) n_times: u32,
}

/// Message sizes, in bytes, of the bandwidth rows.
pub(crate) const STREAM_SIZES: [usize; 6] = [64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20];

/// What the names of rows about services begin with.
pub(crate) const SERVICES: &str = "services.";

/// Requests per second of [`Work::CpuPerRequest`].
pub(crate) const PACED_RATE: u32 = 1000;

/// rsock : kernel TCP, at least, where connections stay on TCP or the machine is busy.
pub(crate) const AS_FAST: f64 = 0.97;

/// Datagrams in a batch of [`Calls::Batches`].
pub(crate) const BATCH: u16 = 32;

/// Returns a size as it appears in names and labels: 64, 1K, 1M.
pub(crate) fn size_name(size: usize) -> String {
    match size {
        0..1024 => size.to_string(),
        1024..0x10_0000 => format!("{}K", size >> 10),
        _ => format!("{}M", size >> 20),
    }
}

impl Case {
    /// Whether the rsock side calls rsock itself, so that it needs no library.
    pub(crate) fn uses_rust_interface(&self) -> bool {
        matches!(self.work, Work::PerfRr | Work::PerfStream(_) | Work::PerfConnect)
            || self.is_perf_dgram()
    }

    /// Whether it is measured by `rsock perf dgram`.
    fn is_perf_dgram(&self) -> bool {
        let Self { work, .. } = self;
        matches!(work, Work::DatagramRr(_) | Work::DatagramTail(_) | Work::DatagramStream { .. })
    }

    /// Whether it is about a service, and so measured only where it is named.
    pub(crate) fn is_service(&self) -> bool {
        self.id.starts_with(SERVICES)
    }

    /// All sides that are measured.
    pub(crate) fn all_sides(&self) -> Vec<Side> {
        [self.sides, &self.on_tcp].concat()
    }

    /// The row with further sides on which its connections stay on TCP, if it is about the requests
    /// of a service.
    pub(crate) fn with_sides(self, on_tcp: &[Side]) -> Self {
        match self.work {
            Work::Service(_) => Self { on_tcp: on_tcp.to_vec(), ..self },
            _ => self,
        }
    }

    /// The row with the promise for a machine that is busy with other things.
    pub(crate) fn on_busy_machine(mut self) -> Self {
        if let Need::RatioAtLeast { aim, .. } = self.need {
            self.need = Need::RatioAtLeast { least: AS_FAST, aim };
        }
        self
    }

    /// The row with the promise for a machine whose kernel is so fast.
    pub(crate) fn beside(mut self, kernel: KernelSpeed) -> Self {
        if let (KernelSpeed::Slow, Some(need)) = (kernel, self.need_beside_slow) {
            self.need = need;
        }
        self
    }

    /// The promise where the CPUs are placed so.
    pub(crate) fn need_at(&self, placement: Placement) -> Need {
        match (placement, self.need_without_cache) {
            (Placement::B, Some(need)) => need,
            _ => self.need,
        }
    }

    /// Whether it is measured on an RDMA device.
    pub(crate) fn is_on_device(&self) -> bool {
        self.base == Side::C
    }

    /// Whether a side's programs call rsockets on an RDMA device, in librdmacm or in `librsock.so`.
    pub(crate) fn calls_rsockets(&self, side: Side) -> bool {
        self.is_on_device() && (side == Side::C || self.library == Library::Rsocket)
    }

    /// A row about netperf's round trips without a promise, as a template for others.
    fn new(id: &str, label: &str, unit: Unit, place: Place) -> Self {
        let suffix = if place == Place::Two { ".pinned" } else { "" };
        Self {
            id: format!("{id}{suffix}"),
            label: label.to_owned(),
            unit,
            place,
            is_also_pinned: place == Place::Free,
            work: Work::Netperf { test: Netperf::Rr, n_pairs: 1 },
            sides: &[Side::Kernel, Side::Rsock],
            on_tcp: Vec::new(),
            base: Side::Kernel,
            library: Library::Preload,
            settings: &[],
            need: Need::Nothing,
            need_beside_slow: None,
            need_without_cache: None,
            time_factor: 1,
            n_times: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_on_tcp_are_for_requests_of_services_alone() {
        let sides = [Side::ClientAlone, Side::OnTcp];
        for case in all() {
            let is_rate = matches!(case.work, Work::Service(_));
            let case = case.with_sides(&sides);
            let expected: &[Side] = if is_rate { &sides } else { &[] };
            assert_eq!(case.on_tcp, expected, "{}", case.id);
            assert!(case.all_sides().starts_with(case.sides), "{}", case.id);
        }
    }

    #[test]
    fn one_end_alone_has_the_library_and_the_other_has_not() {
        let ends = |side: Side| (side.at_client(), side.at_server());
        assert_eq!(ends(Side::ClientAlone), (Side::Rsock, Side::Kernel));
        assert_eq!(ends(Side::ServerAlone), (Side::Kernel, Side::Rsock));
        assert_eq!(ends(Side::OnTcp), (Side::OnTcp, Side::OnTcp));
    }

    #[test]
    fn a_slow_kernel_changes_only_promises_that_depend_on_it() {
        let need = |id: &str, kernel| {
            let case = all().into_iter().find(|case| case.id == id).unwrap();
            case.beside(kernel).need
        };
        let fast = KernelSpeed::of(Duration::from_micros(19));
        let slow = KernelSpeed::of(Duration::from_micros(20));
        assert_eq!(need("services.redis.get.1", fast), Need::RatioAtLeast { least: 2.0, aim: 4.0 });
        assert_eq!(need("services.redis.get.1", slow), Need::RatioAtLeast { least: 4.0, aim: 4.0 });
        assert_eq!(need("rr", fast), need("rr", slow));
    }
}
