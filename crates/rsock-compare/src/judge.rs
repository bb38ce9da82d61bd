//! Ratios and verdicts: the measured medians against the promise of a row.

use crate::case::{AS_FAST, Need, Side};
use serde::Serialize;
use std::collections::BTreeMap;

/// How a row compares with its promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The row reaches what rsock strives for.
    Aim,
    /// The row keeps what rsock promises.
    Pass,
    /// The row breaks the promise.
    Fail,
    /// The row has no promise.
    Shown,
    /// A program or device that the row needs is missing.
    #[default]
    NotRun,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Judgement {
    /// rsock : the base of the row.
    pub(crate) ratio: Option<f64>,
    /// rsock : limit, where both had the CPUs placed alike.
    pub(crate) of_limit: Option<f64>,
    pub(crate) verdict: Verdict,
}

/// Of `sides`, on which connections stay on TCP, those that are too slow, with their ratio to
/// kernel TCP.
pub(super) fn too_slow(sides: &[Side], medians: &BTreeMap<Side, f64>) -> Vec<(Side, f64)> {
    let ratios = sides.iter().filter_map(|side| Some((*side, ratio_on_tcp(*side, medians)?)));
    ratios.filter(|(_, ratio)| *ratio < AS_FAST).collect()
}

/// The ratio of a side to kernel TCP.
pub(super) fn ratio_on_tcp(side: Side, medians: &BTreeMap<Side, f64>) -> Option<f64> {
    let kernel = medians.get(&Side::Kernel).filter(|kernel| **kernel > 0.0)?;
    Some(medians.get(&side)? / kernel)
}

/// Compares the medians of a row, and its part `of_limit`, with its promise.
pub(super) fn judge(
    need: Need,
    base: Side,
    medians: &BTreeMap<Side, f64>,
    of_limit: Option<f64>,
) -> Judgement {
    let rsock = medians.get(&Side::Rsock).copied();
    let base = medians.get(&base).copied().filter(|base: &f64| *base > 0.0);
    let ratio = rsock.zip(base).map(|(rsock, base)| rsock / base);
    let verdict = match need {
        Need::Nothing => rsock.map(|_| Verdict::Shown),
        Need::RatioAtLeast { least, aim } => ratio.map(|r| at_least(r, least, aim)),
        Need::RatioAndPartOfLimit { least, part, aim } => {
            ratio.zip(of_limit).map(|(ratio, of_limit)| match at_least(ratio, least, aim) {
                _ if of_limit < part => Verdict::Fail,
                by_ratio => by_ratio,
            })
        }
        Need::RatioAtMost { most, aim } => ratio.map(|r| at_most(r, most, aim)),
        Need::PartOfLimitAtLeast { least, aim } => of_limit.map(|part| at_least(part, least, aim)),
        Need::TimesLimitAtMost { most, aim } => of_limit.map(|times| at_most(times, most, aim)),
        Need::AtMost { most, aim } => rsock.map(|value| at_most(value, most, aim)),
        Need::AtLeast { least, aim } => rsock.map(|value| at_least(value, least, aim)),
    };
    Judgement { ratio, of_limit, verdict: verdict.unwrap_or_default() }
}

fn at_least(value: f64, least: f64, aim: f64) -> Verdict {
    match value {
        value if value >= aim => Verdict::Aim,
        value if value >= least => Verdict::Pass,
        _ => Verdict::Fail,
    }
}

