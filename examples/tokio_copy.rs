//! Copies a file through a stream.
//!
//! ```sh
//! cargo run --release -p rsock-examples --example tokio_copy -- both Cargo.lock COPY
//! ```
//!
//! Or from one process to another, in two terminals, with `receive 127.0.0.1:7012 COPY` and
//! `send 127.0.0.1:7012 Cargo.lock`.

#![forbid(unsafe_code)]

use rsock_examples::Done;
use rsock_tokio::{Listener, Stream};
use std::env;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, copy, copy_buf};

/// Read from the file, and written to the stream, at once.
const PIECE: usize = 256 << 10;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Done {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["both", from, to] => {
            let listener = listen("127.0.0.1:0").await?;
            let at = listener.local_addr()?.to_string();
            tokio::try_join!(receive(listener, to), send(&at, from)).map(drop)
        }
        ["receive", at, file] => receive(listen(at).await?, file).await,
        ["send", to, file] => send(to, file).await,
        _ => {
            Err("usage: tokio_copy both FILE COPY | receive ADDRESS COPY | send ADDRESS FILE"
                .into())
        }
    }
}

async fn listen(at: &str) -> Done<Listener> {
    let listener = Listener::bind(at).await?;
    println!("listening on {}", listener.local_addr()?);
    Ok(listener)
}

async fn receive(listener: Listener, file: &str) -> Done {
    let (mut stream, _) = listener.accept().await?;
    let mut file = File::create(file).await?;
    let n = copy(&mut stream, &mut file).await?;
    file.flush().await?;
    // The sender waits for this: everything is in the file.
    stream.write_u64(n).await?;
    println!("{n} bytes received");
    Ok(())
}

async fn send(to: &str, file: &str) -> Done {
    let mut stream = Stream::connect(to).await?;
    let mut file = BufReader::with_capacity(PIECE, File::open(file).await?);
    let n = copy_buf(&mut file, &mut stream).await?;
    stream.shutdown().await?;
    if stream.read_u64().await? != n {
        return Err("the receiver has another number of bytes".into());
    }
    println!("{n} bytes sent");
    Ok(())
}
