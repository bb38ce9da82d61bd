//! Unmodified perftest: the figures of bare verbs on the device, without a protocol.

use crate::bench::Bench;
use crate::case::Case;
use crate::collected::Collected;
use crate::installed::Program;
use crate::server::{Listening, Server};
use rsock_cli::error::Error;

/// Round trips of a sample. `rstream` makes as many: an emulator first translates the code, which
/// counts for less the more there are.
pub(super) const N_ROUND_TRIPS: usize = 5000;

/// Round trips per second of `program`, one byte; `name` is `ib_write_lat` or `ib_send_lat`.
pub(crate) fn round_trips(
    bench: &Bench,
    program: &Program,
    case: &Case,
    name: &str,
) -> Result<f64, Error> {
    parse_latency(&run(bench, program, case, name, 1, N_ROUND_TRIPS)?)
}

/// Gbit/s of `ib_write_bw` with `size` bytes per message.
pub(crate) fn bandwidth(
    bench: &Bench,
    program: &Program,
    case: &Case,
    size: usize,
) -> Result<f64, Error> {
    /// Bytes that take long enough to be timed and end soon on a slow device too.
    const VOLUME: usize = 32 << 20;
    let n = (VOLUME / size).clamp(50, 10_000);
    let output = run(bench, program, case, "ib_write_bw", size, n)?;
    parse_bandwidth(&output)
}

fn run(
    bench: &Bench,
    program: &Program,
    case: &Case,
    name: &str,
    size: usize,
    n: usize,
) -> Result<String, Error> {
    let args = |port: u16| {
        let mut command = program.command();
        // `-F` leaves out warnings about the processor's clock.
        command.args(["-F", "--report_gbits", "-d", &bench.device_name()]);
        command.args(["-s", &size.to_string(), "-n", &n.to_string(), "-p", &port.to_string()]);
        command
    };
    // The server waits for its client on kernel TCP.
    let server = Server::start(name, Listening::OnTcp, |port| Ok(args(port)))?;
    let mut client = args(server.port);
    client.arg(bench.host(case));
    let deadline = bench.deadline(bench.time);
    let output = Collected::spawn(name, client)?.finish(deadline)?;
    server.finish(deadline)?;
    Ok(output)
}

/// Columns of `ib_write_lat` and `ib_send_lat`: bytes, iterations, then the least, greatest,
/// typical and average time of one way in microseconds.
fn parse_latency(output: &str) -> Result<f64, Error> {
    let micros = column(output, 5).ok_or_else(|| no_result(output))?;
    Ok(1e6 / (2.0 * micros))
}

/// Columns of `ib_write_bw --report_gbits`: bytes, iterations, peak and average Gbit/s.
fn parse_bandwidth(output: &str) -> Result<f64, Error> {
    column(output, 3).ok_or_else(|| no_result(output))
}

/// Returns a positive number of the line of results, which is the one that has only numbers.
fn column(output: &str, index: usize) -> Option<f64> {
    let results = output.lines().find_map(|line| {
        let numbers: Option<Vec<f64>> =
            line.split_whitespace().map(|word| word.parse().ok()).collect();
        numbers.filter(|numbers| numbers.len() > index)
    });
    results.map(|numbers| numbers[index]).filter(|value| value.is_finite() && *value > 0.0)
}

fn no_result(output: &str) -> Error {
    let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Error::Failed(format!("perftest printed no result: {:?}", last.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_below_their_heading() {
        let latency = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
 1       5000          12.41          310.20       12.90              12.50          2.31
---------------------------------------------------------------------------------------\n";
        assert_eq!(parse_latency(latency).unwrap(), 40_000.0);
        let bandwidth = "\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      512              0.00               0.56   \t\t   0.001062\n";
        assert_eq!(parse_bandwidth(bandwidth).unwrap(), 0.56);
    }

    #[test]
    fn anything_else_is_an_error() {
        for bad in ["", "Couldn't connect to 10.9.0.1:18515\n", " 1 5000 1 1 1\n", "1 2 3 0\n"] {
            assert!(parse_latency(bad).is_err(), "{bad:?}");
        }
        assert!(parse_bandwidth("1 2 3 0\n").is_err());
    }
}