fn at_most(value: f64, most: f64, aim: f64) -> Verdict {
    match value {
        value if value <= aim => Verdict::Aim,
        value if value <= most => Verdict::Pass,
        _ => Verdict::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(need: Need, base: Side, medians: &BTreeMap<Side, f64>) -> Judgement {
        let limit = medians.get(&Side::Limit);
        judge(need, base, medians, limit.map(|limit| medians[&Side::Rsock] / limit))
    }

    fn verdict(need: Need, medians: &[(Side, f64)]) -> Verdict {
        judged(need, Side::Kernel, &medians.iter().copied().collect()).verdict
    }

    #[test]
    fn ratios_are_rsock_over_the_other_side() {
        let medians = BTreeMap::from([
            (Side::Kernel, 20.0),
            (Side::Unix, 30.0),
            (Side::Rsock, 50.0),
            (Side::Limit, 100.0),
        ]);
        let beside_kernel = judged(Need::Nothing, Side::Kernel, &medians);
        assert_eq!((beside_kernel.ratio, beside_kernel.of_limit), (Some(2.5), Some(0.5)));
        assert_eq!(judged(Need::Nothing, Side::C, &medians).ratio, None);
    }

    #[test]
    fn bounds_belong_to_the_better_side() {
        let need = Need::RatioAtLeast { least: 2.0, aim: 5.0 };
        let of = |rsock| verdict(need, &[(Side::Kernel, 10.0), (Side::Rsock, rsock)]);
        assert_eq!(
            [of(19.9), of(20.0), of(49.9), of(50.0)],
            [Verdict::Fail, Verdict::Pass, Verdict::Pass, Verdict::Aim]
        );
        let need = Need::RatioAtMost { most: 1.5, aim: 1.0 };
        let of = |rsock| verdict(need, &[(Side::Kernel, 10.0), (Side::Rsock, rsock)]);
        assert_eq!([of(15.1), of(15.0), of(10.0)], [Verdict::Fail, Verdict::Pass, Verdict::Aim]);
    }

    #[test]
    fn a_part_of_the_limit_may_be_promised_alone() {
        let need = Need::PartOfLimitAtLeast { least: 0.5, aim: 0.8 };
        let of = |rsock| verdict(need, &[(Side::Rsock, rsock), (Side::Limit, 50.0)]);
        assert_eq!([of(24.0), of(25.0), of(40.0)], [Verdict::Fail, Verdict::Pass, Verdict::Aim]);
    }

    #[test]
    fn where_the_limit_counts_too_the_worse_of_the_two_decides() {
        let need = Need::RatioAndPartOfLimit { least: 2.0, part: 0.6, aim: 4.0 };
        let of = |c, limit| {
            let medians = [(Side::C, c), (Side::Rsock, 60.0), (Side::Limit, limit)];
            judged(need, Side::C, &medians.into_iter().collect()).verdict
        };
        assert_eq!(
            [of(31.0, 100.0), of(30.0, 100.0), of(15.0, 100.0), of(15.0, 101.0)],
            [Verdict::Fail, Verdict::Pass, Verdict::Aim, Verdict::Fail]
        );
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        for need in [
            Need::Nothing,
            Need::RatioAndPartOfLimit { least: 0.0, part: 0.0, aim: 0.0 },
            Need::RatioAtLeast { least: 1.0, aim: 1.0 },
            Need::AtMost { most: 1.0, aim: 1.0 },
            Need::TimesLimitAtMost { most: 1.0, aim: 1.0 },
            Need::PartOfLimitAtLeast { least: 1.0, aim: 1.0 },
        ] {
            assert_eq!(verdict(need, &[(Side::Kernel, 1.0)]), Verdict::NotRun);
        }
        let need = Need::RatioAtLeast { least: 1.0, aim: 1.0 };
        assert_eq!(verdict(need, &[(Side::Kernel, 0.0), (Side::Rsock, 1.0)]), Verdict::NotRun);
    }

    #[test]
    fn a_side_on_tcp_is_too_slow_below_its_bound() {
        let (slow, fast) = (Side::ClientAlone, Side::ServerAlone);
        let medians = BTreeMap::from([(Side::Kernel, 128.0), (slow, 124.0), (fast, 125.0)]);
        assert_eq!(too_slow(&[slow, fast, Side::OnTcp], &medians), [(slow, 0.96875)]);
        assert_eq!(ratio_on_tcp(Side::OnTcp, &medians), None);
    }

    #[test]
    fn no_wakeups_is_the_aim() {
        let need = Need::AtMost { most: 0.0, aim: 0.0 };
        assert_eq!(verdict(need, &[(Side::Rsock, 0.0)]), Verdict::Aim);
        assert_eq!(verdict(need, &[(Side::Rsock, 0.3)]), Verdict::Fail);
    }
}
