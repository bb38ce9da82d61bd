//! Copies a file from one process to another.
//!
//! ```sh
//! cargo run --release -p rsock-examples --example tokio_copy -- receive 127.0.0.1:7012 COPY &
//! cargo run --release -p rsock-examples --example tokio_copy -- send 127.0.0.1:7012 FILE
//! ```

#![forbid(unsafe_code)]

use rsock_tokio::{Listener, Stream};
use std::env;
use std::error::Error;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, copy, copy_buf};

/// Read from the file, and written to the stream, at once.
const PIECE: usize = 256 << 10;

type Done = Result<(), Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Done {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["receive", at, file] => receive(at, file).await,
        ["send", to, file] => send(to, file).await,
        _ => Err("usage: tokio_copy receive ADDRESS FILE | tokio_copy send ADDRESS FILE".into()),
    }
}

async fn receive(at: &str, file: &str) -> Done {
    let listener = Listener::bind(at).await?;
    println!("listening on {}", listener.local_addr()?);
    let (mut stream, _) = listener.accept().await?;
    let mut file = File::create(file).await?;
    let n = copy(&mut stream, &mut file).await?;
    file.flush().await?;
    // The sender waits for this: everything is in the file.
    stream.write_u64(n).await?;
    println!("{n} bytes");
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
    println!("{n} bytes");
    Ok(())
}
