//! What a program sees when its peer closes, resets or half-closes: an accelerated stream reports
//! the same as kernel TCP, on which each case runs first.

use crate::common::{Watchdog, accelerated_pair, current_thread, multi_thread, waiting};
use rustix::net::sockopt;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, Ready};
use tokio::net::{TcpListener, TcpStream};

/// A kind of stream.
trait Net {
    type Stream: AsyncRead + AsyncWrite + AsFd + Unpin + Send + Sync + 'static;

    fn pair() -> impl Future<Output = (Self::Stream, Self::Stream)>;
    fn try_read(of: &Self::Stream, buf: &mut [u8]) -> io::Result<usize>;
    fn try_write(of: &Self::Stream, buf: &[u8]) -> io::Result<usize>;
    fn peek(of: &Self::Stream) -> impl Future<Output = io::Result<usize>> + Send;
    fn readable(of: &Self::Stream) -> impl Future<Output = io::Result<()>> + Send;
    fn writable(of: &Self::Stream) -> impl Future<Output = io::Result<()>> + Send;
    fn ready(of: &Self::Stream, interest: Interest) -> impl Future<Output = io::Result<Ready>>;
    fn take_error(of: &Self::Stream) -> io::Result<Option<io::Error>>;
}

macro_rules! net {
    ($net:ident: $stream:ty, $pair:expr) => {
        struct $net;

        impl Net for $net {
            type Stream = $stream;

            async fn pair() -> (Self::Stream, Self::Stream) {
                $pair.await
            }

            fn try_read(of: &Self::Stream, buf: &mut [u8]) -> io::Result<usize> {
                of.try_read(buf)
            }

            fn try_write(of: &Self::Stream, buf: &[u8]) -> io::Result<usize> {
                of.try_write(buf)
            }

            async fn peek(of: &Self::Stream) -> io::Result<usize> {
                of.peek(&mut [0; 8]).await
            }

            async fn readable(of: &Self::Stream) -> io::Result<()> {
                of.readable().await
            }

            async fn writable(of: &Self::Stream) -> io::Result<()> {
                of.writable().await
            }

            async fn ready(of: &Self::Stream, interest: Interest) -> io::Result<Ready> {
                of.ready(interest).await
            }

            fn take_error(of: &Self::Stream) -> io::Result<Option<io::Error>> {
                of.take_error()
            }
        }
    };
}

net!(Tcp: TcpStream, tcp());
net!(Rsock: rsock_tokio::Stream, accelerated_pair());

async fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let to = listener.local_addr().expect("address");
    let client = TcpStream::connect(to).await.expect("connect");
    (client, listener.accept().await.expect("accept").0)
}

/// What tasks of another runtime see when the streams' runtime ends while they wait, and later.
fn a_runtime_ended<N: Net>() -> Seen {
    let (ended, other) = (multi_thread(), current_thread());
    let ((mut a, b), (mut c, d)) = ended.block_on(async { (N::pair().await, N::pair().await) });
    other.block_on(async {
        let ends = waiting(async move { reads(&mut a, 2).await }).await;
        fill::<N>(&c);
        let end = waiting(async move {
            [("write", writes_end(&mut c).await), ("write", write(&mut c).await)]
        });
        let end = end.await;
        ended.shutdown_background();
        let mut seen = ends.await.expect("no panic");
        seen.extend(end.await.expect("no panic"));
        drop((b, d));
        seen
    })
}

#[test]
fn waits_end_when_the_streams_runtime_ends() {
    let _watchdog = Watchdog::new();
    assert_eq!(a_runtime_ended::<Rsock>(), a_runtime_ended::<Tcp>());
}

