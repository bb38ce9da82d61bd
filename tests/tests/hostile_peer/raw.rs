//! A peer that is made of bare verbs, so that it can say and do anything: it connects or accepts
//! like a stream of rsockets, with whatever private data, and posts whatever it likes.

use rsock_cm::Port;
use rsock_cm::manager::{Connecting, ContextOf, Event, Listening, Manager, PathOf, Progress};
use rsock_proto::{ConnData, ConnFlags, Imm, Msg, RemoteSge};
use rsock_verbs::{
    Access, Backend, Completion, CompletionQueue, Context, MemoryRegion, PostError,
    ProtectionDomain, QpCap, QpNum, QueuePair, SendFlags, SendOp, WcOp, WcStatus, WrId,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Connection<M> = <M as Manager>::Connection;

/// A queue pair with what it needs, in the order in which it must go.
struct End<M: Manager> {
    qp: <M::Backend as Backend>::Qp,
    cq: Arc<<M::Backend as Backend>::Cq>,
    mr: <M::Backend as Backend>::Mr,
    path: PathOf<M>,
}

/// A connected peer.
pub(crate) struct Raw<M: Manager> {
    end: End<M>,
    /// What the other end said of itself.
    pub(crate) theirs: ConnData,
    /// Bytes that went into its first buffer.
    sent: u32,
    /// Bytes that came into ours, and how many of them were looked at.
    arrived: usize,
    taken: usize,
    _connection: Connection<M>,
}

/// What became of a connect.
pub(crate) enum Answered<M: Manager> {
    Connected(Box<Raw<M>>),
    Rejected,
}

/// What this end says of itself, with a table of two entries and a buffer behind it, both in `mr`.
fn honest(mr: &impl MemoryRegion) -> ConnData {
    ConnData {
        version: 1,
        flags: ConnFlags::IOMAP,
        credits: CREDITS,
        target_iomap_size: 0,
        target_sgl: RemoteSge { addr: mr.addr(), key: mr.rkey(), len: 2 },
        data_buf: RemoteSge {
            addr: mr.addr().wrapping_add(BUFFER as u64),
            key: mr.rkey(),
            len: u32::try_from(mr.len() - BUFFER).expect("small"),
        },
    }
}

impl<M: Manager> End<M> {
    fn new(ctx: &ContextOf<M>, path: &PathOf<M>, n_receives: u32) -> Self {
        let pd = ctx.alloc_pd(path).expect("pd");
        let mr = pd.alloc_mr(MEMORY, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("mr");
        let cap = QpCap {
            max_send_wr: 64,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            has_recv_ids: true,
            max_inline: 128,
        };
        let (cq, qp) = pd.create_qp(ctx, cap).expect("qp");
        qp.init(Access::REMOTE_WRITE).expect("init");
        for _ in 0..n_receives {
            qp.post_recv_empty(WrId(1)).expect("receive");
        }
        Self { qp, cq, mr, path: path.clone() }
    }

    fn connect(&self, dest: QpNum) {
        self.qp.ready_to_receive(&self.path, dest).expect("rtr");
        self.qp.ready_to_send().expect("rts");
    }
}

impl<M: Manager> Raw<M> {
    /// Connects with what `lie` makes of honest private data.
    pub(super) fn connect(manager: &M, to: SocketAddr, lie: impl Fn(&mut Vec<u8>)) -> Answered<M> {
        Self::connect_with(manager, to, lie, RECEIVES)
    }

    /// As [`Self::connect`], with room for `n_receives` messages, whatever the private data say.
    pub(crate) fn connect_with(
        manager: &M,
        to: SocketAddr,
        lie: impl Fn(&mut Vec<u8>),
        n_receives: u32,
    ) -> Answered<M> {
        let port = Arc::new(Port::open(to.is_ipv6()).expect("socket"));
        let now = Instant::now();
        let mut connecting = manager.connect(port, to, now, now + HOUR).expect("connect");
        let mut end: Option<End<M>> = None;
        loop {
            match connecting.progress(Instant::now()).expect("progress") {
                Progress::Path(ctx, path) => {
                    let made = End::<M>::new(&ctx, &path, n_receives);
                    let mut data = honest(&made.mr).encode().to_vec();
                    lie(&mut data);
                    connecting.send_request(made.qp.qp_num(), &data).expect("request");
                    end = Some(made);
                }
                Progress::Accepted(answer) => {
                    let end = end.expect("asked before");
                    let theirs = ConnData::decode(answer.private_data.as_bytes()).expect("data");
                    end.connect(answer.qp_num);
                    let connection = connecting.establish().expect("established");
                    return Answered::Connected(Box::new(Self::new(end, theirs, connection)));
                }
                Progress::Rejected(_) => return Answered::Rejected,
                Progress::Pending => wait(&connecting, connecting.interest()),
            }
        }
    }

    /// Accepts the next connection of `listener` with what `lie` makes of honest private data;
    /// `None` if the other end did not like it.
    pub(super) fn accept(listener: &mut M::Listener, lie: impl Fn(&mut Vec<u8>)) -> Option<Self> {
        let mut asked = None;
        loop {
            match listener.try_next(Instant::now()).expect("listener") {
                Some(Event::Request(request)) => {
                    let end = End::<M>::new(&request.ctx, &request.path, RECEIVES);
                    let theirs = ConnData::decode(request.private_data.as_bytes()).expect("data");
                    end.connect(request.qp_num);
                    let mut data = honest(&end.mr).encode().to_vec();
                    lie(&mut data);
                    listener.accept(request.id, end.qp.qp_num(), &data).expect("accept");
                    asked = Some((end, theirs));
                }
                Some(Event::Established { connection, .. }) => {
                    let (end, theirs) = asked.expect("asked before");
                    return Some(Self::new(end, theirs, connection));
                }
                Some(Event::Abandoned { .. }) => return None,
                Some(other) => panic!("{other:?}"),
                None => wait(&*listener, PollFlags::IN),
            }
        }
    }

    fn new(end: End<M>, theirs: ConnData, connection: Connection<M>) -> Self {
        Self { end, theirs, sent: 0, arrived: 0, taken: 0, _connection: connection }
    }

    /// Posts a request; its completion comes in its turn.
    pub(crate) fn post(&self, op: SendOp, bytes: &[u8]) {
        let pieces = [IoSlice::new(bytes)];
        let pieces = if bytes.is_empty() { &[][..] } else { &pieces[..] };
        self.end.qp.post_copy(WrId(2), op, pieces, SendFlags::SIGNALED).expect("room");
    }

    /// A message without a payload.
    pub(crate) fn say(&self, word: u32) {
        let (remote, rkey) = (self.theirs.data_buf.addr, self.theirs.data_buf.key);
        self.post(SendOp::WriteImm { remote, rkey, imm: word }, &[]);
    }

    /// Stream bytes, as the protocol has them.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let buffer = self.theirs.data_buf;
        let len = u32::try_from(bytes.len()).expect("short");
        assert!(self.sent + len <= buffer.len, "no more than the first buffer is written to");
        let remote = buffer.addr.wrapping_add(self.sent.into());
        let imm = Imm::data(len).0;
        self.post(SendOp::WriteImm { remote, rkey: buffer.key, imm }, bytes);
        self.sent += len;
    }

    /// A buffer entry in the other end's table, with the word that says so.
    pub(super) fn announce(&self, slot: u64, sge: RemoteSge) {
        let table = self.theirs.target_sgl;
        let remote = table.addr.wrapping_add(16 * slot);
        let op =
            SendOp::WriteImm { remote, rkey: table.key, imm: 0x8000_0000 | u32::from(CREDITS) };
        self.post(op, &sge.to_table_bytes(false));
    }

    /// These bytes of a buffer entry in the other end's table, and no word of it.
    pub(super) fn write_entry(&self, slot: u64, sge: RemoteSge, part: Range<usize>) {
        let table = self.theirs.target_sgl;
        let remote = table.addr.wrapping_add(16 * slot + part.start as u64);
        let bytes = sge.to_table_bytes(false);
        self.post(SendOp::Write { remote, rkey: table.key }, &bytes[part]);
    }

    /// Memory of ours that may be announced.
    pub(super) fn memory(&self) -> RemoteSge {
        honest(&self.end.mr).data_buf
    }

    /// Says `word` `n` times, each with a byte of the stream if it is a data message of one; as far
    /// as the other end lets it.
    pub(super) fn flood(&mut self, n: u32, word: u32) {
        let buffer = self.theirs.data_buf;
        for _ in 0..n {
            let remote = buffer.addr.wrapping_add(self.sent.into());
            let op = SendOp::WriteImm { remote, rkey: buffer.key, imm: word };
            let pieces = [IoSlice::new(b"x")];
            let pieces = if word == 1 { &pieces[..] } else { &[] };
            loop {
                match self.end.qp.post_copy(WrId(2), op, pieces, SendFlags::SIGNALED) {
                    Ok(()) => break,
                    Err(PostError::QueueFull) => {
                        if self.hear().is_err() {
                            return;
                        }
                        self.end.cq.park(Some(A_WHILE));
                    }
                    // The other end has had enough.
                    Err(_) => return,
                }
            }
            self.sent += u32::from(word == 1);
        }
    }

    /// Waits for `len` bytes of the stream; the failure that came instead.
    pub(super) fn receive(&mut self, len: usize) -> Result<Vec<u8>, WcStatus> {
        while self.arrived < self.taken + len {
            let wc = self.next();
            self.take(&wc)?;
        }
        let mut bytes = vec![0; len];
        self.end.mr.copy_out(BUFFER + self.taken, &mut bytes);
        self.taken += len;
        Ok(bytes)
    }

    /// Bytes of the stream that are there and were not looked at.
    pub(crate) fn hear(&mut self) -> Result<usize, WcStatus> {
        while let Some(wc) = self.poll() {
            self.take(&wc)?;
        }
        Ok(self.arrived - self.taken)
    }

    fn take(&mut self, wc: &Completion) -> Result<(), WcStatus> {
        wc.result()?;
        if wc.op == WcOp::RecvWriteImm {
            self.end.qp.post_recv_empty(WrId(1)).expect("room");
            if let Ok(Msg::Data { len }) = Imm(wc.imm).decode() {
                self.arrived += len as usize;
            }
        }
        Ok(())
    }

    /// Takes `n` more messages, and keeps no place for others.
    #[allow(dead_code, reason = "for tests of devices whose sends wait")]
    pub(crate) fn make_room(&self, n: u32) {
        for _ in 0..n {
            self.end.qp.post_recv_empty(WrId(1)).expect("room");
        }
    }

    /// Waits for the next message; the failure that came instead.
    #[allow(dead_code, reason = "for tests of devices whose sends wait")]
    pub(crate) fn next_word(&self) -> Result<Imm, WcStatus> {
        loop {
            let wc = self.next();
            wc.result()?;
            if wc.op == WcOp::RecvWriteImm {
                return Ok(Imm(wc.imm));
            }
        }
    }

    /// Waits until something has failed, here or there.
    pub(crate) fn failure(&self) -> WcStatus {
        loop {
            if let Err(status) = self.next().result() {
                return status;
            }
        }
    }

    /// Breaks the queue pair without a message to the peer.
    pub(super) fn fail(&self) {
        self.end.qp.fail();
    }

    fn next(&self) -> Completion {
        loop {
            if let Some(wc) = self.poll() {
                return wc;
            }
            self.end.cq.park(Some(A_WHILE));
        }
    }

    fn poll(&self) -> Option<Completion> {
        let nothing = Completion {
            id: WrId(0),
            status: WcStatus::GENERAL,
            op: WcOp::Send,
            len: 0,
            imm: 0,
            qp_num: QpNum(0),
        };
        let mut out = [nothing];
        (self.end.cq.poll(&mut out) != 0).then_some(out[0])
    }
}

/// Waits a little: some devices have nothing to poll for a part of the way.
fn wait(fd: &impl AsFd, interest: PollFlags) {
    let time = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let _ = poll(&mut [PollFd::new(fd, interest)], Some(&time));
}

const HOUR: Duration = Duration::from_secs(3600);
/// Between looks at a queue whose peer may be gone.
const A_WHILE: Duration = Duration::from_millis(5);
const RECEIVES: u32 = 128;
/// Messages that this end says it can take.
pub(super) const CREDITS: u16 = 64;
const MEMORY: usize = 64 << 10;
/// Where the buffer begins, behind the table.
const BUFFER: usize = 4096;
