//! Futures that make connections.

use super::at_every_await::{EVENT, at_every_await, at_its_own_awaits};
use crate::common::poll_times;
use rsock_tokio::{Accelerated, Builder, Listener, Rsockets, Stream, Transport, rsockets};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::lookup_host;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

/// A name to look up, which takes a wait of its own.
pub(crate) const NAME: &str = "localhost";
const MINUTE: Duration = Duration::from_secs(60);

/// The first address of [`NAME`].
pub(crate) async fn first_address() -> SocketAddr {
    lookup_host((NAME, 0)).await.expect("a name").next().expect("an address")
}

/// A transport, with how its connections are made.
pub(crate) trait Connections: Transport + Sized {
    /// Accepts connections in a task, for ever; returns the address, and what was accepted.
    async fn listening() -> (SocketAddr, UnboundedReceiver<Stream<Self>>);
    fn connect(to: SocketAddr) -> impl Future<Output = io::Result<Stream<Self>>> + Send;
}

impl Connections for Accelerated {
    async fn listening() -> (SocketAddr, UnboundedReceiver<Stream>) {
        let (tell, told) = unbounded_channel();
        let listener = Listener::bind(first_address().await).await.expect("bind");
        let at = listener.local_addr().expect("address");
        tokio::spawn(async move {
            while tell.send(listener.accept().await.expect("accept").0).is_ok() {}
        });
        (at, told)
    }

    async fn connect(to: SocketAddr) -> io::Result<Stream> {
        Stream::connect(to).await
    }
}

impl Connections for Rsockets {
    async fn listening() -> (SocketAddr, UnboundedReceiver<Stream<Self>>) {
        let (tell, told) = unbounded_channel();
        let listener = rsockets::Listener::bind(first_address().await).await.expect("bind");
        let at = listener.local_addr().expect("address");
        tokio::spawn(async move {
            while tell.send(listener.accept().await.expect("accept").0).is_ok() {}
        });
        (at, told)
    }

    async fn connect(to: SocketAddr) -> io::Result<Stream<Self>> {
        rsockets::connect(to).await
    }
}

/// The only connection in the end is the one that the future returned, or the next one.
async fn drop_connects<T: Connections>(
    connecting: impl AsyncFn(SocketAddr) -> io::Result<Stream<T>>,
) {
    let (to, mut accepted) = T::listening().await;
    at_its_own_awaits(
        &mut accepted,
        async |_| connecting(to).await.expect("connect"),
        async |accepted, made| {
            let mut client = match made {
                Some(made) => made,
                None => T::connect(to).await.expect("connect"),
            };
            client.write_all(&[7]).await.expect("write");
            loop {
                let mut server = accepted.recv().await.expect("a connection");
                let mut byte = [0];
                match server.read(&mut byte).await {
                    Ok(0) => assert!(server.peer_addr().ok() != client.local_addr().ok()),
                    Ok(_) => break assert_eq!(byte, [7]),
                    Err(e) => assert_eq!(e.kind(), io::ErrorKind::ConnectionReset),
                }
            }
        },
    )
    .await;
}

pub(crate) async fn a_dropped_connect_leaves_no_connection_behind() {
    drop_connects(async |to| Stream::connect((NAME, to.port())).await).await;
    drop_connects(async |to| Stream::connect_timeout(to, MINUTE).await).await;
    drop_connects(async |to| Builder::new().nodelay(true).connect(to).await).await;
}

pub(crate) async fn a_dropped_rsockets_connect_leaves_no_connection_behind() {
    drop_connects(async |to| rsockets::connect((NAME, to.port())).await).await;
    drop_connects(async |to| rsockets::connect_timeout(to, MINUTE).await).await;
    drop_connects(async |to| rsockets::Builder::new().connect(to).await).await;
}

/// A client that connects, and then writes.
struct Client<T: Transport> {
    to: SocketAddr,
    connecting: Option<JoinHandle<Stream<T>>>,
}

impl<T: Connections> Client<T> {
    fn connect(&mut self) {
        let connecting = T::connect(self.to);
        self.connecting = Some(tokio::spawn(async move {
            let mut stream = connecting.await.expect("connect");
            stream.write_all(&[7]).await.expect("write");
            stream
        }));
    }
}

