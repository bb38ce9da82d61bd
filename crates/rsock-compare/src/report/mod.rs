//! The results as a table for a terminal, as Markdown, and as a plot.

use crate::case::{AS_FAST, Need, Place, Side, Unit};
use crate::judge::Verdict;
use crate::limit::Placement;
use crate::result::{Comparison, Row};
use rsock_cli::error::Error;
use rsock_cli::table::{self, line, widths};
use std::fmt::Write;
use std::ops::Range;

mod device;
mod markdown;
mod on_tcp;
mod plot;
mod services;

pub(crate) use markdown::markdown;

/// What the tables for a terminal show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// The figures.
    Figures,
    /// The figures, what rsock promises, and whether it keeps that.
    Promises,
}

/// The columns of a table, each row of which is a line.
struct Table<const N: usize> {
    head: [&'static str; N],
    /// The columns of numbers.
    numbers: Range<usize>,
    cells: fn(&Row) -> [String; N],
}

const FIGURES: Table<8> = Table {
    head: ["", "kernel", "Unix", "rsock", "limit", "ratio", "of limit", "CPUs"],
    numbers: 1..7,
    cells: figures,
};

const PROMISES: Table<11> = Table {
    head: [
        "", "kernel", "Unix", "rsock", "limit", "ratio", "of limit", "at least", "aim", "result",
        "CPUs",
    ],
    numbers: 1..9,
    cells,
};

fn median(row: &Row, side: Side) -> String {
    row.medians.get(&side).map_or(String::new(), |value| quantity(*value, row.unit))
}

fn spread(row: &Row, side: Side) -> String {
    let values = || row.samples.iter().filter(|s| s.side == side).filter_map(|s| s.value);
    let (least, most) = (values().reduce(f64::min), values().reduce(f64::max));
    match (least, most) {
        (Some(least), Some(most)) if least < most => {
            let [least, most] = [least, most].map(|value| quantity(value, row.unit));
            format!("{} ({least} to {most})", median(row, side))
        }
        _ => median(row, side),
    }
}

/// Draws a picture: of bandwidth and latency, or of services if nothing else was run.
pub(crate) fn svg(comparison: &Comparison) -> Result<String, Error> {
    let rows = &comparison.rows;
    if !rows.is_empty() && rows.iter().all(Row::is_service) {
        services::svg(comparison)
    } else {
        plot::svg(comparison)
    }
}

/// Returns the tables, and below them what a reader has to know.
pub(crate) fn text(comparison: &Comparison, shown: Shown) -> String {
    let env = &comparison.environment;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "rsock {} on {}, Linux {}, CPUs {} and {} of {}",
        env.rsock, env.cpu, env.kernel, env.cpus[0], env.cpus[1], env.n_cpus
    );
    let _ = writeln!(
        out,
        "Medians of {} (of some rows three times as many), sides measured in \
         turn, {} s each.",
        env.runs, env.seconds_per_sample
    );
    if comparison.rows.iter().any(|row| !row.is_on_device()) {
        out.push_str("ratio = rsock : kernel TCP, or kernel UDP for datagrams\n");
    }
    let _ = writeln!(out, "{}", machine(comparison));
    if shown == Shown::Promises && comparison.rows.iter().any(Row::is_service) {
        out.push_str("Where kernel TCP takes 20 us or more, some services promise more.\n");
    }
    if env.endless_loops > 0 {
        let n = env.endless_loops;
        let _ = writeln!(out, "Endless loops on the same CPUs: {n}. Services promise less so.");
    }
    if env.runs < LEAST_RUNS {
        let _ = writeln!(out, "A first look: fewer than {LEAST_RUNS} samples prove little.");
    }
    match shown {
        Shown::Figures => tables(&mut out, comparison, &FIGURES),
        Shown::Promises => tables(&mut out, comparison, &PROMISES),
    }
    device::text(&mut out, comparison, shown);
    on_tcp::text(&mut out, comparison);
    for row in comparison.rows.iter().filter(|row| shows_percentiles(row)) {
        percentiles(&mut out, row);
    }
    out.push('\n');
    for note in notes(comparison, shown) {
        let _ = writeln!(out, "{note}");
    }
    out
}

