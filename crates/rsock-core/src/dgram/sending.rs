//! Sending: over a way in shared memory where one is open, by UDP otherwise.

use super::local::Local;
use super::meet::{Outcome, Way};
use super::socket::{Datagram, errno, raw};
use super::table::{Route, Table};
use super::udp::Sender;
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
    /// The way that was used last.
    pub(super) last: Option<(SocketAddr, Arc<Way>)>,
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
            match self.post(&[IoSlice::new(datagram)], to, false) {
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

    /// Sends without waking the receiver; where to ring, if it went into shared memory.
    fn post(
        &self,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        dont_wait: bool,
    ) -> io::Result<Option<PostedOver<'_>>> {
        let _section = Section::enter();
        let local = self.local()?;
        let mut routes = self.routes();
        let to = match to.or(routes.peer) {
            Some(to) => canonical(to),
            None => return Err(errno(libc::EDESTADDRREQ)),
        };
        if let Some(local) = local {
            if let Some(way) = routes.way(local, to) {
                match post_over(local, &way, bufs) {
                    Ok(posted) => return Ok(Some(PostedOver { local, way, posted })),
                    // More than a lane takes, but perhaps not more than UDP does.
                    Err(DatagramError::TooLong) => {}
                    Err(DatagramError::Gone) => routes.forget(to),
                }
            } else if self.is_look_due() {
                // Who only sends must read the answers, too.
                drop(routes);
                self.look_at_udp();
                routes = self.routes();
            }
        }
        let number = self.number_for(&mut routes, local, to);
        drop(routes);
        self.send_by_udp(bufs, to, number, dont_wait)?;
        Ok(None)
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
        let known = routes.is_local.filter(|(ip, _)| *ip == to.ip());
        let is_local = known.map_or_else(|| rsock_cm::is_local(to.ip()), |(_, is)| is);
        routes.is_local = Some((to.ip(), is_local));
        local.filter(|l| is_local && l.is_ours()).map_or(QpNum(0), |l| l.ud.qp_num())
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
                Some(way) => drop(routes.table.opened(peer, number, way)),
                None => routes.table.failed(peer, number, now),
            }
        });
    }
}

impl Routes {
    /// The way to `to`, if it is open; otherwise what is needed for it is begun.
    fn way(&mut self, local: &Local, to: SocketAddr) -> Option<Arc<Way>> {
        if let Some((last, way)) = &self.last
            && *last == to
        {
            return Some(Arc::clone(way));
        }
        let now = sys::now();
        match self.table.route(to, now) {
            Route::Udp => None,
            Route::Way(way) => {
                let way = Arc::clone(way);
                self.last = Some((to, Arc::clone(&way)));
                Some(way)
            }
            Route::Open(number) => {
                if !local.seek(to, number, now) {
                    self.table.failed(to, number, now);
                }
                None
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
        if old.is_some() && self.last.as_ref().is_some_and(|(last, _)| *last == from) {
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

/// What was sent through shared memory, and has not been rung for.
struct PostedOver<'a> {
    local: &'a Local,
    way: Arc<Way>,
    posted: Posted,
}

impl PostedOver<'_> {
    fn ring(self) {
        self.local.ud.ring(&self.way.to);
        if self.posted == Posted::Lost {
            // The receiver has had no CPU for a while. If it waits for ours, whatever else we send is
            // lost as well; if it does not, this costs little.
            rustix::thread::sched_yield();
        }
    }
}

fn post_over(local: &Local, way: &Way, bufs: &[IoSlice<'_>]) -> Result<Posted, DatagramError> {
    let header = IoSlice::new(way.header.as_bytes());
    if let [buf] = bufs {
        return local.ud.post(&way.to, &[header, *buf]);
    }
    let mut pieces = vec![header];
    pieces.extend_from_slice(bufs);
    local.ud.post(&way.to, &pieces)
}
