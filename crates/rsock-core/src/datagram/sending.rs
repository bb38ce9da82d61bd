//! Sending: by a route past UDP where one is open, by UDP otherwise.

use crate::datagram::flags::MessageFlags;
use crate::datagram::handshake::Outcome;
use crate::datagram::local::Local;
use crate::datagram::remote::{Queue, Remote, RemoteRoute};
use crate::datagram::route::{Medium, Route};
use crate::datagram::table::{PeerRoute as _, Selection, Table};
use crate::datagram::udp::UdpSender;
use crate::datagram::{Datagram, errno, is_link_local, raw};
use crate::interrupt::{Section, Watch};
use crate::sys;
use rsock_cm::canonical;
use rsock_verbs::{DatagramError, DatagramQueue, Posted, QpNum};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The routes of a socket.
#[derive(Debug)]
pub(super) struct Routes {
    pub(super) table: Table<Arc<Route>>,
    /// The route that was used last, and when it was looked up, in the kernel's coarse
    /// milliseconds.
    pub(super) last: Option<(SocketAddr, Arc<Route>, u32)>,
    /// The canonical peer of a connected socket.
    pub(super) peer: Option<SocketAddr>,
    /// The last address that was checked, and whether it is of this host.
    pub(super) is_local: Option<(IpAddr, bool)>,
}

impl Datagram {
    /// As `sendto(2)`, of several pieces. `None` sends to the peer of a connected socket. A
    /// datagram that a full receiver loses counts as sent.
    ///
    /// # Errors
    /// `EDESTADDRREQ` without an address; `EMSGSIZE` for more than UDP carries, less the header (16
    /// or 28 bytes); `ECONNREFUSED`, `EAGAIN`, `EINTR`, and others, as for UDP.
    #[doc(alias = "rsendto")]
    pub fn send_to(
        &self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        flags: MessageFlags,
    ) -> io::Result<usize> {
        if let Some(posted) = self.post(bufs, to, flags)? {
            posted.ring();
        }
        Ok(bufs.iter().map(|b| b.len()).sum())
    }

