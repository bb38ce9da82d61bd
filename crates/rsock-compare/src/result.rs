//! The results: raw samples, medians and verdicts, as the JSON file has them.

mod paired;

use crate::case::{AS_FAST, Case, Need, Place, SERVICES, Side, Unit, Work};
use crate::environment::Environment;
use crate::judge::{self, Judgement, Verdict};
use crate::limit::Placement;
use paired::{ratio_of_runs, usual_placement};
use rsock_cli::perf::latency::Latency;
use serde::Serialize;
use std::collections::BTreeMap;

/// The results of all rows.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    pub(crate) environment: Environment,
    /// Programs that were not found.
    pub(crate) missing_programs: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

/// One row of the table.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) label: String,
    pub(crate) unit: Unit,
    pub(crate) place: Place,
    /// Environment of the rsock side that changes its defaults.
    pub(crate) settings: BTreeMap<&'static str, &'static str>,
    pub(crate) need: Need,
    /// The side that rsock is compared with: `ratio` is rsock over this.
    pub(crate) base: Side,
    /// Further sides, on which connections stay on TCP.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) on_tcp: Vec<Side>,
    pub(crate) medians: BTreeMap<Side, f64>,
    #[serde(flatten)]
    pub(crate) judgement: Judgement,
    /// Why there is no verdict, or what failed.
    pub(crate) note: Option<String>,
    pub(crate) samples: Vec<Sample>,
}

/// One measurement.
#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) side: Side,
    pub(crate) run: u32,
    /// Position among the sides of this run: when its server started, when it was measured.
    pub(crate) started_as: usize,
    pub(crate) measured_as: usize,
    pub(crate) value: Option<f64>,
    pub(crate) error: Option<String>,
    /// Round trip of a cache line between the CPUs just before the sample, in nanoseconds.
    pub(crate) line_ns: u64,
    /// The same just after it: the host may have moved the CPUs.
    pub(crate) line_after_ns: u64,
    /// As [`Self::line_ns`] shows it.
    pub(crate) placement: Placement,
    /// Part of the bytes that had left kernel TCP half-way through; `None` if nothing counts them.
    pub(crate) fast_share: Option<f64>,
    /// Percentiles, where round trips were timed one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_us: Option<Latency>,
}

impl Comparison {
    pub(super) fn new(environment: Environment, rows: Vec<Row>, missing: &[&str]) -> Self {
        let missing_programs = missing.iter().map(|name| (*name).to_owned()).collect();
        Self { environment, missing_programs, rows }
    }

    pub(crate) fn median(&self, id: &str, side: Side) -> Option<f64> {
        self.rows.iter().find(|row| row.id == id)?.medians.get(&side).copied()
    }
}

impl Row {
    /// Judges what was measured.
    pub(super) fn measured(case: &Case, samples: Vec<Sample>) -> Self {
        let mut medians = BTreeMap::new();
        for side in &case.all_sides() {
            let values = samples.iter().filter(|s| s.side == *side).filter_map(|s| s.value);
            medians.extend(median(values.collect()).map(|value| (*side, value)));
        }
        let failures: Vec<_> = samples.iter().filter(|s| s.error.is_some()).collect();
        let note = failures.first().map(|first| {
            let n = failures.len();
            let why = first.error.as_deref().unwrap_or_default();
            format!(
                "{n} of {} samples failed, the first over {:?}: {why}",
                samples.len(),
                first.side
            )
        });
        let [rsock, limit] = [Side::Rsock, Side::Limit].map(|side| of_side(&samples, side));
        let need = case.need_at(usual_placement(&rsock));
        let of_limit = ratio_of_runs(&rsock, &limit);
        let mut judgement = judge::judge(need, case.base, &medians, of_limit);
        if !case.sides.contains(&Side::Rsock) && !medians.is_empty() {
            // The figure is about the machine.
            judgement.verdict = Verdict::Shown;
        }
        let is_about_rsock = |side| side == Side::Rsock || case.on_tcp.contains(&side);
        let slow = judge::too_slow(&case.on_tcp, &medians);
        if !slow.is_empty() || failures.iter().any(|sample| is_about_rsock(sample.side)) {
            judgement.verdict = Verdict::Fail;
        }
        let note = note.or_else(|| too_slow_note(&slow));
        Self { need, judgement, note, medians, samples, ..Self::empty(case) }
    }

    /// A row that could not be run.
    pub(super) fn not_run(case: &Case, why: &str) -> Self {
        Self { note: Some(why.to_owned()), ..Self::empty(case) }
    }

    /// A row that follows from two others.
    pub(super) fn quotient(case: &Case, rows: &[Self]) -> Self {
        let Work::Quotient(above, below) = case.work else {
            return Self::not_run(case, "not a quotient");
        };
        let row = |id| rows.iter().find(|row| row.id == id);
        let ratio = row(above).zip(row(below)).and_then(|(above, below)| {
            let [above, below] = [above, below].map(|row| of_side(&row.samples, Side::Rsock));
            ratio_of_runs(&above, &below)
        });
        let Some(ratio) = ratio else {
            return Self::not_run(case, &format!("needs {above} and {below}"));
        };
        let medians = BTreeMap::from([(Side::Rsock, ratio)]);
        let judgement = judge::judge(case.need, case.base, &medians, None);
        Self { judgement, medians, ..Self::empty(case) }
    }

    /// Whether it was measured on an RDMA device.
    pub(crate) fn is_on_device(&self) -> bool {
        self.base == Side::C
    }

    /// Whether it is about a service.
    pub(crate) fn is_service(&self) -> bool {
        self.id.starts_with(SERVICES)
    }

