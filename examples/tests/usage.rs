//! What programs do with Tokio's streams, by tokio, tokio-util and hyper: each use is one source
//! for every type of stream, and runs on Tokio's own and on rsock's.

#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is a failure")]

use bytes::{Buf, Bytes};
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rsock_tests::Watchdog;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::time::Duration;
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter,
    copy_bidirectional, split,
};
use tokio::runtime::Builder;
use tokio_util::codec::{Framed, LengthDelimitedCodec, LinesCodec};

const LIMIT: Duration = Duration::from_secs(120);

/// A kind of stream.
trait Net {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    fn pair() -> impl Future<Output = io::Result<(Self::Stream, Self::Stream)>>;
}

struct Tokio;
struct Rsock;
struct Rsockets;

impl Net for Tokio {
    type Stream = tokio::net::TcpStream;

    async fn pair() -> io::Result<(Self::Stream, Self::Stream)> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let client = tokio::net::TcpStream::connect(listener.local_addr()?).await?;
        Ok((client, listener.accept().await?.0))
    }
}

impl Net for Rsock {
    type Stream = rsock_tokio::Stream;

    async fn pair() -> io::Result<(Self::Stream, Self::Stream)> {
        let listener = rsock_tokio::Listener::bind("127.0.0.1:0").await?;
        let client = rsock_tokio::Stream::connect(listener.local_addr()?).await?;
        Ok((client, listener.accept().await?.0))
    }
}

impl Net for Rsockets {
    type Stream = rsock_tokio::rsockets::Stream;

    async fn pair() -> io::Result<(Self::Stream, Self::Stream)> {
        let listener = rsock_tokio::rsockets::Listener::bind("127.0.0.1:0").await?;
        let to = listener.local_addr()?;
        let (client, (server, _)) =
            tokio::try_join!(rsock_tokio::rsockets::connect(to), listener.accept())?;
        Ok((client, server))
    }
}

/// Runs one use with streams of each kind in runtimes of each kind.
macro_rules! uses {
    ($($name:ident => $case:ident;)*) => {$(
        #[test]
        fn $name() {
            let _watchdog = Watchdog::new(LIMIT);
            for mut runtime in [Builder::new_current_thread(), Builder::new_multi_thread()] {
                let mut runtime = || runtime.enable_all().build().unwrap();
                runtime().block_on($case::<Tokio>());
                runtime().block_on($case::<Rsock>());
                runtime().block_on($case::<Rsockets>());
            }
        }
    )*};
}

uses! {
    frames_go_through_sinks_and_streams => frames;
    lines_are_read_from_a_buffer => lines;
    a_proxy_copies_both_directions_and_their_ends => proxy;
    buffers_are_written_in_pieces => pieces;
    http1_keeps_its_connection_over_many_requests => http1;
    http2_has_many_requests_under_way => http2;
}

fn word(i: usize) -> Bytes {
    Bytes::from(vec![u8::try_from(i % 251).unwrap(); i * 37 % 3000])
}

async fn frames<N: Net>() {
    const N: usize = 3_000;
    let (a, b) = N::pair().await.unwrap();
    let (mut sink, mut stream) = Framed::new(a, LengthDelimitedCodec::new()).split();
    let mut echo = Framed::new(b, LengthDelimitedCodec::new());
    let echoing = tokio::spawn(async move {
        while let Some(frame) = echo.next().await {
            echo.send(frame.unwrap().freeze()).await.unwrap();
        }
    });
    let sending = tokio::spawn(async move {
        for i in 0..N {
            sink.feed(word(i)).await.unwrap();
            if i % 7 == 0 {
                sink.flush().await.unwrap();
            }
        }
        sink.flush().await.unwrap();
        sink
    });
    for i in 0..N {
        assert_eq!(stream.next().await.unwrap().unwrap(), word(i), "frame {i}");
    }
    let mut sink = sending.await.unwrap();
    sink.close().await.unwrap();
    assert!(stream.next().await.is_none());
    echoing.await.unwrap();
}

async fn lines<N: Net>() {
    let (a, b) = N::pair().await.unwrap();
    let writing = tokio::spawn(async move {
        let mut lines = Framed::new(a, LinesCodec::new());
        for i in 0..2_000 {
            lines.send(format!("line {i}")).await.unwrap();
        }
        SinkExt::<String>::close(&mut lines).await.unwrap();
    });
    let mut lines = BufReader::new(b).lines();
    for i in 0..2_000 {
        assert_eq!(lines.next_line().await.unwrap().unwrap(), format!("line {i}"));
    }
    assert!(lines.next_line().await.unwrap().is_none());
    writing.await.unwrap();
}

