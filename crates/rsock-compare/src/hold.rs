//! An end of the rows about streams at rest: opens streams, uses each once and keeps them, so that
//! the comparison can measure what they cost.
//!
//! Each stream exchanges a few single bytes first, as programs do, so that it has left TCP before
//! the bulk of its bytes comes. The server then waits for all of them in `poll(2)`. Both ends use
//! plain TCP sockets; the environment decides whether rsock is below.

use rsock_cli::error::Error;
use rsock_cli::output;
use rsock_cli::perf::{ends, parse_size};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

/// The options of either end.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Bytes that each stream carries first
    #[arg(long, default_value = "1M", value_parser = parse_size)]
    size: usize,
    /// Streams to open, as the client
    #[arg(long, default_value_t = 1000)]
    streams: usize,
    /// Be the client of the server at this address; else be the server
    #[arg(long)]
    connect: Option<String>,
}

/// The client prints this line when all streams are at rest. It ends with its standard input.
pub(crate) const READY: &str = "ready";

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    allow_descriptors(args.streams);
    match &args.connect {
        Some(addr) => client(addr, args),
        None => server(args.size),
    }
}

fn client(addr: &str, args: &Args) -> Result<(), Error> {
    let failed = || Error::io("hold failed");
    let block = vec![0x5a; args.size.min(BLOCK)];
    let mut streams = Vec::with_capacity(args.streams);
    for _ in 0..args.streams {
        let mut stream = TcpStream::connect(addr).map_err(failed())?;
        stream.set_nodelay(true).map_err(failed())?;
        for _ in 0..N_TRIPS {
            stream.write_all(&[1]).map_err(failed())?;
            stream.read_exact(&mut [0]).map_err(failed())?;
        }
        let mut left = args.size;
        while left > 0 {
            let n = left.min(block.len());
            stream.write_all(&block[..n]).map_err(failed())?;
            left -= n;
        }
        stream.read_exact(&mut [0]).map_err(failed())?;
        streams.push(stream);
    }
    output::print(&format!("{READY}\n"))?;
    // Blocks until the comparison closes its end.
    io::stdin().read_to_end(&mut Vec::new()).map_err(failed())?;
    Ok(())
}

fn server(size: usize) -> Result<(), Error> {
    let failed = || Error::io("hold failed");
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed())?;
    let addr = listener.local_addr().map_err(failed())?;
    ends::print_address(addr)?;
    let mut streams: Vec<TcpStream> = Vec::new();
    loop {
        let fds = streams.iter().map(AsRawFd::as_raw_fd).chain([listener.as_raw_fd()]);
        let mut fds: Vec<_> =
            fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        poll(&mut fds).map_err(failed())?;
        // From the back, since a stream that ended is removed.
        for index in (0..streams.len()).rev().filter(|index| fds[*index].revents != 0) {
            if streams[index].read(&mut [0]).map_err(failed())? != 0 {
                return Err(Error::Failed("a stream that should rest carries bytes".into()));
            }
            streams.swap_remove(index);
        }
        if fds.last().is_some_and(|fd| fd.revents != 0) {
            let (mut stream, _) = listener.accept().map_err(failed())?;
            use_once(&mut stream, size).map_err(failed())?;
            streams.push(stream);
        }
    }
}

/// Takes part in what a stream carries before it rests.
fn use_once(stream: &mut TcpStream, size: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buf = vec![0; size.min(BLOCK)];
    for _ in 0..N_TRIPS {
        stream.read_exact(&mut buf[..1])?;
        stream.write_all(&[1])?;
    }
    let mut left = size;
    while left > 0 {
        let room = left.min(buf.len());
        match stream.read(&mut buf[..room])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => left -= n,
        }
    }
    stream.write_all(&[1])
}

const BLOCK: usize = 64 << 10;
/// Single bytes answered by single bytes, at the start of each stream.
const N_TRIPS: usize = 32;

/// Calls the libc function, as ordinary programs do, so that the preload library sees the call.
pub(crate) fn poll(fds: &mut [libc::pollfd]) -> io::Result<()> {
    let n = libc::nfds_t::try_from(fds.len()).unwrap_or(libc::nfds_t::MAX);
    // SAFETY: `fds` is a valid array of `n` entries for the whole call.
    match unsafe { libc::poll(fds.as_mut_ptr(), n, -1) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Why so many streams cannot be opened by a process, if the limit of descriptors forbids it.
pub(crate) fn lacks_descriptors(streams: u64) -> Option<String> {
    let needed = streams + OTHERS;
    let maximum = getrlimit(Resource::Nofile).maximum.filter(|maximum| *maximum < needed)?;
    Some(format!("a process may have only {maximum} descriptors, and needs {needed}"))
}

/// Descriptors of a process beside its streams.
const OTHERS: u64 = 512;

/// Raises the soft limit of descriptors as far as needed and permitted. A shortage shows when
/// streams connect.
pub(crate) fn allow_descriptors(streams: usize) {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = (streams as u64).saturating_mul(2).saturating_add(OTHERS);
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |maximum| maximum.min(wanted)));
        // The old limit stays if this is refused.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_descriptors_that_is_too_low_is_named() {
        assert_eq!(lacks_descriptors(1), None);
        let Some(maximum) = getrlimit(Resource::Nofile).maximum else { return };
        let why = lacks_descriptors(maximum).unwrap();
        assert!(why.contains(&format!("only {maximum} descriptors")), "{why}");
    }
}