    /// Sends each of `batch` to the peer of a connected socket, or to `to`, and wakes the receiver
    /// once. Returns how many were sent. As with `sendmmsg(2)`, an error after the first datagram
    /// is left for the next call.
    ///
    /// # Errors
    /// As [`Self::send_to`].
    #[doc(alias = "sendmmsg")]
    pub fn send_batch(&self, batch: &[IoSlice<'_>], to: Option<SocketAddr>) -> io::Result<usize> {
        let mut last: Option<PostedDatagram<'_>> = None;
        let mut n = 0;
        let mut result = Ok(());
        for datagram in batch {
            let bufs = &[IoSlice::new(datagram)];
            // PERF: reuses the route of the previous datagram without a lookup. With what
            // `recv_more` does for the receiver, 13.8 M/s of 64 B arrive in batches of 32, and 8.0
            // M/s without the two (`rsock perf dgram`, two CPUs that share a cache).
            if last.as_mut().is_some_and(|last| last.post_also(bufs)) {
                n += 1;
                continue;
            }
            match self.post(bufs, to, MessageFlags::empty()) {
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

    /// Sends without waking the receiver. Returns what to ring, if the datagram went past UDP.
    fn post(
        &self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        flags: MessageFlags,
    ) -> io::Result<Option<PostedDatagram<'_>>> {
        let may_wait = !flags.is_dont_wait() && !self.is_nonblocking();
        let watch = Watch::begin();
        // Read when it is first needed: it takes a system call.
        let mut deadline = None;
        loop {
            let full = match self.try_post(bufs, to) {
                Ok(PostAttempt::Done(posted)) => return Ok(posted),
                Ok(PostAttempt::Full(queue)) => Some(queue),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
                Err(e) => return Err(e),
            };
            let limit = || self.send_timeout().and_then(|limit| sys::now().checked_add(limit));
            if !may_wait
                || sys::time_left(*deadline.get_or_insert_with(limit)) == Some(Duration::ZERO)
            {
                return Err(errno(libc::EAGAIN));
            }
            match full {
                Some(queue) => queue.park_for_room(),
                None => {
                    let mut fds = [raw(self.port.as_fd(), libc::POLLOUT)];
                    sys::sleep(&mut fds, sys::time_left(deadline.flatten()), None, watch)?;
                }
            }
        }
    }

    /// As [`Self::post`], and never waits: `WouldBlock` if the UDP socket has no room.
    fn try_post(
        &self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
    ) -> io::Result<PostAttempt<'_>> {
        let _section = Section::enter();
        let (local, remote) = (self.local()?, self.remote());
        // A program that only sends must process the answers, too: those of peers whose route does
        // not detect their exit.
        if remote.is_some_and(Remote::has_queues) && self.is_udp_poll_due() {
            self.poll_udp();
        }
        let mut routes = self.routes();
        let to = match to.or(routes.peer) {
            Some(to) => canonical(to),
            None => return Err(errno(libc::EDESTADDRREQ)),
        };
        if local.is_some() || remote.is_some() {
            let mut found = routes.select(to);
            if let Selected::Open(number) = found {
                drop(routes);
                self.open(to, number);
                routes = self.routes();
                found = routes.select(to);
                if let Selected::Open(number) = found {
                    // The peer has told another number meanwhile: the next datagram opens that
                    // route.
                    routes.table.failed(to, number, sys::now());
                }
            }
            if let Selected::Route(route) = found {
                match route.post(local.map(|local| &local.ud), bufs) {
                    Ok(posted) => {
                        return Ok(PostAttempt::Done(Some(PostedDatagram {
                            local,
                            route,
                            posted,
                        })));
                    }
                    Err(DatagramError::Full) => {
                        // The device sends what is queued whether a caller waits or not. If it is
                        // stuck, UDP may work.
                        match &route.medium {
                            Medium::Rdma(RemoteRoute { queue, .. }) if !queue.is_stuck() => {
                                return Ok(PostAttempt::Full(Arc::clone(queue)));
                            }
                            _ => routes.forget(to),
                        }
                    }
                    // Longer than that route carries, but perhaps not longer than UDP does.
                    Err(DatagramError::TooLong) => {}
                    Err(DatagramError::Gone | DatagramError::Broken) => routes.forget(to),
                }
            } else if self.is_udp_poll_due() {
                // As above, for destinations to which a route may become known.
                drop(routes);
                self.poll_udp();
                routes = self.routes();
            }
        }
        let number = self.number_for(&mut routes, local, to);
        drop(routes);
        self.sender()?.data(to, number, bufs)?;
        self.counts.n_by_udp.fetch_add(1, Ordering::Relaxed);
        Ok(PostAttempt::Done(None))
    }

    /// Opens a route to queue `number` of `to`, or begins the handshake for it.
    fn open(&self, to: SocketAddr, number: QpNum) {
        let now = sys::now();
        let local = self.local().ok().flatten().filter(|_| self.is_local(&mut self.routes(), to));
        let is_begun = match local {
            _ if is_link_local(to.ip()) => false,
            Some(local) => local.begin(to, number, now),
            None => match self.remote().map(|remote| remote.open(to, number)) {
                Some(Ok((route, header))) => {
                    let route = Arc::new(Route { medium: Medium::Rdma(route), header });
                    drop(self.routes().table.opened(to, number, route, sys::now()));
                    true
                }
                Some(Err(_)) | None => false,
            },
        };
        if !is_begun {
            self.routes().table.failed(to, number, now);
        }
    }

    /// Whether no sender has polled UDP and handshakes since the kernel's coarse clock last
    /// advanced.
    fn is_udp_poll_due(&self) -> bool {
        let now = sys::tick();
        self.udp_polled.swap(now, Ordering::Relaxed) != now
    }

    /// The queue number for a packet to `to`: 0 where `to` cannot reach any queue of this socket.
    /// Queues do not know which link a link-local address is of: there all goes by UDP.
    pub(super) fn number_for(
        &self,
        routes: &mut Routes,
        local: Option<&Local>,
        to: SocketAddr,
    ) -> QpNum {
        if is_link_local(to.ip()) {
            return QpNum(0);
        }
        match local.filter(|_| self.is_local(routes, to)) {
            Some(local) if local.is_own_process() => local.ud.qp_num(),
            Some(_) => QpNum(0),
            None => self.remote().and_then(|remote| remote.number_for(to.ip())).unwrap_or(QpNum(0)),
        }
    }

    /// Whether `to` is an address of this host.
    fn is_local(&self, routes: &mut Routes, to: SocketAddr) -> bool {
        let known = routes.is_local.filter(|(ip, _)| *ip == to.ip());
        let is_local = known.map_or_else(|| rsock_cm::is_local(to.ip()), |(_, is)| is);
        routes.is_local = Some((to.ip(), is_local));
        is_local
    }

    /// Length of the longest datagram that goes past UDP to `to`. `None` without such a route,
    /// which a datagram or two in both directions establish.
    #[must_use]
    pub fn max_past_udp(&self, to: SocketAddr) -> Option<usize> {
        let local = self.local().ok()?;
        self.routes()
            .table
            .route(canonical(to))
            .map(|route| route.max_payload(local.map(|local| &local.ud)))
    }

    pub(super) fn sender(&self) -> io::Result<UdpSender<'_>> {
        let (udp, is_v6) = (self.port.as_fd(), self.port.is_v6());
        Ok(UdpSender { udp, is_v6, local: self.port.local_addr()? })
    }

    fn send_timeout(&self) -> Option<Duration> {
        use rustix::net::sockopt::{Timeout, socket_timeout};
        socket_timeout(&*self.port, Timeout::Send).ok().flatten()
    }

    /// Advances the handshakes.
    pub(super) fn progress_handshakes(&self, local: &Local) {
        let now = sys::now();
        local.progress(now, |Outcome { peer, number, route }| {
            let mut routes = self.routes();
            match route {
                Some(route) => drop(routes.table.opened(peer, number, route, now)),
                None => routes.table.failed(peer, number, now),
            }
        });
    }
}

impl Routes {
    /// Selects how the next datagram to `to` is sent.
    fn select(&mut self, to: SocketAddr) -> Selected {
        if let Some((last, route, checked)) = &self.last
            && *last == to
            && (route.detects_peer_exit() || *checked == sys::tick())
        {
            return Selected::Route(Arc::clone(route));
        }
        match self.table.select(to, sys::now()) {
            Selection::Udp => Selected::Udp,
            Selection::Open(number) => Selected::Open(number),
            Selection::Route(route) => {
                let route = Arc::clone(route);
                self.last = Some((to, Arc::clone(&route), sys::tick()));
                Selected::Route(route)
            }
        }
    }

