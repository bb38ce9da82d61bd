//! What every measurement needs to know: where things are, on which CPUs, and for how long.

use super::case::{Case, Place, Side, Work};
use super::server::Listening;
use super::tools::Tools;
use crate::library;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Bench {
    /// The preload library.
    pub(super) library: PathBuf,
    /// The library with the rsocket(3) interface, if it is there.
    pub(super) c_library: Option<PathBuf>,
    /// An RDMA device and its address, if there is one.
    pub(super) device: Option<(String, IpAddr)>,
    /// This program.
    pub(super) exe: PathBuf,
    pub(super) tools: Tools,
    pub(super) cpus: [usize; 2],
    /// Of one sample; whole seconds.
    pub(super) time: Duration,
}

impl Bench {
    /// Sets the environment in which `command` runs over `side`, without or with the library.
    pub(super) fn dress(&self, command: &mut Command, case: &Case, side: Side) {
        if case.is_on_device() {
            self.dress_for_device(command, case, side);
        } else if side == Side::Rsock && !case.uses_rust_interface() {
            command.env(library::preload_env(), &self.library);
            command.envs(case.settings.iter().copied());
        } else {
            // We may be preloaded ourselves.
            command.env_remove(library::preload_env());
        }
    }

    /// Both sides run the same programs: on their own where they are made for rsockets, else through
    /// librdmacm's preload library. Ours takes the place of librdmacm below either.
    fn dress_for_device(&self, command: &mut Command, case: &Case, side: Side) {
        let is_rsock = side == Side::Rsock;
        let ours = self.c_library.as_ref().filter(|_| is_rsock);
        let through = self.tools.librspreload.as_ref();
        let through = through.filter(|_| matches!(case.work, Work::Netperf { .. }));
        let mut libraries = OsString::new();
        for library in ours.into_iter().chain(through) {
            if !libraries.is_empty() {
                libraries.push(":");
            }
            libraries.push(library);
        }
        command.env(library::preload_env(), libraries);
        if is_rsock {
            command.envs(case.settings.iter().copied());
        }
    }

    /// The address that a row's server listens at.
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

    /// The RDMA device's name; empty without one.
    pub(super) fn device_name(&self) -> String {
        self.device.as_ref().map_or(String::new(), |(name, _)| name.clone())
    }

    /// Where to see that a row's server listens.
    pub(super) fn listening(&self, case: &Case) -> Listening<'_> {
        match &self.tools.rdma {
            Some(rdma) if case.is_on_device() => Listening::OnDevice(rdma),
            _ => Listening::OnTcp,
        }
    }

    /// This program with the arguments of one of its tests.
    pub(super) fn own_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.exe);
        command.args(args);
        command
    }

    /// CPUs of client and server, where they are bound.
    pub(super) fn binding(&self, place: Place) -> Option<[usize; 2]> {
        match place {
            Place::Free => None,
            Place::Two => Some(self.cpus),
            Place::One => Some([self.cpus[0]; 2]),
        }
    }

    /// When a program that measures for `time` has certainly hung.
    pub(super) fn watchdog(&self, time: Duration) -> Instant {
        const GRACE: Duration = Duration::from_secs(60);
        Instant::now() + time + GRACE
    }
}
