//! What a test found, as text and as JSON.

use super::device::Device;
use crate::on_rdma::OnRdma;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Result of one test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) test: String,
    pub(crate) device: String,
    /// Bytes per message.
    pub(crate) size: usize,
    pub(crate) seconds: f64,
    /// Round trips, writes or connections per second.
    pub(crate) per_second: Option<f64>,
    pub(crate) gbit_per_second: Option<f64>,
    pub(crate) latency_us: Option<Latency>,
    /// The most that this end had on RDMA devices at a time, if it had anything there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rdma: Option<OnRdma>,
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) min: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
}

impl Report {
    pub(super) fn new<D: Device>(test: &str, size: usize, took: Duration) -> Self {
        Self {
            test: test.to_owned(),
            device: D::NAME.to_owned(),
            size,
            seconds: took.as_secs_f64(),
            per_second: None,
            gbit_per_second: None,
            latency_us: None,
            rdma: OnRdma::at_most(),
        }
    }

    pub(super) fn rate(self, per_second: f64) -> Self {
        Self { per_second: Some(per_second), ..self }
    }

    pub(super) fn bandwidth(self, gbits: f64) -> Self {
        Self { gbit_per_second: Some(gbits), ..self }
    }

    pub(super) fn latency(self, latency: Latency) -> Self {
        Self { latency_us: Some(latency), ..self }
    }
}

impl Latency {
    /// Each number with its name, ascending but for the mean.
    pub(crate) fn named(&self) -> [(&'static str, f64); 7] {
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

    /// From a histogram of nanoseconds.
    pub(super) fn new(nanos: &Histogram<u64>) -> Self {
        let us = |n: u64| n as f64 / 1e3;
        Self {
            min: us(nanos.min()),
            p50: us(nanos.value_at_quantile(0.5)),
            p90: us(nanos.value_at_quantile(0.9)),
            p99: us(nanos.value_at_quantile(0.99)),
            p999: us(nanos.value_at_quantile(0.999)),
            max: us(nanos.max()),
            mean: nanos.mean() / 1e3,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { test, device, size, seconds, .. } = self;
        writeln!(f, "{test} over {device}, {size} B, {seconds:.2} s")?;
        if let Some(gbits) = self.gbit_per_second {
            writeln!(f, "  bandwidth {gbits:>12.3} Gbit/s")?;
        }
        if let Some(rate) = self.per_second {
            writeln!(f, "  rate      {rate:>12.0} /s")?;
        }
        if let Some(latency) = &self.latency_us {
            for (name, us) in latency.named() {
                writeln!(f, "  {name:<9} {us:>12.2} us")?;
            }
        }
        if let Some(rdma) = &self.rdma {
            writeln!(f, "  on RDMA   {rdma}")?;
        }
        Ok(())
    }
}