/// The results of calls, in their order.
type Seen = Vec<(&'static str, Result<usize, ErrorKind>)>;

/// Runs each case on the kernel's streams and on rsock's, in runtimes of both kinds.
macro_rules! cases {
    ($(async fn $name:ident<$net:ident: Net>() -> Seen $body:block)*) => {$(
        #[test]
        fn $name() {
            async fn seen<$net: Net>() -> Seen $body

            let _watchdog = Watchdog::new();
            for runtime in [current_thread(), multi_thread()] {
                let right = runtime.block_on(seen::<Tcp>());
                assert_eq!(runtime.block_on(seen::<Rsock>()), right);
            }
        }
    )*};
}

cases! {
    async fn a_peer_that_closes_ends_what_can_be_read<N: Net>() -> Seen {
        let (mut a, mut b) = N::pair().await;
        b.write_all(b"last").await.expect("write");
        drop(b);
        let mut seen = reads(&mut a, 3).await;
        seen.push(("write", writes_end(&mut a).await));
        seen.push(("write", write(&mut a).await));
        seen.extend(reads(&mut a, 2).await);
        seen.push(("shutdown", a.shutdown().await.map(|()| 0).map_err(|e| e.kind())));
        seen
    }

    async fn ready_shows_the_end_of_each_direction<N: Net>() -> Seen {
        let (a, mut b) = N::pair().await;
        b.write_all(b"last").await.expect("write");
        N::readable(&a).await.expect("input");
        let mut seen = vec![shown::<N>("input", &a, Interest::READABLE).await];
        b.shutdown().await.expect("shutdown");
        seen.push(closed::<N>("half", &a, Interest::READABLE).await);
        reset_by_linger(&b);
        drop(b);
        seen.push(shown::<N>("error", &a, Interest::ERROR).await);
        let both = Interest::READABLE | Interest::WRITABLE;
        seen.push(closed::<N>("reset", &a, both).await);
        seen
    }

    async fn a_peer_that_closes_ends_a_read_that_waits<N: Net>() -> Seen {
        let (mut a, b) = N::pair().await;
        let read = waiting(async move { read(&mut a).await }).await;
        drop(b);
        vec![("read", read.await.expect("no panic"))]
    }

    async fn a_reset_ends_a_read_that_waits<N: Net>() -> Seen {
        let (mut a, b) = N::pair().await;
        reset_by_linger(&b);
        let end = waiting(async move {
            let mut seen = reads(&mut a, 2).await;
            seen.push(("write", write(&mut a).await));
            seen
        })
        .await;
        drop(b);
        end.await.expect("no panic")
    }

    async fn a_peer_that_closes_with_unread_bytes_resets<N: Net>() -> Seen {
        let (mut a, b) = N::pair().await;
        a.write_all(b"unread").await.expect("write");
        N::readable(&b).await.expect("input");
        drop(b);
        let mut seen = reads(&mut a, 2).await;
        seen.push(("write", write(&mut a).await));
        seen.push(("shutdown", a.shutdown().await.map(|()| 0).map_err(|e| e.kind())));
        seen
    }

    async fn what_came_before_a_reset_is_read_first<N: Net>() -> Seen {
        let (mut a, mut b) = N::pair().await;
        b.write_all(b"last").await.expect("write");
        N::readable(&a).await.expect("input");
        reset_by_linger(&b);
        drop(b);
        reads(&mut a, 3).await
    }

    async fn a_reset_ends_a_peek_that_waits<N: Net>() -> Seen {
        let (a, b) = N::pair().await;
        reset_by_linger(&b);
        let look = waiting(async move {
            let looked = N::peek(&a).await.map_err(|e| e.kind());
            (looked, a)
        })
        .await;
        drop(b);
        let (looked, mut a) = look.await.expect("no panic");
        let mut seen = vec![("peek", looked)];
        seen.extend(reads(&mut a, 1).await);
        seen
    }

    async fn take_error_returns_a_reset_once<N: Net>() -> Seen {
        let (mut a, b) = N::pair().await;
        reset_by_linger(&b);
        drop(b);
        N::readable(&a).await.expect("news");
        let mut seen = Vec::new();
        for _ in 0..2 {
            let error = N::take_error(&a).expect("the option");
            seen.push(("take_error", error.map_or(Ok(0), |e| Err(e.kind()))));
        }
        seen.extend(reads(&mut a, 1).await);
        seen.push(("write", write(&mut a).await));
        seen
    }

    async fn a_reset_ends_a_write_that_waits<N: Net>() -> Seen {
        let (mut a, b) = N::pair().await;
        fill::<N>(&a);
        let end = waiting(async move {
            let first = writes_end(&mut a).await;
            let mut seen = vec![("write", first), ("write", write(&mut a).await)];
            seen.extend(reads(&mut a, 1).await);
            seen
        })
        .await;
        drop(b);
        end.await.expect("no panic")
    }

    async fn a_reset_ends_a_wait_for_room<N: Net>() -> Seen {
        let (a, b) = N::pair().await;
        fill::<N>(&a);
        let end = waiting(async move {
            let mut seen = Vec::new();
            loop {
                N::writable(&a).await.expect("news");
                match N::try_write(&a, &[1; 1000]) {
                    Ok(_) => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Err(e) => break seen.push(("write", Err(e.kind()))),
                }
            }
            seen.push(("read", N::try_read(&a, &mut [0]).map_err(|e| e.kind())));
            seen
        })
        .await;
        drop(b);
        end.await.expect("no panic")
    }

    async fn a_half_closed_stream_carries_the_other_direction<N: Net>() -> Seen {
        let (mut a, mut b) = N::pair().await;
        b.write_all(b"last").await.expect("write");
        b.shutdown().await.expect("shutdown");
        let mut seen = reads(&mut a, 3).await;
        seen.push(("write", write(&mut a).await));
        seen.extend(reads(&mut b, 1).await);
        // The end that has shut down writes no more.
        seen.push(("write", write(&mut b).await));
        seen.push(("shutdown", b.shutdown().await.map(|()| 0).map_err(|e| e.kind())));
        seen.push(("shutdown", a.shutdown().await.map(|()| 0).map_err(|e| e.kind())));
        seen.extend(reads(&mut b, 1).await);
        seen
    }

    async fn a_write_fails_after_a_half_closed_peer_has_closed<N: Net>() -> Seen {
        let (mut a, mut b) = N::pair().await;
        b.shutdown().await.expect("shutdown");
        let mut seen = reads(&mut a, 1).await;
        drop(b);
        seen.push(("write", writes_end(&mut a).await));
        seen.push(("write", write(&mut a).await));
        seen
    }
}

async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<usize, ErrorKind> {
    from.read(&mut [0; 100]).await.map_err(|e| e.kind())
}

async fn reads(from: &mut (impl AsyncRead + Unpin), n: usize) -> Seen {
    let mut seen = Vec::new();
    for _ in 0..n {
        seen.push(("read", read(from).await));
    }
    seen
}

async fn write(to: &mut (impl AsyncWrite + Unpin)) -> Result<usize, ErrorKind> {
    to.write(&[1; 8]).await.map_err(|e| e.kind())
}

/// Writes until it fails, after any number of writes.
async fn writes_end(to: &mut (impl AsyncWrite + Unpin)) -> Result<usize, ErrorKind> {
    loop {
        write(to).await?;
    }
}

/// Writes what there is room for without waiting.
fn fill<N: Net>(of: &N::Stream) {
    while N::try_write(of, &[1; 1 << 16]).is_ok() {}
}

/// Makes the drop of `end` reset the connection.
fn reset_by_linger(end: &impl AsFd) {
    sockopt::set_socket_linger(end, Some(Duration::ZERO)).expect("option");
}

/// What `ready` returns, as a number.
async fn shown<N: Net>(
    name: &'static str,
    of: &N::Stream,
    interest: Interest,
) -> (&'static str, Result<usize, ErrorKind>) {
    let ready = N::ready(of, interest).await;
    (name, ready.map(number_of).map_err(|e| e.kind()))
}

/// As [`shown`], once the end of a direction shows.
async fn closed<N: Net>(
    name: &'static str,
    of: &N::Stream,
    interest: Interest,
) -> (&'static str, Result<usize, ErrorKind>) {
    loop {
        let ready = N::ready(of, interest).await.expect("news");
        if ready.is_read_closed() {
            return (name, Ok(number_of(ready)));
        }
        tokio::task::yield_now().await;
    }
}

fn number_of(ready: Ready) -> usize {
    let bits = [
        ready.is_readable(),
        ready.is_writable(),
        ready.is_read_closed(),
        ready.is_write_closed(),
        ready.is_error(),
    ];
    bits.iter().fold(0, |n, is_set| n << 1 | usize::from(*is_set))
}
