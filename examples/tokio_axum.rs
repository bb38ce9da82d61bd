//! An axum service and a hyper client, both on rsock: compare with the same on `TcpListener`, from
//! which it differs in two names.
//!
//! ```sh
//! cargo run --release -p rsock-examples --example tokio_axum
//! ```
//!
//! Or in two terminals, with `serve 127.0.0.1:7011` and `ask 127.0.0.1:7011`. The server also
//! answers `curl http://127.0.0.1:7011/hello/curl`, which then talks TCP.

#![forbid(unsafe_code)]

use axum::extract::Path;
use axum::routing::get;
use axum::{Router, serve};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rsock_examples::{Done, Role};
use rsock_tokio::Connector;

#[tokio::main]
async fn main() -> Done {
    Role::of("tokio_axum")?.play(|listener| async { serve(listener, service()).await }, ask).await
}

fn service() -> Router {
    Router::new().route("/hello/{name}", get(hello))
}

async fn hello(Path(name): Path<String>) -> String {
    format!("hello, {name}")
}

async fn ask(to: String) -> Done {
    let client: Client<_, Empty<bytes::Bytes>> =
        Client::builder(TokioExecutor::new()).build(Connector::new());
    for name in ["axum", "hyper", "rsock"] {
        let answer = client.get(format!("http://{to}/hello/{name}").parse()?).await?;
        let said = answer.into_body().collect().await?.to_bytes();
        println!("{}", String::from_utf8_lossy(&said));
    }
    Ok(())
}
