//! `axum::serve` on rsock: [`Listener`] is a listener of axum's, and the pure mode's, too.

use crate::listener::Listener;
use crate::rsockets;
use crate::stream::Stream;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// What a pause after a failed accept is: descriptors may be free again by then.
const PAUSE: Duration = Duration::from_secs(1);

/// `accept`, again until it succeeds.
async fn accept<F: Future<Output = io::Result<(Stream, SocketAddr)>>>(
    mut accept: impl FnMut() -> F,
) -> (Stream, SocketAddr) {
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
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        accept(|| Self::accept(self)).await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

/// Whether the next connection may do better at once.
fn is_of_one_connection(e: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(e.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
