//! The circumstances on which the figures depend: machine, versions, settings.

use crate::bench::Bench;
use crate::installed::Program;
use rsock_cli::affinity;
use serde::Serialize;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Serialize)]
pub(crate) struct Environment {
    pub(crate) rsock: &'static str,
    /// The commit of the build, if `RSOCK_COMMIT` names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) commit: Option<String>,
    pub(crate) cpu: String,
    pub(crate) n_cpus: usize,
    /// The two CPUs that were used.
    pub(crate) cpus: [usize; 2],
    pub(crate) kernel: String,
    /// Median round trip of a byte between these CPUs over the kernel's TCP, in microseconds.
    pub(crate) kernel_round_trip_us: f64,
    /// The RDMA device that was measured on, and its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rdma_device: Option<String>,
    /// Seconds since 1970.
    pub(crate) started_at: u64,
    pub(crate) runs: u32,
    pub(crate) seconds_per_sample: u64,
    /// Endless loops that ran beside all samples, on the same CPUs.
    pub(crate) endless_loops: u32,
    pub(crate) programs: BTreeMap<&'static str, String>,
    /// Environment variables that change how rsock behaves.
    pub(crate) settings: BTreeMap<String, String>,
}

impl Environment {
    pub(super) fn collect(bench: &Bench, runs: u32) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let programs = [
            ("netperf", version(bench.programs.netperf.as_ref(), "-V")),
            ("iperf3", version(bench.programs.iperf3.as_ref(), "--version")),
        ];
        let present = programs.into_iter().filter_map(|(name, version)| Some((name, version?)));
        let settings = env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let is_setting = name.starts_with("RSOCK_") && !NO_SETTINGS.contains(&name.as_str());
            is_setting.then(|| (name, value.to_string_lossy().into_owned()))
        });
        Self {
            rsock: env!("CARGO_PKG_VERSION"),
            commit: env::var("RSOCK_COMMIT").ok().filter(|commit| !commit.is_empty()),
            cpu: cpu_model(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            n_cpus: std::thread::available_parallelism()
                .map_or(1, usize::from)
                .max(affinity::allowed().len()),
            cpus: bench.cpus,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            kernel_round_trip_us: bench.kernel_round_trip.as_secs_f64() * 1e6,
            rdma_device: bench.device.as_ref().map(|(name, ip)| format!("{name} ({ip})")),
            started_at: now.as_secs(),
            runs,
            seconds_per_sample: bench.time.as_secs(),
            endless_loops: bench.n_loops,
            programs: present.collect(),
            settings: settings.collect(),
        }
    }
}

/// Variables that only say where files are, or which build this is.
const NO_SETTINGS: [&str; 3] = ["RSOCK_TOOLS", "RSOCK_PRELOAD", "RSOCK_COMMIT"];

fn cpu_model(cpuinfo: &str) -> String {
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
    model.unwrap_or(env::consts::ARCH).to_owned()
}

/// Returns the first line of what a program prints about its version.
fn version(program: Option<&Program>, option: &str) -> Option<String> {
    let mut command = program?.command();
    let output = command.arg(option).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_has_a_name_or_at_least_an_architecture() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: A B: C\n"), "A B: C");
        assert_eq!(cpu_model(""), env::consts::ARCH);
    }
}
