//! The server of an incast: service threads that receive, each with a socket of its own.
//!
//! Who runs the test talks to it over TCP, in lines of JSON ([`wire`]), one run at a time.

use super::pacing::{Feedback, Receiver, Room};
use super::wire::{self, Answer, Ask, Header, Op, Plan, Received};
use crate::child::pause;
use crate::error::Error;
use crate::output;
use crate::perf::datagrams::{Batch, Counters, MAX_BATCH, Socket, add, change, is_timeout};
use crate::perf::server::GREETING;
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
    output::print(&format!("{GREETING}{addr}\n"))?;
    loop {
        let (stream, _) = listener.accept().map_err(Error::io("cannot accept"))?;
        // Whoever goes away in the middle is not missed.
        let _ = run::<S>(&stream);
    }
}

const PREPARING: u8 = 0;
const COUNTING: u8 = 1;
const ENDING: u8 = 2;

fn run<S: Socket>(stream: &TcpStream) -> io::Result<()> {
    let (mut from, mut to) = (BufReader::new(stream), stream);
    let Some(Ask::Prepare(plan)) = wire::read(&mut from)? else { return Ok(()) };
    let sockets = match prepare::<S>(&plan, stream.local_addr()?) {
        Ok(sockets) => sockets,
        Err(e) => return wire::write(&mut to, &Answer::Failed(e.to_string())),
    };
    let addresses = sockets.iter().map(S::address).collect::<io::Result<Vec<_>>>()?;
    wire::write(&mut to, &Answer::Listening(addresses))?;
    let phase = AtomicU8::new(PREPARING);
    thread::scope(|scope| {
        let start = |(number, socket)| {
            let (plan, phase) = (&plan, &phase);
            scope.spawn(move || Service::new(socket, number, plan).serve(phase))
        };
        let threads: Vec<_> = (0u16..).zip(&sockets).map(start).collect();
        let asked = supervise(&sockets, &phase, &mut from, &mut to);
        // However that came out, the threads end.
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
        wire::write(&mut to, &Answer::Done(all))
    })
}

/// Counters at the beginning.
struct Before {
    drops: Counters,
    host: Counters,
}

/// Does what is asked until the run is over.
fn supervise<S: Socket>(
    sockets: &[S],
    phase: &AtomicU8,
    from: &mut BufReader<&TcpStream>,
    to: &mut &TcpStream,
) -> io::Result<Before> {
    let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let Some(Ask::Begin) = wire::read(from)? else { return Err(gone()) };
    let before = Before { drops: sum(sockets, S::lost_in_receiving), host: S::host_counters() };
    phase.store(COUNTING, Ordering::Relaxed);
    wire::write(to, &Answer::Ready)?;
    let Some(Ask::End) = wire::read(from)? else { return Err(gone()) };
    Ok(before)
}

fn sum<S: Socket>(sockets: &[S], counters: impl Fn(&S) -> Counters) -> Counters {
    let mut all = Counters::new();
    sockets.iter().for_each(|socket| add(&mut all, counters(socket)));
    all
}

/// A socket for each service thread, where the control connection came in.
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

/// Bytes of receive buffer that a service thread asks for (`SO_RCVBUF`); the kernel gives `rmem_max` at most.
const ROOM: usize = 1 << 20;
/// How long nothing comes until nothing is on its way.
const QUIET: Duration = Duration::from_millis(50);
/// Datagrams taken at once, at most.
const AT_ONCE: usize = 64;
const _: () = assert!(AT_ONCE <= MAX_BATCH);

/// What one service thread does.
struct Service<'a, S> {
    socket: &'a S,
    number: u16,
    plan: &'a Plan,
    clients: Vec<Client>,
    pacing: Option<Receiver>,
    /// Clients that a batch was from.
    touched: Vec<usize>,
    out_of_order: u64,
    feedbacks: u64,
    /// When the last batch came.
    now: Instant,
}

#[derive(Clone, Default)]
struct Client {
    n: u64,
    next: u64,
    from: Option<SocketAddr>,
    is_touched: bool,
    asks: bool,
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
                    self.give_leave();
                    if begins {
                        batch = Batch::new(self.at_once(), room);
                    }
                    if !self.plan.rest.is_zero() && !is_ending {
                        pause(self.plan.rest);
                    }
                }
                Err(e) if is_timeout(&e) && is_ending => break,
                // A client that is gone was answered, perhaps; it is not what is measured.
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

    /// Datagrams taken at once. Whoever paces looks up before the queue is empty, so that clients send again
    /// while it is still busy.
    fn at_once(&self) -> usize {
        self.socket.room(self.plan.size).map_or(AT_ONCE, |room| (room / 2).clamp(1, AT_ONCE))
    }

    /// Who gives leave to clients, all of which have found their ways here: only then is it known how much
    /// room there is.
    fn receiver(&self) -> Receiver {
        let whose = if S::HAS_LANES { Room::Each } else { Room::Shared };
        let room = self.socket.room(self.plan.size).map(|n| n as u64);
        Receiver::new(self.clients.len(), whose, room)
    }

    #[inline]
    fn take(&mut self, bytes: &[u8], from: SocketAddr) {
        let Some(Header { op, client, seq }) = Header::decode(bytes) else { return };
        let number = client as usize;
        let Some(client) = self.clients.get_mut(number) else { return };
        if op == Op::Echo {
            // If it gets lost it is asked for again.
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
            client.asks |= op == Op::Ask;
            if !client.is_touched {
                client.is_touched = true;
                self.touched.push(number);
            }
            pacing.handle_data(number, seq, self.now);
        }
    }

    /// Tells clients how far they may go.
    fn give_leave(&mut self) {
        let Some(mut pacing) = self.pacing.take() else { return };
        let now = self.now;
        for number in std::mem::take(&mut self.touched) {
            let client = &mut self.clients[number];
            client.is_touched = false;
            let asks = std::mem::take(&mut client.asks);
            if let Some(feedback) = pacing.feedback(number, asks, now) {
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
        // If it gets lost the client asks.
        let _ = self.socket.send(&wire::encode_feedback(self.number, feedback), to);
    }
}
