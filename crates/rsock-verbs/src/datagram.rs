//! What a device must provide for datagrams. Read this before any device.
//!
//! A [`DatagramQueue`] is an unreliable-datagram queue pair together with the slots that its
//! messages lie in. Payload is copied once while it is posted and once while it is taken, so
//! nothing of the caller's has to stay in place, and no request has a name: a datagram is out, or
//! lost.
//!
//! A sender does not wait for a receiver: a full queue loses what arrives. On the soft device the
//! sender knows and counts the loss, so sent = received + lost. On an RDMA device only the
//! receiving device may count it, for the whole port.

use crate::device::{Backend, Parked};
use crate::error::Error;
use crate::types::{QKey, QpNum};
use std::fmt::Debug;
use std::io::IoSlice;
use std::net::IpAddr;
use std::time::Duration;

/// A device that has datagrams.
pub trait DatagramBackend: Backend {
    /// An unreliable-datagram queue pair.
    #[doc(alias = "IBV_QPT_UD")]
    type Datagrams: DatagramQueue<Self>;
    /// Where datagrams go: an address handle, and the number of a queue there.
    #[doc(alias = "ibv_ah")]
    type Destination: Clone + Debug + Send + Sync;
    /// Whether a sender learns of each loss ([`Posted::Lost`]) and counts it. Otherwise a datagram
    /// may be lost unnoticed.
    const KNOWS_LOSS: bool;

    /// A datagram queue that takes what carries `key`.
    ///
    /// # Errors
    /// When memory, numbers or descriptors run out.
    fn create_datagrams(ctx: &Self::Context, key: QKey) -> Result<Self::Datagrams, Error>;
}

/// What has become of a datagram that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is on its way, as far as the sender can know.
    Out,
    /// It is lost, and counted: the receiver has no room, or another Q_Key.
    Lost,
}

/// Why a datagram was not taken. `Copy` and free of allocation: this is the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// It is longer than [`DatagramQueue::max_len`]. (`EMSGSIZE`)
    #[error("the datagram is too long")]
    TooLong,
    /// That queue is gone: look the peer up again.
    #[error("the destination is gone")]
    Gone,
    /// The device has not sent yet what was posted before; it makes room by itself, soon.
    /// (`EAGAIN`)
    #[error("the queue is full")]
    Full,
    /// The queue is broken: nothing is sent or received over it any more. (`EIO`)
    #[error("the queue is broken")]
    Broken,
}

/// What a queue has done so far. All but `n_received` are known to the sender's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramCounters {
    /// Datagrams posted, lost ones included.
    pub n_sent: u64,
    /// Of them, lost because the receiver's queue was full.
    pub n_full: u64,
    /// Of them, lost because the receiver has another Q_Key.
    pub n_wrong_key: u64,
    /// Datagrams taken.
    pub n_received: u64,
    /// What arrived and was no datagram: a peer broke the device's contract.
    pub n_malformed: u64,
}

/// A process that may send to this one. Nothing in it comes from the sender itself, so it cannot be
/// forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// What this process calls it; never given to another one.
    pub number: u64,
    /// Its user, as the kernel vouched for it.
    pub uid: u32,
}

/// An arrived datagram, in the device's memory, where its sender may still be writing: it is
/// reached by bounded copies only.
pub trait Arrived {
    /// The sender's queue pair, by its own word.
    fn src(&self) -> QpNum;
    /// The sender's address as the network knows it; `None` where there is no network.
    fn source(&self) -> Option<IpAddr> {
        None
    }
    /// The process that sent it, where a process has to be let in before it sends.
    fn sender(&self) -> Option<Sender> {
        None
    }
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies from `offset` into `dst`.
    ///
    /// # Panics
    /// If the span lies outside the datagram.
    fn copy_out(&self, offset: usize, dst: &mut [u8]);
}

/// An unreliable-datagram queue pair. Every method may be called by any thread at any time.
pub trait DatagramQueue<B: DatagramBackend>: Debug + Send + Sync {
    /// Its number, for peers.
    fn qp_num(&self) -> QpNum;

    /// Longest datagram, in bytes.
    fn max_len(&self) -> usize;

    /// How many datagrams of `len` bytes it has room for: per process that may send to it, or in
    /// all on devices that accept datagrams from any sender.
    fn room(&self, len: usize) -> usize;

    /// Lets the peer at `path` send to this queue. A repeated call changes nothing, and so does any
    /// call on devices that accept datagrams from any sender.
    ///
    /// # Errors
    /// When memory runs out; `PeerGone`.
    fn admit(&self, path: &B::Path) -> Result<(), Error>;

    /// The route to queue `dest` at `path`, whose Q_Key is assumed to be `key`.
    ///
    /// # Errors
    /// `Invalid` if the device knows that there is no such queue, or that it has not admitted this
    /// process; `PeerGone`, `PeerViolation`; when memory runs out.
    #[doc(alias = "ibv_create_ah")]
    fn destination(&self, path: &B::Path, dest: QpNum, key: QKey) -> Result<B::Destination, Error>;

    /// Sends the pieces as one datagram, and wakes no receiver: [`Self::ring`] follows, at the
    /// latest after a batch.
    ///
    /// # Errors
    /// [`DatagramError`]; the datagram was not taken.
    fn post(&self, to: &B::Destination, payload: &[IoSlice<'_>]) -> Result<Posted, DatagramError>;

    /// Wakes the receivers that wait for what was posted to `to`.
    fn ring(&self, to: &B::Destination);

    /// Sends the pieces as one datagram, and wakes its receivers.
    ///
    /// # Errors
    /// As [`Self::post`].
    fn send(&self, to: &B::Destination, payload: &[IoSlice<'_>]) -> Result<Posted, DatagramError> {
        let posted = self.post(to, payload)?;
        self.ring(to);
        Ok(posted)
    }

    /// Hands the oldest datagram to `take`; false if there is none. Inside `take` the queue is not
    /// used.
    fn try_recv(&self, take: &mut dyn FnMut(&dyn Arrived)) -> bool;

    /// Hands the oldest datagrams to `take`, `most` of them at most; how many. Inside `take` the
    /// queue is not used.
    fn try_recv_up_to(&self, most: usize, take: &mut dyn FnMut(&dyn Arrived)) -> usize {
        (0..most).take_while(|_| self.try_recv(take)).count()
    }

    /// Whether `try_recv` would likely find something. Cheap, may be wrong both ways for a moment.
    fn is_ready(&self) -> bool;

    /// Asks for one ring of `bell` when something arrives; as
    /// [`CompletionQueue::arm`](crate::CompletionQueue::arm).
    fn arm(&self, bell: &B::Bell) -> bool;

    /// Takes back an [`Self::arm`].
    fn disarm(&self, bell: &B::Bell);

    /// Counts the calls of [`Self::wake_waiters`]; wraps.
    fn wake_epoch(&self) -> u32;

    /// Sleeps until something may have arrived; as
    /// [`CompletionQueue::park_since`](crate::CompletionQueue::park_since).
    fn park_since(&self, epoch: u32, timeout: Option<Duration>) -> Parked;

    /// Wakes every thread that parks or has armed a bell here.
    fn wake_waiters(&self);

    /// Frees what belongs to peers that have died. Costs a system call for each peer.
    fn sweep(&self);

    /// What was sent, received and lost.
    fn counters(&self) -> DatagramCounters;
}
