//! Sending: over a way past UDP where one is open, by UDP otherwise.

use crate::datagram::handshake::Outcome;
use crate::datagram::local::Local;
use crate::datagram::remote::{Far, FarWay, Queue};
use crate::datagram::route::{Over, Way};
use crate::datagram::socket::{Datagram, errno, raw};
use crate::datagram::table::{Route, Table, Way as _};
use crate::datagram::udp::Sender;
use crate::interrupt::{Section, Watch};
use crate::sys;
use rsock_cm::canonical;
use rsock_verbs::{DatagramError, DatagramQueue, Posted, QpNum};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where datagrams go.
#[derive(Debug)]
pub(super) struct Routes {
    pub(super) table: Table<Arc<Way>>,
    /// The way that was used last, and when it was looked up, in the kernel's coarse milliseconds.
    pub(super) last: Option<(SocketAddr, Arc<Way>, u32)>,
    /// The canonical peer of a connected socket.
    pub(super) peer: Option<SocketAddr>,
    /// Whether the address that was asked about last is of this host.
    pub(super) is_local: Option<(IpAddr, bool)>,
}

impl Datagram {
    /// As `sendto(2)`, of several pieces; `None` sends to the peer of a connected socket. What a
    /// full receiver loses counts as sent. `dont_wait` as `MSG_DONTWAIT`.
    ///
    /// # Errors
    /// `EDESTADDRREQ` without an address; `EMSGSIZE` for more than UDP carries, less the header (16 or
    /// 28 bytes); `ECONNREFUSED`, `EAGAIN`, `EINTR`, and others, as for UDP.
    #[doc(alias = "rsendto")]
    pub fn send_to(
        &self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        dont_wait: bool,
    ) -> io::Result<usize> {
        if let Some(posted) = self.post(bufs, to, dont_wait)? {
            posted.ring();
        }
        Ok(bufs.iter().map(|b| b.len()).sum())
    }

    /// Sends each of `batch` to the peer of a connected socket, or to `to`, and wakes the receiver
    /// once; how many were sent. As `sendmmsg(2)`, an error after the first is left for the next call.
    ///
    /// # Errors
    /// As [`Self::send_to`].
    #[doc(alias = "sendmmsg")]
    pub fn send_batch(&self, batch: &[IoSlice<'_>], to: Option<SocketAddr>) -> io::Result<usize> {
        let mut last: Option<PostedOver<'_>> = None;
        let mut n = 0;
        let mut result = Ok(());
        for datagram in batch {
            let bufs = &[IoSlice::new(datagram)];
            // PERF: the way of the one before, without looking for it. With what `recv_more` does for the
            // receiver, 13.8 M/s of 64 B arrive in batches of 32, and 8.0 M/s without the two (`rsock perf
            // dgram`, two CPUs that share a cache).
            if last.as_mut().is_some_and(|last| last.post_also(bufs)) {
                n += 1;
                continue;
            }
            match self.post(bufs, to, false) {
                Ok(posted) => last = posted.or(last),
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
            n += 1;
        }
        if let Some(posted) = last {
            posted.ring();
        }
        if n == 0 { result.map(|()| 0) } else { Ok(n) }
    }

    /// Sends without waking the receiver; where to ring, if it went past UDP.
    fn post(
        &self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        dont_wait: bool,
    ) -> io::Result<Option<PostedOver<'_>>> {
        loop {
            match self.try_post(bufs, to, dont_wait)? {
                Attempt::Done(posted) => return Ok(posted),
                Attempt::Full(_) if dont_wait || self.is_nonblocking() => {
                    return Err(errno(libc::EAGAIN));
                }
                Attempt::Full(queue) => queue.park_for_room(),
            }
        }
    }

    fn try_post(
        &self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        dont_wait: bool,
    ) -> io::Result<Attempt<'_>> {
        let _section = Section::enter();
        let (local, far) = (self.local()?, self.far());
        // Who only sends must read the answers, too: of peers whose way does not notice its end.
        if far.is_some_and(Far::has_queues) && self.is_look_due() {
            self.look_at_udp();
        }
        let mut routes = self.routes();
        let to = match to.or(routes.peer) {
            Some(to) => canonical(to),
            None => return Err(errno(libc::EDESTADDRREQ)),
        };
        if local.is_some() || far.is_some() {
            let mut found = routes.way(to);
            if let Found::Open(number) = found {
                drop(routes);
                self.open(to, number);
                routes = self.routes();
                found = routes.way(to);
                if let Found::Open(number) = found {
                    // It has told another number meanwhile: for the next one.
                    routes.table.failed(to, number, sys::now());
                }
            }
            if let Found::Way(way) = found {
                match way.post(local, bufs) {
                    Ok(posted) => {
                        return Ok(Attempt::Done(Some(PostedOver { local, way, posted })));
                    }
                    Err(DatagramError::Full) => {
                        // The device sends what it has, whether anybody waits or not; if it does not, UDP
                        // may.
                        match &way.over {
                            Over::Fabric(FarWay { queue, .. }) if !queue.is_stuck() => {
                                return Ok(Attempt::Full(Arc::clone(queue)));
                            }
                            _ => routes.forget(to),
                        }
                    }
                    // More than that way takes, but perhaps not more than UDP does.
                    Err(DatagramError::TooLong) => {}
                    Err(DatagramError::Gone | DatagramError::Broken) => routes.forget(to),
                }
            } else if self.is_look_due() {
                // As above, of those to whom a way may lead.
                drop(routes);
                self.look_at_udp();
                routes = self.routes();
            }
        }
        let number = self.number_for(&mut routes, local, to);
        drop(routes);
        self.send_by_udp(bufs, to, number, dont_wait)?;
        Ok(Attempt::Done(None))
    }

