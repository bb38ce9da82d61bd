//! Runs the rows: the sides take turns, and the order in which they start and run rotates.

use crate::bench::Bench;
use crate::case::{Case, Side, Work};
use crate::limit::{self, Placement};
use crate::measure;
use crate::progress::Progress;
use crate::result::{Row, Sample};
use std::time::Duration;

/// Runs `cases`, each side `runs` times, or as many times more as the case asks for.
pub(crate) fn run(bench: &Bench, cases: &[Case], runs: u32) -> Vec<Row> {
    let n_samples = |case: &Case| case.all_sides().len() as u64 * u64::from(runs * case.n_times);
    let n_all = cases.iter().filter(|c| is_measured(c)).map(n_samples).sum();
    let mut progress = Progress::new(n_all, cases.len());
    let mut rows = Vec::with_capacity(cases.len());
    for group in cases.chunk_by(|a, b| are_compared(cases, a, b)) {
        let samples = samples_of(bench, group, runs, &progress);
        for (case, samples) in group.iter().zip(samples) {
            let row = match (case.work, measure::obstacle(bench, case)) {
                (Work::Quotient(..), _) => Row::quotient(case, &rows),
                (_, Some(why)) => {
                    progress.advance(n_samples(case));
                    Row::not_run(case, &why)
                }
                (_, None) => Row::measured(case, samples),
            };
            progress.end_row(&row);
            rows.push(row);
        }
    }
    rows
}

/// Whether one of `cases` is the quotient of these two.
fn are_compared(cases: &[Case], a: &Case, b: &Case) -> bool {
    let names = [a.id.as_str(), b.id.as_str()];
    cases.iter().any(|case| match case.work {
        Work::Quotient(above, below) => names == [above, below] || names == [below, above],
        _ => false,
    })
}

/// Takes the samples of `cases`, which take turns, so that changes of the machine's speed affect
/// all of them alike.
fn samples_of(bench: &Bench, cases: &[Case], runs: u32, progress: &Progress) -> Vec<Vec<Sample>> {
    let n_runs = |case: &Case| {
        if is_measured(case) && measure::obstacle(bench, case).is_none() {
            runs * case.n_times
        } else {
            0
        }
    };
    let mut samples: Vec<_> = cases.iter().map(|_| Vec::new()).collect();
    for run in 0..cases.iter().map(n_runs).max().unwrap_or(0) {
        let mut turns: Vec<_> = cases.iter().zip(&mut samples).collect();
        if run % 2 == 1 {
            turns.reverse();
        }
        for (case, samples) in turns {
            if run < n_runs(case) {
                samples.extend(round(bench, case, run, progress));
            }
        }
    }
    samples
}

fn is_measured(case: &Case) -> bool {
    !matches!(case.work, Work::Quotient(..))
}

/// Takes one sample of each side.
fn round(bench: &Bench, case: &Case, run: u32, progress: &Progress) -> Vec<Sample> {
    let sides = case.all_sides();
    let n = sides.len();
    let turn = run as usize;
    // The first side to start is not always the first to be measured.
    let starting: Vec<_> = (0..n).map(|i| (i + turn) % n).collect();
    let measuring = measuring_order(&sides, turn);
    let mut servers: Vec<_> = (0..n).map(|_| None).collect();
    for index in &starting {
        servers[*index] = Some(measure::start_servers(bench, case, sides[*index]));
    }
    let position = |order: &[usize], index| order.iter().position(|i| *i == index).unwrap_or(0);
    let mut samples = Vec::with_capacity(n);
    let mut line_before = line_ns(bench);
    for index in &measuring {
        let side = sides[*index];
        progress.begin(format!("{} ({side:?})", case.label.trim()));
        let started = servers[*index].take().unwrap_or_else(|| Ok(Vec::new()));
        let done = started.and_then(|servers| measure::measure(bench, case, side, &servers));
        let (done, error) = match done {
            Ok(measured) => (Some(measured), None),
            Err(e) => (None, Some(e.to_string())),
        };
        let line_after = line_ns(bench);
        samples.push(Sample {
            side,
            run,
            started_as: position(&starting, *index),
            measured_as: position(&measuring, *index),
            value: done.as_ref().map(|measured| measured.value),
            error,
            line_ns: line_before,
            line_after_ns: line_after,
            placement: Placement::of(Duration::from_nanos(line_before)),
            fast_share: done.as_ref().and_then(|measured| measured.fast_share),
            latency_us: done.and_then(|measured| measured.latency_us),
        });
        line_before = line_after;
        progress.advance(1);
    }
    samples
}

/// The order in which the sides are measured in a turn. The limit is measured next to rsock, which
/// is compared with it: before it in one turn and after it in the next.
fn measuring_order(sides: &[Side], turn: usize) -> Vec<usize> {
    let of = |wanted| sides.iter().position(|side| *side == wanted);
    let (limit, rsock) = (of(Side::Limit), of(Side::Rsock));
    let mut order: Vec<_> = (0..sides.len()).filter(|index| Some(*index) != limit).collect();
    let n = order.len().max(1);
    order.rotate_left((turn + turn / n) % n);
    if let Some(limit) = limit {
        let rsock = order.iter().position(|index| Some(*index) == rsock).unwrap_or(0);
        order.insert((rsock + turn % 2).min(order.len()), limit);
    }
    order
}

/// The round trip of a cache line between the two CPUs, in nanoseconds.
fn line_ns(bench: &Bench) -> u64 {
    u64::try_from(limit::line_round_trip(bench.cpus).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case;

    #[test]
    fn every_turn_measures_all_sides_and_the_limit_next_to_rsock() {
        let orders = |sides: &[Side]| -> Vec<String> {
            let letters = |order: Vec<usize>| {
                order.iter().map(|index| format!("{:?}", sides[*index]).remove(0)).collect()
            };
            (0..4).map(|turn| letters(measuring_order(sides, turn))).collect()
        };
        let with_limit = [Side::Kernel, Side::Rsock, Side::Limit];
        assert_eq!(orders(&with_limit), ["KLR", "RLK", "LRK", "KRL"]);
        let with_unix = [Side::Kernel, Side::Unix, Side::Rsock, Side::Limit];
        assert_eq!(orders(&with_unix), ["KULR", "URLK", "LRKU", "URLK"]);
        assert_eq!(orders(&[Side::Kernel, Side::Rsock]), ["KR", "RK", "RK", "KR"]);
        assert_eq!(orders(&[Side::Limit]), ["L", "L", "L", "L"]);
    }

    #[test]
    fn rows_of_a_quotient_take_turns_and_no_others_do() {
        let cases = case::all();
        let groups = cases.chunk_by(|a, b| are_compared(&cases, a, b)).filter(|g| g.len() > 1);
        let together: Vec<Vec<_>> =
            groups.map(|group| group.iter().map(|case| case.id.as_str()).collect()).collect();
        assert_eq!(
            together,
            [
                ["stream.64K", "stream.1M"],
                ["stream.64K.pinned", "stream.1M.pinned"],
                ["rdma.stream.64K", "rdma.stream.1M"],
                ["services.busy.10", "services.busy.10000"],
            ]
        );
    }
}
