//! The result of a test, as text and as JSON.

use super::transport::Transport;
use crate::perf::latency::Latency;
use crate::rdma_usage::RdmaUsage;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The result of one test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The name of the test.
    test: String,
    /// The value of `--device`.
    device: String,
    /// Bytes per message.
    size: usize,
    /// How long it was measured.
    seconds: f64,
    /// Round trips, writes or connections per second.
    pub per_second: Option<f64>,
    /// Gbit/s, where bytes were sent one way.
    pub gbit_per_second: Option<f64>,
    /// Latencies, where round trips or connections were timed.
    pub latency_us: Option<Latency>,
    /// What this end had on RDMA devices at its peak; `None` if it had nothing there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rdma: Option<RdmaUsage>,
}

impl Report {
    pub(super) fn new<T: Transport>(test: &str, size: usize, took: Duration) -> Self {
        Self {
            test: test.to_owned(),
            device: T::NAME.to_owned(),
            size,
            seconds: took.as_secs_f64(),
            per_second: None,
            gbit_per_second: None,
            latency_us: None,
            rdma: RdmaUsage::peak(),
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
