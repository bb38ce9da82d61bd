//! The comparison: chooses its rows, runs them, and writes the results where the user wants them.

use crate::bench::Bench;
use crate::case::{self, Case, KernelSpeed, Place, Side};
use crate::endless_loops::EndlessLoops;
use crate::environment::Environment;
use crate::installed::Programs;
use crate::output_file::OutputFile;
use crate::report::Shown;
use crate::result::Comparison;
use crate::trust_file::TrustFile;
use crate::{kernel_speed, report, runner};
use clap::ValueEnum;
use clap::builder::RangedI64ValueParser;
use rsock_cli::error::Error;
use rsock_cli::{affinity, library, output, rdma_devices};
use std::path::PathBuf;
use std::time::Duration;

/// The options of a comparison.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write all samples and the environment to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw bandwidth and latency into this file, or the ratios of services if only those are run
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
    /// Rows about services: also measure rsock where connections stay on TCP, in turns with the
    /// others. A row fails if one of these is slower than 0.97 of kernel TCP
    #[arg(long, value_enum, value_name = "SIDE", value_delimiter = ',')]
    sides: Vec<Alone>,
    /// Run so many endless loops on the same CPUs during all samples. Rows about services then
    /// promise 0.97 of kernel TCP
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = at_most_64())]
    beside: u32,
    /// Show what rsock promises for each row, and whether it keeps that
    #[arg(long)]
    judge: bool,
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

fn at_most_64() -> RangedI64ValueParser<u32> {
    RangedI64ValueParser::new().range(0..=64)
}

/// Where rsock is while connections stay on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Alone {
    /// The library at the client alone
    Client,
    /// The library at the server alone
    Server,
    /// The library at both ends, with RSOCK_DEVICE=tcp
    Tcp,
}

impl Alone {
    fn side(self) -> Side {
        match self {
            Self::Client => Side::ClientAlone,
            Self::Server => Side::ServerAlone,
            Self::Tcp => Side::OnTcp,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let default_pin = if args.quick { Pin::No } else { Pin::Both };
    let devices = rdma_devices::devices().map_err(Error::io("cannot look for RDMA devices"))?;
    let device = rdma_devices::first_address(&devices).map(|(name, ip)| (name.to_owned(), ip));
    let on_device = match device.is_some() || args.list {
        true => DeviceRows::Run,
        false => DeviceRows::OnlyNamed,
    };
    let cases = choose(&args.only, args.pin.unwrap_or(default_pin), on_device)?;
    if args.list {
        let lines: Vec<_> = cases.iter().map(|c| format!("{:<24} {}\n", c.id, c.label)).collect();
        return output::print(&lines.concat());
    }
    let cases = with_sides(cases, &args.sides)?;
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let svg = args.svg.as_deref().map(OutputFile::open).transpose()?;
    let markdown = args.markdown.as_deref().map(OutputFile::open).transpose()?;
    let cpus = two_cpus()?;
    let bench = Bench {
        library: library::find()?,
        c_library: library::find_c().ok(),
        trust_file: device.as_ref().map(|(_, ip)| TrustFile::write(*ip)).transpose()?,
        device,
        exe: std::env::current_exe().map_err(Error::io("cannot tell where this program is"))?,
        programs: Programs::find(),
        cpus,
        time: Duration::from_secs(args.time.into()),
        n_loops: args.beside,
        kernel_round_trip: kernel_speed::round_trip(cpus)?,
    };
    let kernel = KernelSpeed::of(bench.kernel_round_trip);
    let cases = cases.into_iter().map(|case| match case.is_service() && args.beside > 0 {
        true => case.on_busy_machine(),
        false => case.beside(kernel),
    });
    let cases: Vec<_> = cases.collect();
    // An even number, so that each side is measured first as often as the other: kernel TCP's
    // connect rate falls with every connection in TIME_WAIT.
    let runs = args.runs.unwrap_or(if args.quick { 3 } else { 6 });
    let environment = Environment::collect(&bench, runs);
    let loops = EndlessLoops::start(&bench)?;
    let rows = runner::run(&bench, &cases, runs);
    drop(loops);
    let comparison = Comparison::new(environment, rows, &bench.missing_programs());
    let shown = if args.judge { Shown::Promises } else { Shown::Figures };
    output::print(&report::text(&comparison, shown))?;
    if let Some(file) = json {
        file.write(output::to_json(&comparison)?.as_bytes())?;
    }
    if let Some(file) = svg {
        file.write(report::svg(&comparison)?.as_bytes())?;
    }
    if let Some(file) = markdown {
        file.write(report::markdown(&comparison).as_bytes())?;
    }
    Ok(())
}

/// Which rows about an RDMA device belong to the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceRows {
    Run,
    /// There is no device, so only those that the user names, which then say that.
    OnlyNamed,
}

fn choose(only: &[String], pin: Pin, on_device: DeviceRows) -> Result<Vec<Case>, Error> {
    let fits = |case: &Case| match pin {
        Pin::Both => true,
        // Rows about binding, and rows that have no pinned counterpart, belong to both.
        Pin::Yes => case.place != Place::Free || !case.is_also_pinned,
        Pin::No => case.place != Place::Two,
    };
    let is_asked = |case: &Case| {
        (only.is_empty()
            && !case.is_service()
            && (on_device == DeviceRows::Run || !case.is_on_device()))
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

/// The rows with further sides; an error if there are such and no row has them.
fn with_sides(cases: Vec<Case>, alone: &[Alone]) -> Result<Vec<Case>, Error> {
    let mut sides: Vec<_> = alone.iter().map(|alone| alone.side()).collect();
    sides.sort();
    sides.dedup();
    let cases: Vec<_> = cases.into_iter().map(|case| case.with_sides(&sides)).collect();
    if !sides.is_empty() && cases.iter().all(|case| case.on_tcp.is_empty()) {
        return Err(Error::Usage("--sides is for rows about services: --only services".into()));
    }
    Ok(cases)
}

/// Whether `name` names a row: by its id, or by a part of it that ends at a dot. `rr` names
/// `rr.nospin`, not `rdma.rr`.
fn is_called(id: &str, name: &str) -> bool {
    id.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Binds this process and everything it starts to two CPUs, since the promises are made for two.
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
        Ok(choose(&only, Pin::No, DeviceRows::OnlyNamed)?.into_iter().map(|case| case.id).collect())
    }

    #[test]
    fn a_name_stands_for_its_row_and_for_those_below_it() {
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