    /// Applies `f`, which may replace the route to `from`.
    pub(super) fn learn(
        &mut self,
        from: SocketAddr,
        f: impl FnOnce(&mut Table<Arc<Route>>) -> Option<Arc<Route>>,
    ) -> Option<Arc<Route>> {
        let old = f(&mut self.table);
        if old.is_some() && self.last.as_ref().is_some_and(|(last, ..)| *last == from) {
            self.last = None;
        }
        old
    }

    fn forget(&mut self, to: SocketAddr) {
        drop(self.learn(to, |table| table.lost(to, sys::now())));
        // Even if the table has no entry for it any more.
        self.last = None;
    }
}

/// How a datagram is sent.
enum Selected {
    Udp,
    Route(Arc<Route>),
    /// By UDP, unless a route to this queue can be opened at once.
    Open(QpNum),
}

/// The result of an attempt to send.
enum PostAttempt<'a> {
    Done(Option<PostedDatagram<'a>>),
    /// The device has not sent the previous datagrams yet.
    Full(Arc<Queue>),
}

/// A datagram that was sent past UDP, and whose receiver was not woken yet.
struct PostedDatagram<'a> {
    local: Option<&'a Local>,
    route: Arc<Route>,
    posted: Posted,
}

impl PostedDatagram<'_> {
    /// Sends another datagram by the same route, if that route is certainly still valid.
    fn post_also(&mut self, bufs: &[IoSlice<'_>]) -> bool {
        if !self.route.detects_peer_exit() {
            return false;
        }
        let _section = Section::enter();
        match self.route.post(self.local.map(|local| &local.ud), bufs) {
            Ok(posted) => {
                self.posted = posted;
                true
            }
            // The caller selects a route again, and handles the error there.
            Err(_) => false,
        }
    }

    fn ring(self) {
        self.route.ring(self.local.map(|local| &local.ud));
        if self.posted == Posted::Lost {
            yield_to_receiver();
        }
    }
}

/// For a sender whose datagram found no room: the receiver has had no CPU for a while. If it waits
/// for this CPU, further datagrams are lost as well; if it does not, the yield costs little.
pub(crate) fn yield_to_receiver() {
    rustix::thread::sched_yield();
}
