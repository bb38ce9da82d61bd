//! The limit that this machine sets: how fast two threads on two CPUs can pass a cache line back
//! and forth, and how fast bytes go through a ring that one copy fills and another empties. There
//! is no protocol, and nothing sleeps.
//!
//! The round trip of the line also shows whether the two CPUs share a cache, which can change
//! within minutes on a virtual machine: see [`Placement`].

mod copy;

use copy::Kernel;
use rsock_cli::affinity;
use rustix::mm::{MapFlags, ProtFlags};
use serde::Serialize;
use std::hint::{black_box, spin_loop};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Where the host runs two virtual CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Placement {
    /// They share a cache.
    A,
    /// They share no cache.
    B,
}

impl Placement {
    /// Judges by the round trip of a cache line: about 105 ns with a shared cache, else about 500.
    pub(crate) fn of(round_trip: Duration) -> Self {
        const BETWEEN: Duration = Duration::from_nanos(250);
        if round_trip < BETWEEN { Self::A } else { Self::B }
    }
}

/// Measures the round trip of one cache line between two CPUs: the best of many short series, since
/// other processes on the CPUs spoil some.
pub(crate) fn line_round_trip(cpus: [usize; 2]) -> Duration {
    const SERIES: u64 = 40;
    const TRIPS: u32 = 1000;
    let (ping, pong) = (Line::default(), Line::default());
    let mut best = Duration::MAX;
    let there = || {
        for series in 0..SERIES {
            let start = Instant::now();
            for trip in 1..=u64::from(TRIPS) {
                let turn = series * u64::from(TRIPS) + trip;
                ping.0.store(turn, Ordering::Release);
                while pong.0.load(Ordering::Acquire) != turn {
                    spin_loop();
                }
            }
            best = best.min(start.elapsed());
        }
    };
    let back = || {
        for turn in 1..=SERIES * u64::from(TRIPS) {
            while ping.0.load(Ordering::Acquire) != turn {
                spin_loop();
            }
            pong.0.store(turn, Ordering::Release);
        }
    };
    on_two(cpus, there, back);
    best / TRIPS
}

/// Measures Gbit/s through a ring with one copy in and one out, for messages of `size` bytes (a
/// power of two): the best of several ring sizes and copy kernels.
///
/// # Errors
/// If there is no memory for the ring.
pub(crate) fn two_copy_bandwidth(cpus: [usize; 2], size: usize) -> io::Result<f64> {
    const RINGS: [usize; 3] = [128 << 10, 1 << 20, 4 << 20];
    // Bytes that take long enough to be timed.
    const SMALL: u64 = 64 << 20;
    const LARGE: u64 = 192 << 20;
    let mut best = 0_f64;
    for ring_len in RINGS.into_iter().filter(|len| *len >= 2 * size) {
        for kernel in Kernel::available() {
            let ring = Ring::new(ring_len)?;
            let volume = if size < 1024 { SMALL } else { LARGE };
            best = best.max(through(&ring, cpus, size, volume, kernel));
        }
    }
    Ok(best)
}

/// Measures Gbit/s of an ordinary copy of `size` bytes, from memory that no cache holds as a whole.
pub(crate) fn memcpy_bandwidth(size: usize) -> f64 {
    const MEMORY: usize = 32 << 20;
    const TIME: Duration = Duration::from_millis(300);
    let source = vec![0x5a_u8; MEMORY.max(size)];
    let mut target = vec![0_u8; size];
    let (mut copied, start) = (0_u64, Instant::now());
    while start.elapsed() < TIME {
        for piece in source.chunks_exact(size) {
            target.copy_from_slice(black_box(piece));
            black_box(&mut target);
            copied += size as u64;
        }
    }
    copied as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9
}

