//! Latencies: recorded one by one in a histogram, reported as percentiles.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// The shortest.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// 90 % are as short or shorter.
    pub p90: f64,
    /// 99 % are as short or shorter.
    pub p99: f64,
    /// 99.9 % are as short or shorter.
    pub p999: f64,
    /// The longest.
    pub max: f64,
    /// The arithmetic mean.
    pub mean: f64,
}

impl Latency {
    /// Each number with its name, ascending but for the mean.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 7] {
        [
            ("min", self.min),
            ("p50", self.p50),
            ("p90", self.p90),
            ("p99", self.p99),
            ("p99.9", self.p999),
            ("max", self.max),
            ("mean", self.mean),
        ]
    }
}

/// Records latencies in nanoseconds, with three digits.
#[derive(Debug)]
pub(super) struct Recorder(Histogram<u64>);

impl Recorder {
    pub(super) fn new() -> Self {
        const DIGITS: u8 = 3;
        let mut nanos = Histogram::new(DIGITS)
            .unwrap_or_else(|_| unreachable!("up to five digits are allowed"));
        nanos.auto(true);
        Self(nanos)
    }

    pub(super) fn record(&mut self, took: Duration) {
        // Cannot fail: the histogram grows with what is recorded.
        let _ = self.0.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// How many were recorded.
    pub(super) fn len(&self) -> u64 {
        self.0.len()
    }

    pub(super) fn percentiles(&self) -> Latency {
        let us = |n: u64| n as f64 / 1e3;
        let quantile = |q| us(self.0.value_at_quantile(q));
        Latency {
            min: us(self.0.min()),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: us(self.0.max()),
            mean: self.0.mean() / 1e3,
        }
    }
}
