//! Writes straight into a peer's memory, without a copy through the stream and without its help.
//!
//! ```sh
//! cargo run --release -p rsock-examples --example iomap_put -- show 127.0.0.1:7008 &
//! cargo run --release -p rsock-examples --example iomap_put -- put 127.0.0.1:7008 "a message"
//! ```

#![forbid(unsafe_code)]

use rsock_core::socket::rsockets::{Builder, Listener};
use std::env;
use std::error::Error;
use std::io::{Read, Write};

/// How much memory `show` opens, in bytes.
const LEN: usize = 4096;
/// The name under which it does: any number that both ends know.
const NOTICE_BOARD: u64 = 0x1000;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["show", at] => show(at),
        ["put", to, text] => put(to, text),
        _ => Err("usage: iomap_put show ADDRESS | iomap_put put ADDRESS TEXT".into()),
    }
}

/// Opens memory to one peer and shows what it left there.
fn show(at: &str) -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind(at.parse()?)?;
    println!("listening on {}", listener.local_addr()?);
    let (mut stream, from) = listener.accept()?;
    let board = stream.open(LEN, NOTICE_BOARD)?;
    // What is sent arrives after what was opened: the peer may begin.
    stream.write_all(b"go")?;

    // What the peer sends arrives after what it put: one length, in network order.
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = usize::try_from(u32::from_be_bytes(len))?.min(LEN);
    let mut text = vec![0; len];
    board.read_at(0, &mut text);
    println!("{from} put: {}", String::from_utf8_lossy(&text));
    Ok(())
}

fn put(to: &str, text: &str) -> Result<(), Box<dyn Error>> {
    // We offer the peer one place to tell us about memory that it opened.
    let mut stream = Builder::default().iomap_slots(1).connect(to.parse()?)?;
    let mut go = [0; 2];
    stream.read_exact(&mut go)?;

    let n = stream.put(text.as_bytes(), NOTICE_BOARD)?;
    stream.write_all(&u32::try_from(n)?.to_be_bytes())?;
    // The connection ends when the peer has read.
    stream.read_to_end(&mut Vec::new())?;
    Ok(())
}
