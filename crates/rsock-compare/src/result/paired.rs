//! Compares rsock with the limit, or with another row, run by run. The host of a virtual machine
//! moves the CPUs, and bandwidth changes by a factor of four with them: two samples say something
//! about rsock only if both met the same machine.

use super::{Sample, median};
use crate::limit::Placement;

/// Runs that met one machine from which there is a median.
const FEWEST_RUNS: usize = 3;

/// How the CPUs were placed during most of the samples.
pub(super) fn usual_placement(samples: &[&Sample]) -> Placement {
    let n_shared = samples.iter().filter(|sample| sample.placement == Placement::A).count();
    if 2 * n_shared >= samples.len() { Placement::A } else { Placement::B }
}

/// The median over the runs of `first` : `second`. Only runs in which both met one machine, with
/// the CPUs placed as in most samples of `first`, count, or all runs if those are fewer than
/// [`FEWEST_RUNS`].
pub(super) fn ratio_of_runs(first: &[&Sample], second: &[&Sample]) -> Option<f64> {
    let usual = usual_placement(first);
    let in_one_run = |first: &Sample| {
        let second = second.iter().find(|second| second.run == first.run)?;
        let ratio = first.value? / second.value.filter(|value| *value > 0.0)?;
        let is_alike = first.placement == usual && met_one_machine([first, second]);
        Some((is_alike, ratio))
    };
    let runs: Vec<_> = first.iter().filter_map(|first| in_one_run(first)).collect();
    let alike: Vec<_> = runs.iter().filter(|(is_alike, _)| *is_alike).map(|run| run.1).collect();
    if alike.len() < FEWEST_RUNS {
        return median(runs.into_iter().map(|run| run.1).collect());
    }
    median(alike)
}

/// Whether a cache line took as long between the CPUs before and after each of the two samples.
fn met_one_machine(samples: [&Sample; 2]) -> bool {
    let lines = samples.map(|sample| [sample.line_ns, sample.line_after_ns]);
    let lines = lines.as_flattened().iter().copied();
    // The host's placements differ by a factor of three or more; one varies by a few percent.
    lines.clone().max() < lines.min().map(|least| least + least / 2)
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;
    use crate::case::Side;

    fn at(run: u32, value: f64, line_ns: u64) -> Sample {
        Sample {
            run,
            line_ns,
            line_after_ns: line_ns,
            placement: if line_ns < 250 { Placement::A } else { Placement::B },
            ..sample(Side::Rsock, Some(value))
        }
    }

    fn ratio(first: &[Sample], second: &[Sample]) -> Option<f64> {
        let [first, second] = [first, second].map(|samples| samples.iter().collect::<Vec<_>>());
        ratio_of_runs(&first, &second)
    }

    #[test]
    fn runs_count_in_which_both_samples_met_one_machine() {
        let mut rsock = [
            at(0, 60.0, 100),
            at(1, 70.0, 110),
            at(2, 20.0, 430),
            at(3, 60.0, 100),
            at(4, 80.0, 100),
        ];
        // The CPUs were two threads of one core during run 3.
        let limit = [
            at(0, 100.0, 100),
            at(1, 100.0, 100),
            at(2, 25.0, 430),
            at(3, 300.0, 30),
            at(4, 100.0, 100),
        ];
        assert_eq!(ratio(&rsock, &limit), Some(0.7));
        rsock[4].line_after_ns = 430;
        assert_eq!(ratio(&rsock, &limit), Some(0.7), "two runs are too few: all count");
        rsock[1].value = Some(90.0);
        assert_eq!(ratio(&rsock, &limit), Some(0.8), "two runs are too few: all count");
    }

    #[test]
    fn a_run_without_one_of_its_samples_does_not_count() {
        let rsock = [at(0, 60.0, 100), at(1, 20.0, 100)];
        assert_eq!(ratio(&rsock, &[at(0, 100.0, 100)]), Some(0.6));
        assert_eq!(ratio(&rsock, &[]), None);
        assert_eq!(ratio(&rsock, &[at(0, 0.0, 100)]), None);
    }
}
