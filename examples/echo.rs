//! An echo on blocking sockets: a server with a thread per connection, and a client that sends its
//! standard input and prints what comes back. Either one's peer may be a plain TCP program.
//!
//! ```sh
//! echo hello | cargo run --release -p rsock-examples --example echo
//! ```
//!
//! Or in two terminals, with `serve 127.0.0.1:7007` and `ask 127.0.0.1:7007`.

#![forbid(unsafe_code)]

use rsock::{Listener, Stream};
use rsock_examples::{Done, Role};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::thread;

fn main() -> Done {
    match Role::of("echo")? {
        Role::Serve(at) => Ok(serve(&listen(&at)?)?),
        Role::Ask(to) => Ok(ask(&to)?),
        Role::Both(at) => {
            let listener = listen(&at)?;
            let to = listener.local_addr()?.to_string();
            thread::spawn(move || serve(&listener));
            Ok(ask(&to)?)
        }
    }
}

fn listen(at: &str) -> io::Result<Listener> {
    let listener = Listener::bind(at)?;
    println!("listening on {}", listener.local_addr()?);
    Ok(listener)
}

fn serve(listener: &Listener) -> io::Result<()> {
    loop {
        let (stream, from) = listener.accept()?;
        thread::spawn(move || {
            if let Err(e) = echo(stream) {
                eprintln!("{from}: {e}");
            }
        });
    }
}

/// Echoes until the other end has said everything.
fn echo(mut stream: Stream) -> io::Result<()> {
    let mut buf = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buf)? {
            0 => return Ok(()),
            n => stream.write_all(&buf[..n])?,
        }
    }
}

fn ask(to: &str) -> io::Result<()> {
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
    io::stdout().flush()
}
