//! Remote calls in the shape of RPC benchmarks: requests and answers of 64 bytes, one server
//! thread, many clients, each with one call under way. Prints calls per second.
//!
//! ```sh
//! cargo run --release -p rsock-examples --example tokio_rpc
//! ```
//!
//! Or in two terminals, with `serve 127.0.0.1:7013` and `ask 127.0.0.1:7013`. Put
//! `RSOCK_DEVICE=tcp` in front to see the same over kernel TCP. The argument `--rsockets`, before
//! the others, takes the rsockets protocol; on an RDMA device, with `RSOCK_DEVICE=rdma` and its
//! address: `--rsockets both 10.9.0.1:0`.

#![forbid(unsafe_code)]

use axum::serve;
use rsock_examples::{Mode, Net, Role};
use rsock_tokio::{Accelerated, Rsockets};
use std::error::Error;
use std::io;
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CLIENTS: usize = 32;
const TIME: Duration = Duration::from_secs(1);
const LEN: usize = 64;

type Done = Result<(), Box<dyn Error + Send + Sync>>;

fn main() -> Done {
    match Mode::and_role("tokio_rpc")? {
        (Mode::Accelerated, role) => run::<Accelerated>(role),
        (Mode::Rsockets, role) => run::<Rsockets>(role),
    }
}

fn run<N: Net>(role: Role) -> Done {
    match role {
        Role::Serve(at) => Ok(in_one_thread(async { answer::<N>(N::listen(&at).await?).await })?),
        Role::Ask(to) => in_one_thread(ask::<N>(to)),
        Role::Both(at) => {
            let (tell, told) = std::sync::mpsc::channel();
            thread::spawn(move || {
                in_one_thread(async {
                    let listener = N::listen(&at).await?;
                    let _ = tell.send(serve::Listener::local_addr(&listener)?.to_string());
                    answer::<N>(listener).await
                })
            });
            in_one_thread(ask::<N>(told.recv()?))
        }
    }
}

fn in_one_thread<F: Future>(f: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("descriptors for a runtime").block_on(f)
}

async fn answer<N: Net>(listener: N::Listener) -> io::Result<()> {
    loop {
        let (mut stream, _) = N::accept(&listener).await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let mut message = [0; LEN];
            loop {
                stream.read_exact(&mut message).await?;
                call(&mut message);
                stream.write_all(&message).await?;
            }
            #[expect(unreachable_code, reason = "says what the block returns")]
            io::Result::Ok(())
        });
    }
}

/// What the server does: it adds one.
fn call(message: &mut [u8; LEN]) {
    message[0] = message[0].wrapping_add(1);
}

async fn ask<N: Net>(to: String) -> Done {
    let mut clients = Vec::new();
    let began = Instant::now();
    for _ in 0..CLIENTS {
        let to = to.clone();
        clients.push(tokio::spawn(async move {
            let mut stream = N::connect(&to).await?;
            stream.set_nodelay(true)?;
            let mut message = [0; LEN];
            let mut calls = 0u32;
            while began.elapsed() < TIME {
                let before = message[0];
                stream.write_all(&message).await?;
                stream.read_exact(&mut message).await?;
                if message[0] != before.wrapping_add(1) {
                    return Err(io::Error::other("a wrong answer"));
                }
                calls += 1;
            }
            Ok(calls)
        }));
    }
    let mut calls = 0;
    for client in clients {
        calls += client.await??;
    }
    let rate = f64::from(calls) / began.elapsed().as_secs_f64();
    println!("{CLIENTS} clients: {rate:.0} calls per second");
    Ok(())
}
