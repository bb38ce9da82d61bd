//! Receiving: from the queue, and from the kernel's socket by the call that the program made.

use crate::closing::{Call, Descriptor};
use crate::datagram::kernel_udp::header::{self, Header};
use crate::datagram::kernel_udp::{AcceleratedUdp, FirstUse, OPEN};
use crate::datagram::{Received, scatter};
use crate::engine::spin_briefly_on;
use crate::interrupt::{Restart, Section, Watch};
use crate::metrics::DatagramEvent;
use crate::sys;
use rsock_cm::in_family;
use rsock_verbs::Arrived;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, sockopt};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What a receive returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    /// A datagram of the queue.
    Queue(Received),
    /// The result of the kernel's call.
    Kernel(usize),
}

/// What was taken from the queue.
enum FromQueue<T> {
    Nothing,
    /// The next datagram must wait until the kernel's socket was seen empty.
    AfterKernel,
    /// What the caller made of the datagram.
    Datagram(T),
}

/// Receptions from a queue that is never empty before the time is checked, and the milliseconds
/// after which the kernel's socket is read. This is rare, because it may reorder the datagrams of a
/// sender that uses both ways.
const KERNEL_EVERY: u32 = 64;
const KERNEL_AFTER: u32 = 20;
/// Most datagrams that one receive drops: fewer than a peer can have under way.
const MAX_DROPPED: u32 = 256;
/// How often one receive spins for a datagram and finds none that it may take, before it asks the
/// kernel and looks at its time limit. A peer may send what has to be dropped without end.
const MOST_SPINS: u32 = 16;
/// Where a datagram was peeked at: the next receive must return that one.
const NOT_PEEKED: u8 = 0;
const IN_QUEUE: u8 = 1;
const IN_KERNEL: u8 = 2;

impl AcceleratedUdp {
    /// Receives a datagram as `recvmsg(2)` would, from the queue or the kernel, whichever has one
    /// first. `kernel` calls the kernel with the given descriptor and flags, and returns the source
    /// if it knows it.
    ///
    /// # Errors
    /// Those of `kernel`; `EAGAIN`, `EINTR`; `EBADF` if the descriptor was closed and the call
    /// could not keep the socket.
    pub fn recv(
        &self,
        descriptor: Descriptor<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        mut kernel: impl FnMut(
            BorrowedFd<'_>,
            &mut [IoSliceMut<'_>],
            RecvFlags,
        ) -> io::Result<(usize, Option<SocketAddr>)>,
    ) -> io::Result<Reception> {
        let call = Call::begin(&self.closings, descriptor);
        let dont_wait = flags.contains(RecvFlags::DONTWAIT);
        let peek = flags.contains(RecvFlags::PEEK);
        let mut watch = Watch::begin();
        let mut limit = None;
        // Whether the kernel's socket was seen empty; and whether that was after a datagram of the
        // queue had to wait for it.
        let (mut is_kernel_empty, mut may_pass) = (false, false);
        let mut n_spins = 0;
        loop {
            if self.has_ended() || flags.contains(RecvFlags::ERRQUEUE) {
                let result = call.last(|fd| kernel(fd, bufs, flags))?;
                if result.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock) {
                    self.note_nothing();
                }
                let (n, _) = result?;
                self.count(DatagramEvent::ReceivedByKernel);
                return Ok(Reception::Kernel(n));
            }
            if self.never_opened() {
                // Just the kernel's call. No queue opens while this thread is in it.
                let Some(wait) = self.begin_kernel_wait() else { continue };
                let result = call.last(|fd| kernel(fd, bufs, flags));
                drop(wait);
                let (n, from) = result??;
                self.peeked.store(if peek { IN_KERNEL } else { NOT_PEEKED }, Ordering::Relaxed);
                if let Ok(fd) = call.fd() {
                    self.note_kernel(fd, from);
                }
                return Ok(Reception::Kernel(n));
            }
            let peeked = self.peeked.load(Ordering::Relaxed);
            let is_kernel_due = peeked == IN_KERNEL || peeked != IN_QUEUE && self.is_kernel_due();
            let taken = if is_kernel_due {
                FromQueue::Nothing
            } else {
                let store = |arrived: &dyn Arrived, from, at| scatter(arrived, from, at, bufs);
                self.take(peek, may_pass || peeked == IN_QUEUE, store)
            };
            if peeked != NOT_PEEKED {
                self.peeked.store(NOT_PEEKED, Ordering::Relaxed);
            }
            if let FromQueue::Datagram(received) = taken {
                if peek {
                    self.peeked.store(IN_QUEUE, Ordering::Relaxed);
                }
                return Ok(Reception::Queue(received));
            }
            let is_blocking = !dont_wait && !self.is_nonblocking.load(Ordering::Relaxed);
            let is_nothing = matches!(taken, FromQueue::Nothing);
            // PERF: a socket that receives by the queue spins there for a while before a system
            // call.
            let may_spin = is_blocking && is_nothing && !is_kernel_due && !is_kernel_empty;
            if may_spin && n_spins < MOST_SPINS && self.spin() {
                n_spins += 1;
                continue;
            }
            if !is_kernel_empty || !is_nothing || is_kernel_due {
                self.since_kernel.store(0, Ordering::Relaxed);
                self.kernel_seen.store(sys::tick(), Ordering::Relaxed);
                let fd = call.fd()?;
                match kernel(fd, bufs, flags | RecvFlags::DONTWAIT) {
                    Ok((n, from)) => {
                        if peek {
                            self.peeked.store(IN_KERNEL, Ordering::Relaxed);
                        }
                        self.note_kernel(fd, from);
                        // Here too, because a receiver that always finds datagrams in the kernel
                        // never sleeps.
                        self.progress(fd, false);
                        return Ok(Reception::Kernel(n));
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e),
                }
                self.progress(fd, false);
                // Try the queue again: for the datagram that waited for the kernel, or came
                // meanwhile.
                (is_kernel_empty, may_pass) = (true, !is_nothing);
                continue;
            }
            (is_kernel_empty, may_pass) = (false, false);
            if !is_blocking {
                self.note_nothing();
                return Err(Errno::AGAIN.into());
            }
            let fd = call.fd()?;
            let limit = *limit.get_or_insert_with(|| Limit::of(fd));
            if sys::time_left(limit.deadline) == Some(Duration::ZERO) {
                return Err(Errno::AGAIN.into());
            }
            let slept = self.sleep(fd, limit.deadline, watch);
            watch.after_sleep(slept, Restart::of(limit.deadline.is_none()))?;
            if self.is_read_shutdown.load(Ordering::Acquire) && !self.is_ready() {
                let (n, _) = call.last(|fd| kernel(fd, bufs, flags))??;
                return Ok(Reception::Kernel(n));
            }
        }
    }

