//! `axum::serve` takes a [`Listener`] and an [`rsockets::Listener`].

use crate::listener::Listener;
use crate::rsockets;
use crate::stream::Stream;
use crate::transport::{Rsockets, Transport};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// The pause after a failed accept: descriptors may be free again after it.
const PAUSE: Duration = Duration::from_secs(1);

/// Repeats `accept` until it succeeds.
async fn accept<T: Transport, F: Future<Output = io::Result<(Stream<T>, SocketAddr)>>>(
    mut accept: impl FnMut() -> F,
) -> (Stream<T>, SocketAddr) {
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(e) if is_of_one_connection(&e) => {}
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

impl axum::serve::Listener for Listener {
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        accept(|| Self::accept(self)).await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

impl axum::serve::Listener for rsockets::Listener {
    type Io = Stream<Rsockets>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream<Rsockets>, SocketAddr) {
        accept(|| Self::accept(self)).await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

/// Whether the error concerns one connection alone, so that the next accept may succeed at once.
fn is_of_one_connection(e: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(e.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
