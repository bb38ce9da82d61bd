//! The client of a test: the loops that measure.

use super::report::Report;
use super::transport::{Stream, Transport};
use super::wire::{Mode, REQUEST_LEN, Request, Tally};
use crate::child::pause;
use crate::perf::latency::Recorder;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// Measures round trips for `time`, at most `rate` per second.
pub(super) fn rr<T: Transport>(
    addr: &str,
    size: usize,
    time: Duration,
    rate: Option<f64>,
) -> io::Result<Report> {
    let mut stream = open::<T>(addr, Request { mode: Mode::Echo, size })?;
    let mut message = vec![0; size];
    let mut latency = Recorder::new();
    match rate {
        Some(rate) => paced_trips(&mut stream, &mut message, time, rate, &mut latency)?,
        None => {
            trips(&mut stream, &mut message, warm_up(time), None)?;
            trips(&mut stream, &mut message, time, Some(&mut latency))?;
        }
    }
    let per_second = latency.len() as f64 / time.as_secs_f64();
    Ok(Report::new::<T>("rr", size, time).rate(per_second).latency(latency.percentiles()))
}

/// Writes for `time`; the receiver counts the bytes.
pub(super) fn stream<T: Transport>(addr: &str, size: usize, time: Duration) -> io::Result<Report> {
    /// Reading the clock for each small write would cost more than the write.
    const BYTES_PER_LOOK: usize = 32 << 10;
    let mut stream = open::<T>(addr, Request { mode: Mode::Sink, size })?;
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
    Ok(Report::new::<T>("stream", size, took)
        .rate(bytes as f64 / size as f64 / seconds)
        .bandwidth(gbits))
}

/// Connects, sends a request, reads the answer and closes, again and again for `time`.
pub(super) fn connect<T: Transport>(addr: &str, size: usize, time: Duration) -> io::Result<Report> {
    let size = size.max(REQUEST_LEN);
    let mut request = vec![0; size];
    request[..REQUEST_LEN].copy_from_slice(&Request { mode: Mode::Once, size }.to_bytes());
    let mut answer = Vec::with_capacity(size);
    let mut latency = Recorder::new();
    let start = Instant::now();
    let mut now = start;
    while now - start < time {
        let mut stream = T::connect(addr)?;
        stream.write_all(&request)?;
        answer.clear();
        // The server closes first, so that used ports wait on its side.
        stream.read_to_end(&mut answer)?;
        if answer.len() != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        drop(stream);
        let then = std::mem::replace(&mut now, Instant::now());
        latency.record(now - then);
    }
    let per_second = latency.len() as f64 / (now - start).as_secs_f64();
    Ok(Report::new::<T>("connect", size, now - start)
        .rate(per_second)
        .latency(latency.percentiles()))
}

/// Connects and sends what the connection is for.
fn open<T: Transport>(addr: &str, request: Request) -> io::Result<T::Stream> {
    let mut stream = T::connect(addr)?;
    stream.write_all(&request.to_bytes())?;
    Ok(stream)
}

/// Sends one request and reads its answer.
fn trip<S: Stream>(stream: &mut S, message: &mut [u8]) -> io::Result<()> {
    stream.write_all(message)?;
    stream.read_exact(message)
}

fn trips<S: Stream>(
    stream: &mut S,
    message: &mut [u8],
    time: Duration,
    mut latency: Option<&mut Recorder>,
) -> io::Result<()> {
    let start = Instant::now();
    let mut now = start;
    while now - start < time {
        trip(stream, message)?;
        let then = std::mem::replace(&mut now, Instant::now());
        if let Some(latency) = &mut latency {
            latency.record(now - then);
        }
    }
    Ok(())
}

fn paced_trips<S: Stream>(
    stream: &mut S,
    message: &mut [u8],
    time: Duration,
    rate: f64,
    latency: &mut Recorder,
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
        latency.record(sent.elapsed());
    }
    Ok(())
}

fn warm_up(time: Duration) -> Duration {
    const LONGEST: Duration = Duration::from_millis(200);
    (time / 10).min(LONGEST)
}