    /// Opens a way to queue `number` of `to`, or begins to.
    fn open(&self, to: SocketAddr, number: QpNum) {
        let now = sys::now();
        let local = self.local().ok().flatten().filter(|_| self.is_local(&mut self.routes(), to));
        let is_begun = match local {
            Some(local) => local.seek(to, number, now),
            None => match self.far().map(|far| far.open(to, number)) {
                Some(Ok((way, header))) => {
                    let way = Arc::new(Way { over: Over::Fabric(way), header });
                    drop(self.routes().table.opened(to, number, way, sys::now()));
                    true
                }
                Some(Err(_)) | None => false,
            },
        };
        if !is_begun {
            self.routes().table.failed(to, number, now);
        }
    }

    /// Whether a sender has not looked at UDP and handshakes since the kernel's clock went on.
    fn is_look_due(&self) -> bool {
        let now = sys::tick();
        self.looked.swap(now, Ordering::Relaxed) != now
    }

    /// The number that a packet to `to` tells: none where it could not be reached.
    pub(super) fn number_for(
        &self,
        routes: &mut Routes,
        local: Option<&Local>,
        to: SocketAddr,
    ) -> QpNum {
        match local.filter(|_| self.is_local(routes, to)) {
            Some(local) if local.is_ours() => local.ud.qp_num(),
            Some(_) => QpNum(0),
            None => self.far().and_then(|far| far.number_for(to.ip())).unwrap_or(QpNum(0)),
        }
    }

    /// Whether `to` is an address of this host.
    fn is_local(&self, routes: &mut Routes, to: SocketAddr) -> bool {
        let known = routes.is_local.filter(|(ip, _)| *ip == to.ip());
        let is_local = known.map_or_else(|| rsock_cm::is_local(to.ip()), |(_, is)| is);
        routes.is_local = Some((to.ip(), is_local));
        is_local
    }

    /// Bytes of the longest datagram that goes past UDP to `to`; nothing as long as it has no such way,
    /// which takes a datagram or two in both directions.
    #[must_use]
    pub fn max_past_udp(&self, to: SocketAddr) -> Option<usize> {
        let local = self.local().ok()?;
        self.routes().table.way(canonical(to)).map(|way| way.max_payload(local))
    }

