//! Checks that a datagram in shared memory comes from the address in its header.
//!
//! No network vouches for that address: the sending process writes the header. So an address is
//! accepted only from a process whose user owns a UDP socket with that address, as the kernel
//! reports it: UDP would not let another user send from there either. The kernel is asked once, as
//! a rule when the process is admitted, and the answer is remembered.

use crate::datagram::is_link_local;
use crate::sys::sock_diag;
use rsock_cm::is_local;
use rsock_verbs::Sender;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Senders, and the addresses that were verified for them.
#[derive(Debug)]
pub(crate) struct SourceCheck {
    /// Secret, so that no sender can construct two addresses with one mark.
    seeds: [u64; 2],
    /// Marks of verified pairs; 0 is an empty entry. It is a cache: an evicted pair is verified
    /// again.
    known: Box<[AtomicU64]>,
    /// Senders that used an address which is not theirs to use. The kernel is asked about them
    /// again only for one in [`ASK_EVERY`] of their datagrams: otherwise each would cost system
    /// calls.
    refuted: [Refuted; N_REFUTED],
}

#[derive(Debug, Default)]
struct Refuted {
    /// Number of the sender; 0 is an empty entry.
    number: AtomicU64,
    /// Its datagrams that were dropped without asking the kernel.
    n_dropped: AtomicU32,
}

/// Number of remembered marks: more than a socket usually has peers at a time.
const N_KNOWN: usize = 2048;
/// Entries that may hold a given mark.
const N_PLACES: usize = 4;
const N_REFUTED: usize = 16;
/// A sender that is refuted may use another address rightfully, of which the mark was evicted.
const ASK_EVERY: u32 = 16;

impl SourceCheck {
    pub(crate) fn new() -> Self {
        let seed = || RandomState::new().hash_one(0u8);
        Self { seeds: [seed(), seed()], known: none(N_KNOWN), refuted: Default::default() }
    }

    /// Whether a datagram of `sender` may come from canonical `from`.
    #[inline]
    pub(crate) fn is_verified(&self, sender: Sender, from: SocketAddr) -> bool {
        let mark = self.mark(sender, from);
        let places = self.places(mark);
        places.iter().any(|place| place.load(Ordering::Relaxed) == mark)
            || self.verify_new(sender, from)
    }

    #[cold]
    fn verify_new(&self, sender: Sender, from: SocketAddr) -> bool {
        let refuted = &self.refuted[index(sender.number, N_REFUTED)];
        if refuted.number.load(Ordering::Relaxed) == sender.number
            && refuted.n_dropped.fetch_add(1, Ordering::Relaxed) < ASK_EVERY - 1
        {
            return false;
        }
        let asked = self.ask(sender, from);
        // An error is a shortage, which passes.
        if matches!(asked, Ok(false)) {
            refuted.number.store(sender.number, Ordering::Relaxed);
            refuted.n_dropped.store(0, Ordering::Relaxed);
        }
        asked.unwrap_or(false)
    }

    /// Asks the kernel whether `sender` may use the canonical address `from`, and remembers a
    /// positive answer.
    pub(crate) fn verify(&self, sender: Sender, from: SocketAddr) -> bool {
        self.ask(sender, from).unwrap_or(false)
    }

    /// # Errors
    /// As [`sock_diag::is_owned_by`].
    fn ask(&self, sender: Sender, from: SocketAddr) -> io::Result<bool> {
        let is_verified = !is_link_local(from.ip())
            && is_local(from.ip())
            && sock_diag::is_owned_by(from, sender.uid)?;
        if is_verified {
            self.remember(sender, from);
        }
        Ok(is_verified)
    }

    /// Notes that canonical `from` is an address of `sender`.
    pub(crate) fn remember(&self, sender: Sender, from: SocketAddr) {
        let mark = self.mark(sender, from);
        let places = self.places(mark);
        if places.iter().any(|place| place.load(Ordering::Relaxed) == mark) {
            return;
        }
        // Any entry may be evicted; bits of the mark select it.
        let is_free = |place: &&AtomicU64| place.load(Ordering::Relaxed) == 0;
        let place = places.iter().find(is_free).unwrap_or(&places[index(mark >> 8, N_PLACES)]);
        place.store(mark, Ordering::Relaxed);
    }

