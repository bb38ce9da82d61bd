//! No transport at all: Tokio's in-memory duplex under the same name as the others, as the bound of
//! what a service can reach.

use crate::net::Net;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Bytes that one direction holds: as much as a stream's first receive buffers.
const ROOM: usize = 256 << 10;

/// Listeners of this process, by a port that stands for them.
static LISTENERS: LazyLock<Mutex<HashMap<u16, UnboundedSender<DuplexStream>>>> =
    LazyLock::new(Mutex::default);

fn listeners() -> MutexGuard<'static, HashMap<u16, UnboundedSender<DuplexStream>>> {
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tokio's in-memory duplex.
#[derive(Clone, Copy, Debug)]
pub struct Memory;

/// Where duplex streams come from.
#[derive(Debug)]
pub struct Listener {
    addr: SocketAddr,
    waiting: tokio::sync::Mutex<UnboundedReceiver<DuplexStream>>,
}

impl Listener {
    async fn next(&self) -> io::Result<DuplexStream> {
        let next = self.waiting.lock().await.recv().await;
        next.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        listeners().remove(&self.addr.port());
    }
}

impl axum::serve::Listener for Listener {
    type Io = DuplexStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (DuplexStream, SocketAddr) {
        match self.next().await {
            Ok(stream) => (stream, self.addr),
            // The sending half lives as long as this listener.
            Err(_) => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addr)
    }
}

impl Net for Memory {
    const NAME: &'static str = "memory";
    type Stream = DuplexStream;
    type Listener = Listener;

    async fn bind() -> io::Result<(Listener, SocketAddr)> {
        let (sender, waiting) = unbounded_channel();
        let mut listeners = listeners();
        let free = (1..=u16::MAX).find(|port| !listeners.contains_key(port));
        let port = free.ok_or(io::ErrorKind::AddrInUse)?;
        listeners.insert(port, sender);
        drop(listeners);
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok((Listener { addr, waiting: tokio::sync::Mutex::new(waiting) }, addr))
    }

    async fn accept(from: &Listener) -> io::Result<DuplexStream> {
        from.next().await
    }

    async fn connect(to: SocketAddr) -> io::Result<DuplexStream> {
        let (ours, theirs) = duplex(ROOM);
        let sender = listeners().get(&to.port()).cloned();
        let sent = sender.and_then(|sender| sender.send(theirs).ok());
        sent.map(|()| ours).ok_or_else(|| io::ErrorKind::ConnectionRefused.into())
    }
}