/// Each client is accepted once, by the future or by the next one.
async fn drop_accepts<T: Connections, L>(
    listener: L,
    to: SocketAddr,
    accept: impl AsyncFn(&mut L) -> (Stream<T>, SocketAddr),
) {
    let mut listener = listener;
    let mut client = Client { to, connecting: None };
    let connect = async |client: &mut Client<T>| {
        client.connect();
        false
    };
    let after = async |listener: &mut L, client: &mut Client<T>, accepted: Option<_>| {
        let (mut stream, from): (Stream<T>, SocketAddr) = match accepted {
            Some(accepted) => accepted,
            None => accept(listener).await,
        };
        let mut byte = [0];
        stream.read_exact(&mut byte).await.expect("read");
        assert_eq!(byte, [7]);
        let client = client.connecting.take().expect("a client").await.expect("no panic");
        assert_eq!(from, client.local_addr().expect("address"));
        assert!(poll_times(accept(listener), 3).await.is_none(), "there are no other clients");
    };
    let steps = at_every_await(&mut listener, &mut client, &accept, connect, after).await;
    assert!(steps > EVENT, "it did not wait");
}

pub(crate) async fn a_dropped_accept_loses_no_connection() {
    let listener = Listener::bind("127.0.0.1:0").await.expect("bind");
    let to = listener.local_addr().expect("address");
    drop_accepts(listener, to, async |l| l.accept().await.expect("accept")).await;
}

pub(crate) async fn a_dropped_rsockets_accept_loses_no_connection() {
    let listener = rsockets::Listener::bind("127.0.0.1:0").await.expect("bind");
    let to = listener.local_addr().expect("address");
    drop_accepts(listener, to, async |l| l.accept().await.expect("accept")).await;
}

#[cfg(feature = "axum")]
pub(crate) async fn a_dropped_accept_of_axum_loses_no_connection() {
    let listener = Listener::bind("127.0.0.1:0").await.expect("bind");
    let to = listener.local_addr().expect("address");
    drop_accepts(listener, to, async |l| axum::serve::Listener::accept(l).await).await;
    let listener = rsockets::Listener::bind("127.0.0.1:0").await.expect("bind");
    let to = listener.local_addr().expect("address");
    drop_accepts(listener, to, async |l| axum::serve::Listener::accept(l).await).await;
}

#[cfg(feature = "hyper")]
pub(crate) async fn a_dropped_connector_leaves_no_connection_behind() {
    use rsock_tokio::Connector;
    use tower_service::Service;

    let uri = |to: SocketAddr| format!("http://{NAME}:{}/", to.port()).parse().expect("a URI");
    let connector = Connector::new();
    drop_connects(async |to| Ok(connector.clone().call(uri(to)).await?.into_inner())).await;
    let connector = Connector::with(rsockets::Builder::new());
    drop_connects(async |to| Ok(connector.clone().call(uri(to)).await?.into_inner())).await;
}

/// Whether or not the dropped future has bound the port, it is free for the next one.
pub(crate) async fn drop_binds<L>(
    bind: impl AsyncFn(SocketAddr) -> io::Result<L>,
    addr: impl Fn(&L) -> io::Result<SocketAddr>,
) {
    let any = SocketAddr::from((own_address(), 0));
    let mut at = addr(&bind(any).await.expect("a free port")).expect("address");
    at_its_own_awaits(
        &mut at,
        async |at| bind(*at).await.expect("the port is free"),
        async |at, bound| {
            drop(bound);
            drop(bind(*at).await.expect("nothing is left behind"));
        },
    )
    .await;
}

/// An address of this host at which no other process takes ports.
fn own_address() -> Ipv4Addr {
    let [_, high, middle, low] = process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | high, middle, low)
}

pub(crate) async fn a_dropped_bind_leaves_its_port_free() {
    drop_binds(async |at| Listener::bind(at).await, Listener::local_addr).await;
    drop_binds(async |at| Builder::new().bind(at).await, Listener::local_addr).await;
    let addr = rsockets::Listener::local_addr;
    drop_binds(async |at| rsockets::Listener::bind(at).await, addr).await;
    drop_binds(async |at| rsockets::Builder::new().bind(at).await, addr).await;
    // A name is looked up first.
    let any = (NAME, 0);
    at_its_own_awaits(
        &mut (),
        async |()| {
            drop(Listener::bind(any).await.expect("bind"));
            drop(rsockets::Listener::bind(any).await.expect("bind"));
        },
        async |(), _| {},
    )
    .await;
}
