//! The server of all tests of streams: the first bytes of a connection say what it is for.

use super::transport::{Stream, Transport};
use super::wire::{Mode, REQUEST_LEN, Request, Tally};
use crate::error::Error;
use crate::perf::ends;
use std::io::{self, ErrorKind};
use std::thread;
use std::time::{Duration, Instant};

/// Serves until killed.
pub(super) fn serve<T: Transport>(addr: Option<&str>) -> Result<(), Error> {
    let at = addr.unwrap_or("a free address");
    let listener =
        T::listen(addr).map_err(|e| Error::Usage(format!("cannot listen on {at}: {e}")))?;
    let addr = T::address(&listener).map_err(Error::io("cannot tell the address"))?;
    ends::print_address(addr)?;
    loop {
        let stream = T::accept(&listener).map_err(Error::io("cannot accept"))?;
        // A client that goes away fails on its own side; the server goes on.
        let _ = answer(stream);
    }
}

/// Answers short connections here, since a thread for each would cost more than they do.
fn answer<S: Stream>(mut stream: S) -> io::Result<()> {
    let Request { mode, size } = Request::read_from(&mut stream)?;
    match mode {
        Mode::Once => once(stream, size),
        Mode::Echo => detach(move || echo(stream, size)),
        Mode::Sink => detach(move || sink(stream, size)),
    }
}

fn detach(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    thread::Builder::new().spawn(work)?;
    Ok(())
}

fn once<S: Stream>(mut stream: S, size: usize) -> io::Result<()> {
    let mut message = vec![0; size];
    stream.read_exact(&mut message[REQUEST_LEN..])?;
    stream.write_all(&message)
}

fn echo<S: Stream>(mut stream: S, size: usize) -> io::Result<()> {
    let mut message = vec![0; size];
    loop {
        stream.read_exact(&mut message)?;
        stream.write_all(&message)?;
    }
}

fn sink<S: Stream>(mut stream: S, size: usize) -> io::Result<()> {
    /// The length that netperf's receiver uses on loopback.
    const LEAST: usize = 128 << 10;
    let mut buf = vec![0; size.max(LEAST)];
    let mut bytes = 0;
    let mut start = None;
    loop {
        let n = match stream.read(&mut buf) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        start.get_or_insert_with(Instant::now);
        bytes += n as u64;
    }
    let took = start.map_or(Duration::ZERO, |start| start.elapsed());
    Tally { bytes, took }.write_to(&mut stream)
}