    fn places(&self, mark: u64) -> &[AtomicU64] {
        let first = index(mark >> 32, N_KNOWN / N_PLACES) * N_PLACES;
        &self.known[first..first + N_PLACES]
    }

    /// PERF: two or three multiplications; the hashing of maps takes as long as the rest of a
    /// reception.
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

/// `n` empty entries.
fn none(n: usize) -> Box<[AtomicU64]> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

/// The low bits of `bits`, below the power of two `n`.
fn index(bits: u64, n: usize) -> usize {
    usize::try_from(bits & (n as u64 - 1)).unwrap_or(0)
}

/// The upper and the lower half of a number.
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
    fn an_address_is_accepted_only_from_a_user_that_owns_a_socket_with_it() {
        for bind in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            let Ok(socket) = UdpSocket::bind(bind) else { continue };
            let port = socket.local_addr().expect("address").port();
            let is_v6_only = bind.starts_with("[::1]");
            let ip: IpAddr = if is_v6_only { "::1" } else { "127.0.0.1" }.parse().expect("an IP");
            let (local, sources) = (SocketAddr::new(ip, port), SourceCheck::new());
            assert!(sources.is_verified(sender(1), local), "{bind}");
            let other_user = Sender { uid: 12_345, ..sender(2) };
            assert!(!sources.is_verified(other_user, local), "{bind}");
            let elsewhere = SocketAddr::new([192, 0, 2, 1].into(), port);
            assert!(!sources.is_verified(sender(3), elsewhere), "{bind}");
            drop(socket);
            // Remembered from before; a new sender is rejected.
            assert!(sources.is_verified(sender(1), local), "{bind}");
            assert!(!sources.is_verified(sender(4), local), "{bind}");
        }
    }

    #[test]
    fn a_refuted_sender_keeps_its_verified_addresses_and_gets_no_new_ones() {
        let sources = SourceCheck::new();
        let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a socket"));
        let [first, second] = sockets.each_ref().map(|s| s.local_addr().expect("address"));
        assert!(sources.is_verified(sender(1), first));
        assert!(!sources.is_verified(sender(1), "192.0.2.1:7".parse().expect("an address")));
        assert!(sources.is_verified(sender(1), first));
        assert!(!sources.is_verified(sender(1), second));
        // As happens when the sender asks to be admitted.
        assert!(sources.verify(sender(1), second));
        assert!(sources.is_verified(sender(1), second));
    }

    #[test]
    fn a_refuted_sender_is_asked_about_again_after_some_datagrams() {
        let sources = SourceCheck::new();
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let at = socket.local_addr().expect("address");
        let elsewhere = "192.0.2.1:7".parse().expect("an address");
        assert!(!sources.is_verified(sender(1), elsewhere));
        let n = (0..2 * ASK_EVERY).take_while(|_| !sources.is_verified(sender(1), at)).count();
        assert_eq!(n, (ASK_EVERY - 1) as usize);
        assert!(sources.is_verified(sender(2), at), "another sender is not concerned");
    }

    #[test]
    fn evicted_pairs_are_verified_again() {
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
    fn a_datagram_with_a_false_source_is_dropped_and_counted() {
        let [a, b] = [(); 2].map(|()| {
            let socket = Datagram::bound("127.0.0.1:0".parse().expect("address")).expect("socket");
            socket.set_recv_timeout(Some(std::time::Duration::from_secs(20))).expect("a limit");
            socket
        });
        let [at_a, at_b] = [&a, &b].map(|socket| socket.local_addr().expect("address"));
        let recv = |socket: &Datagram, flags| {
            let mut buf = [0; 16];
            let got = socket.recv_from(&mut [IoSliceMut::new(&mut buf)], flags)?;
            io::Result::Ok((buf[..got.len].to_vec(), got.from))
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
        // A hostile sender can write any header.
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
    fn a_peek_on_a_connected_socket_skips_datagrams_of_others() {
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
        send(&a, b"peer", at_b);
        for peek in [MessageFlags::PEEK, MessageFlags::PEEK, MessageFlags::empty()] {
            assert_eq!(recv(&b, peek | MessageFlags::DONT_WAIT).expect("there"), b"peer");
        }
    }
}
