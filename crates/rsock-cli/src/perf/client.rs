//! The measuring loops.

use super::device::{Device, Stream};
use super::report::{Latency, Report};
use super::wire::{Mode, REQUEST_LEN, Request, Tally};
use crate::child::pause;
use hdrhistogram::Histogram;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// Round trips for `time`, at most `rate` per second.
pub(super) fn rr<D: Device>(
    addr: &str,
    size: usize,
    time: Duration,
    rate: Option<f64>,
) -> io::Result<Report> {
    let mut stream = open::<D>(addr, Request { mode: Mode::Echo, size })?;
    let mut message = vec![0; size];
    let mut latency = new_histogram();
    match rate {
        Some(rate) => paced_trips(&mut stream, &mut message, time, rate, &mut latency)?,
        None => {
            trips(&mut stream, &mut message, warm_up(time), None)?;
            trips(&mut stream, &mut message, time, Some(&mut latency))?;
        }
    }
    let per_second = latency.len() as f64 / time.as_secs_f64();
    Ok(Report::new::<D>("rr", size, time).rate(per_second).latency(Latency::new(&latency)))
}

/// Writes for `time`; the receiver counts.
pub(super) fn stream<D: Device>(addr: &str, size: usize, time: Duration) -> io::Result<Report> {
    /// Reading the clock for each small write would be what is measured.
    const BYTES_PER_LOOK: usize = 32 << 10;
    let mut stream = open::<D>(addr, Request { mode: Mode::Sink, size })?;
    let message = vec![0x5a; size];
    let per_look = (BYTES_PER_LOOK / size).max(1);
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..per_look {
            stream.write_all(&message)?;
        }
    }
    stream.finish_writing()?;
    let Tally { bytes, took } = Tally::read_from(&mut stream)?;
    let seconds = took.as_secs_f64();
    if seconds <= 0.0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let gbits = bytes as f64 * 8.0 / seconds / 1e9;
    Ok(Report::new::<D>("stream", size, took)
        .rate(bytes as f64 / size as f64 / seconds)
        .bandwidth(gbits))
}

/// Connect, request, answer, close, one after the other for `time`.
pub(super) fn connect<D: Device>(addr: &str, size: usize, time: Duration) -> io::Result<Report> {
    let size = size.max(REQUEST_LEN);
    let mut request = vec![0; size];
    request[..REQUEST_LEN].copy_from_slice(&Request { mode: Mode::Once, size }.to_bytes());
    let mut answer = Vec::with_capacity(size);
    let mut latency = new_histogram();
    let start = Instant::now();
    let mut now = start;
    while now - start < time {
        let mut stream = D::connect(addr)?;
        stream.write_all(&request)?;
        answer.clear();
        // The server closes first, so that used ports wait on its side.
        stream.read_to_end(&mut answer)?;
        if answer.len() != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        drop(stream);
        let then = std::mem::replace(&mut now, Instant::now());
        record(&mut latency, now - then);
    }
    let per_second = latency.len() as f64 / (now - start).as_secs_f64();
    Ok(Report::new::<D>("connect", size, now - start)
        .rate(per_second)
        .latency(Latency::new(&latency)))
}

/// Connects and says what for.
pub(super) fn open<D: Device>(addr: &str, request: Request) -> io::Result<D::Stream> {
    let mut stream = D::connect(addr)?;
    stream.write_all(&request.to_bytes())?;
    Ok(stream)
}

/// One request and its answer.
pub(super) fn trip<S: Stream>(stream: &mut S, message: &mut [u8]) -> io::Result<()> {
    stream.write_all(message)?;
    stream.read_exact(message)
}

pub(super) fn new_histogram() -> Histogram<u64> {
    const DIGITS: u8 = 3;
    let mut nanos =
        Histogram::new(DIGITS).unwrap_or_else(|_| unreachable!("up to five digits are allowed"));
    nanos.auto(true);
    nanos
}

pub(super) fn record(latency: &mut Histogram<u64>, took: Duration) {
    // Cannot fail: the histogram grows with what is recorded.
    let _ = latency.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1));
}

fn trips<S: Stream>(
    stream: &mut S,
    message: &mut [u8],
    time: Duration,
    mut latency: Option<&mut Histogram<u64>>,
) -> io::Result<()> {
    let start = Instant::now();
    let mut now = start;
    while now - start < time {
        trip(stream, message)?;
        let then = std::mem::replace(&mut now, Instant::now());
        if let Some(latency) = &mut latency {
            record(latency, now - then);
        }
    }
    Ok(())
}

fn paced_trips<S: Stream>(
    stream: &mut S,
    message: &mut [u8],
    time: Duration,
    rate: f64,
    latency: &mut Histogram<u64>,
) -> io::Result<()> {
    if rate.is_nan() || rate <= 0.0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let start = Instant::now();
    for turn in 0_u32.. {
        let due = Duration::from_secs_f64(f64::from(turn) / rate);
        if due >= time {
            break;
        }
        pause(due.saturating_sub(start.elapsed()));
        let sent = Instant::now();
        trip(stream, message)?;
        record(latency, sent.elapsed());
    }
    Ok(())
}

fn warm_up(time: Duration) -> Duration {
    const LONGEST: Duration = Duration::from_millis(200);
    (time / 10).min(LONGEST)
}
