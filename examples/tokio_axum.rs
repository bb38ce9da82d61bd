//! An axum service and a hyper client, both on rsock: compare with the same on `TcpListener`, from
//! which it differs in two names.
//!
//! ```sh
//! cargo run --release -p rsock-examples --example tokio_axum
//! ```
//!
//! Or in two terminals, with `serve 127.0.0.1:7011` and `ask 127.0.0.1:7011`. The server also
//! answers `curl http://127.0.0.1:7011/hello/curl`, which then talks TCP. In front of that,
//! `--rsockets` takes the rsockets protocol; on an RDMA device, with `RSOCK_DEVICE=rdma` and its
//! address: `--rsockets both 10.9.0.1:0`.

#![forbid(unsafe_code)]

use axum::extract::Path;
use axum::routing::get;
use axum::{Router, serve};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rsock_examples::{Done, Mode, Net, Role};
use rsock_tokio::{Accelerated, Rsockets};
use std::io;

#[tokio::main]
async fn main() -> Done {
    match Mode::and_role("tokio_axum")? {
        (Mode::Accelerated, role) => run::<Accelerated>(role).await,
        (Mode::Rsockets, role) => run::<Rsockets>(role).await,
    }
}

async fn run<N: Net>(role: Role) -> Done {
    match role {
        Role::Serve(at) => Ok(answer::<N>(N::listen(&at).await?).await?),
        Role::Ask(to) => ask::<N>(&to).await,
        Role::Both(at) => {
            let listener = N::listen(&at).await?;
            let to = serve::Listener::local_addr(&listener)?.to_string();
            tokio::spawn(answer::<N>(listener));
            ask::<N>(&to).await
        }
    }
}

async fn answer<N: Net>(listener: N::Listener) -> io::Result<()> {
    serve(listener, service()).await
}

fn service() -> Router {
    Router::new().route("/hello/{name}", get(hello))
}

async fn hello(Path(name): Path<String>) -> String {
    format!("hello, {name}")
}

async fn ask<N: Net>(to: &str) -> Done {
    let client: Client<_, Empty<bytes::Bytes>> =
        Client::builder(TokioExecutor::new()).build(N::connector());
    for name in ["axum", "hyper", "rsock"] {
        let answer = client.get(format!("http://{to}/hello/{name}").parse()?).await?;
        let said = answer.into_body().collect().await?.to_bytes();
        println!("{}", String::from_utf8_lossy(&said));
    }
    Ok(())
}