    /// As [`Self::recv`], where the queue has a datagram, or gets one within about a microsecond if
    /// `may_spin`. Returns the number of bytes that were stored, and hands the source to
    /// `put_source`. `None`: nothing was received, and [`Self::recv`] makes the call. Allocates
    /// nothing.
    #[inline(always)]
    pub fn recv_at_once(
        &self,
        room: &mut [u8],
        may_spin: bool,
        mut put_source: impl FnMut(SocketAddr),
    ) -> Option<usize> {
        let is_usual = self.state() == OPEN
            && !self.never_opened()
            && self.peeked.load(Ordering::Relaxed) == NOT_PEEKED
            && self.since_kernel.load(Ordering::Relaxed) < KERNEL_EVERY;
        if !is_usual {
            return None;
        }
        let mut may_spin = may_spin && !self.is_nonblocking.load(Ordering::Relaxed);
        loop {
            let taken = self.take(false, false, |arrived, from, at| {
                let len = room.len().min(arrived.len() - at);
                arrived.copy_out(at, &mut room[..len]);
                put_source(from);
                len
            });
            match taken {
                FromQueue::Datagram(len) => return Some(len),
                FromQueue::AfterKernel => return None,
                FromQueue::Nothing if !may_spin || !self.is_active() => return None,
                FromQueue::Nothing => may_spin = false,
            }
            if !spin_briefly_on(|| self.is_ready()) {
                return None;
            }
        }
    }

    /// Length of the datagram that the next receive returns, if that one is in the queue
    /// (`FIONREAD`). `None` leaves the answer to the kernel.
    #[must_use]
    pub fn bytes_readable(&self, fd: BorrowedFd<'_>) -> Option<usize> {
        if self.has_ended() || self.never_opened() {
            return None;
        }
        let peeked = self.peeked.load(Ordering::Relaxed);
        let may_pass = peeked == IN_QUEUE;
        let is_late = || {
            self.since_kernel.load(Ordering::Relaxed) >= KERNEL_EVERY
                && self.was_kernel_seen_long_ago()
        };
        let is_kernel_due = peeked == IN_KERNEL || !may_pass && is_late();
        let look = |may_pass| self.take(true, may_pass, |arrived, _, at| arrived.len() - at);
        let found = match look(may_pass) {
            FromQueue::Datagram(len) if !is_kernel_due => FromQueue::Datagram(len),
            FromQueue::Nothing => return None,
            _ if sys::poll_now(fd, libc::POLLIN) & libc::POLLIN != 0 => {
                self.peeked.store(IN_KERNEL, Ordering::Relaxed);
                return None;
            }
            _ => look(true),
        };
        let FromQueue::Datagram(len) = found else { return None };
        self.peeked.store(IN_QUEUE, Ordering::Relaxed);
        Some(len)
    }

