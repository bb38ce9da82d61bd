//! Unmodified iperf3: its command lines and its JSON.

use crate::bench::Bench;
use crate::case::{Case, Side};
use crate::collected::Collected;
use crate::installed::Program;
use crate::server::Server;
use rsock_cli::error::Error;
use serde_json::Value;

/// Starts a server.
pub(crate) fn start_server(
    bench: &Bench,
    program: &Program,
    case: &Case,
    side: Side,
) -> Result<Server, Error> {
    Server::start("iperf3 -s", bench.listening(case, side), |port| {
        let mut command = program.command();
        command.args(["-s", "-p", &port.to_string()]);
        bench.set_environment(&mut command, case, side);
        Ok(command)
    })
}

/// Starts a client.
pub(crate) fn start_client(
    bench: &Bench,
    program: &Program,
    case: &Case,
    side: Side,
    options: &[&str],
    port: u16,
) -> Result<Collected, Error> {
    let mut command = program.command();
    command.args(options);
    command.args(["-c", "127.0.0.1", "-p", &port.to_string(), "-J"]);
    command.args(["-t", &bench.time.as_secs().to_string()]);
    if let Some([client, server]) = bench.binding(case.place) {
        command.args(["-A", &format!("{client},{server}")]);
    }
    bench.set_environment(&mut command, case, side);
    Collected::spawn("iperf3", command)
}

/// Parses the Gbit/s that the receiver saw, or that both receivers saw together.
pub(crate) fn parse(output: &str) -> Result<f64, Error> {
    let failed = |why: &str| Error::Failed(format!("iperf3: {why}"));
    let report: Value = serde_json::from_str(output).map_err(|_| failed("no JSON"))?;
    if let Some(error) = report["error"].as_str() {
        return Err(failed(error));
    }
    let received = |sum: &str| report["end"][sum]["bits_per_second"].as_f64();
    let bits = received("sum_received").ok_or_else(|| failed("no result"))?;
    // Only a run in both directions has this.
    Ok((bits + received("sum_received_bidir_reverse").unwrap_or(0.0)) / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receiver_s_figure_counts() {
        let output = r#"{"start": {}, "intervals": [], "end": {
            "sum_sent": {"bits_per_second": 24630360589.9},
            "sum_received": {"bits_per_second": 24500000000.0}}}"#;
        assert_eq!(parse(output).unwrap(), 24.5);
    }

    #[test]
    fn both_directions_of_a_run_count() {
        let output = r#"{"end": {"sum_received": {"bits_per_second": 2e9},
            "sum_received_bidir_reverse": {"bits_per_second": 3e9}}}"#;
        assert_eq!(parse(output).unwrap(), 5.0);
    }

    #[test]
    fn its_error_is_passed_on_and_rubbish_is_one() {
        let refused = r#"{"end": {}, "error": "unable to connect to server: Connection refused"}"#;
        let message = parse(refused).unwrap_err().to_string();
        assert_eq!(message, "iperf3: unable to connect to server: Connection refused");
        for bad in ["", "{}", "iperf3: command not found"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
