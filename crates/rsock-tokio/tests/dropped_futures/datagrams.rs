//! Futures of datagram sockets, by UDP and through shared memory.

use super::at_every_await::{EVENT, at_every_await, at_its_own_awaits};
use super::connections::{NAME, drop_binds, first_address};
use crate::common::pattern;
use rsock_tokio::Datagram;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use tokio::io::Interest;

/// One end, the address of the other, and the number of its datagrams.
struct End {
    socket: Datagram,
    other: SocketAddr,
    n_sent: usize,
}

impl End {
    /// The bytes that it sends next, or has sent last.
    fn word(&self) -> Vec<u8> {
        pattern(self.n_sent, 8)
    }

    fn is_empty(&self) {
        let none = self.socket.try_recv(&mut [0; 16]).expect_err("it came once");
        assert_eq!(none.kind(), ErrorKind::WouldBlock);
    }

    /// Receives the word that the other end has sent.
    async fn receive(&self, word: &[u8]) {
        let mut buf = [0; 100];
        let (n, from) = self.socket.recv_from(&mut buf).await.expect("receive");
        assert_eq!((&buf[..n], from), (word, self.other));
    }
}

/// How the datagrams of a connected pair go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// By UDP, until the ends have found each other.
    Udp,
    Memory,
}

async fn pair(route: Route) -> (End, End) {
    let at = first_address().await;
    let (a, b) = (Datagram::bind(at).await, Datagram::bind(at).await);
    let (a, b) = (a.expect("bind"), b.expect("bind"));
    let (at_a, at_b) = (a.local_addr().expect("address"), b.local_addr().expect("address"));
    a.connect(at_b).await.expect("connect");
    b.connect(at_a).await.expect("connect");
    let ends = [(a, at_b), (b, at_a)].map(|(socket, other)| End { socket, other, n_sent: 0 });
    let [a, b] = ends;
    while route == Route::Memory
        && [&a, &b].iter().any(|end| end.socket.counters().local.n_sent == 0)
    {
        a.socket.send(b"to").await.expect("send");
        b.receive(b"to").await;
        b.socket.send(b"fro").await.expect("send");
        a.receive(b"fro").await;
    }
    (a, b)
}

async fn drop_receives(receive: impl AsyncFn(&mut End) -> Option<Vec<u8>>) {
    for route in [Route::Udp, Route::Memory] {
        let (mut a, mut b) = pair(route).await;
        let send = async |b: &mut End| {
            b.socket.send(&b.word()).await.expect("send");
            false
        };
        let after = async |a: &mut End, b: &mut End, received: Option<Option<Vec<u8>>>| {
            match received.flatten() {
                Some(received) => assert_eq!(received, b.word()),
                None => a.receive(&b.word()).await,
            }
            a.is_empty();
            b.n_sent += 1;
        };
        let steps = at_every_await(&mut a, &mut b, &receive, send, after).await;
        assert!(steps > EVENT, "it did not wait");
    }
}

pub(crate) async fn a_dropped_receive_has_taken_nothing() {
    drop_receives(async |a| {
        let mut buf = [0; 100];
        let n = a.socket.recv(&mut buf).await.expect("receive");
        Some(buf[..n].to_vec())
    })
    .await;
    drop_receives(async |a| {
        let mut buf = [0; 100];
        let (n, from) = a.socket.recv_from(&mut buf).await.expect("receive");
        assert_eq!(from, a.other);
        Some(buf[..n].to_vec())
    })
    .await;
    drop_receives(async |a| {
        let (mut one, mut two, mut out) = ([0; 100], [0; 100], [None; 2]);
        let bufs = &mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
        assert_eq!(a.socket.recv_batch(bufs, &mut out).await.expect("receive"), 1);
        let received = out[0].expect("the first");
        assert_eq!((received.from, out[1]), (a.other, None));
        Some(one[..received.len].to_vec())
    })
    .await;
}

pub(crate) async fn a_dropped_peek_or_wait_has_taken_no_datagram() {
    drop_receives(async |a| {
        assert_eq!(a.socket.peek(&mut [0; 100]).await.expect("peek"), 8);
        None
    })
    .await;
    drop_receives(async |a| {
        assert_eq!(a.socket.peek_from(&mut [0; 4]).await.expect("peek"), (4, a.other));
        None
    })
    .await;
    drop_receives(async |a| {
        a.socket.readable().await.expect("input");
        None
    })
    .await;
    drop_receives(async |a| {
        assert!(a.socket.ready(Interest::READABLE).await.expect("input").is_readable());
        None
    })
    .await;
}

async fn drop_sends(send: impl AsyncFn(&mut End) -> usize) {
    for route in [Route::Udp, Route::Memory] {
        let mut ends = pair(route).await;
        at_its_own_awaits(
            &mut ends,
            async |(a, _)| send(a).await,
            async |(a, b), sent| {
                for _ in 0..sent.unwrap_or(0) {
                    b.receive(&a.word()).await;
                }
                b.is_empty();
                a.n_sent += 1;
            },
        )
        .await;
    }
}

pub(crate) async fn a_dropped_send_has_sent_no_datagram() {
    drop_sends(async |a| {
        assert_eq!(a.socket.send(&a.word()).await.expect("send"), 8);
        1
    })
    .await;
    drop_sends(async |a| {
        let to = (NAME, a.other.port());
        assert_eq!(a.socket.send_to(&a.word(), to).await.expect("send"), 8);
        1
    })
    .await;
    drop_sends(async |a| {
        let word = a.word();
        let batch = [IoSlice::new(&word), IoSlice::new(&word)];
        a.socket.send_batch(&batch, None).await.expect("send")
    })
    .await;
    drop_sends(async |a| {
        a.socket.writable().await.expect("room");
        0
    })
    .await;
}

pub(crate) async fn a_dropped_connect_has_connected_the_socket_or_not() {
    let (a, b) = pair(Route::Memory).await;
    let mut a = a;
    at_its_own_awaits(
        &mut a,
        async |a| {
            let socket = Datagram::bind(first_address().await).await.expect("bind");
            a.socket = socket;
            a.socket.connect((NAME, a.other.port())).await.expect("connect");
        },
        async |a, connected| match (connected, a.socket.peer_addr()) {
            (_, Ok(peer)) => {
                assert_eq!(peer, a.other);
                a.socket.send(&a.word()).await.expect("send");
            }
            (connected, Err(e)) => {
                assert_eq!((connected, e.kind()), (None, ErrorKind::NotConnected));
                let none = a.socket.send(&a.word()).await.expect_err("it is not connected");
                let errno = rustix::io::Errno::DESTADDRREQ.raw_os_error();
                assert_eq!(none.raw_os_error(), Some(errno));
            }
        },
    )
    .await;
    drop(b);
}

pub(crate) async fn a_dropped_datagram_bind_leaves_its_port_free() {
    drop_binds(async |at| Datagram::bind(at).await, Datagram::local_addr).await;
    at_its_own_awaits(
        &mut (),
        async |()| drop(Datagram::bind((NAME, 0)).await.expect("bind")),
        async |(), _| {},
    )
    .await;
}
