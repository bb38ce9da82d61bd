//! Whether a datagram in shared memory comes from the address that it says it comes from.
//!
//! There is no network that would vouch for it, and what a process writes into its lane is its own word. So an
//! address is believed only of a process to whose user a UDP socket with that address belongs, by the
//! kernel's word: UDP would not let anybody else send from there either. That is asked once, as a rule when
//! the process is let in, and remembered.

use crate::sys::sock_diag;
use rsock_cm::is_local;
use rsock_verbs::Sender;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

/// Senders and the addresses that they were found to have.
#[derive(Debug)]
pub(crate) struct SourceCheck {
    /// Nobody outside can know which two have one mark.
    seeds: [u64; 2],
    /// Marks of what is known; 0 is none. A cache: what is pushed out is asked for anew.
    known: Box<[AtomicU64]>,
    /// Senders that said what was not so. The kernel is not asked about them again but when they ask to be
    /// let in, or each of their datagrams would cost system calls.
    refuted: Box<[AtomicU64]>,
}

/// Marks that are remembered: more than a socket has peers at a time, as a rule.
const N_KNOWN: usize = 2048;
/// Places that a mark may have.
const N_PLACES: usize = 4;
const N_REFUTED: usize = 16;

impl SourceCheck {
    pub(crate) fn new() -> Self {
        let seed = || RandomState::new().hash_one(0u8);
        Self { seeds: [seed(), seed()], known: none(N_KNOWN), refuted: none(N_REFUTED) }
    }

    /// Whether canonical `from` may be where a datagram of `sender` comes from.
    #[inline]
    pub(crate) fn is_verified(&self, sender: Sender, from: SocketAddr) -> bool {
        let mark = self.mark(sender, from);
        let places = self.places(mark);
        places.iter().any(|place| place.load(Ordering::Relaxed) == mark)
            || self.verify_new(sender, from)
    }

    #[cold]
    fn verify_new(&self, sender: Sender, from: SocketAddr) -> bool {
        let is_refuted = |number: &AtomicU64| number.load(Ordering::Relaxed) == sender.number;
        if self.refuted.iter().any(is_refuted) {
            return false;
        }
        let is_verified = self.verify(sender, from);
        if !is_verified {
            self.refuted[index(sender.number, N_REFUTED)].store(sender.number, Ordering::Relaxed);
        }
        is_verified
    }

    /// Asks the kernel whether `sender` may call itself canonical `from`, and remembers it.
    pub(crate) fn verify(&self, sender: Sender, from: SocketAddr) -> bool {
        let is_verified =
            is_local(from.ip()) && sock_diag::is_owned_by(from, sender.uid).unwrap_or(false);
        if is_verified {
            self.remember(sender, from);
        }
        is_verified
    }

    /// It is known that `sender` has canonical `from`.
    pub(crate) fn remember(&self, sender: Sender, from: SocketAddr) {
        let mark = self.mark(sender, from);
        let places = self.places(mark);
        if places.iter().any(|place| place.load(Ordering::Relaxed) == mark) {
            return;
        }
        // Any may be pushed out; the mark's own bits choose as well as anything.
        let is_free = |place: &&AtomicU64| place.load(Ordering::Relaxed) == 0;
        let place = places.iter().find(is_free).unwrap_or(&places[index(mark >> 8, N_PLACES)]);
        place.store(mark, Ordering::Relaxed);
    }

    fn places(&self, mark: u64) -> &[AtomicU64] {
        let first = index(mark >> 32, N_KNOWN / N_PLACES) * N_PLACES;
        &self.known[first..first + N_PLACES]
    }

    /// PERF: two or three multiplications; hashing as maps do it takes as long as the rest of a reception.
    #[inline]
    fn mark(&self, sender: Sender, from: SocketAddr) -> u64 {
        let (high, low) = match from.ip() {
            IpAddr::V4(ip) => (4, u64::from(ip.to_bits())),
            IpAddr::V6(ip) => halves(ip.to_bits()),
        };
        let port = u64::from(from.port());
        let is_v6 = u64::from(from.is_ipv6());
        let mark = self.fold(sender.number ^ port << 48, is_v6 ^ low << 1);
        self.fold(mark, high) | 1
    }

    #[inline]
    fn fold(&self, a: u64, b: u64) -> u64 {
        let (high, low) = halves(u128::from(a ^ self.seeds[0]) * u128::from(b ^ self.seeds[1]));
        high ^ low
    }
}

/// Places of nothing.
fn none(n: usize) -> Box<[AtomicU64]> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

/// The low bits of `bits`, below the power of two `n`.
fn index(bits: u64, n: usize) -> usize {
    usize::try_from(bits & (n as u64 - 1)).unwrap_or(0)
}

