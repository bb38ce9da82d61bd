//! A tonic (gRPC) service and its client on rsock. The messages and the service are written out
//! here, where one usually has them generated, so that the example needs no `protoc`.
//!
//! ```sh
//! cargo run --release -p rsock-examples --example tokio_grpc
//! ```
//!
//! Or in two terminals, with `serve 127.0.0.1:7014` and `ask 127.0.0.1:7014`.

#![forbid(unsafe_code)]

use axum::http::{Request, Response, uri::PathAndQuery};
use rsock_examples::{Done, Role};
use rsock_tokio::{Connector, Listener};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::server::{NamedService, UnaryService};
use tonic::service::Routes;
use tonic::transport::Endpoint;
use tonic::{Status, client, server};
use tonic_prost::ProstCodec;
use tower_service::Service;

/// `message Name { string name = 1; }`
#[derive(Clone, PartialEq, prost::Message)]
struct Name {
    #[prost(string, tag = "1")]
    name: String,
}

/// `message Greeting { string text = 1; }`
#[derive(Clone, PartialEq, prost::Message)]
struct Greeting {
    #[prost(string, tag = "1")]
    text: String,
}

const GREET: &str = "/rsock.Greeter/Greet";

/// `service Greeter { rpc Greet(Name) returns (Greeting); }`
#[derive(Clone)]
struct Greeter;

impl UnaryService<Name> for Greeter {
    type Response = Greeting;
    type Future = Ready<Result<tonic::Response<Greeting>, Status>>;

    fn call(&mut self, request: tonic::Request<Name>) -> Self::Future {
        let text = format!("hello, {}", request.into_inner().name);
        ready(Ok(tonic::Response::new(Greeting { text })))
    }
}

impl NamedService for Greeter {
    const NAME: &'static str = "rsock.Greeter";
}

impl Service<Request<Body>> for Greeter {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(async move {
            if request.uri().path() != GREET {
                return Ok(Status::unimplemented("no such call").into_http());
            }
            let codec = ProstCodec::<Greeting, Name>::default();
            Ok(server::Grpc::new(codec).unary(Self, request).await)
        })
    }
}

#[tokio::main]
async fn main() -> Done {
    Role::of("tokio_grpc")?.play(serve, ask).await
}

async fn serve(listener: Listener) -> io::Result<()> {
    axum::serve(listener, Routes::new(Greeter).into_axum_router()).await
}

async fn ask(to: String) -> Done {
    let endpoint = Endpoint::from_shared(format!("http://{to}"))?;
    let channel = endpoint.connect_with_connector(Connector::new()).await?;
    let mut client = client::Grpc::new(channel);
    for name in ["tonic", "prost", "rsock"] {
        client.ready().await?;
        let request = tonic::Request::new(Name { name: name.to_owned() });
        let codec = ProstCodec::<Name, Greeting>::default();
        let answer = client.unary(request, PathAndQuery::from_static(GREET), codec).await?;
        println!("{}", answer.into_inner().text);
    }
    Ok(())
}
