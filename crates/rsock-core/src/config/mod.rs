//! What is configured: environment variables and the file of trusted hosts.

pub mod environment;
pub mod trusted_hosts;