/// Says how fast the kernel is on this machine, and whether its CPUs share a cache.
fn machine(comparison: &Comparison) -> String {
    let us = significant(comparison.environment.kernel_round_trip_us);
    let samples = || comparison.rows.iter().flat_map(|row| &row.samples);
    let (n, n_shared) =
        (samples().count(), samples().filter(|s| s.placement == Placement::A).count());
    let cpus = match n_shared {
        _ if n == 0 => "nothing was measured".to_owned(),
        0 => "the two CPUs share no cache".to_owned(),
        shared if shared == n => "the two CPUs share a cache".to_owned(),
        shared => format!("the two CPUs shared a cache during {shared} of {n} samples"),
    };
    format!("This machine: a round trip over kernel TCP takes {us} us; {cpus}.")
}

/// Appends a table for each placement of the ends.
fn tables<const N: usize>(out: &mut String, comparison: &Comparison, table: &Table<N>) {
    let is_number = |column| table.numbers.contains(&column);
    let head = table.head.map(String::from);
    let lines = comparison.rows.iter().map(table.cells);
    let widths = widths([head.clone()].into_iter().chain(lines));
    for (title, place) in [("Unpinned", false), ("Pinned to a CPU each", true)] {
        let rows: Vec<_> = comparison
            .rows
            .iter()
            .filter(|row| (row.place == Place::Two) == place && !row.is_on_device())
            .collect();
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n{title}");
        line(out, &head, &widths, is_number);
        for row in rows {
            line(out, &(table.cells)(row), &widths, is_number);
        }
    }
}

/// Whether the row is about the latency of single round trips.
fn shows_percentiles(row: &Row) -> bool {
    row.unit == Unit::Microseconds || row.id == "dgram.tail"
}

/// Fewer samples than this make no reliable median.
const LEAST_RUNS: u32 = 5;

fn figures(row: &Row) -> [String; 8] {
    let quotient = |value: Option<f64>| value.map_or(String::new(), significant);
    let rsock = match row.judgement.verdict {
        Verdict::NotRun => "not run".to_owned(),
        _ => median(row, Side::Rsock),
    };
    [
        row.label.clone(),
        median(row, Side::Kernel),
        median(row, Side::Unix),
        rsock,
        median(row, Side::Limit),
        quotient(row.judgement.ratio),
        quotient(row.judgement.of_limit),
        placements(row),
    ]
}

fn cells(row: &Row) -> [String; 11] {
    let [label, kernel, unix, rsock, limit, ratio, of_limit, cpus] = figures(row);
    let (least, aim) = promise(row.need);
    let verdict = verdict(row).to_owned();
    [label, kernel, unix, rsock, limit, ratio, of_limit, least, aim, verdict, cpus]
}

fn verdict(row: &Row) -> &'static str {
    match row.judgement.verdict {
        Verdict::Aim => "aim",
        Verdict::Pass => "pass",
        Verdict::Fail => "FAIL",
        Verdict::Shown => "",
        Verdict::NotRun => "not run",
    }
}

/// Returns the promise and the aim in words.
fn promise(need: Need) -> (String, String) {
    let most = |n: f64, unit: &str| format!("<= {}{unit}", significant(n));
    match need {
        Need::Nothing => (String::new(), String::new()),
        Need::RatioAtLeast { least, aim } | Need::AtLeast { least, aim } => {
            (significant(least), significant(aim))
        }
        Need::RatioAndPartOfLimit { least, part, aim } => {
            let both = format!("{} and {} of limit", significant(least), significant(part));
            (both, significant(aim))
        }
        Need::RatioAtMost { most: m, aim } => (most(m, ""), most(aim, "")),
        Need::PartOfLimitAtLeast { least, aim } => {
            (format!("{} of limit", significant(least)), format!("{} of limit", significant(aim)))
        }
        Need::TimesLimitAtMost { most: m, aim } => (most(m, " x limit"), most(aim, " x limit")),
        Need::AtMost { most: m, aim } if m >= 1024.0 => {
            (most(m / 1024.0, "K"), most(aim / 1024.0, "K"))
        }
        Need::AtMost { most: m, aim } => (most(m, ""), most(aim, "")),
    }
}

