//! Programs of others that rows are measured with: for each, how it is called.

pub(super) mod iperf;
pub(super) mod netperf;
pub(super) mod perftest;
pub(super) mod rstream;
pub(super) mod services;
