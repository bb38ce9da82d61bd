//! What is configured: environment variables and the file of trusted hosts.

pub(crate) mod environment;
pub mod trusted_hosts;