    /// Whether the kernel's socket has not been read for long because the queue was never empty.
    #[inline]
    fn is_kernel_due(&self) -> bool {
        if self.since_kernel.load(Ordering::Relaxed) < KERNEL_EVERY {
            return false;
        }
        self.since_kernel.store(0, Ordering::Relaxed);
        self.was_kernel_seen_long_ago()
    }

    #[inline]
    fn was_kernel_seen_long_ago(&self) -> bool {
        sys::tick().wrapping_sub(self.kernel_seen.load(Ordering::Relaxed)) >= KERNEL_AFTER
    }

    /// Takes the next datagram of the queue, or peeks at it. `store` gets it with its source and
    /// the offset of its payload.
    #[inline(always)]
    fn take<T>(
        &self,
        peek: bool,
        may_pass: bool,
        mut store: impl FnMut(&dyn Arrived, SocketAddr, usize) -> T,
    ) -> FromQueue<T> {
        let Some(queue) = self.queue() else { return FromQueue::Nothing };
        let peer = self.open_peer.get().and_then(Option::as_ref);
        let _section = Section::enter();
        let mut n_dropped = 0;
        loop {
            let mut taken = None;
            let any = queue.ud.try_take(|arrived| {
                let Some((header, at)) = parse(arrived) else {
                    self.count(DatagramEvent::Malformed);
                    return true;
                };
                let is_verified = |sender| queue.sources.is_verified(sender, header.from);
                if peer.is_some_and(|peer| *peer != header.from)
                    || !arrived.sender().is_some_and(is_verified)
                {
                    self.count(DatagramEvent::Foreign);
                    return true;
                }
                if header.is_after_kernel && !may_pass {
                    taken = Some(FromQueue::AfterKernel);
                    return false;
                }
                let from = in_family(header.from, self.is_v6);
                taken = Some(FromQueue::Datagram(store(arrived, from, at)));
                if !peek {
                    self.count(DatagramEvent::Received);
                }
                !peek
            });
            match taken {
                Some(taken) => {
                    if matches!(taken, FromQueue::Datagram(_)) {
                        if !peek {
                            self.note_taken(queue);
                        }
                        self.note_from_queue();
                        if !self.is_active.load(Ordering::Relaxed) {
                            self.is_active.store(true, Ordering::Relaxed);
                            self.first_use.fetch_or(FirstUse::Receives as u8, Ordering::Relaxed);
                        }
                    }
                    return taken;
                }
                // A dropped datagram makes room for the next. Bounded: a peer whose datagrams are
                // all dropped must not keep the caller here.
                None if any && n_dropped < MAX_DROPPED => n_dropped += 1,
                None => {
                    self.reset_epoll_proxy();
                    return FromQueue::Nothing;
                }
            }
        }
    }

    /// Counts a reception from the queue. PERF: no locked instruction; a count that another thread
    /// loses makes a look at the kernel's socket later by one.
    #[inline(always)]
    fn note_from_queue(&self) {
        let n = self.since_kernel.load(Ordering::Relaxed);
        self.since_kernel.store(n.saturating_add(1), Ordering::Relaxed);
    }
}

/// The longest wait of a call.
#[derive(Clone, Copy)]
struct Limit {
    deadline: Option<Instant>,
}

impl Limit {
    /// From `SO_RCVTIMEO`; takes a system call.
    fn of(fd: BorrowedFd<'_>) -> Self {
        let limit = sockopt::socket_timeout(fd, sockopt::Timeout::Recv).ok().flatten();
        Self { deadline: limit.and_then(|limit| sys::now().checked_add(limit)) }
    }
}

/// The header, and the offset of the payload.
#[inline(always)]
fn parse(arrived: &dyn Arrived) -> Option<(Header, usize)> {
    let mut front = [0; header::MAX];
    if arrived.len() < header::MIN {
        return None;
    }
    arrived.copy_out(0, &mut front[..header::MIN]);
    if front[0] != header::V4 {
        let len = arrived.len().min(header::MAX);
        arrived.copy_out(header::MIN, &mut front[header::MIN..len]);
        return Header::parse(&front[..len]);
    }
    Header::parse(&front[..header::MIN])
}
