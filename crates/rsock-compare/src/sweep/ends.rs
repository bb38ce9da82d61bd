//! The two ends of a sweep. They use plain TCP sockets; the environment decides whether rsock is
//! below.
//!
//! A connection exchanges some single bytes first, as programs do, so that it has left TCP before
//! it is measured. Then the client says how the server is to wait and read, writes for the time of
//! a size, and ends its writing; the server answers with the number of bytes.

use super::Waiting;
use crate::hold::poll;
use rsock_cli::error::Error;
use rsock_cli::output;
use rsock_cli::perf::{ends, parse_seconds, parse_size};
use std::io::{self, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

/// The options of the client.
#[derive(Debug, clap::Args)]
pub(crate) struct ClientArgs {
    /// The server's address
    addr: String,
    #[arg(long, value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<usize>,
    #[arg(long, value_enum)]
    wait: Waiting,
    #[arg(long, value_parser = parse_size)]
    read: usize,
    #[arg(long, value_parser = parse_seconds)]
    time: Duration,
}

/// Single bytes answered by single bytes, at the start of each connection.
const N_TRIPS: usize = 40;
/// The client's first message: how to wait, and the most bytes of a read.
const REQUEST_LEN: usize = 16;

/// Serves one connection after the other.
pub(crate) fn server() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    ends::print_address(listener.local_addr()?).map_err(io::Error::other)?;
    loop {
        let (stream, _) = listener.accept()?;
        // A connection that fails ends, and its client tells.
        let _ = serve(stream);
    }
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    for _ in 0..N_TRIPS {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        stream.write_all(&byte)?;
    }
    let mut request = [0; REQUEST_LEN];
    stream.read_exact(&mut request)?;
    let word = |at: usize| usize::from_le_bytes(*request[at..].first_chunk().unwrap_or(&[0; 8]));
    let wait = *Waiting::ALL.get(word(0)).ok_or(ErrorKind::InvalidData)?;
    let mut room = vec![0; word(8)];
    let mut n_bytes = 0;
    stream.set_nonblocking(wait != Waiting::Blocking)?;
    loop {
        match once(wait, Interest::Read, stream.as_raw_fd(), || stream.read(&mut room))? {
            0 => break,
            n => n_bytes += n as u64,
        }
    }
    stream.set_nonblocking(false)?;
    stream.write_all(&n_bytes.to_le_bytes())
}

/// Prints the rates of all sizes, in bytes per second.
pub(crate) fn client(args: &ClientArgs) -> io::Result<()> {
    let rates = args.sizes.iter().map(|size| rate(args, *size)).collect::<Result<Vec<_>, _>>()?;
    output::print_json(&rates).map_err(|e: Error| io::Error::other(e))
}

fn rate(args: &ClientArgs, size: usize) -> io::Result<f64> {
    /// Bytes between two looks at the clock.
    const LOOK_EVERY: usize = 16 << 10;
    let mut stream = TcpStream::connect(&args.addr)?;
    stream.set_nodelay(true)?;
    for _ in 0..N_TRIPS {
        stream.write_all(&[1])?;
        stream.read_exact(&mut [0])?;
    }
    let wait = Waiting::ALL.iter().position(|wait| *wait == args.wait).unwrap_or(0);
    let request = [wait.to_le_bytes(), args.read.to_le_bytes()];
    stream.write_all(request.as_flattened())?;
    let block = vec![0x5a; size];
    stream.set_nonblocking(args.wait != Waiting::Blocking)?;
    let began = Instant::now();
    let mut n_written = 0;
    while began.elapsed() < args.time {
        let look_at = n_written + LOOK_EVERY.max(size);
        while n_written < look_at {
            n_written += write_all(args.wait, &mut stream, &block)?;
        }
    }
    stream.set_nonblocking(false)?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer)?;
    let took = began.elapsed();
    if u64::from_le_bytes(answer) != n_written as u64 {
        return Err(io::Error::other("the server has received another number of bytes"));
    }
    Ok(n_written as f64 / took.as_secs_f64())
}

fn write_all(wait: Waiting, stream: &mut TcpStream, block: &[u8]) -> io::Result<usize> {
    let mut rest = block;
    while !rest.is_empty() {
        let n = once(wait, Interest::Write, stream.as_raw_fd(), || stream.write(rest))?;
        rest = &rest[n..];
    }
    Ok(block.len())
}

/// What an end waits for.
#[derive(Clone, Copy, Debug)]
enum Interest {
    Read,
    Write,
}

/// Makes the call once it can do something.
fn once(
    wait: Waiting,
    interest: Interest,
    fd: RawFd,
    mut call: impl FnMut() -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        match wait {
            Waiting::Select => select(fd, interest)?,
            Waiting::Poll => poll_for(fd, interest)?,
            Waiting::Blocking | Waiting::Nonblocking => {}
        }
        match call() {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if wait == Waiting::Nonblocking {
                    poll_for(fd, interest)?;
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn poll_for(fd: RawFd, interest: Interest) -> io::Result<()> {
    let events = match interest {
        Interest::Read => libc::POLLIN,
        Interest::Write => libc::POLLOUT,
    };
    poll(&mut [libc::pollfd { fd, events, revents: 0 }])
}

/// Calls the libc function, as ordinary programs do, so that the preload library sees the call.
fn select(fd: RawFd, interest: Interest) -> io::Result<()> {
    if usize::try_from(fd).map_or(true, |fd| fd >= libc::FD_SETSIZE) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let mut set = MaybeUninit::uninit();
    // SAFETY: room for a set.
    unsafe { libc::FD_ZERO(set.as_mut_ptr()) };
    // SAFETY: a set, and a number that it has a bit for.
    unsafe { libc::FD_SET(fd, set.as_mut_ptr()) };
    let (none, set) = (ptr::null_mut(), set.as_mut_ptr());
    let (read, write) = match interest {
        Interest::Read => (set, none),
        Interest::Write => (none, set),
    };
    // SAFETY: each is null or a set, for the whole call; no time limit.
    match unsafe { libc::select(fd + 1, read, write, none, ptr::null_mut()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
