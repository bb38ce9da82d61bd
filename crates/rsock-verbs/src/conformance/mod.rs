//! One test suite for every device: what the engine relies on, as the verbs promise it.
//!
//! A device's tests implement [`Fixture`] and call
//! [`conformance_tests!`](crate::conformance_tests), with `@datagrams` before the fixture for those
//! of a [`DatagramBackend`](crate::DatagramBackend). The suite depends only on the capabilities
//! that the device reports.

#![expect(clippy::missing_panics_doc, reason = "a test that fails panics")]

mod datagrams;
mod flow;
mod send;
mod state;
mod waiting;
mod write;

pub use datagrams::*;
pub use flow::*;
pub use send::*;
pub use state::*;
pub use waiting::*;
pub use write::*;

use crate::device::{Backend, CompletionQueue, Context, MemoryRegion, ProtectionDomain, QueuePair};
use crate::types::{Access, LKey, QpCap, QpNum, RKey, RemoteAddr, WrId};
use crate::wc::{Completion, WcOp, WcStatus};
use crate::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};
use crate::{DeviceAttr, PostError};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// What a device under test provides.
pub trait Fixture {
    /// The device.
    type Backend: Backend;
    /// Two ends that reach each other; they may be in one process, even one context.
    fn endpoints(&self) -> [Endpoint<Self::Backend>; 2];
}

/// One end: an opened device, and the path to the other end.
#[derive(Debug)]
pub struct Endpoint<B: Backend> {
    /// The device.
    pub ctx: B::Context,
    /// The path to the other end.
    pub path: B::Path,
}

/// Runs the whole suite on a fixture: one test function for each of its tests.
#[macro_export]
macro_rules! conformance_tests {
    ($fixture:expr) => {
        $crate::conformance_tests! { @each $fixture;
            writes_with_immediate_deliver_payload_and_word
            writes_gather_their_pieces
            writes_are_silent_and_land_before_later_messages
            empty_writes_need_no_key
            a_region_admits_writes_only_as_registered
            a_queue_pair_admits_writes_only_as_configured
            memory_of_the_caller_can_be_written_if_the_device_supports_it
            a_device_without_write_with_immediate_refuses_it
            sends_of_any_length_arrive
            sends_are_scattered_over_their_receive
            a_send_longer_than_its_receive_fails_both_ends
            receives_complete_in_order
            unsignaled_sends_complete_silently
            signaled_sends_complete_in_order
            a_full_send_queue_is_reported
            copied_payloads_may_be_reused_at_once
            a_full_receive_queue_is_reported
            receives_can_be_posted_many_at_once
            receives_need_no_ids
            a_long_stream_keeps_its_order
            states_forbid_what_verbs_forbid
            failing_flushes_everything_in_order
            what_arrived_before_the_error_is_still_received
            requests_after_the_error_are_flushed
            the_end_of_one_queue_pair_is_seen_by_the_other
            keys_of_dropped_regions_are_dead
            new_regions_are_zero_after_reuse
            receives_into_unregistered_memory_are_refused
            parked_threads_wake_for_completions
            wake_ups_before_the_sleep_are_not_lost
            bells_ring_for_completions
            many_queue_pairs_complete_each_in_its_own_queue
        }
    };
    (@datagrams $fixture:expr) => {
        $crate::conformance_tests! { @each $fixture;
            datagrams_of_any_length_arrive_whole
            datagrams_are_gathered_and_read_in_pieces
            a_datagram_that_is_too_long_is_refused
            datagrams_of_one_sender_arrive_in_order_and_every_loss_is_counted
            a_full_queue_loses_what_comes_and_takes_more_once_it_is_read
            a_queue_has_the_room_that_it_states
            a_datagram_with_another_key_is_lost
            several_datagrams_are_taken_at_once
            a_queue_takes_from_many_senders
            datagrams_to_a_missing_queue_do_no_harm
            threads_that_park_wake_for_datagrams
            bells_ring_for_datagrams
        }
    };
    (@each $fixture:expr; $($name:ident)*) => {
        $($crate::conformance_tests! { @one $fixture; $name })*
    };
    (@one $fixture:expr; $name:ident) => {
        #[test]
        fn $name() {
            $crate::conformance::$name(&$fixture);
        }
    };
}

/// Aborts the process, with a message, if it is not dropped within a minute.
#[derive(Debug)]
pub struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    /// Starts watching `what`.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        let (alive, dead) = channel();
        std::thread::spawn(move || {
            if dead.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("watchdog: {what} hangs");
                std::process::abort();
            }
        });
        Self { _alive: alive }
    }
}

/// The configuration of two ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) cap: QpCap,
    pub(crate) qp_access: Access,
    pub(crate) mr_access: Access,
    pub(crate) mr_len: usize,
    /// Whether the ends are connected.
    pub(crate) connected: bool,
}

pub(crate) const OPEN: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

impl Default for Setup {
    fn default() -> Self {
        Self {
            cap: QpCap {
                max_send_wr: 16,
                max_recv_wr: 32,
                max_send_sge: 3,
                max_recv_sge: 3,
                has_recv_ids: true,
                max_inline: 4096,
            },
            qp_access: Access::REMOTE_WRITE,
            mr_access: OPEN,
            mr_len: 4 << 20,
            connected: true,
        }
    }
}

/// One end, with everything that it needs.
#[derive(Debug)]
pub(crate) struct End<B: Backend> {
    /// Longest RDMA WRITE, and longest SEND.
    pub(crate) max_write: usize,
    pub(crate) max_send: usize,
    pub(crate) qp: B::Qp,
    pub(crate) mr: B::Mr,
    pub(crate) cq: Arc<B::Cq>,
    pub(crate) pd: Arc<B::Pd>,
    pub(crate) endpoint: Endpoint<B>,
}

