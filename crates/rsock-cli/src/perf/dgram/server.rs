//! The server of `rsock perf dgram`: answers and counts.

use super::{Args, COUNT, ECHO, MAX_SIZE, TELL, parse_addr};
use crate::error::Error;
use crate::perf::datagrams::{Batch, Socket};
use crate::perf::ends;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Serves until killed.
pub(super) fn serve<S: Socket>(addr: Option<&str>, args: &Args) -> Result<(), Error> {
    let at = addr.map_or_else(S::any_local, parse_addr);
    let addr = addr.unwrap_or("an address of this host");
    let socket = at.and_then(S::bind);
    let socket = socket.map_err(|e| Error::Usage(format!("cannot listen on {addr}: {e}")))?;
    let addr = socket.address().map_err(Error::io("cannot tell the address"))?;
    ends::print_address(addr)?;
    let mut counted = Counted::default();
    if args.batch == 1 {
        let mut buf = vec![0; MAX_SIZE];
        loop {
            let (len, from) = socket.recv(&mut buf).map_err(Error::io("cannot receive"))?;
            counted.take(&socket, &buf[..len], from);
        }
    }
    let mut batch = Batch::new(args.batch.into(), args.size);
    loop {
        socket.recv_batch(&mut batch).map_err(Error::io("cannot receive"))?;
        batch.iter().for_each(|(bytes, from)| counted.take(&socket, bytes, from));
    }
}

/// The datagrams with [`COUNT`] that a server has received.
#[derive(Default)]
struct Counted {
    n: u64,
    /// When the first arrived, and when roughly the last.
    times: Option<(Instant, Instant)>,
}

impl Counted {
    #[inline]
    fn take<S: Socket>(&mut self, socket: &S, bytes: &[u8], from: SocketAddr) {
        match bytes.first() {
            // An answer that cannot be sent counts as lost at the client.
            Some(&ECHO) => {
                // Every measurement begins with round trips.
                self.times = None;
                let _ = socket.send(bytes, from);
            }
            Some(&COUNT) => {
                self.n += 1;
                // Reading the clock each time would cost more than the datagram.
                if self.times.is_none() || self.n.is_multiple_of(16) {
                    let now = Instant::now();
                    self.times.get_or_insert((now, now)).1 = now;
                }
            }
            Some(op) if TELL.contains(op) => {
                let took = self.times.map_or(Duration::ZERO, |(first, last)| last - first);
                let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                let words = [self.n.to_le_bytes(), nanos.to_le_bytes()].concat();
                let answer = [&[*op][..], &words].concat();
                let _ = socket.send(&answer, from);
            }
            _ => {}
        }
    }
}
