//! `rsock compare sweep`: streams of every write size, by how their ends wait, beside kernel TCP.
//!
//! Rows of a comparison have the sizes that benchmarks use. A program may write any number of bytes
//! and read by another, and wait in another way: this shows that none of them is slower than over
//! TCP. Each sample is a process for each end (`ends.rs`), which goes through all sizes with a
//! connection of its own for each.

mod ends;
mod report;

pub(crate) use ends::{ClientArgs, client, server};

use crate::collected::Collected;
use crate::progress;
use report::Report;
use rsock_cli::child::Child;
use rsock_cli::error::Error;
use rsock_cli::perf::ends::{own_command, read_address};
use rsock_cli::perf::{parse_seconds, parse_size};
use rsock_cli::{library, output};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The options of a sweep.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Bytes of a write, as 1,100,64K [default: from 1 to 4M, powers of two and others]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<usize>,
    /// How both ends wait for the socket
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',',
        default_values_t = Waiting::ALL)]
    wait: Vec<Waiting>,
    /// Most bytes of a read
    #[arg(long, value_name = "BYTES", default_value = "10000", value_parser = parse_size)]
    read: usize,
    /// Samples of each side
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Seconds for each size
    #[arg(long, default_value = "0.1", value_parser = parse_seconds)]
    time: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How an end waits until the socket has room, or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Waiting {
    /// In the call itself
    Blocking,
    /// In select, before each call
    Select,
    /// In poll, before each call
    Poll,
    /// In poll, after a call that had nothing to do
    Nonblocking,
}

impl Waiting {
    const ALL: [Self; 4] = [Self::Blocking, Self::Select, Self::Poll, Self::Nonblocking];

    /// What the option calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Select => "select",
            Self::Poll => "poll",
            Self::Nonblocking => "nonblocking",
        }
    }
}

/// The sizes of a sweep that names none: powers of two, and others between them.
fn usual_sizes() -> Vec<usize> {
    const OTHERS: [usize; 9] = [3, 100, 1000, 1447, 5000, 12_345, 65_537, 200_000, 3_000_001];
    let mut sizes: Vec<usize> = (0..=22).map(|power| 1 << power).chain(OTHERS).collect();
    sizes.sort_unstable();
    sizes
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let library = library::find()?;
    let sizes = if args.sizes.is_empty() { usual_sizes() } else { args.sizes.clone() };
    if sizes.contains(&0) || args.read == 0 {
        return Err(Error::Usage("a write and a read have at least one byte".into()));
    }
    let mut report = Report::new(args.read, sizes, &args.wait);
    let progress = progress::bar(u64::from(args.runs) * args.wait.len() as u64 * 2);
    for _ in 0..args.runs {
        for (column, wait) in args.wait.iter().enumerate() {
            for library in [None, Some(library.as_path())] {
                let side = if library.is_some() { "rsock" } else { "kernel TCP" };
                progress.set_message(format!("{}, {side}", wait.name()));
                let rates = sample(args, report.sizes(), *wait, library)?;
                report.add(column, library.is_some(), &rates);
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    if args.json {
        output::print_json(&report.to_json())
    } else {
        output::print(&report.to_string())
    }
}

/// One sample of all sizes, in bytes per second, with or without the library at both ends.
fn sample(
    args: &Args,
    sizes: &[usize],
    wait: Waiting,
    library: Option<&Path>,
) -> Result<Vec<f64>, Error> {
    /// Beside the time that is measured, for all sizes together.
    const OVERHEAD_LIMIT: Duration = Duration::from_secs(120);
    let mut command = end(library, "sweep-server")?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Child::spawn("the server of a sweep", command)?;
    let addr = read_address(&mut server)?;
    let mut command = end(library, "sweep-client")?;
    let list: Vec<String> = sizes.iter().map(usize::to_string).collect();
    command.args([&addr, "--sizes", &list.join(","), "--wait", wait.name()]);
    command.args(["--read", &args.read.to_string()]);
    command.args(["--time", &args.time.as_secs_f64().to_string()]);
    let client = Collected::spawn("the client of a sweep", command)?;
    let most = args.time * u32::try_from(sizes.len()).unwrap_or(u32::MAX);
    let said = client.finish(Instant::now() + OVERHEAD_LIMIT + 2 * most)?;
    let rates: Vec<f64> = serde_json::from_str(&said)
        .map_err(|e| Error::Failed(format!("the client of a sweep printed no rates: {e}")))?;
    if rates.len() == sizes.len() {
        Ok(rates)
    } else {
        Err(Error::Failed("the client of a sweep left out sizes".into()))
    }
}

/// This program as an end of a sweep.
fn end(library: Option<&Path>, name: &str) -> Result<Command, Error> {
    let mut command = own_command()?;
    command.args(["end", name]);
    match library {
        Some(library) => command.env(library::PRELOAD_ENV, library),
        // This process may have the library itself.
        None => command.env_remove(library::PRELOAD_ENV),
    };
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_sizes_go_from_one_byte_to_four_mebibytes() {
        let sizes = usual_sizes();
        assert_eq!((sizes.first(), sizes.last()), (Some(&1), Some(&(4 << 20))));
        assert!(sizes.is_sorted_by(|a, b| a < b));
        assert!(sizes.iter().any(|size| !size.is_power_of_two()));
    }
}
