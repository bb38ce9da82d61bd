//! Measures the soft device's data path between two threads on two CPUs, beside the bare transfer
//! of a cache line in the same run.
//!
//! `cargo run --release -p rsock-verbs --features conformance --example lane_pingpong`

#![expect(clippy::cast_possible_truncation, reason = "lengths of a benchmark")]

use rsock_verbs::soft::testing::linked_pair;
use rsock_verbs::soft::{SoftContext, SoftCq, SoftMr, SoftQp};
use rsock_verbs::{
    Access, Completion, CompletionQueue, Context, MemoryRegion, ProtectionDomain, QpCap, QueuePair,
    SendFlags, SendOp, WcStatus, WrId,
};
use std::hint::spin_loop;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

const WINDOW: u32 = 128;
struct End {
    qp: SoftQp,
    mr: SoftMr,
    cq: Arc<SoftCq>,
}

fn pair() -> Result<(End, End), Box<dyn std::error::Error>> {
    let ctx = SoftContext::open()?;
    let (a, b) = linked_pair(&ctx)?;
    let make = |link| -> Result<End, rsock_verbs::Error> {
        let pd = ctx.alloc_pd(link)?;
        let cap = QpCap {
            max_send_wr: 16,
            max_recv_wr: WINDOW,
            max_send_sge: 2,
            max_recv_sge: 0,
            has_recv_ids: true,
            max_inline: 64,
        };
        let (cq, qp) = pd.create_qp(&ctx, cap)?;
        qp.init(Access::REMOTE_WRITE)?;
        let mr = pd.alloc_mr(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(End { qp, mr, cq })
    };
    let (x, y) = (make(&a)?, make(&b)?);
    for (e, link, peer) in [(&x, &a, &y), (&y, &b, &x)] {
        for i in 0..WINDOW {
            e.qp.post_recv_empty(WrId(i.into()))?;
        }
        e.qp.ready_to_receive(link, peer.qp.qp_num())?;
        e.qp.ready_to_send()?;
    }
    Ok((x, y))
}

fn pin(cpu: usize) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    set.set(cpu);
    // A refusal only leaves the thread unpinned.
    let _ = sched_setaffinity(None, &set);
}

#[repr(align(128))]
struct Line(AtomicU64);

/// Nanoseconds of one round trip of a line.
fn bare(n: u64) -> f64 {
    let lines = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let started = Barrier::new(2);
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            started.wait();
            for i in 1..=n {
                while lines.0.0.load(Ordering::Acquire) != i {
                    spin_loop();
                }
                lines.1.0.store(i, Ordering::Release);
            }
        });
        pin(0);
        started.wait();
        let start = Instant::now();
        for i in 1..=n {
            lines.0.0.store(i, Ordering::Release);
            while lines.1.0.load(Ordering::Acquire) != i {
                spin_loop();
            }
        }
        nanos(start, n)
    })
}

fn nanos(start: Instant, n: u64) -> f64 {
    start.elapsed().as_nanos() as f64 / n as f64
}

fn write(to: &End, offset: u64, len: u32) -> SendOp {
    SendOp::WriteImm { remote: to.mr.addr().wrapping_add(offset), rkey: to.mr.rkey(), imm: len }
}

fn receive_one(e: &End) {
    let mut out = [Completion::BLANK; 8];
    loop {
        let n = e.cq.poll(&mut out);
        if n != 0 {
            assert_eq!((n, out[0].status), (1, WcStatus::SUCCESS));
            break;
        }
        while !e.cq.is_ready() {
            spin_loop();
        }
    }
    e.qp.post_recv_empty(out[0].id).expect("post");
}

