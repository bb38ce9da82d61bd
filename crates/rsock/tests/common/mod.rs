//! Connected pairs of streams, on TCP and on the ring.

#![allow(dead_code, reason = "each test program uses some of it")]

use rsock::{Acceleration, Builder, Stream};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// The address of tests: loopback with a free port.
pub(crate) const ANY: &str = "127.0.0.1:0";

/// A connected pair of the standard library, to compare with.
pub(crate) fn std_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(ANY).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// A connected pair that stays on TCP.
pub(crate) fn on_tcp() -> (Stream, Stream) {
    pair(Builder::new().acceleration(Acceleration::Off))
}

/// A connected pair that has left TCP in both directions.
pub(crate) fn on_ring() -> (Stream, Stream) {
    let (client, server) = pair(Builder::new());
    let mut byte = [0];
    for _ in 0..10_000 {
        if client.channels().are_accelerated() && server.channels().are_accelerated() {
            return (client, server);
        }
        (&client).write_all(&byte).unwrap();
        (&server).read_exact(&mut byte).unwrap();
        (&server).write_all(&byte).unwrap();
        (&client).read_exact(&mut byte).unwrap();
    }
    panic!("the connection stays on TCP: {:?}", client.fallback_reason());
}

fn pair(settings: Builder) -> (Stream, Stream) {
    let listener = settings.bind(ANY).unwrap();
    let client = settings.connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Runs `test` on a pair on TCP and on one on the ring.
pub(crate) fn on_both(test: impl Fn(Stream, Stream)) {
    for (client, server) in [on_tcp(), on_ring()] {
        test(client, server);
    }
}