/// A cache line of its own, with the one beside it, which processors fetch together.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Mapped and populated bytes; a power of two long.
struct Ring {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are plain memory; the counters in `through` let one side at a time touch each
// part of it.
unsafe impl Sync for Ring {}

impl Ring {
    fn new(len: usize) -> io::Result<Self> {
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// The place of byte `at` of the stream.
    fn place(&self, at: u64) -> NonNull<u8> {
        let offset = usize::try_from(at % self.len as u64).unwrap_or(0);
        // SAFETY: `offset < len`, inside the mapping.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; no pointer into it is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Measures Gbit/s of `volume` bytes through the ring.
fn through(ring: &Ring, cpus: [usize; 2], size: usize, volume: u64, kernel: Kernel) -> f64 {
    let step = size as u64;
    let total = volume / step * step;
    let (filled, emptied) = (Line::default(), Line::default());
    let sender = || {
        let source = vec![0x5a_u8; size];
        let (mut put, mut free) = (0, 0);
        while put < total {
            while put + step - free > ring.len as u64 {
                spin_loop();
                free = emptied.0.load(Ordering::Acquire);
            }
            // SAFETY: both lengths are powers of two, so the message does not wrap; the receiver
            // has released these bytes and reads none of them before `filled` says so.
            unsafe { kernel.copy(&source, ring.place(put)) };
            put += step;
            // SYNC(probe-filled): pairs with the receiver's Acquire.
            filled.0.store(put, Ordering::Release);
        }
    };
    let receiver = || {
        let mut sink = vec![0_u8; size];
        let batch = (ring.len as u64 / 4).max(step);
        let (mut taken, mut there, mut told) = (0, 0, 0);
        while taken < total {
            while there - taken < step {
                spin_loop();
                there = filled.0.load(Ordering::Acquire);
            }
            let from = ring.place(taken).as_ptr();
            // SAFETY: `size` bytes at `from` are in the ring and published; `sink` is that long
            // and not in the ring.
            unsafe { ptr::copy_nonoverlapping(from, sink.as_mut_ptr(), size) };
            black_box(&sink);
            taken += step;
            if taken - told >= batch || taken == total {
                // SYNC(probe-emptied): pairs with the sender's Acquire.
                emptied.0.store(taken, Ordering::Release);
                told = taken;
            }
        }
    };
    let took = on_two(cpus, sender, receiver);
    total as f64 * 8.0 / took.as_secs_f64() / 1e9
}

/// Runs two loops, each on a CPU of its own, and returns the time until both were done.
pub(crate) fn on_two(
    cpus: [usize; 2],
    first: impl FnOnce() + Send,
    second: impl FnOnce() + Send,
) -> Duration {
    let barrier = Barrier::new(2);
    let begin = |cpu| {
        // A thread that cannot be bound stays where it is, which only costs accuracy.
        let _ = affinity::bind(&[cpu]);
        barrier.wait();
        Instant::now()
    };
    let times = thread::scope(|scope| {
        let second = scope.spawn(|| {
            begin(cpus[1]);
            second();
            Instant::now()
        });
        let first = scope.spawn(|| {
            let start = begin(cpus[0]);
            first();
            (start, Instant::now())
        });
        (first.join(), second.join())
    });
    match times {
        (Ok((start, end)), Ok(other_end)) => end.max(other_end) - start,
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_round_trip_shows_the_placement() {
        let of = |ns| Placement::of(Duration::from_nanos(ns));
        assert_eq!((of(105), of(500)), (Placement::A, Placement::B));
    }

    #[test]
    fn the_limits_are_positive_numbers() {
        let [first, second, ..] = affinity::allowed()[..] else {
            panic!("these limits need two CPUs");
        };
        assert!(line_round_trip([first, second]) > Duration::ZERO);
        let ring = Ring::new(128 << 10).unwrap();
        for kernel in Kernel::available() {
            assert!(through(&ring, [first, second], 64 << 10, 1 << 20, kernel) > 0.0);
        }
        assert!(memcpy_bandwidth(64 << 10) > 0.0);
    }
}