    pub(super) fn sender(&self) -> io::Result<Sender<'_>> {
        let (udp, is_v6) = (self.port.as_fd(), self.port.is_v6());
        Ok(Sender { udp, is_v6, local: self.port.local_addr()? })
    }

    fn send_by_udp(
        &self,
        bufs: &[IoSlice<'_>],
        to: SocketAddr,
        number: QpNum,
        dont_wait: bool,
    ) -> io::Result<()> {
        let sender = self.sender()?;
        let watch = Watch::begin();
        loop {
            match sender.data(to, number, bufs) {
                Ok(()) => {
                    self.counts.n_by_udp.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                Err(e) if dont_wait || self.is_nonblocking() => return Err(e),
                Err(_) => {
                    let mut fds = [raw(self.port.as_fd(), libc::POLLOUT)];
                    sys::sleep(&mut fds, None, None, watch)?;
                }
            }
        }
    }

    /// Makes handshakes progress.
    pub(super) fn meet(&self, local: &Local) {
        let now = sys::now();
        local.progress(now, |Outcome { peer, number, way }| {
            let mut routes = self.routes();
            match way {
                Some(way) => drop(routes.table.opened(peer, number, way, now)),
                None => routes.table.failed(peer, number, now),
            }
        });
    }
}

impl Routes {
    /// How the next datagram to `to` goes.
    fn way(&mut self, to: SocketAddr) -> Found {
        if let Some((last, way, looked)) = &self.last
            && *last == to
            && (way.notices_its_end() || *looked == sys::tick())
        {
            return Found::Way(Arc::clone(way));
        }
        match self.table.route(to, sys::now()) {
            Route::Udp => Found::Udp,
            Route::Open(number) => Found::Open(number),
            Route::Way(way) => {
                let way = Arc::clone(way);
                self.last = Some((to, Arc::clone(&way), sys::tick()));
                Found::Way(way)
            }
        }
    }

    /// Applies `f`, after which the way to `from` may be another one.
    pub(super) fn learn(
        &mut self,
        from: SocketAddr,
        f: impl FnOnce(&mut Table<Arc<Way>>) -> Option<Arc<Way>>,
    ) -> Option<Arc<Way>> {
        let old = f(&mut self.table);
        if old.is_some() && self.last.as_ref().is_some_and(|(last, ..)| *last == from) {
            self.last = None;
        }
        old
    }

    fn forget(&mut self, to: SocketAddr) {
        drop(self.learn(to, |table| table.lost(to, sys::now())));
        // Also where the table has long forgotten it.
        self.last = None;
    }
}

/// How a datagram goes.
enum Found {
    Udp,
    Way(Arc<Way>),
    /// By UDP, unless a way to this queue can be opened at once.
    Open(QpNum),
}

/// What came of an attempt to send.
enum Attempt<'a> {
    Done(Option<PostedOver<'a>>),
    /// The device has not sent yet what came before.
    Full(Arc<Queue>),
}

/// What was sent past UDP, and has not been rung for.
struct PostedOver<'a> {
    local: Option<&'a Local>,
    way: Arc<Way>,
    posted: Posted,
}

impl PostedOver<'_> {
    /// Sends another datagram the same way, if that can be known to be the right one still.
    fn post_also(&mut self, bufs: &[IoSlice<'_>]) -> bool {
        if !self.way.notices_its_end() {
            return false;
        }
        let _section = Section::enter();
        match self.way.post(self.local, bufs) {
            Ok(posted) => {
                self.posted = posted;
                true
            }
            // Whoever looks for a way deals with it.
            Err(_) => false,
        }
    }

    fn ring(self) {
        self.way.ring(self.local);
        if self.posted == Posted::Lost {
            give_way();
        }
    }
}

/// For a sender whose datagram had no room: the receiver has had no CPU for a while. If it waits for ours,
/// whatever else we send is lost as well; if it does not, this costs little.
pub(crate) fn give_way() {
    rustix::thread::sched_yield();
}
