//! Echo over Tokio: a task per connection, and a client that checks what comes back.
//!
//! ```sh
//! cargo run --release -p rsock-examples --example tokio_echo
//! ```
//!
//! Or in two terminals, with `serve 127.0.0.1:7009` and `ask 127.0.0.1:7009`. In front of that,
//! `--rsockets` takes rsockets streams; on an RDMA device, with `RSOCK_DEVICE=rdma` and its
//! address:
//! `--rsockets both 10.9.0.1:0`.

#![forbid(unsafe_code)]

use rsock_examples::{Done, EitherListener, Mode, Role};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main]
async fn main() -> Done {
    match Mode::and_role("tokio_echo")? {
        (mode, Role::Serve(at)) => Ok(serve(mode.listen(&at).await?).await?),
        (mode, Role::Ask(to)) => ask(mode, &to).await,
        (mode, Role::Both(at)) => {
            let listener = mode.listen(&at).await?;
            let to = listener.local_addr()?.to_string();
            tokio::spawn(serve(listener));
            ask(mode, &to).await
        }
    }
}

async fn serve(listener: EitherListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut reading, mut writing) = stream.into_split();
            tokio::io::copy(&mut reading, &mut writing).await
        });
    }
}

async fn ask(mode: Mode, to: &str) -> Done {
    const ROUNDS: usize = 10_000;
    let mut stream = mode.connect(to).await?;
    let mut answer = [0; 64];
    for i in 0..ROUNDS {
        let question = [i.to_le_bytes()[0]; 64];
        stream.write_all(&question).await?;
        stream.read_exact(&mut answer).await?;
        if question != answer {
            return Err("the echo is another text".into());
        }
    }
    let (sending, receiving) = stream.on_ring();
    println!("{ROUNDS} echoes; past TCP at the end: {}", sending && receiving);
    Ok(())
}
