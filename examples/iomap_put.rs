//! Writes straight into a peer's memory, without a copy through the stream and without its help:
//! the client leaves a message on the server's board.
//!
//! ```sh
//! cargo run --release -p rsock-examples --example iomap_put
//! ```
//!
//! Or in two terminals, with `serve 127.0.0.1:7008` and `ask 127.0.0.1:7008`.

#![forbid(unsafe_code)]

use rsock::rsockets::{Builder, Listener};
use rsock_examples::{Done, Role};
use std::io::{Read, Write};
use std::thread;

/// How much memory the server opens, in bytes.
const LEN: usize = 4096;
/// The name under which it does: any number that both ends know.
const BOARD: u64 = 0x1000;

fn main() -> Done {
    match Role::of("iomap_put")? {
        Role::Serve(at) => show(&listen(&at)?),
        Role::Ask(to) => put(&to, "left in your memory"),
        Role::Both(at) => {
            let listener = listen(&at)?;
            let to = listener.local_addr()?.to_string();
            let showing = thread::spawn(move || show(&listener));
            put(&to, "left in your memory")?;
            showing.join().map_err(|_| "the server panicked")?
        }
    }
}

fn listen(at: &str) -> Done<Listener> {
    let listener = Listener::bind(at)?;
    println!("listening on {}", listener.local_addr()?);
    Ok(listener)
}

/// Opens memory to one peer and shows what it left there.
fn show(listener: &Listener) -> Done {
    let (mut stream, _) = listener.accept()?;
    let board = stream.expose(LEN, BOARD)?;
    // What is sent arrives after what was opened: the peer may begin.
    stream.write_all(b"go")?;

    // What the peer sends arrives after what it put: one length, in network order.
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = usize::try_from(u32::from_be_bytes(len))?.min(LEN);
    let mut text = vec![0; len];
    board.read_at(0, &mut text);
    println!("the peer put: {}", String::from_utf8_lossy(&text));
    Ok(())
}

fn put(to: &str, text: &str) -> Done {
    // The server may expose one region to this end.
    let mut stream = Builder::default().iomap_slots(1).connect(to)?;
    let mut go = [0; 2];
    stream.read_exact(&mut go)?;

    let n = stream.write_remote(text.as_bytes(), BOARD)?;
    stream.write_all(&u32::try_from(n)?.to_be_bytes())?;
    // The connection ends when the peer has read.
    stream.read_to_end(&mut Vec::new())?;
    Ok(())
}