/// Formats a figure with the unit of its row.
fn quantity(value: f64, unit: Unit) -> String {
    match unit {
        Unit::PerSecond if value >= 1000.0 => format!("{} k/s", significant(value / 1e3)),
        Unit::PerSecond | Unit::WakeupsPerSecond => format!("{} /s", significant(value)),
        Unit::GbitPerSecond => format!("{} Gb/s", significant(value)),
        Unit::Microseconds => format!("{} us", significant(value)),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        Unit::Bytes => table::bytes(value as u64),
        Unit::CpuPerKib => format!("{} ns/KiB", significant(value)),
        Unit::CpuPerRequest => format!("{} us/request", significant(value)),
        Unit::CpuMillis => format!("{} ms/s", significant(value)),
        Unit::Ratio => significant(value),
    }
}

/// Formats three digits, or all of a larger whole part.
fn significant(value: f64) -> String {
    let text = match value.abs() {
        0.0 => "0".to_owned(),
        v if v < 0.995 => format!("{value:.3}"),
        v if v < 9.995 => format!("{value:.2}"),
        v if v < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    };
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

/// Formats how many samples were taken in each placement.
fn placements(row: &Row) -> String {
    let n = |placement| row.samples.iter().filter(|s| s.placement == placement).count();
    match (n(Placement::A), n(Placement::B)) {
        (0, 0) => String::new(),
        (_, 0) => "A".to_owned(),
        (0, _) => "B".to_owned(),
        (a, b) => format!("A{a} B{b}"),
    }
}

/// Appends the percentiles behind a row of medians.
fn percentiles(out: &mut String, row: &Row) {
    let sides = [("kernel", Side::Kernel), ("Unix", Side::Unix), ("rsock", Side::Rsock)];
    let found: Vec<_> = sides
        .map(|(name, side)| (name, row.percentiles(side)))
        .into_iter()
        .filter(|(_, percentiles)| !percentiles.is_empty())
        .collect();
    let Some((_, first)) = found.first() else { return };
    let place = if row.place == Place::Two { ", pinned" } else { "" };
    let _ = write!(out, "\n{:<24}", format!("{}{place} (us)", row.id.trim_end_matches(".pinned")));
    for (name, _) in first {
        let _ = write!(out, "{name:>9}");
    }
    out.push('\n');
    for (name, percentiles) in &found {
        let _ = write!(out, "  {name:<22}");
        for (_, us) in percentiles {
            let _ = write!(out, "{:>9}", significant(*us));
        }
        out.push('\n');
    }
}

fn notes(comparison: &Comparison, shown: Shown) -> Vec<String> {
    let mut notes = vec![
        "CPUs: A they share a cache, B they do not (by the round trip of a cache line before each \
         sample)."
            .to_owned(),
    ];
    let missing = &comparison.missing_programs;
    if !missing.is_empty() {
        let names = missing.join(", ");
        notes.push(format!("Not found in RSOCK_TOOLS or PATH: {names}."));
    }
    for row in &comparison.rows {
        if let Some(note) = &row.note
            && (!row.samples.is_empty() || row.is_on_device() || row.is_service())
        {
            let what = if row.samples.is_empty() { "not measured: " } else { "" };
            notes.push(format!("{}: {what}{note}", row.id));
        }
        if let Some(share) = row.fast_share().filter(|share| *share < NEARLY_ALL) {
            let percent = share * 100.0;
            notes.push(format!("{}: {percent:.0} % of the bytes went past kernel TCP", row.id));
        }
    }
    if shown == Shown::Figures {
        notes.extend(worse_than_kernel(&comparison.rows));
        return notes;
    }
    let count = |v| comparison.rows.iter().filter(|row| row.judgement.verdict == v).count();
    let [aim, pass, fail, not_run] =
        [Verdict::Aim, Verdict::Pass, Verdict::Fail, Verdict::NotRun].map(count);
    notes.push(format!("{aim} aim, {pass} pass, {fail} FAIL, {not_run} not run."));
    notes
}

/// Names the rows in which rsock is slower than the kernel, and those in which it costs more.
fn worse_than_kernel(rows: &[Row]) -> Vec<String> {
    let named = |is_worse: fn(Unit, f64) -> bool| {
        let ratio = |row: &Row| row.judgement.ratio.filter(|ratio| is_worse(row.unit, *ratio));
        let rows = rows.iter().filter(|row| row.base == Side::Kernel);
        let named =
            rows.filter_map(|row| Some(format!("{} ({})", row.id, significant(ratio(row)?))));
        named.collect::<Vec<_>>().join(", ")
    };
    let (slower, dearer) = (named(is_slower), named(costs_more));
    let mut notes = Vec::new();
    if !slower.is_empty() {
        notes.push(format!("Slower than the kernel by more than 3 %: {slower}."));
    } else if rows.iter().any(|row| row.judgement.ratio.is_some()) {
        notes.push("No row is slower than the kernel by more than 3 %.".to_owned());
    }
    if !dearer.is_empty() {
        notes.push(format!("Costs more than the kernel: {dearer}."));
    }
    notes
}

fn is_slower(unit: Unit, ratio: f64) -> bool {
    match unit {
        Unit::PerSecond | Unit::GbitPerSecond => ratio < AS_FAST,
        Unit::Microseconds => ratio > 1.0 / AS_FAST,
        _ => false,
    }
}

fn costs_more(unit: Unit, ratio: f64) -> bool {
    let is_cost =
        matches!(unit, Unit::Bytes | Unit::CpuMillis | Unit::CpuPerKib | Unit::CpuPerRequest);
    is_cost && ratio > 1.0 / AS_FAST
}

/// A note names rows with a smaller part of the bytes past kernel TCP. It is less than one, since
/// streams begin on TCP.
const NEARLY_ALL: f64 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_no_idle_zeros() {
        let shown =
            [0.0, 0.0123, 0.95, 1.0, 1.5, 3.017, 12.34, 64.0, 150.4, 20172.8].map(significant);
        let expected = ["0", "0.012", "0.95", "1", "1.5", "3.02", "12.3", "64", "150", "20173"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_smaller_rate_is_slower_and_a_greater_cost_is_dearer() {
        let rates = [Unit::PerSecond, Unit::GbitPerSecond];
        assert!(rates.iter().all(|unit| is_slower(*unit, 0.96) && !is_slower(*unit, 0.98)));
        assert!(is_slower(Unit::Microseconds, 1.04) && !is_slower(Unit::Microseconds, 0.1));
        assert!(costs_more(Unit::Bytes, 18.0) && !costs_more(Unit::CpuMillis, 1.02));
        assert!(!costs_more(Unit::PerSecond, 18.0) && !is_slower(Unit::Bytes, 0.1));
    }

    #[test]
    fn quantities_carry_their_unit() {
        assert_eq!(quantity(20172.0, Unit::PerSecond), "20.2 k/s");
        assert_eq!(quantity(100.0, Unit::PerSecond), "100 /s");
        assert_eq!(quantity(8192.0, Unit::Bytes), "8.0K");
        assert_eq!(quantity(0.0, Unit::WakeupsPerSecond), "0 /s");
    }

    #[test]
    fn promises_read_as_they_are_judged() {
        let text = |need| promise(need);
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(text(Need::RatioAtLeast { least: 1.5, aim: 6.0 }), pair("1.5", "6"));
        assert_eq!(
            text(Need::PartOfLimitAtLeast { least: 0.7, aim: 0.8 }),
            pair("0.7 of limit", "0.8 of limit")
        );
        assert_eq!(text(Need::AtMost { most: 65536.0, aim: 8192.0 }), pair("<= 64K", "<= 8K"));
        assert_eq!(text(Need::AtMost { most: 0.0, aim: 0.0 }), pair("<= 0", "<= 0"));
    }
}
