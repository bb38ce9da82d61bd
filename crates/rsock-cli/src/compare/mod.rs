//! `rsock compare`: kernel TCP, Unix sockets and rsock in one run, and on an RDMA device C's rsockets
//! and bare verbs; measured in turn, judged by what rsock promises.
//!
//! Each row is a [`case::Case`]; each number is the median of samples that alternate between the
//! sides. The order in which sides run, and in which their servers start, rotates.

mod bench;
mod case;
mod environment;
mod iperf;
mod judge;
mod netperf;
mod perftest;
mod process;
mod progress;
mod result;
mod rstream;
mod runner;
mod server;
mod tools;

use crate::error::Error;
use crate::output::{self, OutputFile};
use crate::{affinity, fabric, library, plot, report};
use bench::Bench;
use clap::ValueEnum;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use case::{Need, Place, STREAM_SIZES, Side, Unit, size_name};
pub(crate) use environment::Environment;
pub(crate) use judge::Verdict;
pub(crate) use result::{Comparison, Row};

/// Measure rsock beside kernel TCP and Unix sockets
///
/// Runs unmodified netperf and iperf3, and `rsock perf`, in turn over each; datagrams (rows called dgram)
/// beside kernel UDP. Where there is an RDMA
/// device with an address, also netperf and rstream over C's rsockets and over rsock on that device,
/// beside perftest's bare verbs (rows called rdma). Programs are taken from RSOCK_TOOLS (a directory
/// that Debian packages were unpacked in), then from PATH.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write all samples and the environment to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw bandwidth and latency into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the tables with the spread of the samples, as Markdown, to this file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Three short samples, unpinned only: a first look, not a result
    #[arg(long)]
    quick: bool,
    /// Samples of each side [default: 6, with --quick 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Bind the two ends to a CPU each
    #[arg(long, value_enum)]
    pin: Option<Pin>,
    /// Seconds per sample
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=600))]
    time: u32,
    /// Only rows of these names, and those whose names go on with a dot (rdma: all of the device)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Print the rows' names and end
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pin {
    No,
    Yes,
    Both,
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let default_pin = if args.quick { Pin::No } else { Pin::Both };
    let devices = fabric::devices().map_err(Error::io("cannot look for RDMA devices"))?;
    let device = fabric::first_address(&devices).map(|(name, ip)| (name.to_owned(), ip));
    let has_device = device.is_some() || args.list;
    let cases = choose(&args.only, args.pin.unwrap_or(default_pin), has_device)?;
    if args.list {
        let lines: Vec<_> = cases.iter().map(|c| format!("{:<24} {}\n", c.id, c.label)).collect();
        return output::print(&lines.concat());
    }
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let svg = args.svg.as_deref().map(OutputFile::open).transpose()?;
    let markdown = args.markdown.as_deref().map(OutputFile::open).transpose()?;
    let bench = Bench {
        library: library::find()?,
        c_library: library::find_c().ok(),
        device,
        exe: std::env::current_exe().map_err(Error::io("cannot tell where this program is"))?,
        tools: tools::Tools::find(),
        cpus: two_cpus()?,
        time: Duration::from_secs(args.time.into()),
    };
    // Even, so that a side which is measured first or second as often as the other has the same
    // median: kernel TCP's connect rate falls with every connection that waits to be forgotten.
    let runs = args.runs.unwrap_or(if args.quick { 3 } else { 6 });
    let environment = Environment::collect(&bench, runs);
    let rows = runner::run(&bench, &cases, runs);
    let comparison =
        Comparison::new(environment, rows, &bench.tools.missing(bench.device.is_some()));
    output::print(&report::text(&comparison))?;
    if let Some(file) = json {
        file.write(output::to_json(&comparison)?.as_bytes())?;
    }
    if let Some(file) = svg {
        file.write(plot::svg(&comparison)?.as_bytes())?;
    }
    if let Some(file) = markdown {
        file.write(report::markdown(&comparison).as_bytes())?;
    }
    Ok(())
}

fn choose(only: &[String], pin: Pin, has_device: bool) -> Result<Vec<case::Case>, Error> {
    let fits = |case: &case::Case| match pin {
        Pin::Both => true,
        // Rows that are about binding, or about none, belong to both.
        Pin::Yes => case.place != Place::Free || !case.has_pinned_twin,
        Pin::No => case.place != Place::Two,
    };
    let is_asked = |case: &case::Case| {
        // Without a device, its rows are run for whoever asks for them, to say so.
        (only.is_empty() && (has_device || !case.is_on_device()))
            || only.iter().any(|name| is_called(&case.id, name))
    };
    let all = case::all();
    if let Some(name) = only.iter().find(|name| !all.iter().any(|case| is_called(&case.id, name))) {
        return Err(Error::Usage(format!("no row is called '{name}'; --list prints the names")));
    }
    let cases: Vec<_> = all.into_iter().filter(|case| fits(case) && is_asked(case)).collect();
    if cases.is_empty() {
        return Err(Error::Usage("none of these rows is measured with that --pin".into()));
    }
    Ok(cases)
}

/// Whether a row's name is `name` or belongs to its family: `rr` names `rr.nospin`, not `rdma.rr`.
fn is_called(id: &str, name: &str) -> bool {
    id.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Keeps this process and everything it starts on two CPUs, as the promises are made for two.
fn two_cpus() -> Result<[usize; 2], Error> {
    let allowed = affinity::allowed();
    let &[first, second, ..] = &allowed[..] else {
        return Err(Error::Usage("the comparison needs two CPUs".into()));
    };
    affinity::bind(&[first, second])?;
    Ok([first, second])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(only: &str) -> Result<Vec<String>, Error> {
        let only: Vec<_> = only.split(',').map(str::to_owned).collect();
        Ok(choose(&only, Pin::No, false)?.into_iter().map(|case| case.id).collect())
    }

    #[test]
    fn a_name_stands_for_its_row_and_those_below_it() {
        assert_eq!(ids("rr.nospin,crr").unwrap(), ["rr.nospin", "crr"]);
        assert_eq!(ids("rr").unwrap(), ["rr", "rr.nospin", "rr.onecpu", "rr.8pairs"]);
    }

    #[test]
    fn a_name_of_no_row_is_refused_by_that_name_even_beside_others() {
        let error = ids("crr,rrr").unwrap_err();
        assert!(matches!(&error, Error::Usage(text) if text.contains("'rrr'")), "{error:?}");
    }

    #[test]
    fn rows_that_the_placement_leaves_out_are_not_called_unknown() {
        let error = ids("crr.pinned").unwrap_err();
        assert!(matches!(&error, Error::Usage(text) if text.contains("--pin")), "{error:?}");
    }
}
