//! `rsock doctor`: what would stop shared memory or RDMA on this machine, and the fix.
//!
//! It does not guess from versions or names where it can try: it makes the objects that a stream
//! needs, as the user that runs it and under that user's limits, and shows the system's answers.

mod hosts;
mod interface;
mod rdma;
mod soft;

use crate::error::Error;
use crate::output;
use serde::Serialize;
use std::fmt::Write;

/// Say what would stop shared memory or RDMA here, and what to do about it
///
/// One line for each thing that was checked. Exit status: 0 if nothing stops what was asked about,
/// 1 if something does. Run it as the user, and in the container, that the programs run in.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this: `soft` (shared memory), `rdma`, or the name of one RDMA device [default: both]
    device: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The device that a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Device {
    Soft,
    Rdma,
}

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// It works.
    Fine,
    /// It works with limits, or not at its best.
    Limited,
    /// No stream can be made.
    Stopped,
}

/// The result of one check: one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    device: Device,
    /// Names the check; short and stable, since scripts may look for it.
    check: &'static str,
    state: State,
    what: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

/// Findings about one device, in the order in which they were made.
#[derive(Debug)]
struct Findings {
    device: Device,
    list: Vec<Finding>,
}

impl Findings {
    fn new(device: Device) -> Self {
        Self { device, list: Vec::new() }
    }

    fn fine(&mut self, check: &'static str, what: impl Into<String>) {
        self.add(check, State::Fine, what.into(), None);
    }

    fn limited(&mut self, check: &'static str, what: impl Into<String>, fix: impl Into<String>) {
        self.add(check, State::Limited, what.into(), Some(fix.into()));
    }

    fn stopped(&mut self, check: &'static str, what: impl Into<String>, fix: impl Into<String>) {
        self.add(check, State::Stopped, what.into(), Some(fix.into()));
    }

    /// Adds a finding if `RSOCK_DEVICE` has one of the values that switch `what` off.
    fn check_switch(&mut self, off: [&str; 2], what: &str) {
        if let Ok(device) = std::env::var("RSOCK_DEVICE")
            && off.contains(&device.as_str())
        {
            let what = format!("RSOCK_DEVICE={device} switches {what} off");
            self.stopped("switch", what, "unset RSOCK_DEVICE");
        }
    }

    fn add(&mut self, check: &'static str, state: State, what: String, fix: Option<String>) {
        self.list.push(Finding { device: self.device, check, state, what, fix });
    }

    fn is_stopped(&self) -> bool {
        self.list.iter().any(|finding| finding.state == State::Stopped)
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let mut all = Vec::new();
    let asked = args.device.as_deref();
    if matches!(asked, None | Some("soft")) {
        all.extend(soft::look().list);
    }
    match asked {
        None | Some("rdma") => {
            all.extend(rdma::look(None).list);
            all.extend(hosts::look().list);
        }
        Some("soft") => {}
        Some(name) => all.extend(rdma::look(Some(name)).list),
    }
    if args.json {
        output::print_json(&all)?;
    } else {
        output::print(&text(&all))?;
    }
    let is_stopped = all.iter().any(|finding| finding.state == State::Stopped);
    if is_stopped { Err(Error::Reported) } else { Ok(()) }
}

fn text(all: &[Finding]) -> String {
    let mut out = String::new();
    for Finding { device, check, state, what, fix } in all {
        let state = match state {
            State::Fine => "fine",
            State::Limited => "LIMITED",
            State::Stopped => "STOPPED",
        };
        let device = match device {
            Device::Soft => "soft",
            Device::Rdma => "rdma",
        };
        let fix = fix.as_ref().map_or(String::new(), |fix| format!(" -- {fix}"));
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{state:<8}{device:<6}{check:<13}{what}{fix}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_with_its_fix() {
        let mut findings = Findings::new(Device::Rdma);
        findings.fine("library", "it is there");
        findings.limited("memory", "little of it", "get more");
        assert!(!findings.is_stopped());
        findings.stopped("device", "none", "buy one");
        assert!(findings.is_stopped());
        let expected = "fine    rdma  library      it is there\n\
            LIMITED rdma  memory       little of it -- get more\n\
            STOPPED rdma  device       none -- buy one\n";
        assert_eq!(text(&findings.list), expected);
    }
}
