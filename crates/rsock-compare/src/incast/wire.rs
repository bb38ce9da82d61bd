//! The messages of an incast: in datagrams between clients and service threads, and in lines of
//! JSON between the processes.
//!
//! Lengths and numbers are checked: a sender can harm only the run that it belongs to.

use super::pacing::Feedback;
use rsock_cli::perf::datagrams::{Counters, MAX_BATCH};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// The shortest datagram of a client: a header. Bytes that follow it have no meaning.
pub(super) const HEADER_LEN: usize = 16;

/// The first word of a client's datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// The service thread sends it back, so that both sockets find their path.
    Echo,
    /// The service thread counts it.
    Data,
    /// The same, and a service thread that paces answers at once.
    Probe,
}

/// The first bytes of every datagram of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) op: Op,
    /// The number of the client.
    pub(super) client: u32,
    /// How many datagrams it has sent to this service thread before.
    pub(super) seq: u64,
}

impl Header {
    pub(super) fn encode(self) -> [u8; HEADER_LEN] {
        let op = match self.op {
            Op::Echo => ECHO,
            Op::Data => DATA,
            Op::Probe => PROBE,
        };
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&op.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.client.to_le_bytes());
        bytes[8..].copy_from_slice(&self.seq.to_le_bytes());
        bytes
    }

    /// `None` if no client sends such a datagram.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEADER_LEN)?;
        let op = match u32::from_le_bytes(bytes[..4].try_into().ok()?) {
            ECHO => Op::Echo,
            DATA => Op::Data,
            PROBE => Op::Probe,
            _ => return None,
        };
        let client = u32::from_le_bytes(bytes[4..8].try_into().ok()?);
        Some(Self { op, client, seq: u64::from_le_bytes(bytes[8..].try_into().ok()?) })
    }
}

const ECHO: u32 = 0x6f68_6365;
const DATA: u32 = 0x6174_6164;
const PROBE: u32 = 0x006b_7361;
const FEEDBACK: u32 = 0x6b63_6162;

/// Bytes of a feedback; with rsock's header they fit into a slot of a lane.
pub(super) const FEEDBACK_LEN: usize = 28;

pub(super) fn encode_feedback(thread: u16, feedback: Feedback) -> [u8; FEEDBACK_LEN] {
    let mut bytes = [0; FEEDBACK_LEN];
    bytes[..4].copy_from_slice(&FEEDBACK.to_le_bytes());
    bytes[4..6].copy_from_slice(&thread.to_le_bytes());
    bytes[8..16].copy_from_slice(&feedback.seen.to_le_bytes());
    bytes[16..24].copy_from_slice(&feedback.limit.to_le_bytes());
    bytes
}

/// Returns the number of the service thread, and its feedback; `None` for any other datagram.
pub(super) fn decode_feedback(bytes: &[u8]) -> Option<(u16, Feedback)> {
    let bytes = bytes.get(..FEEDBACK_LEN)?;
    if bytes[..4] != FEEDBACK.to_le_bytes() {
        return None;
    }
    let thread = u16::from_le_bytes(bytes[4..6].try_into().ok()?);
    let seen = u64::from_le_bytes(bytes[8..16].try_into().ok()?);
    let limit = u64::from_le_bytes(bytes[16..24].try_into().ok()?);
    Some((thread, Feedback { seen, limit }))
}

/// The parameters of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) clients: u32,
    pub(super) threads: u16,
    pub(super) size: usize,
    /// Datagrams that a client sends in a call.
    pub(super) depth: u16,
    /// Whether service threads copy what arrives to memory of their own.
    pub(super) copy: bool,
    /// How long a service thread rests after each batch.
    pub(super) rest: Duration,
    pub(super) pacing: bool,
}

impl Plan {
    /// Whether it is within the limits. Any process may send one to a server.
    pub(super) fn is_sane(&self) -> bool {
        (1..=MAX_CLIENTS).contains(&self.clients)
            && (1..=MAX_THREADS).contains(&self.threads)
            && (HEADER_LEN..=MAX_SIZE).contains(&self.size)
            && (1..=MAX_BATCH).contains(&self.depth.into())
            && self.rest <= MAX_REST
    }
}