    /// The ratio of a side on which connections stay on TCP to kernel TCP.
    pub(crate) fn ratio_on_tcp(&self, side: Side) -> Option<f64> {
        judge::ratio_on_tcp(side, &self.medians)
    }

    /// Median part of the bytes that did not use kernel TCP; `None` where nothing counted them.
    pub(crate) fn fast_share(&self) -> Option<f64> {
        median(self.samples.iter().filter_map(|sample| sample.fast_share).collect())
    }

    /// Median percentiles of one side, by name, in microseconds.
    pub(crate) fn percentiles(&self, side: Side) -> Vec<(&'static str, f64)> {
        let of_side = || {
            let samples = self.samples.iter().filter(move |sample| sample.side == side);
            samples.filter_map(|sample| sample.latency_us)
        };
        let names = of_side().next().map(|first| first.named());
        let named = names.into_iter().flatten().enumerate().filter_map(|(index, (name, _))| {
            let values = of_side().map(|latency| latency.named()[index].1);
            Some((name, median(values.collect())?))
        });
        named.collect()
    }

    fn empty(case: &Case) -> Self {
        Self {
            id: case.id.clone(),
            label: case.label.clone(),
            unit: case.unit,
            place: case.place,
            settings: case.settings.iter().copied().collect(),
            need: case.need,
            base: case.base,
            on_tcp: case.on_tcp.clone(),
            medians: BTreeMap::new(),
            judgement: Judgement::default(),
            note: None,
            samples: Vec::new(),
        }
    }
}

/// Names the sides on which connections stay on TCP and that are too slow.
fn too_slow_note(slow: &[(Side, f64)]) -> Option<String> {
    let sides: Vec<_> = slow.iter().map(|(side, ratio)| format!("{side:?} {ratio:.3}")).collect();
    (!sides.is_empty()).then(|| format!("less than {AS_FAST} of kernel TCP: {}", sides.join(", ")))
}

fn of_side(samples: &[Sample], side: Side) -> Vec<&Sample> {
    samples.iter().filter(|sample| sample.side == side).collect()
}

/// The middle value, or the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(values[values.len() / 2 - 1], upper))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 100.0]), Some(3.0));
    }

    pub(super) fn sample(side: Side, value: Option<f64>) -> Sample {
        Sample {
            side,
            run: 0,
            started_as: 0,
            measured_as: 0,
            value,
            error: value.is_none().then(|| "it broke".to_owned()),
            line_ns: 100,
            line_after_ns: 100,
            placement: Placement::A,
            fast_share: None,
            latency_us: None,
        }
    }

    #[test]
    fn a_failed_sample_of_rsock_fails_the_row_whatever_the_others_say() {
        let case = case::all().into_iter().find(|case| case.id == "rr.8pairs").unwrap();
        let good = vec![sample(Side::Kernel, Some(1.0)), sample(Side::Rsock, Some(1000.0))];
        assert_eq!(Row::measured(&case, good).judgement.verdict, Verdict::Aim);
        let bad = vec![
            sample(Side::Kernel, Some(1.0)),
            sample(Side::Rsock, Some(1000.0)),
            sample(Side::Rsock, None),
        ];
        let row = Row::measured(&case, bad);
        assert_eq!(row.judgement.verdict, Verdict::Fail);
        assert!(
            row.note.unwrap().contains("1 of 3 samples failed, the first over Rsock: it broke")
        );
    }

    #[test]
    fn the_usual_placement_of_the_cpus_chooses_the_promise() {
        let case = case::all().into_iter().find(|case| case.id == "stream.64").unwrap();
        let verdict = |n_shared| {
            let place = |(i, sample)| match i < n_shared {
                true => sample,
                false => Sample { placement: Placement::B, ..sample },
            };
            let rsock = [5.0, 5.0, 5.0].map(|value| sample(Side::Rsock, Some(value)));
            let rsock = rsock.into_iter().enumerate().map(place);
            let samples = [sample(Side::Kernel, Some(1.0))].into_iter().chain(rsock).collect();
            Row::measured(&case, samples).judgement.verdict
        };
        assert_eq!([3, 2, 1].map(verdict), [Verdict::Fail, Verdict::Fail, Verdict::Pass]);
    }

    #[test]
    fn a_side_on_tcp_that_is_slow_or_fails_fails_the_row() {
        let case = case::all().into_iter().find(|case| case.id == "services.redis.get.1").unwrap();
        let case = case.with_sides(&[Side::ClientAlone]);
        let verdict = |alone| {
            let samples = vec![
                sample(Side::Kernel, Some(1.0)),
                sample(Side::Rsock, Some(1000.0)),
                sample(Side::ClientAlone, alone),
            ];
            Row::measured(&case, samples).judgement.verdict
        };
        assert_eq!(verdict(Some(0.98)), Verdict::Aim);
        assert_eq!((verdict(Some(0.9)), verdict(None)), (Verdict::Fail, Verdict::Fail));
    }

    #[test]
    fn a_quotient_needs_both_rows() {
        let cases = case::all();
        let find = |id: &str| cases.iter().find(|case| case.id == id).unwrap();
        let row = |id: &str, value| Row::measured(find(id), vec![sample(Side::Rsock, Some(value))]);
        let rows = [row("stream.64K", 40.0), row("stream.1M", 39.0)];
        let cliff = Row::quotient(find("cliff"), &rows);
        assert_eq!(cliff.medians[&Side::Rsock], 0.975);
        assert_eq!(cliff.judgement.verdict, Verdict::Pass);
        assert_eq!(Row::quotient(find("cliff"), &rows[..1]).judgement.verdict, Verdict::NotRun);
    }
}
