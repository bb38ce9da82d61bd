//! A client of an incast, a process of its own: sends to all service threads in turn, as fast as it
//! can or as fast as they grant.

use super::pacing::Sender;
use super::wire::{self, Header, Message, Op, Sent, Task};
use rsock_cli::error::Error;
use rsock_cli::perf::datagrams::{Batch, Socket, change, is_timeout};
use std::io::{self, BufRead, IoSlice};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// Takes its task from standard input, and writes its figures to standard output.
pub(super) fn run<S: Socket>() -> Result<(), Error> {
    let (mut stdin, mut stdout) = (io::stdin().lock(), io::stdout());
    let mut say = |message: Message| {
        wire::write(&mut stdout, &message).map_err(Error::io("cannot report what was sent"))
    };
    let task = wire::read::<Task>(&mut stdin);
    let Some(task) = task.map_err(Error::io("cannot read the task"))? else { return Ok(()) };
    let prepared = Client::<S>::prepare(task);
    let mut client = match prepared {
        Ok(client) => client,
        Err(e) => return say(Message::Failed(e.to_string())),
    };
    say(Message::Ready)?;
    let mut line = String::new();
    if !matches!(stdin.read_line(&mut line), Ok(1..)) {
        return Ok(());
    }
    let sent = client.run();
    say(sent.map_or_else(|e| Message::Failed(e.to_string()), Message::Sent))?;
    // The process stays until the server has read all: its end would drop datagrams in flight.
    let _ = io::copy(&mut stdin, &mut io::sink());
    Ok(())
}

/// How long a client and the service threads have to find their paths.
const SETTLE_LIMIT: Duration = Duration::from_secs(20);
/// How long a call waits for an answer.
const ANSWER_LIMIT: Duration = Duration::from_millis(5);
/// Feedbacks received in a call.
const AT_ONCE: usize = 64;
/// How often a client without a grant yields its CPU before it receives with a system call. PERF:
/// on two CPUs, four clients spent a sixth of their time in such calls.
const YIELDS: u32 = 16;

struct Client<S> {
    socket: S,
    task: Task,
    /// The datagrams of one call, one after the other.
    bytes: Vec<u8>,
    sent: u64,
    timeouts: u64,
}

impl<S: Socket> Client<S> {
    /// Makes a client that has found its path to all service threads.
    fn prepare(task: Task) -> io::Result<Self> {
        let bad = || io::Error::new(io::ErrorKind::InvalidInput, "no such run");
        if !task.plan.is_sane() || task.number >= task.plan.clients {
            return Err(bad());
        }
        let any = if task.to.first().ok_or_else(bad)?.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = S::bind(any.parse().map_err(|_| bad())?)?;
        socket.set_limit(ANSWER_LIMIT)?;
        let bytes = vec![0x5a; task.plan.size * usize::from(task.plan.depth)];
        let client = Self { socket, task, bytes, sent: 0, timeouts: 0 };
        for to in &client.task.to {
            client.settle(*to)?;
        }
        Ok(client)
    }

    /// Exchanges datagrams with a service thread until they take the path that is measured, and one
    /// has come back over it.
    fn settle(&self, to: SocketAddr) -> io::Result<()> {
        let size = self.task.plan.size;
        let start = Instant::now();
        for seq in 0.. {
            let settled = self.socket.settled_len(to);
            if let Some(most) = settled.filter(|most| *most < size) {
                let why = format!("datagrams of {size} bytes do not fit this path, at most {most}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            if self.echo(to, seq)? && settled.is_some() {
                return Ok(());
            }
            if start.elapsed() > SETTLE_LIMIT {
                break;
            }
        }
        let why = format!("no path other than UDP to {to}");
        let why = if self.socket.settled_len(to).is_some() { "no answer".to_owned() } else { why };
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    }

    fn echo(&self, to: SocketAddr, seq: u64) -> io::Result<bool> {
        let header = Header { op: Op::Echo, client: self.task.number, seq }.encode();
        self.socket.send(&header, to)?;
        let mut buf = [0; 64];
        loop {
            match self.socket.recv(&mut buf) {
                Ok((len, _)) if buf[..len] == header => return Ok(true),
                // This is the answer to an earlier one.
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
        let end = start + self.task.time;
        if self.task.plan.pacing {
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

    /// Sends as fast as it can.
    fn flood(&mut self, end: Instant) -> io::Result<()> {
        let to = self.task.to.clone();
        let mut next = vec![0; to.len()];
        while Instant::now() < end {
            for (to, next) in to.iter().zip(&mut next) {
                *next += self.send(*to, *next, self.task.plan.depth.into(), Op::Data)?;
            }
        }
        Ok(())
    }

    /// Sends as fast as the service threads grant.
    fn pace(&mut self, end: Instant) -> io::Result<()> {
        let to = self.task.to.clone();
        let mut batch = Batch::new(AT_ONCE, wire::FEEDBACK_LEN);
        let mut now = Instant::now();
        let mut flows: Vec<_> = to.iter().map(|_| Sender::new(self.task.number, now)).collect();
        while now < end {
            let mut has_room = false;
            for (to, flow) in to.iter().zip(&mut flows) {
                let room = flow.room().min(self.task.plan.depth.into());
                if room != 0 {
                    has_room = true;
                    flow.handle_sent(self.send(*to, flow.next_seq(), room, Op::Data)?, now);
                }
            }
            if !has_room {
                self.receive_feedback(&mut flows, &mut batch)?;
            }
            now = Instant::now();
            for (to, flow) in to.iter().zip(&mut flows) {
                if flow.room() == 0 && now >= flow.next_timeout() {
                    self.timeouts += u64::from(flow.next_seq() != 0);
                    if self.send(*to, flow.next_seq(), 1, Op::Probe)? != 0 {
                        flow.handle_probed(now);
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits a while for feedback.
    fn receive_feedback(&self, flows: &mut [Sender], batch: &mut Batch) -> io::Result<()> {
        // The service thread that would answer may be waiting for this CPU.
        for _ in 0..YIELDS {
            thread::yield_now();
            if self.socket.has_input() {
                break;
            }
        }
        match self.socket.recv_batch(batch) {
            Err(e) if is_timeout(&e) => return Ok(()),
            received => received?,
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

    /// Sends `n` datagrams, numbered from `seq` on, and returns how many were sent.
    fn send(&mut self, to: SocketAddr, seq: u64, n: u64, op: Op) -> io::Result<u64> {
        let size = self.task.plan.size;
        let client = self.task.number;
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
            // The kernel is short of memory, which passes.
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => Ok(0),
            Err(e) => Err(e),
        }
    }
}
