//! Unmodified netperf: its command lines and the one number it prints.

use crate::bench::Bench;
use crate::case::{Case, Netperf, Side};
use crate::collected::Collected;
use crate::installed::Program;
use crate::server::Server;
use rsock_cli::error::Error;

/// Starts a server that runs one test after the other in a single process.
pub(crate) fn start_server(
    bench: &Bench,
    program: &Program,
    case: &Case,
    side: Side,
) -> Result<Server, Error> {
    Server::start("netserver", bench.listening(case, side), |port| {
        let mut command = program.command();
        command.args(["-D", "-f", "-N", bench.family(case)]);
        command.args(["-L", &bench.host(case), "-p", &port.to_string()]);
        bench.set_environment(&mut command, case, side);
        Ok(command)
    })
}

/// Starts one client.
pub(crate) fn start_client(
    bench: &Bench,
    program: &Program,
    case: &Case,
    side: Side,
    test: Netperf,
    port: u16,
) -> Result<Collected, Error> {
    let mut command = program.command();
    command.args([bench.family(case), "-H", &bench.host(case), "-p", &port.to_string()]);
    // These make it print a bare number; a unit by `-f` would turn rates into bandwidths.
    command.args(["-P", "0", "-v", "0"]);
    command.args(["-l", &bench.time_of(case).as_secs().to_string()]);
    if let Some([client, server]) = bench.binding(case.place) {
        command.args(["-T", &format!("{client},{server}")]);
    }
    match test {
        Netperf::Rr => command.args(["-t", "TCP_RR"]),
        Netperf::Stream(size) => command.args(["-t", "TCP_STREAM", "--", "-m", &size.to_string()]),
        Netperf::UdpRr => command.args(["-t", "UDP_RR"]),
        // Counts what arrived, not what was sent.
        Netperf::UdpStream(size) => command
            .args(["-t", "UDP_STREAM", "--", "-o", "REMOTE_RECV_THROUGHPUT"])
            .args(["-m", &size.to_string()]),
        Netperf::Crr(size) => {
            command.args(["-t", "TCP_CRR", "--", "-r", &format!("{size},{size}")])
        }
    };
    bench.set_environment(&mut command, case, side);
    Collected::spawn("netperf", command)
}

/// Parses the number in netperf's output: a rate per second, or Gbit/s of a stream.
pub(crate) fn parse(output: &str, test: Netperf) -> Result<f64, Error> {
    let last = output.split_whitespace().next_back();
    let value = last.and_then(|word| word.parse::<f64>().ok());
    match value.filter(|value| value.is_finite() && *value >= 0.0) {
        Some(mbits) if matches!(test, Netperf::Stream(_) | Netperf::UdpStream(_)) => {
            Ok(mbits / 1e3)
        }
        Some(rate) => Ok(rate),
        None => Err(Error::Failed(format!("netperf printed no number: {:?}", output.trim()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_the_last_word() {
        assert_eq!(parse("20172.76 \n", Netperf::Rr).unwrap(), 20172.76);
        assert_eq!(parse("17500.00\n", Netperf::Stream(64)).unwrap(), 17.5);
        assert_eq!(parse("236.50\n", Netperf::UdpStream(64)).unwrap(), 0.2365);
        let noisy = "catcher: timer popped with times_up != 0\n12834.31 \n";
        assert_eq!(parse(noisy, Netperf::Crr(100)).unwrap(), 12834.31);
    }

    #[test]
    fn anything_else_is_an_error() {
        for bad in ["", "\n", "recv_response: partial response received: 0 bytes", "nan", "-1"] {
            assert!(parse(bad, Netperf::Rr).is_err(), "{bad:?}");
        }
    }
}
