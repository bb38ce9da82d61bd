//! Credit arithmetic: what the protocol itself costs per message, both halves, no device.

#![expect(missing_docs, reason = "criterion's macros make undocumented functions")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rsock_proto::{
    ConnData, ConnFlags, Msg, PROTOCOL_VERSION, RecvConfig, RecvHalf, RemoteSge, SendBlocked,
    SendConfig, SendHalf,
};
use rsock_verbs::{RKey, RemoteAddr};

/// Bytes that go from one half to the other in one turn.
const TURN: usize = 1 << 20;
const BUF_LEN: u32 = 128 << 10;
const N_SLOTS: u8 = 2;

/// A sender and the receiver that it sends to.
struct Direction {
    send: SendHalf,
    recv: RecvHalf,
}

impl Direction {
    fn new(max_message: u32) -> Self {
        let recv_config = RecvConfig {
            region: RemoteAddr(0x10000),
            rkey: RKey(1),
            buf_len: BUF_LEN,
            n_bufs: 4,
            window: 256,
            first_len: BUF_LEN,
        };
        let mut recv = RecvHalf::new(recv_config);
        let (credits, data_buf) = recv.conn_fields();
        let target_sgl = RemoteSge { addr: RemoteAddr(0x1000), key: RKey(2), len: N_SLOTS.into() };
        let peer = ConnData {
            version: PROTOCOL_VERSION,
            flags: ConnFlags::LOCAL,
            credits,
            target_iomap_size: 0,
            target_sgl,
            data_buf,
        };
        recv.set_peer(&peer).expect("a valid introduction");
        let send = SendHalf::new(SendConfig { max_message, n_slots: N_SLOTS }, &peer);
        Self { send: send.expect("a valid introduction"), recv }
    }

    /// Carries `len` bytes, the reader reading as soon as the writer is stuck.
    fn carry(&mut self, mut len: usize) {
        while len > 0 {
            match self.send.peek(len) {
                Ok(write) => {
                    self.send.commit(&write);
                    let Ok(Msg::Data { len: arrived }) = write.imm.decode() else { return };
                    self.recv.handle_data(arrived).expect("within the window");
                    len -= write.len as usize;
                }
                Err(SendBlocked::Closed) => return,
                Err(SendBlocked::Credits | SendBlocked::Buffer) => self.read(),
            }
        }
        self.read();
    }

    fn read(&mut self) {
        while let Some(span) = self.recv.span_at(0) {
            self.recv.consume(span.len);
        }
        while let Some(grant) = self.recv.next_grant() {
            if let Ok(Msg::Credit { limit }) = grant.imm.decode() {
                self.send.handle_credit(limit);
            }
            if let Some((_, _, entry)) = grant.entry {
                let sge = RemoteSge::from_table_bytes(&entry);
                self.send.handle_slot(sge).expect("a free slot");
            }
            self.recv.commit_grant();
        }
    }
}

fn credit(c: &mut Criterion) {
    let mut group = c.benchmark_group("credit");
    for message in [64, 1 << 10, 16 << 10, 64 << 10] {
        group.throughput(Throughput::Elements((TURN / message) as u64));
        group.bench_function(BenchmarkId::new("carry", message), |b| {
            let mut direction = Direction::new(u32::try_from(message).unwrap_or(u32::MAX));
            b.iter(|| direction.carry(TURN));
        });
    }
    group.finish();
}

criterion_group!(benches, credit);
criterion_main!(benches);
