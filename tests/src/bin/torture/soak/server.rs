//! The server of a soak: gives back whatever it is sent, by streams and by datagrams; every eighth
//! stream is served by a forked child.

use crate::sys;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;

/// Prints its ports, and serves for ever.
pub(crate) fn run() -> ! {
    sys::ignore_children();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = |address: std::net::SocketAddr| address.port();
    println!(
        "{} {}",
        port(listener.local_addr().expect("bound")),
        port(datagrams.local_addr().expect("bound"))
    );
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        loop {
            if let Ok((n, from)) = datagrams.recv_from(&mut bytes) {
                let _ = datagrams.send_to(&bytes[..n], from);
            }
        }
    });
    for n in 1_u64.. {
        let Ok((stream, _)) = listener.accept() else { continue };
        if !n.is_multiple_of(8) {
            serve(stream);
        } else if sys::fork().value == 0 {
            serve(stream);
            sys::exit_now(0);
        }
    }
    unreachable!("for ever")
}

fn serve(mut stream: TcpStream) {
    let mut bytes = [0; 65_536];
    while let Ok(n @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
}