/// The most clients and service threads of one run.
pub(super) const MAX_CLIENTS: u32 = 256;
pub(super) const MAX_THREADS: u16 = 64;
/// The longest datagram: what UDP carries, less rsock's header.
pub(super) const MAX_SIZE: usize = 65_000;
/// The longest rest.
pub(super) const MAX_REST: Duration = Duration::from_secs(10);

/// Requests to the server, in this order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Makes sockets; the response is [`Response::Listening`].
    Prepare(Plan),
    /// All clients have found their path, and counting starts; the response is [`Response::Ready`].
    Begin,
    /// No client sends any more; the response is [`Response::Done`] when the queues are empty.
    End,
}

/// Responses of the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Response {
    /// The address of each service thread's socket.
    Listening(Vec<SocketAddr>),
    Ready,
    Done(Received),
    Failed(String),
}

/// The server's figures of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Received {
    /// Datagrams of each client.
    pub(super) by_client: Vec<u64>,
    /// Datagrams that came after a later one of the same client, or twice.
    pub(super) out_of_order: u64,
    pub(super) feedbacks: u64,
    pub(super) feedbacks_lost: u64,
    /// Datagrams dropped, by the counters of its sockets.
    pub(super) drops: Counters,
    /// Counters of its host.
    pub(super) host: Counters,
}

/// What a client does. The first line of its input; the second lets it begin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) number: u32,
    pub(super) plan: Plan,
    pub(super) time: Duration,
    pub(super) to: Vec<SocketAddr>,
}

/// Messages of a client: that it has found its paths, and what it sent in the end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Message {
    Ready,
    Sent(Sent),
    Failed(String),
}

/// A client's figures of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sent {
    pub(super) sent: u64,
    pub(super) time: Duration,
    /// Datagrams dropped, by the counters of its socket.
    pub(super) drops: Counters,
    pub(super) feedbacks_lost: u64,
    /// Datagrams that a kernel socket carried although another path was asked for.
    pub(super) detours: u64,
    /// How often it waited in vain for feedback.
    pub(super) timeouts: u64,
}

/// Writes a line of JSON.
pub(super) fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Reads a line of JSON; `None` at the end of the input.
pub(super) fn read<T: for<'a> Deserialize<'a>>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    /// A run of the most clients and threads needs less.
    const MOST: u64 = 1 << 20;
    let mut line = Vec::new();
    io::Read::take(from.by_ref(), MOST).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_feedback_survive_and_rubbish_is_neither() {
        for op in [Op::Echo, Op::Data, Op::Probe] {
            let header = Header { op, client: 7, seq: u64::MAX - 3 };
            assert_eq!(Header::decode(&[&header.encode()[..], &[9; 50]].concat()), Some(header));
        }
        let feedback = Feedback { seen: 1 << 40, limit: (1 << 40) + 9 };
        let bytes = encode_feedback(258, feedback);
        assert_eq!(decode_feedback(&bytes), Some((258, feedback)));
        assert_eq!(decode_feedback(&bytes[..FEEDBACK_LEN - 1]), None);
        assert_eq!((decode_feedback(&[7; 64]), Header::decode(&[7; 64])), (None, None));
        assert_eq!((Header::decode(&[]), Header::decode(&bytes)), (None, None));
    }

    #[test]
    fn a_line_that_is_none_is_an_error_and_an_end_is_none() {
        assert!(read::<Request>(&mut &b""[..]).unwrap().is_none());
        assert!(matches!(read(&mut &b"\"Begin\"\n\"End\"\n"[..]).unwrap(), Some(Request::Begin)));
        for bad in [&b"\n"[..], b"{", b"\"Nothing\"\n", b"\xff\xff\n", b"{\"Prepare\":{}}\n"] {
            assert!(read::<Request>(&mut &*bad).is_err());
        }
    }
}
