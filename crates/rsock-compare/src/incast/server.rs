//! The server of an incast: service threads that receive, each with a socket of its own.
//!
//! The process that runs the test sends requests over TCP, in lines of JSON ([`wire`]). The server
//! serves one run at a time.

use super::pacing::{Feedback, Receiver, Reply, Room};
use super::wire::{self, Header, Op, Plan, Received, Request, Response};
use rsock_cli::child::pause;
use rsock_cli::error::Error;
use rsock_cli::perf::datagrams::{Batch, Counters, MAX_BATCH, Socket, add, change, is_timeout};
use rsock_cli::perf::ends;
use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Serves until killed.
pub(super) fn serve<S: Socket>(addr: Option<&str>) -> Result<(), Error> {
    let bad = || io::Error::new(io::ErrorKind::InvalidInput, "no address");
    let at = addr.map_or_else(S::any_local, |addr| addr.parse().map_err(|_| bad()));
    let listener = at.and_then(TcpListener::bind);
    let addr = addr.unwrap_or("an address of this host");
    let listener = listener.map_err(|e| Error::Usage(format!("cannot listen on {addr}: {e}")))?;
    let addr = listener.local_addr().map_err(Error::io("cannot tell the address"))?;
    ends::print_address(addr)?;
    loop {
        let (stream, _) = listener.accept().map_err(Error::io("cannot accept"))?;
        // A run whose other end goes away is over; the server serves the next one.
        let _ = run::<S>(&stream);
    }
}

const PREPARING: u8 = 0;
const COUNTING: u8 = 1;
const ENDING: u8 = 2;

fn run<S: Socket>(stream: &TcpStream) -> io::Result<()> {
    let (mut from, mut to) = (BufReader::new(stream), stream);
    let Some(Request::Prepare(plan)) = wire::read(&mut from)? else { return Ok(()) };
    let sockets = match prepare::<S>(&plan, stream.local_addr()?) {
        Ok(sockets) => sockets,
        Err(e) => return wire::write(&mut to, &Response::Failed(e.to_string())),
    };
    let addresses = sockets.iter().map(S::address).collect::<io::Result<Vec<_>>>()?;
    wire::write(&mut to, &Response::Listening(addresses))?;
    let phase = AtomicU8::new(PREPARING);
    thread::scope(|scope| {
        let start = |(number, socket)| {
            let (plan, phase) = (&plan, &phase);
            scope.spawn(move || Service::new(socket, number, plan).serve(phase))
        };
        let threads: Vec<_> = (0u16..).zip(&sockets).map(start).collect();
        let asked = supervise(&sockets, &phase, &mut from, &mut to);
        // The threads end even if the run failed.
        phase.store(ENDING, Ordering::Relaxed);
        let mut all = Received { by_client: vec![0; plan.clients as usize], ..Received::default() };
        for thread in threads {
            let one = thread.join().unwrap_or_default();
            all.by_client.iter_mut().zip(&one.by_client).for_each(|(sum, n)| *sum += n);
            all.out_of_order += one.out_of_order;
            all.feedbacks += one.feedbacks;
        }
        let before = asked?;
        all.drops = change(&before.drops, sum(&sockets, S::lost_in_receiving));
        all.feedbacks_lost = sum(&sockets, S::lost_in_sending).values().sum();
        all.host = change(&before.host, S::host_counters());
        wire::write(&mut to, &Response::Done(all))
    })
}

/// The counters at the beginning of a run.
struct Before {
    drops: Counters,
    host: Counters,
}

/// Serves the requests of a run until it is over.
fn supervise<S: Socket>(
    sockets: &[S],
    phase: &AtomicU8,
    from: &mut BufReader<&TcpStream>,
    to: &mut &TcpStream,
) -> io::Result<Before> {
    let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let Some(Request::Begin) = wire::read(from)? else { return Err(gone()) };
    let before = Before { drops: sum(sockets, S::lost_in_receiving), host: S::host_counters() };
    phase.store(COUNTING, Ordering::Relaxed);
    wire::write(to, &Response::Ready)?;
    let Some(Request::End) = wire::read(from)? else { return Err(gone()) };
    Ok(before)
}

fn sum<S: Socket>(sockets: &[S], counters: impl Fn(&S) -> Counters) -> Counters {
    let mut all = Counters::new();
    sockets.iter().for_each(|socket| add(&mut all, counters(socket)));
    all
}

/// Makes a socket for each service thread, at the address that the control connection came in at.
fn prepare<S: Socket>(plan: &Plan, at: SocketAddr) -> io::Result<Vec<S>> {
    if !plan.is_sane() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such run"));
    }
    let bind = |_| {
        let socket = S::bind(SocketAddr::new(at.ip(), 0))?;
        socket.set_limit(QUIET)?;
        socket.ask_for_room(ROOM)?;
        Ok(socket)
    };
    (0..plan.threads).map(bind).collect()
}

