//! Echo over Tokio: a task per connection, and a client that checks what comes back.
//!
//! ```sh
//! cargo run --release -p rsock-examples --example tokio_echo
//! ```
//!
//! Or in two terminals, with `serve 127.0.0.1:7009` and `ask 127.0.0.1:7009`.

#![forbid(unsafe_code)]

use rsock_examples::{Done, Role};
use rsock_tokio::{Listener, Stream};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main]
async fn main() -> Done {
    Role::of("tokio_echo")?.play(serve, ask).await
}

async fn serve(listener: Listener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut reading, mut writing) = stream.into_split();
            tokio::io::copy(&mut reading, &mut writing).await
        });
    }
}

async fn ask(to: String) -> Done {
    const ROUNDS: usize = 10_000;
    let mut stream = Stream::connect(to).await?;
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
    println!("{ROUNDS} echoes; in shared memory at the end: {}", sending && receiving);
    Ok(())
}