async fn proxy<N: Net>() {
    const LEN: usize = 3 << 20;
    let (mut client, mut front) = N::pair().await.unwrap();
    let (mut back, mut server) = N::pair().await.unwrap();
    let proxying = tokio::spawn(async move { copy_bidirectional(&mut front, &mut back).await });
    let serving = tokio::spawn(async move {
        let mut asked = Vec::new();
        server.read_to_end(&mut asked).await.unwrap();
        asked.reverse();
        server.write_all(&asked).await.unwrap();
    });
    let question: Vec<u8> = (0..LEN).map(|i| u8::try_from(i % 253).unwrap()).collect();
    client.write_all(&question).await.unwrap();
    client.shutdown().await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert!(answer.iter().rev().eq(&question));
    assert_eq!(proxying.await.unwrap().unwrap(), (LEN as u64, LEN as u64));
    serving.await.unwrap();
}

async fn pieces<N: Net>() {
    let (a, b) = N::pair().await.unwrap();
    let (mut reading, writing) = split(a);
    let sending = tokio::spawn(async move {
        let mut writing = BufWriter::new(writing);
        for i in 0..500 {
            // Vectored: a head, and a body of changing length.
            let body = word(i);
            let head = u32::try_from(body.len()).unwrap().to_be_bytes();
            let mut message = Bytes::copy_from_slice(&head).chain(body);
            writing.write_all_buf(&mut message).await.unwrap();
            assert!(!message.has_remaining());
        }
        writing.flush().await.unwrap();
        writing.shutdown().await.unwrap();
    });
    let (mut from, mut to) = split(b);
    let copying = tokio::spawn(async move {
        tokio::io::copy(&mut from, &mut to).await.unwrap();
        to.shutdown().await.unwrap();
    });
    for i in 0..500 {
        let len = reading.read_u32().await.unwrap();
        let mut body = vec![0; usize::try_from(len).unwrap()];
        reading.read_exact(&mut body).await.unwrap();
        assert_eq!(body, word(i));
    }
    assert_eq!(reading.read(&mut [0]).await.unwrap(), 0);
    sending.await.unwrap();
    copying.await.unwrap();
}

/// Sends the body back, with its length in a header.
async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let len = body.len();
    Ok(Response::builder().header("x-length", len).body(Full::new(body)).unwrap())
}

/// The body of request `i`: some longer than every buffer on the way.
fn body(i: usize) -> Bytes {
    let len = if i.is_multiple_of(20) { 1 << 20 } else { i * 7 };
    Bytes::from(vec![u8::try_from(i % 256).unwrap(); len])
}

fn request(i: usize) -> Request<Full<Bytes>> {
    Request::post("http://localhost/").header("host", "localhost").body(Full::new(body(i))).unwrap()
}

async fn check(i: usize, answer: Response<Incoming>) {
    assert_eq!(answer.headers()["x-length"], body(i).len().to_string());
    assert!(answer.into_body().collect().await.unwrap().to_bytes() == body(i), "answer {i}");
}

async fn http1<N: Net>() {
    let (a, b) = N::pair().await.unwrap();
    let serving = tokio::spawn(async move {
        let http = hyper::server::conn::http1::Builder::new();
        http.serve_connection(TokioIo::new(b), service_fn(echo)).await
    });
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(a)).await.unwrap();
    let driving = tokio::spawn(connection);
    for i in 0..200 {
        sender.ready().await.unwrap();
        check(i, sender.send_request(request(i)).await.unwrap()).await;
    }
    drop(sender);
    driving.await.unwrap().unwrap();
    serving.await.unwrap().unwrap();
}

async fn http2<N: Net>() {
    let (a, b) = N::pair().await.unwrap();
    let serving = tokio::spawn(async move {
        let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        http.serve_connection(TokioIo::new(b), service_fn(echo)).await
    });
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(a)).await.unwrap();
    let driving = tokio::spawn(connection);
    let asking: Vec<_> = (0..80)
        .map(|i| {
            let mut sender = sender.clone();
            tokio::spawn(async move {
                sender.ready().await.unwrap();
                check(i, sender.send_request(request(i)).await.unwrap()).await;
            })
        })
        .collect();
    for task in asking {
        task.await.unwrap();
    }
    drop(sender);
    driving.await.unwrap().unwrap();
    serving.await.unwrap().unwrap();
}
