//! Sends back what it gets, one thread per connection. Plain TCP clients are welcome too.
//!
//! ```sh
//! cargo run --release -p rsock-examples --example echo_server -- 127.0.0.1:7007
//! ```

#![forbid(unsafe_code)]

use rsock_core::socket::{Listener, Stream};
use std::error::Error;
use std::io::{self, Read, Write};
use std::{env, thread};

fn main() -> Result<(), Box<dyn Error>> {
    let at = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7007".to_owned());
    let listener = Listener::bind(at)?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, from) = listener.accept()?;
        thread::spawn(move || match echo(stream) {
            Ok(n) => println!("{from}: {n} bytes"),
            Err(e) => println!("{from}: {e}"),
        });
    }
}

/// Echoes until the other end has said everything; returns the number of bytes.
fn echo(mut stream: Stream) -> io::Result<usize> {
    let mut buf = vec![0; 64 << 10];
    let mut total = 0;
    loop {
        match stream.read(&mut buf)? {
            0 => return Ok(total),
            n => {
                stream.write_all(&buf[..n])?;
                total += n;
            }
        }
    }
}
