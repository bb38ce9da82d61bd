//! The result of `rsock perf dgram`, as text and as JSON.

use crate::perf::datagrams::Counters;
use crate::perf::latency::Latency;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The result of `rsock perf dgram`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DatagramReport {
    pub(super) test: String,
    pub(super) device: String,
    /// Bytes of a datagram.
    pub(super) size: usize,
    /// Datagrams that a call sends or receives at most, one way.
    pub(super) batch: u16,
    /// Duration of each of the two measurements.
    pub(super) seconds: f64,
    /// Round trips that were answered.
    pub round_trips_per_second: f64,
    /// How long those took.
    pub latency_us: Latency,
    /// Datagrams of the one-way measurement.
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) lost: u64,
    /// The lost ones that the sender knows of; `None` where a sender cannot know.
    pub(super) counted: Option<u64>,
    /// By how much counters of this host's RDMA devices or kernel UDP rose meanwhile.
    pub(super) device_counters: Counters,
    /// The rate of one direction, as the receiver saw it.
    pub received_per_second: f64,
    pub(super) gbit_per_second: f64,
}

impl fmt::Display for DatagramReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { test, device, size, batch, seconds, .. } = self;
        write!(f, "{test} over {device}, {size} B, {seconds:.2} s each")?;
        match batch {
            1 => writeln!(f)?,
            n => writeln!(f, ", one way in batches of {n}")?,
        }
        writeln!(f, "  trips     {:>12.0} /s", self.round_trips_per_second)?;
        for (name, us) in self.latency_us.named() {
            writeln!(f, "  {name:<9} {us:>12.2} us")?;
        }
        writeln!(f, "  sent      {:>12}", self.sent)?;
        writeln!(f, "  received  {:>12}", self.received)?;
        write!(f, "  lost      {:>12}", self.lost)?;
        match self.counted {
            Some(counted) => writeln!(f, ", {counted} of them counted")?,
            None => writeln!(f)?,
        }
        writeln!(f, "  rate      {:>12.0} /s received", self.received_per_second)?;
        writeln!(f, "  bandwidth {:>12.3} Gbit/s", self.gbit_per_second)?;
        for (name, n) in &self.device_counters {
            writeln!(f, "  {name:<36} {n:>12}")?;
        }
        Ok(())
    }
}
