//! The client of `rsock perf dgram`: round trips first, then as many datagrams as possible one way.

use super::report::DatagramReport;
use super::{ANSWER_LEN, Args, COUNT, ECHO, TELL, parse_addr};
use crate::perf::datagrams::{OverRdma, Socket, change, is_timeout};
use crate::perf::latency::Recorder;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long two sockets have to move to their faster path before they are measured.
const SETTLE_LIMIT: Duration = Duration::from_secs(20);
/// How long the client waits for an answer that may be lost.
const ANSWER_LIMIT: Duration = Duration::from_millis(200);

pub(super) fn measure<S: Socket>(addr: &str, args: &Args) -> io::Result<DatagramReport> {
    let Args { size, time, batch, .. } = *args;
    let to = parse_addr(addr)?;
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = S::bind(parse_addr(any)?)?;
    socket.set_limit(ANSWER_LIMIT)?;
    let mut latency = Recorder::new();
    let start = Instant::now();
    loop {
        trips(&socket, to, size, time / 10, &mut Recorder::new())?;
        if socket.settled_len(to).is_some() || start.elapsed() > SETTLE_LIMIT {
            break;
        }
    }
    if S::NAME == OverRdma::NAME && socket.settled_len(to).is_none() {
        let why = "no RDMA device of both hosts leads from one to the other";
        return Err(io::Error::new(io::ErrorKind::NotConnected, why));
    }
    let start = Instant::now();
    while latency.len() == 0 {
        // On a busy machine every answer may come after the client has given up waiting.
        trips(&socket, to, size, time, &mut latency)?;
        if start.elapsed() > SETTLE_LIMIT {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }

    let (before, known_before) = (ask(&socket, to, size, TELL[0])?.0, socket.lost_in_sending());
    let counted_before = S::host_counters();
    let sent = match batch {
        1 => flood(&socket, to, size, time)?,
        _ => flood_in_batches(&socket, to, size, time, batch.into())?,
    };
    // Read before the question is sent, which may be lost as well.
    let known = change(&known_before, socket.lost_in_sending()).values().sum();
    let (after, took) = ask(&socket, to, size, TELL[1])?;
    let received = after - before;
    let per_second = received as f64 / took.as_secs_f64().max(1e-9);
    Ok(DatagramReport {
        test: "dgram".to_owned(),
        device: S::NAME.to_owned(),
        size,
        batch,
        seconds: time.as_secs_f64(),
        round_trips_per_second: latency.len() as f64 / time.as_secs_f64(),
        latency_us: latency.percentiles(),
        sent,
        received,
        lost: sent.saturating_sub(received),
        counted: S::SENDER_KNOWS.then_some(known),
        device_counters: change(&counted_before, S::host_counters()),
        received_per_second: per_second,
        gbit_per_second: per_second * size as f64 * 8.0 / 1e9,
    })
}

/// Makes round trips for `time`; does not record those that get lost.
fn trips<S: Socket>(
    socket: &S,
    to: SocketAddr,
    size: usize,
    time: Duration,
    latency: &mut Recorder,
) -> io::Result<()> {
    let (mut message, mut buf) = (vec![ECHO; size], vec![0; size]);
    let start = Instant::now();
    let mut now = start;
    let mut turn = 0u8;
    while now - start < time {
        turn = turn.wrapping_add(1);
        if let Some(last) = message.get_mut(1..).and_then(<[u8]>::last_mut) {
            *last = turn;
        }
        socket.send(&message, to)?;
        let answered = loop {
            match socket.recv(&mut buf) {
                Ok((len, _)) if buf[..len] == message[..] => break true,
                // This is a late answer to an earlier datagram.
                Ok(_) => {}
                Err(e) if is_timeout(&e) => break false,
                Err(e) => return Err(e),
            }
        };
        let then = std::mem::replace(&mut now, Instant::now());
        if answered {
            latency.record(now - then);
        }
    }
    Ok(())
}

/// Sends for `time`, and returns how many datagrams.
fn flood<S: Socket>(socket: &S, to: SocketAddr, size: usize, time: Duration) -> io::Result<u64> {
    const PER_LOOK: u64 = 64;
    let message = vec![COUNT; size];
    let (start, mut n) = (Instant::now(), 0);
    while start.elapsed() < time {
        for _ in 0..PER_LOOK {
            socket.send(&message, to)?;
        }
        n += PER_LOOK;
    }
    Ok(n)
}

/// The same with `n_each` datagrams in a call.
fn flood_in_batches<S: Socket>(
    socket: &S,
    to: SocketAddr,
    size: usize,
    time: Duration,
    n_each: usize,
) -> io::Result<u64> {
    const PER_LOOK: usize = 64;
    let message = vec![COUNT; size];
    let batch = vec![IoSlice::new(&message); n_each];
    let calls = PER_LOOK.div_ceil(n_each);
    let (start, mut n) = (Instant::now(), 0);
    while start.elapsed() < time {
        for _ in 0..calls {
            n += socket.send_batch(&batch, to)? as u64;
        }
    }
    Ok(n)
}

/// Asks how many datagrams the server has counted so far, and within what time. The question is as
/// long as the datagrams, so it takes the same path behind them; if it gets lost it is repeated.
fn ask<S: Socket>(
    socket: &S,
    to: SocketAddr,
    size: usize,
    tell: u8,
) -> io::Result<(u64, Duration)> {
    const TRIES: u32 = 50;
    let question = vec![tell; size];
    let mut buf = [0; ANSWER_LEN];
    for _ in 0..TRIES {
        socket.send(&question, to)?;
        loop {
            match socket.recv(&mut buf) {
                Ok((ANSWER_LEN, _)) if buf[0] == tell => {
                    let word = |at: usize| {
                        let mut bytes = [0; 8];
                        bytes.copy_from_slice(&buf[at..at + 8]);
                        u64::from_le_bytes(bytes)
                    };
                    return Ok((word(1), Duration::from_nanos(word(9))));
                }
                // This is a late answer to another question.
                Ok(_) => {}
                Err(e) if is_timeout(&e) => break,
                Err(e) => return Err(e),
            }
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}
