//! `rsock perf death`: how soon a blocked reader learns that its peer was killed.

use super::client::{new_histogram, open, record, trip};
use super::device::Device;
use super::report::{Latency, Report};
use super::wire::{Mode, Request};
use super::{Common, server_command};
use crate::child::pause;
use crate::error::Error;
use std::io::{self, Read};
use std::thread;
use std::time::{Duration, Instant};

/// Kills `runs` servers, each while a thread waits for its answer.
pub(super) fn measure<D: Device>(common: &Common, runs: u32) -> Result<Report, Error> {
    /// Enough for a connection to have found its path.
    const TRIPS: u32 = 1000;
    if common.ends.has_server() {
        return Err(Error::Usage("death kills servers of its own: no --connect".into()));
    }
    let failed = || Error::io(format!("{} failed", D::NAME));
    let start = Instant::now();
    let mut seen = new_histogram();
    for _ in 0..runs {
        let (mut server, addr) = common.ends.spawn_server(server_command(common)?)?;
        let mut stream =
            open::<D>(&addr, Request { mode: Mode::Echo, size: 1 }).map_err(failed())?;
        for _ in 0..TRIPS {
            trip(&mut stream, &mut [0]).map_err(failed())?;
        }
        let (entering, entered) = std::sync::mpsc::channel();
        let reader = thread::spawn(move || {
            // The other side sees a closed channel at worst.
            let _ = entering.send(());
            let end = stream.read(&mut [0]);
            (end, Instant::now())
        });
        let _ = entered.recv();
        // Lets the reader fall asleep; how long it takes does not enter the result.
        pause(Duration::from_millis(10));
        let killed = Instant::now();
        server.kill();
        let (end, noticed) =
            reader.join().map_err(|_| Error::Failed("the reader failed".into()))?;
        match end {
            Ok(0) => {}
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {}
            Ok(_) => return Err(Error::Failed("a killed server answered".into())),
            Err(e) => return Err(failed()(e)),
        }
        record(&mut seen, noticed.saturating_duration_since(killed));
    }
    Ok(Report::new::<D>("death", 1, start.elapsed()).latency(Latency::new(&seen)))
}
