//! Frames with a length in front, by tokio-util's codec: a service that turns words around.
//!
//! ```sh
//! cargo run --release -p rsock-examples --example tokio_codec
//! ```
//!
//! Or in two terminals, with `serve 127.0.0.1:7010` and `ask 127.0.0.1:7010`.

#![forbid(unsafe_code)]

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use rsock_examples::{Done, Role};
use rsock_tokio::{Listener, Stream};
use std::io;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

#[tokio::main]
async fn main() -> Done {
    Role::of("tokio_codec")?.play(serve, ask).await
}

async fn serve(listener: Listener) -> io::Result<()> {
    let mut connections = std::pin::pin!(listener.incoming());
    while let Some(stream) = connections.next().await {
        let mut frames = Framed::new(stream?, LengthDelimitedCodec::new());
        tokio::spawn(async move {
            while let Some(Ok(mut word)) = frames.next().await {
                word.reverse();
                if frames.send(word.freeze()).await.is_err() {
                    break;
                }
            }
        });
    }
    Ok(())
}

async fn ask(to: String) -> Done {
    let mut frames = Framed::new(Stream::connect(to).await?, LengthDelimitedCodec::new());
    for word in ["stressed", "drawer", "rsock"] {
        frames.send(Bytes::from_static(word.as_bytes())).await?;
        let turned = frames.next().await.ok_or("the server has gone")??;
        println!("{word} {}", String::from_utf8_lossy(&turned));
    }
    Ok(())
}