/// Bytes of receive buffer that a service thread asks for (`SO_RCVBUF`); the kernel grants at most
/// `rmem_max`.
const ROOM: usize = 1 << 20;
/// After this time without a datagram, none is in flight.
const QUIET: Duration = Duration::from_millis(50);
/// Datagrams received in a call at most.
const AT_ONCE: usize = 64;
const _: () = assert!(AT_ONCE <= MAX_BATCH);

/// A service thread.
struct Service<'a, S> {
    socket: &'a S,
    number: u16,
    plan: &'a Plan,
    clients: Vec<Client>,
    pacing: Option<Receiver>,
    /// Clients with datagrams in the last batch.
    touched: Vec<usize>,
    out_of_order: u64,
    feedbacks: u64,
    /// When the last batch arrived.
    now: Instant,
}

/// What a service thread knows of a client.
#[derive(Clone, Default)]
struct Client {
    n: u64,
    next: u64,
    from: Option<SocketAddr>,
    is_touched: bool,
    reply: Reply,
}

impl<'a, S: Socket> Service<'a, S> {
    fn new(socket: &'a S, number: u16, plan: &'a Plan) -> Self {
        let n_clients = plan.clients as usize;
        Self {
            socket,
            number,
            plan,
            clients: vec![Client::default(); n_clients],
            pacing: None,
            touched: Vec::new(),
            out_of_order: 0,
            feedbacks: 0,
            now: Instant::now(),
        }
    }

    fn serve(mut self, phase: &AtomicU8) -> Received {
        let room = if self.plan.copy { self.plan.size } else { wire::HEADER_LEN };
        let mut batch = Batch::new(AT_ONCE, room);
        loop {
            let is_ending = phase.load(Ordering::Relaxed) == ENDING;
            match self.socket.recv_batch(&mut batch) {
                Ok(()) => {
                    if self.plan.pacing {
                        self.now = Instant::now();
                    }
                    let begins = self.plan.pacing
                        && self.pacing.is_none()
                        && phase.load(Ordering::Relaxed) != PREPARING;
                    if begins {
                        self.pacing = Some(self.receiver());
                    }
                    for (bytes, from) in batch.iter() {
                        self.take(bytes, from);
                    }
                    self.send_feedback();
                    if begins {
                        batch = Batch::new(self.at_once(), room);
                    }
                    if !self.plan.rest.is_zero() && !is_ending {
                        pause(self.plan.rest);
                    }
                }
                Err(e) if is_timeout(&e) && is_ending => break,
                // A timeout, or an ICMP error about a client that has gone: the thread goes on.
                Err(_) => {}
            }
        }
        Received {
            by_client: self.clients.iter().map(|client| client.n).collect(),
            out_of_order: self.out_of_order,
            feedbacks: self.feedbacks,
            ..Received::default()
        }
    }

    /// Datagrams received in a call. A thread that paces stops before its queue is empty, so that
    /// clients send again while it is still busy.
    fn at_once(&self) -> usize {
        self.socket.room(self.plan.size).map_or(AT_ONCE, |room| (room / 2).clamp(1, AT_ONCE))
    }

    /// Makes the flow control. Its room is known only once all clients have found their path.
    fn receiver(&self) -> Receiver {
        let sharing = if S::HAS_LANES { Room::Each } else { Room::Shared };
        let room = self.socket.room(self.plan.size).map(|n| n as u64);
        Receiver::new(self.clients.len(), sharing, room)
    }

    #[inline]
    fn take(&mut self, bytes: &[u8], from: SocketAddr) {
        let Some(Header { op, client, seq }) = Header::decode(bytes) else { return };
        let number = client as usize;
        let Some(client) = self.clients.get_mut(number) else { return };
        if op == Op::Echo {
            // The client repeats it if the answer gets lost.
            let _ = self.socket.send(&bytes[..wire::HEADER_LEN], from);
            return;
        }
        client.n += 1;
        if seq < client.next {
            self.out_of_order += 1;
        } else {
            client.next = seq.saturating_add(1);
        }
        if let Some(pacing) = &mut self.pacing {
            client.from = Some(from);
            if op == Op::Probe {
                client.reply = Reply::Always;
            }
            if !client.is_touched {
                client.is_touched = true;
                self.touched.push(number);
            }
            pacing.handle_data(number, seq, self.now);
        }
    }

    /// Raises the limits of clients and sends them feedback.
    fn send_feedback(&mut self) {
        let Some(mut pacing) = self.pacing.take() else { return };
        let now = self.now;
        for number in std::mem::take(&mut self.touched) {
            let client = &mut self.clients[number];
            client.is_touched = false;
            let reply = std::mem::take(&mut client.reply);
            if let Some(feedback) = pacing.feedback(number, reply, now) {
                self.tell(number, feedback);
            }
        }
        while let Some((number, feedback)) = pacing.poll_feedback(now) {
            self.tell(number, feedback);
        }
        self.pacing = Some(pacing);
    }

    fn tell(&mut self, number: usize, feedback: Feedback) {
        let Some(to) = self.clients[number].from else { return };
        self.feedbacks += 1;
        // If it gets lost the client probes.
        let _ = self.socket.send(&wire::encode_feedback(self.number, feedback), to);
    }
}