/// The upper and the lower one.
fn halves(n: u128) -> (u64, u64) {
    let half = |n: u128| u64::try_from(n & u128::from(u64::MAX)).unwrap_or(0);
    (half(n >> 64), half(n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::header::QueueHeader;
    use crate::datagram::route::Medium;
    use crate::datagram::{Datagram, MessageFlags};
    use rsock_verbs::DatagramQueue;
    use std::io::{ErrorKind, IoSlice, IoSliceMut};
    use std::net::UdpSocket;

    fn sender(number: u64) -> Sender {
        Sender { number, uid: rustix::process::geteuid().as_raw() }
    }

    #[test]
    fn who_has_the_address_is_believed_and_nobody_else() {
        for bind in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            let Ok(socket) = UdpSocket::bind(bind) else { continue };
            let port = socket.local_addr().expect("address").port();
            let is_v6_only = bind.starts_with("[::1]");
            let ip: IpAddr = if is_v6_only { "::1" } else { "127.0.0.1" }.parse().expect("an IP");
            let (mine, sources) = (SocketAddr::new(ip, port), SourceCheck::new());
            assert!(sources.is_verified(sender(1), mine), "{bind}");
            let other_user = Sender { uid: 12_345, ..sender(2) };
            assert!(!sources.is_verified(other_user, mine), "{bind}");
            let elsewhere = SocketAddr::new([192, 0, 2, 1].into(), port);
            assert!(!sources.is_verified(sender(3), elsewhere), "{bind}");
            drop(socket);
            // Known from before; who is new is not believed.
            assert!(sources.is_verified(sender(1), mine), "{bind}");
            assert!(!sources.is_verified(sender(4), mine), "{bind}");
        }
    }

    #[test]
    fn who_lied_once_is_believed_what_was_verified_and_no_more() {
        let sources = SourceCheck::new();
        let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a socket"));
        let [first, second] = sockets.each_ref().map(|s| s.local_addr().expect("address"));
        assert!(sources.is_verified(sender(1), first));
        assert!(!sources.is_verified(sender(1), "192.0.2.1:7".parse().expect("an address")));
        assert!(sources.is_verified(sender(1), first));
        assert!(!sources.is_verified(sender(1), second));
        // As when it asks to be let in.
        assert!(sources.verify(sender(1), second));
        assert!(sources.is_verified(sender(1), second));
    }

    #[test]
    fn more_than_can_be_remembered_is_asked_for_anew() {
        let sources = SourceCheck::new();
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let at = socket.local_addr().expect("address");
        for number in 1..4 * N_KNOWN as u64 {
            sources.remember(sender(number), at);
        }
        for number in 1..4 * N_KNOWN as u64 {
            assert!(sources.is_verified(sender(number), at), "{number}");
        }
    }

    #[test]
    fn a_lying_source_in_shared_memory_is_dropped_and_counted() {
        let [a, b] = [(); 2].map(|()| {
            let socket = Datagram::bound("127.0.0.1:0".parse().expect("address")).expect("socket");
            socket.set_recv_timeout(Some(std::time::Duration::from_secs(20))).expect("a limit");
            socket
        });
        let [at_a, at_b] = [&a, &b].map(|socket| socket.local_addr().expect("address"));
        let recv = |socket: &Datagram, flags| {
            let mut buf = [0; 16];
            let got = socket.recv_from(&mut [IoSliceMut::new(&mut buf)], flags)?;
            std::io::Result::Ok((buf[..got.len].to_vec(), got.from))
        };
        let send = |from: &Datagram, bytes: &[u8], to| {
            from.send_to(&[IoSlice::new(bytes)], Some(to), MessageFlags::empty()).expect("sent");
        };
        while a.counters().local.n_sent == 0 {
            send(&a, b"there", at_b);
            assert_eq!(
                recv(&b, MessageFlags::empty()).expect("received"),
                (b"there".to_vec(), at_a)
            );
            send(&b, b"back", at_a);
            assert_eq!(
                recv(&a, MessageFlags::empty()).expect("received"),
                (b"back".to_vec(), at_b)
            );
        }
        // As a hostile sender would: with a header of its own.
        let route = a.routes().table.route(at_b).map(std::sync::Arc::clone).expect("a route");
        let (Medium::SharedMemory(to), Ok(Some(local))) = (&route.medium, a.local()) else {
            panic!("a route through memory");
        };
        for source in ["192.0.2.1:53", "127.0.0.1:1", "[2001:db8::1]:53"] {
            let header = QueueHeader { source: source.parse().expect("address") }.encode();
            let pieces = [IoSlice::new(header.as_bytes()), IoSlice::new(b"lie")];
            local.ud.post(to, &pieces).expect("posted");
        }
        let nothing = recv(&b, MessageFlags::DONT_WAIT).expect_err("nothing for us");
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
        assert_eq!(b.counters().n_foreign, 3);
        send(&a, b"honest", at_b);
        assert_eq!(recv(&b, MessageFlags::empty()).expect("received"), (b"honest".to_vec(), at_a));
    }

    #[test]
    fn a_look_at_a_connected_socket_finds_what_lies_behind_others() {
        let [a, b, c] = [(); 3].map(|()| {
            let socket = Datagram::bound("127.0.0.1:0".parse().expect("address")).expect("socket");
            socket.set_recv_timeout(Some(std::time::Duration::from_secs(20))).expect("a limit");
            socket
        });
        let [at_a, at_b, at_c] = [&a, &b, &c].map(|socket| socket.local_addr().expect("address"));
        let recv = |socket: &Datagram, flags| {
            let mut buf = [0; 16];
            let got = socket.recv_from(&mut [IoSliceMut::new(&mut buf)], flags);
            got.map(|got| buf[..got.len].to_vec())
        };
        let send = |from: &Datagram, bytes: &[u8], to| {
            from.send_to(&[IoSlice::new(bytes)], Some(to), MessageFlags::empty()).expect("sent");
        };
        for (x, at_x) in [(&a, at_a), (&c, at_c)] {
            while x.counters().local.n_sent == 0 {
                send(x, b"there", at_b);
                recv(&b, MessageFlags::empty()).expect("received");
                send(&b, b"back", at_x);
                recv(x, MessageFlags::empty()).expect("received");
            }
        }
        b.connect(at_a).expect("connected");
        (0..3).for_each(|_| send(&c, b"foreign", at_b));
        send(&a, b"ours", at_b);
        for peek in [MessageFlags::PEEK, MessageFlags::PEEK, MessageFlags::empty()] {
            assert_eq!(recv(&b, peek | MessageFlags::DONT_WAIT).expect("there"), b"ours");
        }
    }
}
