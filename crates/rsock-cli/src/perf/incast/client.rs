//! A client of an incast, a process of its own: sends to all service threads in turn, as fast as it can or as
//! fast as it may.

use super::pacing::Sender;
use super::wire::{self, Header, Op, Orders, Said, Sent};
use crate::error::Error;
use crate::perf::datagrams::{Batch, Socket, change, is_timeout};
use std::io::{self, BufRead, IoSlice};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// Does what is asked on standard input, and says on standard output what came of it.
pub(super) fn be<S: Socket>() -> Result<(), Error> {
    let (mut stdin, mut stdout) = (io::stdin().lock(), io::stdout());
    let mut say = |said: Said| {
        let said = wire::write(&mut stdout, &said);
        said.map_err(Error::io("cannot tell what was sent"))
    };
    let orders = wire::read::<Orders>(&mut stdin);
    let Some(orders) = orders.map_err(Error::io("cannot tell what to do"))? else { return Ok(()) };
    let prepared = Client::<S>::prepare(orders);
    let mut client = match prepared {
        Ok(client) => client,
        Err(e) => return say(Said::Failed(e.to_string())),
    };
    say(Said::Ready)?;
    let mut line = String::new();
    if !matches!(stdin.read_line(&mut line), Ok(1..)) {
        return Ok(());
    }
    let sent = client.run();
    say(sent.map_or_else(|e| Said::Failed(e.to_string()), Said::Sent))?;
    // What is on its way goes on as long as we are there.
    let _ = io::copy(&mut stdin, &mut io::sink());
    Ok(())
}

/// How long a client and a server's threads have to find their ways.
const SETTLE_LIMIT: Duration = Duration::from_secs(20);
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_millis(5);
/// Feedbacks taken at once.
const AT_ONCE: usize = 64;
/// How often a client that may not send offers its CPU before it looks for answers in earnest. PERF: on two
/// CPUs, four clients spent a sixth of their time looking.
const YIELDS: u32 = 16;

struct Client<S> {
    socket: S,
    orders: Orders,
    /// So many datagrams as are sent at once, one after the other.
    bytes: Vec<u8>,
    sent: u64,
    timeouts: u64,
}

impl<S: Socket> Client<S> {
    /// With ways to all service threads.
    fn prepare(orders: Orders) -> io::Result<Self> {
        let bad = || io::Error::new(io::ErrorKind::InvalidInput, "no such run");
        if !orders.plan.is_sane() || orders.number >= orders.plan.clients {
            return Err(bad());
        }
        let any = if orders.to.first().ok_or_else(bad)?.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = S::bind(any.parse().map_err(|_| bad())?)?;
        socket.set_limit(PATIENCE)?;
        let bytes = vec![0x5a; orders.plan.size * usize::from(orders.plan.depth)];
        let client = Self { socket, orders, bytes, sent: 0, timeouts: 0 };
        for to in &client.orders.to {
            client.settle(*to)?;
        }
        Ok(client)
    }

