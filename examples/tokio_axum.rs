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
use rsock_examples::Role;
use rsock_tokio::{Connector, Listener};
use std::error::Error;
use std::io;

type Done = Result<(), Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Done {
    match Role::of("tokio_axum")? {
        Role::Serve(at) => Ok(serve(listen(&at).await?, service()).await?),
        Role::Ask(to) => ask(&to).await,
        Role::Both => {
            let listener = listen("127.0.0.1:0").await?;
            let addr = listener.local_addr()?;
            tokio::spawn(async move { serve(listener, service()).await });
            ask(&addr.to_string()).await
        }
    }
}

async fn listen(at: &str) -> io::Result<Listener> {
    let listener = Listener::bind(at).await?;
    println!("listening on {}", listener.local_addr()?);
    Ok(listener)
}

fn service() -> Router {
    Router::new().route("/hello/{name}", get(hello))
}

async fn hello(Path(name): Path<String>) -> String {
    format!("hello, {name}")
}

async fn ask(to: &str) -> Done {
    let client: Client<_, Empty<bytes::Bytes>> =
        Client::builder(TokioExecutor::new()).build(Connector::new());
    for name in ["axum", "hyper", "rsock"] {
        let answer = client.get(format!("http://{to}/hello/{name}").parse()?).await?;
        let said = answer.into_body().collect().await?.to_bytes();
        println!("{}", String::from_utf8_lossy(&said));
    }
    Ok(())
}