impl Setup {
    pub(crate) fn build<F: Fixture>(&self, f: &F) -> [End<F::Backend>; 2] {
        let [a, b] = f.endpoints().map(|endpoint| self.end(endpoint));
        if self.connected {
            self.connect(&a, b.qp.qp_num());
            self.connect(&b, a.qp.qp_num());
        }
        [a, b]
    }

    fn end<B: Backend>(&self, endpoint: Endpoint<B>) -> End<B> {
        let ctx = &endpoint.ctx;
        let pd = ctx.alloc_pd(&endpoint.path).expect("pd");
        let mr = pd.alloc_mr(self.mr_len, self.mr_access).expect("mr");
        let attr = ctx.attr();
        let max_inline = attr.max_inline.min(4 << 20);
        let length = |most: u32| usize::try_from(most.min(max_inline)).expect("length");
        let (max_write, max_send) = (length(attr.max_inline), length(attr.max_send));
        let cap = QpCap { max_inline, ..self.cap };
        let (cq, qp) = pd.create_qp(ctx, cap).expect("qp");
        qp.init(self.qp_access).expect("init");
        End { max_write, max_send, qp, mr, cq, pd, endpoint }
    }

    pub(crate) fn connect<B: Backend>(&self, end: &End<B>, peer: QpNum) {
        end.qp.ready_to_receive(&end.endpoint.path, peer).expect("rtr");
        end.qp.ready_to_send().expect("rts");
    }
}

pub(crate) fn connected<F: Fixture>(f: &F) -> [End<F::Backend>; 2] {
    Setup::default().build(f)
}

impl<B: Backend> End<B> {
    pub(crate) fn attr(&self) -> DeviceAttr {
        self.endpoint.ctx.attr()
    }

    /// Polls once.
    pub(crate) fn poll(&self) -> Vec<Completion> {
        let mut out = [Completion::BLANK; 8];
        let n = self.cq.poll(&mut out);
        out[..n].to_vec()
    }

    /// A piece of the region.
    pub(crate) fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge {
            addr: self.mr.addr().0 + offset as u64,
            len: u32::try_from(len).expect("length"),
            lkey: self.mr.lkey(),
        }
    }

    /// A WRITE WITH IMMEDIATE into this end's region.
    pub(crate) fn write_imm_op(&self, offset: u64, imm: u32) -> SendOp {
        SendOp::WriteImm { remote: self.mr.addr().wrapping_add(offset), rkey: self.mr.rkey(), imm }
    }

    /// A WRITE into this end's region.
    pub(crate) fn write_op(&self, offset: u64) -> SendOp {
        SendOp::Write { remote: self.mr.addr().wrapping_add(offset), rkey: self.mr.rkey() }
    }

    /// Posts pieces of the region.
    pub(crate) fn post(
        &self,
        id: u64,
        op: SendOp,
        sges: &[Sge],
        flags: SendFlags,
    ) -> Result<(), PostError> {
        // SAFETY: the pieces lie in the region, which is there during the call.
        unsafe { self.qp.post_send(&SendWr { id: WrId(id), op, sges, flags }) }
    }

    /// Posts up to `n` messages that find no receive at the peer, named from `first` on; returns
    /// how many wait in the send queue. A device may keep none.
    pub(crate) fn post_without_receives(&self, first: u64, n: u64) -> u64 {
        let post = |id| self.post(id, SendOp::Send, &[self.sge(0, 10)], SendFlags::empty());
        let refused = (0..n).find_map(|i| Some((i, post(first + i).err()?)));
        refused.map_or(n, |(i, why)| {
            assert_eq!(why, PostError::QueueFull);
            i
        })
    }

    pub(crate) fn post_recv(&self, id: u64, sges: &[Sge]) -> Result<(), PostError> {
        // SAFETY: the region outlives the queue pair (fields drop in order), and one thread at a
        // time polls.
        unsafe { self.qp.post_recv(&RecvWr { id: WrId(id), sges }) }
    }

    pub(crate) fn fill(&self, offset: usize, len: usize, seed: u8) -> Vec<u8> {
        let data = pattern(len, seed);
        self.mr.copy_in(offset, &data);
        data
    }

    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.mr.copy_out(offset, &mut data);
        data
    }

    /// Waits for the next completion, letting `other` make progress too: requests that wait advance
    /// when their owner polls.
    pub(crate) fn next(&self, other: &Self) -> Completion {
        loop {
            if let Some(wc) = self.cq.poll_one() {
                return wc;
            }
            other.cq.poll(&mut []);
            self.cq.park(Some(Duration::from_millis(1)));
        }
    }
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let mut x = u32::from(seed) + 1;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        x.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

/// The checks of a receive completion.
pub(crate) fn assert_received(wc: &Completion, id: u64, op: WcOp, len: usize) {
    assert_eq!((wc.id, wc.status, wc.op), (WrId(id), WcStatus::SUCCESS, op));
    assert_eq!(wc.len as usize, len);
}

/// The checks of a failed request.
pub(crate) fn assert_failed(wc: &Completion, id: u64, status: WcStatus) {
    assert_eq!((wc.id, wc.status), (WrId(id), status));
}

/// The same, for failures that devices report with different codes.
pub(crate) fn assert_failed_as(wc: &Completion, id: u64, statuses: &[WcStatus]) {
    assert_eq!(wc.id, WrId(id));
    assert!(statuses.contains(&wc.status), "{}", wc.status);
}

/// Keys and addresses that no region has.
pub(crate) const NOWHERE: (RemoteAddr, RKey, LKey) =
    (RemoteAddr(0x1000), RKey(0xdead_beef), LKey(0xdead_beef));