    /// Talks to a service thread until datagrams go the way that is to be measured, and one has come back
    /// that way.
    fn settle(&self, to: SocketAddr) -> io::Result<()> {
        let size = self.orders.plan.size;
        let start = Instant::now();
        for seq in 0.. {
            let settled = self.socket.settled_len(to);
            if let Some(most) = settled.filter(|most| *most < size) {
                let why = format!("datagrams of {size} bytes do not go that way, at most {most}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            if self.echo(to, seq)? && settled.is_some() {
                return Ok(());
            }
            if start.elapsed() > SETTLE_LIMIT {
                break;
            }
        }
        let why = format!("no way past UDP to {to}");
        let why = if self.socket.settled_len(to).is_some() { "no answer".to_owned() } else { why };
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    }

    fn echo(&self, to: SocketAddr, seq: u64) -> io::Result<bool> {
        let header = Header { op: Op::Echo, client: self.orders.number, seq }.encode();
        self.socket.send(&header, to)?;
        let mut buf = [0; 64];
        loop {
            match self.socket.recv(&mut buf) {
                Ok((len, _)) if buf[..len] == header => return Ok(true),
                // The answer to an earlier one.
                Ok(_) => {}
                Err(e) if is_timeout(&e) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
    }

    fn run(&mut self) -> io::Result<Sent> {
        let (drops, received) = (self.socket.lost_in_sending(), self.socket.lost_in_receiving());
        let detours = self.socket.detours();
        let start = Instant::now();
        let end = start + self.orders.time;
        if self.orders.plan.pacing {
            self.pace(end)?
        } else {
            self.flood(end)?
        }
        Ok(Sent {
            sent: self.sent,
            time: start.elapsed(),
            drops: change(&drops, self.socket.lost_in_sending()),
            feedbacks_lost: change(&received, self.socket.lost_in_receiving()).values().sum(),
            detours: self.socket.detours() - detours,
            timeouts: self.timeouts,
        })
    }

    /// As fast as it can.
    fn flood(&mut self, end: Instant) -> io::Result<()> {
        let to = self.orders.to.clone();
        let mut next = vec![0; to.len()];
        while Instant::now() < end {
            for (to, next) in to.iter().zip(&mut next) {
                *next += self.send(*to, *next, self.orders.plan.depth.into(), Op::Data)?;
            }
        }
        Ok(())
    }

    /// As fast as it may.
    fn pace(&mut self, end: Instant) -> io::Result<()> {
        let to = self.orders.to.clone();
        let mut batch = Batch::new(AT_ONCE, wire::FEEDBACK_LEN);
        let mut now = Instant::now();
        let mut flows: Vec<_> = to.iter().map(|_| Sender::new(self.orders.number, now)).collect();
        while now < end {
            let mut has_room = false;
            for (to, flow) in to.iter().zip(&mut flows) {
                let room = flow.room().min(self.orders.plan.depth.into());
                if room != 0 {
                    has_room = true;
                    flow.handle_sent(self.send(*to, flow.next_seq(), room, Op::Data)?, now);
                }
            }
            if !has_room {
                self.hear(&mut flows, &mut batch)?;
            }
            now = Instant::now();
            for (to, flow) in to.iter().zip(&mut flows) {
                if flow.room() == 0 && now >= flow.next_timeout() {
                    self.timeouts += u64::from(flow.next_seq() != 0);
                    if self.send(*to, flow.next_seq(), 1, Op::Ask)? != 0 {
                        flow.handle_asked(now);
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits a while for feedback.
    fn hear(&self, flows: &mut [Sender], batch: &mut Batch) -> io::Result<()> {
        // Who would answer may be waiting for this CPU.
        for _ in 0..YIELDS {
            thread::yield_now();
            if self.socket.has_input() {
                break;
            }
        }
        match self.socket.recv_batch(batch) {
            Err(e) if is_timeout(&e) => return Ok(()),
            heard => heard?,
        }
        let now = Instant::now();
        for (thread, feedback) in batch.iter().filter_map(|(bytes, _)| wire::decode_feedback(bytes))
        {
            if let Some(flow) = flows.get_mut(usize::from(thread)) {
                flow.handle_feedback(feedback, now);
            }
        }
        Ok(())
    }

    /// Sends `n` datagrams, numbered from `seq` on; how many were sent.
    fn send(&mut self, to: SocketAddr, seq: u64, n: u64, op: Op) -> io::Result<u64> {
        let size = self.orders.plan.size;
        let client = self.orders.number;
        for (bytes, seq) in self.bytes.chunks_exact_mut(size).zip(seq..seq + n) {
            let header = Header { op, client, seq };
            bytes[..wire::HEADER_LEN].copy_from_slice(&header.encode());
        }
        let batch = self.bytes.chunks_exact(size).zip(0..n);
        let batch: Vec<_> = batch.map(|(bytes, _)| IoSlice::new(bytes)).collect();
        match self.socket.send_batch(&batch, to) {
            Ok(n) => {
                self.sent += n as u64;
                Ok(n as u64)
            }
            // A shortage of the kernel's, which passes.
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => Ok(0),
            Err(e) => Err(e),
        }
    }
}
