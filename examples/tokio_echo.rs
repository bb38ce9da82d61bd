//! Echo over Tokio: a task per connection, and a client that checks what comes back.
//!
//! ```sh
//! cargo run --release -p rsock-examples --example tokio_echo
//! ```
//!
//! Or in two terminals, with `serve 127.0.0.1:7009` and `ask 127.0.0.1:7009`. In front of that,
//! `--rsockets` takes the rsockets protocol; on an RDMA device, with `RSOCK_DEVICE=rdma` and its
//! address: `--rsockets both 10.9.0.1:0`.

#![forbid(unsafe_code)]

use axum::serve;
use rsock_examples::{Done, Mode, Net, Role};
use rsock_tokio::{Accelerated, Rsockets};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main]
async fn main() -> Done {
    match Mode::and_role("tokio_echo")? {
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
    loop {
        let (stream, _) = N::accept(&listener).await?;
        tokio::spawn(async move {
            let (mut reading, mut writing) = stream.into_split();
            tokio::io::copy(&mut reading, &mut writing).await
        });
    }
}

async fn ask<N: Net>(to: &str) -> Done {
    const ROUNDS: usize = 10_000;
    let mut stream = N::connect(to).await?;
    let mut answer = [0; 64];
    for i in 0..ROUNDS {
        let question = [i.to_le_bytes()[0]; 64];
        stream.write_all(&question).await?;
        stream.read_exact(&mut answer).await?;
        if question != answer {
            return Err("the echo is another text".into());
        }
    }
    println!("{ROUNDS} echoes; past TCP at the end: {}", N::bypasses_tcp(&stream));
    Ok(())
}
