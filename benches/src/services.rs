//! Measurements of whole services, each generic over [`Net`]: axum with a hyper client, and tonic.

use crate::cases::current_thread;
use crate::meter::Meter;
use crate::net::Net;
use axum::http::uri::PathAndQuery;
use axum::http::{Request, Response};
use axum::routing::get;
use axum::{Router, serve};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::server::{NamedService, UnaryService};
use tonic::service::Routes;
use tonic::transport::Endpoint;
use tonic::{Status, client, server};
use tonic_prost::ProstCodec;
use tower_service::Service;

/// Requests that are not counted.
const WARM_UP: usize = 500;

fn multi_thread() -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

/// An axum server in a runtime of its own.
struct Serving {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn service<N: Net>(runtime: Runtime, router: Router) -> io::Result<(Serving, SocketAddr)> {
    let (tell, told) = std::sync::mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = thread::spawn(move || {
        runtime.block_on(async move {
            let (listener, addr) = N::bind().await.expect("bind");
            let _ = tell.send(addr);
            tokio::select! {
                _ = async { serve(listener, router).await } => {}
                _ = stopped => {}
            }
        });
    });
    let addr = told.recv().map_err(|_| io::Error::other("the server did not start"))?;
    Ok((Serving { stop: Some(stop), thread: Some(thread) }, addr))
}

fn hello() -> Router {
    Router::new().route("/", get(async || "hello, world"))
}

async fn http_client<N: Net>(to: SocketAddr) -> io::Result<http1::SendRequest<Empty<Bytes>>> {
    let io = TokioIo::new(N::connect(to).await?);
    let (sender, connection) = http1::handshake(io).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn http_request(sender: &mut http1::SendRequest<Empty<Bytes>>) -> io::Result<()> {
    sender.ready().await.map_err(io::Error::other)?;
    let request = Request::get("/").header("host", "localhost").body(Empty::new());
    let request = request.map_err(io::Error::other)?;
    let answer = sender.send_request(request).await.map_err(io::Error::other)?;
    let body = answer.into_body().collect().await.map_err(io::Error::other)?;
    if body.to_bytes() == "hello, world" { Ok(()) } else { Err(io::Error::other("wrong body")) }
}

/// Requests per second to a hello-world of axum over one connection; each end has a runtime of one
/// thread.
///
/// # Errors
/// What the system or the service answers.
pub fn http_one<N: Net>(time: Duration) -> io::Result<f64> {
    let (_server, addr) = service::<N>(current_thread()?, hello())?;
    current_thread()?.block_on(async {
        let mut sender = http_client::<N>(addr).await?;
        for _ in 0..WARM_UP {
            http_request(&mut sender).await?;
        }
        let began = Instant::now();
        let mut n = 0u32;
        while began.elapsed() < time {
            http_request(&mut sender).await?;
            n += 1;
        }
        Ok(f64::from(n) / began.elapsed().as_secs_f64())
    })
}

/// As [`http_one`] over `connections`, with runtimes of two threads.
///
/// # Errors
/// What the system or the service answers.
pub fn http_many<N: Net>(connections: usize, time: Duration) -> io::Result<f64> {
    let (_server, addr) = service::<N>(multi_thread()?, hello())?;
    multi_thread()?.block_on(async {
        let meter = Arc::new(Meter::default());
        let mut tasks = Vec::new();
        for _ in 0..connections {
            let mut sender = http_client::<N>(addr).await?;
            let meter = Arc::clone(&meter);
            tasks.push(tokio::spawn(async move {
                while meter.goes_on() {
                    http_request(&mut sender).await?;
                    meter.count();
                }
                Ok(())
            }));
        }
        meter.rate(tasks, time).await
    })
}

/// `message Text { bytes text = 1; }`
#[derive(Clone, PartialEq, prost::Message)]
struct Text {
    #[prost(bytes = "vec", tag = "1")]
    text: Vec<u8>,
}

const SAY: &str = "/rsock.Echo/Say";

/// `service Echo { rpc Say(Text) returns (Text); }`
#[derive(Clone)]
struct Echo;

impl UnaryService<Text> for Echo {
    type Response = Text;
    type Future = Ready<Result<tonic::Response<Text>, Status>>;

    fn call(&mut self, request: tonic::Request<Text>) -> Self::Future {
        ready(Ok(tonic::Response::new(request.into_inner())))
    }
}

impl NamedService for Echo {
    const NAME: &'static str = "rsock.Echo";
}

impl Service<Request<Body>> for Echo {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(async move {
            let codec = ProstCodec::<Text, Text>::default();
            Ok(server::Grpc::new(codec).unary(Self, request).await)
        })
    }
}

/// Unary calls of tonic per second, 100 bytes each way, over one connection; each end has a runtime
/// of one thread.
///
/// # Errors
/// What the system or the service answers.
pub fn grpc_one<N: Net>(time: Duration) -> io::Result<f64> {
    let (_server, addr) = service::<N>(current_thread()?, Routes::new(Echo).into_axum_router())?;
    current_thread()?.block_on(async {
        let connect =
            tower::service_fn(move |_| async move { N::connect(addr).await.map(TokioIo::new) });
        let endpoint = Endpoint::from_static("http://localhost");
        let channel = endpoint.connect_with_connector(connect).await.map_err(io::Error::other)?;
        let mut client = client::Grpc::new(channel);
        let mut call = async || {
            client.ready().await.map_err(io::Error::other)?;
            let request = tonic::Request::new(Text { text: vec![7; 100] });
            let codec = ProstCodec::<Text, Text>::default();
            let path = PathAndQuery::from_static(SAY);
            let answer: tonic::Response<Text> =
                client.unary(request, path, codec).await.map_err(io::Error::other)?;
            if answer.get_ref().text.len() == 100 {
                Ok(())
            } else {
                Err(io::Error::other("a wrong answer"))
            }
        };
        for _ in 0..WARM_UP {
            call().await?;
        }
        let began = Instant::now();
        let mut n = 0u32;
        while began.elapsed() < time {
            call().await?;
            n += 1;
        }
        Ok(f64::from(n) / began.elapsed().as_secs_f64())
    })
}
