//! Sends its standard input to `echo_server`, or any other TCP server, and prints what comes back.
//!
//! ```sh
//! echo hello | cargo run --release -p rsock-examples --example echo_client -- 127.0.0.1:7007
//! ```

#![forbid(unsafe_code)]

use rsock_core::socket::Stream;
use std::error::Error;
use std::io::{self, Write};
use std::net::Shutdown;
use std::{env, thread};

fn main() -> Result<(), Box<dyn Error>> {
    let to = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7007".to_owned());
    let stream = Stream::connect(to)?;
    thread::scope(|scope| {
        // Both directions at once: a server that echoes must never wait for us to read.
        let sending = scope.spawn(|| {
            io::copy(&mut io::stdin().lock(), &mut &stream)?;
            stream.shutdown(Shutdown::Write)
        });
        io::copy(&mut &stream, &mut io::stdout().lock())?;
        sending.join().map_err(|_| io::Error::other("sending panicked"))?
    })?;
    io::stdout().flush()?;
    Ok(())
}