fn ping_pong(n: u64, len: usize) -> f64 {
    let (a, b) = pair().expect("pair");
    let data = vec![1u8; len];
    let send = |from: &End, to: &End| {
        let op = write(to, 0, len as u32);
        from.qp.post_copy(WrId(0), op, &[IoSlice::new(&data)], SendFlags::empty()).expect("post");
    };
    let started = Barrier::new(2);
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            started.wait();
            for _ in 0..n {
                receive_one(&b);
                send(&b, &a);
            }
        });
        pin(0);
        started.wait();
        let start = Instant::now();
        for _ in 0..n {
            send(&a, &b);
            receive_one(&a);
        }
        nanos(start, n)
    })
}

/// Million messages per second, credits returned by the lane alone.
fn stream(n: u64, len: usize, ring: u64) -> f64 {
    let (a, b) = pair().expect("pair");
    let data = vec![1u8; len];
    let started = Barrier::new(2);
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            started.wait();
            let mut out = [Completion::BLANK; 16];
            let mut sink = vec![0u8; len];
            let (mut got, mut at) = (0, 0);
            while got < n {
                let k = b.cq.poll(&mut out);
                for wc in &out[..k] {
                    assert_eq!(wc.status, WcStatus::SUCCESS);
                    b.mr.copy_out(at as usize, &mut sink);
                    at = (at + len as u64) % ring;
                    b.qp.post_recv_empty(wc.id).expect("post");
                }
                got += k as u64;
                if k == 0 {
                    spin_loop();
                }
            }
        });
        pin(0);
        started.wait();
        let start = Instant::now();
        let mut at = 0;
        for _ in 0..n {
            let op = write(&b, at, len as u32);
            at = (at + len as u64) % ring;
            while a.qp.post_copy(WrId(0), op, &[IoSlice::new(&data)], SendFlags::empty()).is_err() {
                spin_loop();
            }
        }
        1e3 / nanos(start, n)
    })
}

/// Nanoseconds of one post and of one poll with its re-post, without another CPU: instructions
/// only.
fn alone(n: u64, len: usize) -> (f64, f64) {
    let (a, b) = pair().expect("pair");
    let data = vec![1u8; len];
    let mut out = [Completion::BLANK; 16];
    let (mut posting, mut polling) = (0, 0);
    for _ in 0..n / 64 {
        let start = Instant::now();
        for i in 0..64 {
            let op = write(&b, i * len as u64, len as u32);
            a.qp.post_copy(WrId(0), op, &[IoSlice::new(&data)], SendFlags::empty()).expect("post");
        }
        posting += start.elapsed().as_nanos();
        let start = Instant::now();
        let mut got = 0;
        while got < 64 {
            let k = b.cq.poll(&mut out);
            for wc in &out[..k] {
                b.qp.post_recv_empty(wc.id).expect("post");
            }
            got += k;
        }
        polling += start.elapsed().as_nanos();
    }
    (posting as f64 / n as f64, polling as f64 / n as f64)
}

fn main() {
    const N: u64 = 300_000;
    for len in [1, 32, 48, 64, 256, 1024] {
        let (post, poll) = alone(N, len);
        println!("alone {len} B: post {post:.1} ns, poll and re-post {poll:.1} ns");
    }
    for _ in 0..3 {
        let line = bare(N);
        let one = ping_pong(N, 1);
        println!(
            "line {line:.0} ns; round trip of 1 B {one:.0} ns ({:.1}x), 32 B {:.0}, 64 B {:.0}, \
             1 KiB {:.0}, 4 KiB {:.0}, 16 KiB {:.0}",
            one / line,
            ping_pong(N, 32),
            ping_pong(N, 64),
            ping_pong(N, 1024),
            ping_pong(N / 4, 4096),
            ping_pong(N / 16, 16384),
        );
        print!("stream M/s:");
        for len in [1, 32, 64, 256, 1024] {
            print!(" {len} B {:.1}", stream(3 * N, len, 512 << 10));
        }
        print!("; Gbit/s:");
        for len in [1024, 4096, 16 << 10, 64 << 10] {
            let rate = stream(64 * N / (len as u64 / 16), len, 512 << 10);
            print!(" {len} B {:.1}", rate * len as f64 * 8.0 / 1e3);
        }
        println!();
    }
}
