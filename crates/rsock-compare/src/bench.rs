//! The bench that all samples are taken on: libraries, programs, device, CPUs and time.

use crate::case::{Case, Place, Side, Work};
use crate::installed::Programs;
use crate::server::Listening;
use crate::trust_file::TrustFile;
use rsock_cli::library;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Bench {
    /// The preload library.
    pub(super) library: PathBuf,
    /// The library with the rsocket(3) interface, if it was found.
    pub(super) c_library: Option<PathBuf>,
    /// An RDMA device and its address, if there is one.
    pub(super) device: Option<(String, IpAddr)>,
    /// By which the preload library trusts that address.
    pub(super) trust_file: Option<TrustFile>,
    /// This program.
    pub(super) exe: PathBuf,
    pub(super) programs: Programs,
    /// The CPUs of client and server.
    pub(super) cpus: [usize; 2],
    /// Duration of one sample; whole seconds.
    pub(super) time: Duration,
    /// Endless loops that run beside all samples.
    pub(super) n_loops: u32,
    /// A round trip over the kernel's TCP, which decides what some rows promise.
    pub(super) kernel_round_trip: Duration,
}

impl Bench {
    /// Sets the environment in which `command` runs over `side`.
    pub(super) fn set_environment(&self, command: &mut Command, case: &Case, side: Side) {
        if case.calls_rsockets(side) {
            self.set_device_environment(command, case, side);
        } else if side.has_library() && !case.uses_rust_interface() {
            command.env(library::PRELOAD_ENV, &self.library);
            command.envs(case.settings.iter().copied());
            if let Some(file) = self.trust_file.as_ref().filter(|_| case.is_on_device()) {
                command.env("RSOCK_CONFIG", file.path());
            }
            if side == Side::OnTcp {
                command.env("RSOCK_DEVICE", "tcp");
            }
        } else {
            // This process may have the library itself.
            command.env_remove(library::PRELOAD_ENV);
        }
    }

    /// Both sides run the same programs, through librdmacm's preload library unless a program calls
    /// rsockets itself. On the rsock side our library takes the place of librdmacm below that.
    fn set_device_environment(&self, command: &mut Command, case: &Case, side: Side) {
        let is_rsock = side == Side::Rsock;
        let ours = self.c_library.as_ref().filter(|_| is_rsock);
        let through = self.programs.librspreload.as_ref();
        let through = through.filter(|_| matches!(case.work, Work::Netperf { .. }));
        let mut libraries = OsString::new();
        for library in ours.into_iter().chain(through) {
            if !libraries.is_empty() {
                libraries.push(":");
            }
            libraries.push(library);
        }
        command.env(library::PRELOAD_ENV, libraries);
        if is_rsock {
            command.envs(case.settings.iter().copied());
        }
    }

    /// The address at which a row's server listens.
    pub(super) fn host(&self, case: &Case) -> String {
        match &self.device {
            Some((_, address)) if case.is_on_device() => address.to_string(),
            _ => "127.0.0.1".to_owned(),
        }
    }

    /// netperf's option for that address's family.
    pub(super) fn family(&self, case: &Case) -> &'static str {
        match &self.device {
            Some((_, IpAddr::V6(_))) if case.is_on_device() => "-6",
            _ => "-4",
        }
    }

    /// Names of programs that were not found; those for an RDMA device only where there is one.
    pub(super) fn missing_programs(&self) -> Vec<&'static str> {
        let mut missing = self.programs.missing();
        if self.device.is_some() {
            missing.extend(self.programs.missing_for_device());
        }
        missing
    }

    /// The program or device without which a row about no service cannot be measured.
    pub(super) fn lacks(&self, case: &Case) -> Option<&'static str> {
        let programs = &self.programs;
        if case.is_on_device() && !matches!(case.work, Work::Memcpy(_)) {
            if self.device.is_none() {
                return Some("an RDMA device with an address");
            }
            if self.c_library.is_none() {
                return Some("librsock.so");
            }
            if let Some(missing) = programs.missing_for_device().first() {
                return Some(missing);
            }
        }
        match case.work {
            Work::Netperf { .. } if programs.netperf.is_none() => Some("netperf"),
            Work::Netperf { .. } if programs.netserver.is_none() => Some("netserver"),
            Work::CpuPerRequest if programs.redis_server.is_none() => Some("redis-server"),
            Work::Iperf(_) if programs.iperf3.is_none() => Some("iperf3"),
            _ => None,
        }
    }

    /// The RDMA device's name; empty without one.
    pub(super) fn device_name(&self) -> String {
        self.device.as_ref().map_or(String::new(), |(name, _)| name.clone())
    }

    /// Where the kernel shows that a row's server listens.
    pub(super) fn listening(&self, case: &Case, side: Side) -> Listening<'_> {
        match &self.programs.rdma {
            Some(rdma) if case.calls_rsockets(side) => Listening::OnDevice(rdma),
            _ => Listening::OnTcp,
        }
    }

    /// This program with the arguments of one of its tests.
    pub(super) fn own_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.exe);
        command.args(args);
        command
    }

    /// The CPUs that client and server are bound to; `None` if they are not.
    pub(super) fn binding(&self, place: Place) -> Option<[usize; 2]> {
        match place {
            Place::Free => None,
            Place::Two => Some(self.cpus),
            Place::One => Some([self.cpus[0]; 2]),
        }
    }

    /// How long a sample of a row takes.
    pub(super) fn time_of(&self, case: &Case) -> Duration {
        self.time * case.time_factor
    }

    /// The time after which a program that measures for `time` has certainly hung.
    pub(super) fn deadline(&self, time: Duration) -> Instant {
        const OVERHEAD_LIMIT: Duration = Duration::from_secs(60);
        Instant::now() + time + OVERHEAD_LIMIT
    }
}
