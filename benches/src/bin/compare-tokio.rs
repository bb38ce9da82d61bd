//! `cargo run --release -p rsock-benches --bin compare-tokio [SECONDS [ROW...] [FILE.svg]]`:
//! rsock-tokio beside Tokio's TCP streams, in one run.
//!
//! Both columns are the same source and differ in the stream's type alone. They alternate, each
//! sample lasts SECONDS (0.5 unless given), and what is printed are medians of five, with the least
//! and the greatest in brackets, below the commit. A ROW is part of a row's name; a chart of the
//! ratios goes to FILE.svg.

use rsock_benches::cases::{
    active_among, raise_limit, round_trips, rpc, rpc_of_tasks, throughput, throughput_of_tasks,
};
use rsock_benches::chart::{self, Bar};
use rsock_benches::memory::Memory;
use rsock_benches::net::{Rsock, RsockAsleep, Tcp};
use rsock_benches::services::{grpc_one, http_many, http_one};
use std::fs;
use std::io::{self, Write};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Samples of each side.
const SAMPLES: usize = 5;

type Sample = fn(Duration) -> io::Result<f64>;

/// One row: what is measured, its unit, and its two sides, the baseline first.
struct Row {
    name: &'static str,
    unit: (&'static str, f64),
    sides: [Sample; 2],
    /// The ratio that it should reach at least, and the one that is aimed at; 0 for none.
    wanted: (f64, f64),
}

const ROWS: &[Row] = &[
    Row {
        name: "round trips of 64 B, current-thread runtimes",
        unit: ("k/s", 1e3),
        sides: [|t| round_trips::<Tcp>(64, t), |t| round_trips::<Rsock>(64, t)],
        wanted: (10.0, 30.0),
    },
    Row {
        name: "round trips of 64 B without spinning",
        unit: ("k/s", 1e3),
        sides: [|t| round_trips::<Tcp>(64, t), |t| round_trips::<RsockAsleep>(64, t)],
        wanted: (1.0, 1.3),
    },
    Row {
        name: "throughput, 64 KiB writes",
        unit: ("Gbit/s", 1e9 / 8.0),
        sides: [|t| throughput::<Tcp>(64 << 10, t), |t| throughput::<Rsock>(64 << 10, t)],
        wanted: (2.0, 4.0),
    },
    Row {
        name: "axum hello-world, one connection, hyper client",
        unit: ("k/s", 1e3),
        sides: [http_one::<Tcp>, http_one::<Rsock>],
        wanted: (3.0, 0.0),
    },
    Row {
        name: "axum hello-world beside an in-memory duplex",
        unit: ("k/s", 1e3),
        sides: [http_one::<Memory>, http_one::<Rsock>],
        wanted: (0.0, 0.7),
    },
    Row {
        name: "axum, 64 connections, multi-thread runtimes",
        unit: ("k/s", 1e3),
        sides: [|t| http_many::<Tcp>(64, t), |t| http_many::<Rsock>(64, t)],
        wanted: (1.0, 1.5),
    },
    Row {
        name: "tonic unary 100 B, one connection",
        unit: ("k/s", 1e3),
        sides: [grpc_one::<Tcp>, grpc_one::<Rsock>],
        wanted: (2.0, 0.0),
    },
    Row {
        name: "tonic unary 100 B beside an in-memory duplex",
        unit: ("k/s", 1e3),
        sides: [grpc_one::<Memory>, grpc_one::<Rsock>],
        wanted: (0.0, 0.7),
    },
    Row {
        name: "rpc of 64 B, one server thread, 64 clients",
        unit: ("k/s", 1e3),
        sides: [|t| rpc::<Tcp>(64, t), |t| rpc::<Rsock>(64, t)],
        wanted: (5.0, 15.0),
    },
    Row {
        name: "default runtimes, echo of 64 B, one connection",
        unit: ("k/s", 1e3),
        sides: [|t| rpc_of_tasks::<Tcp>(1, t), |t| rpc_of_tasks::<Rsock>(1, t)],
        wanted: (5.0, 30.0),
    },
    Row {
        name: "default runtimes, echo of 64 B, 64 connections",
        unit: ("k/s", 1e3),
        sides: [|t| rpc_of_tasks::<Tcp>(64, t), |t| rpc_of_tasks::<Rsock>(64, t)],
        wanted: (2.0, 3.0),
    },
    Row {
        name: "default runtimes, 1 MiB writes",
        unit: ("Gbit/s", 1e9 / 8.0),
        sides: [
            |t| throughput_of_tasks::<Tcp>(1 << 20, t),
            |t| throughput_of_tasks::<Rsock>(1 << 20, t),
        ],
        wanted: (3.5, 6.0),
    },
    Row {
        name: "10 active of 1,000 streams : 10 alone (rsock)",
        unit: ("k/s", 1e3),
        sides: [|t| rpc::<Rsock>(10, t), |t| active_among::<Rsock>(10, 990, t)],
        wanted: (0.9, 1.0),
    },
];

fn main() -> ExitCode {
    let seconds = match std::env::args().nth(1).map(|s| s.parse::<f64>()) {
        None => 0.5,
        Some(Ok(s)) if s > 0.0 && s.is_finite() => s,
        Some(_) => {
            eprintln!("usage: compare-tokio [SECONDS [ROW...] [FILE.svg]]");
            return ExitCode::from(2);
        }
    };
    raise_limit();
    // Rows may be picked by a part of their names.
    let (files, picked): (Vec<String>, Vec<String>) =
        std::env::args().skip(2).partition(|arg| arg.ends_with(".svg"));
    let done = run(Duration::from_secs_f64(seconds), &picked).and_then(|bars| {
        let chart = chart::svg("rsock-tokio : the baseline of each row", &bars);
        files.iter().try_for_each(|file| fs::write(file, &chart))
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("compare-tokio: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(time: Duration, picked: &[String]) -> io::Result<Vec<Bar>> {
    let mut bars = Vec::new();
    println!("At {}.\n", commit());
    println!("| | baseline | rsock | ratio | at least | aim |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let is_picked = |row: &&Row| picked.is_empty() || picked.iter().any(|p| row.name.contains(p));
    for row in ROWS.iter().filter(is_picked) {
        let mut taken = [Vec::new(), Vec::new()];
        for _ in 0..SAMPLES {
            for (samples, sample) in taken.iter_mut().zip(row.sides) {
                samples.push(sample(time)?);
            }
        }
        let [base, ours] = taken.each_mut().map(|samples| median(samples));
        let ratio = ours / base;
        let [shown, ours_shown] = taken.map(|samples| spread(&samples, row.unit));
        println!(
            "| {} | {shown} | {ours_shown} | {ratio:.2} | {} | {} |",
            row.name,
            or_none(row.wanted.0),
            or_none(row.wanted.1),
        );
        io::stdout().flush()?;
        bars.push(Bar { name: row.name.to_owned(), ratio, wanted: row.wanted.0 });
    }
    Ok(bars)
}

fn or_none(ratio: f64) -> String {
    if ratio == 0.0 { String::new() } else { ratio.to_string() }
}

/// Sorts them.
fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// The median of sorted samples, with the least and the greatest in brackets.
fn spread(sorted: &[f64], (unit, scale): (&str, f64)) -> String {
    let [least, median, most] =
        [0, sorted.len() / 2, sorted.len() - 1].map(|place| sorted[place] / scale);
    format!("{median:.1} {unit} ({least:.1} to {most:.1})")
}

/// The commit that is checked out. This program was built from it unless a checkout came between.
fn commit() -> String {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty", "--exclude=*"]);
    let said = git.output().ok().filter(|out| out.status.success());
    said.map_or("a commit that git does not tell".to_owned(), |out| {
        format!("commit {}", String::from_utf8_lossy(&out.stdout).trim())
    })
}
