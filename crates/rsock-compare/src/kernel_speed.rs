//! How long a round trip over the kernel's TCP takes on this machine, which decides what some rows
//! promise.

use crate::limit;
use rsock_cli::error::Error;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Measures the median round trip of one byte between two CPUs. Threads that the scheduler places
/// often share a CPU, and then need a tenth of the time: the median would depend on chance.
pub(crate) fn round_trip(cpus: [usize; 2]) -> Result<Duration, Error> {
    measure(cpus).map_err(Error::io("cannot measure the kernel's TCP"))
}

fn measure(cpus: [usize; 2]) -> io::Result<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    let mut trips = Ok(Vec::new());
    let mut answered = Ok(());
    limit::on_two(cpus, || trips = ask(stream), || answered = answer(peer));
    let mut trips = trips?;
    answered?;
    trips.sort_unstable();
    Ok(trips.get(trips.len() / 2).copied().unwrap_or_default())
}

/// Returns the time of each round trip.
fn ask(mut stream: TcpStream) -> io::Result<Vec<Duration>> {
    const TRIPS: usize = 5000;
    stream.set_nodelay(true)?;
    let mut trips = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let start = Instant::now();
        stream.write_all(&[1])?;
        stream.read_exact(&mut [0])?;
        trips.push(start.elapsed());
    }
    Ok(trips)
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut byte = [0];
    while stream.read(&mut byte)? != 0 {
        stream.write_all(&byte)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rsock_cli::affinity;

    #[test]
    fn a_round_trip_takes_some_time() {
        let cpus = affinity::allowed();
        let took = round_trip([cpus[0], cpus[cpus.len() - 1]]).unwrap();
        assert!(took > Duration::from_nanos(100) && took < Duration::from_secs(1), "{took:?}");
    }
}
