//! Writes straight into a peer's memory, in Tokio: the client leaves messages on the server's
//! board, without the server's help and without another copy.
//!
//! ```sh
//! cargo run --release -p rsock-examples --example tokio_iomap
//! ```
//!
//! Or in two terminals, with `serve 127.0.0.1:7015` and `ask 127.0.0.1:7015`.

#![forbid(unsafe_code)]

use rsock_examples::{Done, Role};
use rsock_tokio::{Builder, Listener, Stream};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The name of the board: any number that both ends know.
const BOARD: u64 = 0x1000;
/// Its length in bytes: lines of this length.
const LINE: usize = 64;
const LINES: usize = 3;

#[tokio::main]
async fn main() -> Done {
    Role::of("tokio_iomap")?.play(serve, ask).await
}

async fn serve(listener: Listener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(show(stream));
    }
}

/// Exposes a board to the peer, and sends what it finds there when the peer is done.
async fn show(mut stream: Stream) -> io::Result<()> {
    stream.accelerated().await?;
    let board = stream.expose(LINES * LINE, BOARD).await?;
    // What is sent arrives after the board was exposed: the peer may begin.
    stream.write_u8(1).await?;
    // What the peer sends arrives after what it wrote.
    stream.read_u8().await?;
    for i in 0..LINES {
        let mut line = [0; LINE];
        board.read_at(i * LINE, &mut line);
        stream.write_all(&line).await?;
    }
    Ok(())
}

async fn ask(to: String) -> Done {
    // The peer may expose one region to this end.
    let mut stream = Builder::new().iomap_slots(1).connect(to).await?;
    stream.accelerated().await?;
    stream.read_u8().await?;
    for (i, text) in ["put", "not", "sent"].into_iter().enumerate() {
        stream.write_remote(text.as_bytes(), BOARD + u64::try_from(i * LINE)?).await?;
    }
    stream.write_u8(1).await?;
    for _ in 0..LINES {
        let mut line = [0; LINE];
        stream.read_exact(&mut line).await?;
        println!("{}", String::from_utf8_lossy(&line).trim_end_matches('\0'));
    }
    Ok(())
}
