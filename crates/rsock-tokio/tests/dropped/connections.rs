//! Futures that make connections.

use crate::common::awaits::{EVENT, at_every_await, at_its_own_awaits};
use crate::common::poll_times;
use rsock_tokio::{Builder, Listener, Stream, rsockets};
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

/// Listens without end, in a task: where, and what comes.
async fn listening(is_pure: bool) -> (SocketAddr, UnboundedReceiver<Stream>) {
    let (tell, told) = unbounded_channel();
    let at = first_address().await;
    if is_pure {
        let listener = rsockets::Listener::bind(at).await.expect("bind");
        let at = listener.local_addr().expect("address");
        tokio::spawn(async move {
            while tell.send(listener.accept().await.expect("accept").0).is_ok() {}
        });
        return (at, told);
    }
    let listener = Listener::bind(at).await.expect("bind");
    let at = listener.local_addr().expect("address");
    tokio::spawn(
        async move { while tell.send(listener.accept().await.expect("accept").0).is_ok() {} },
    );
    (at, told)
}

async fn connect(is_pure: bool, to: SocketAddr) -> io::Result<Stream> {
    if is_pure { rsockets::connect(to).await } else { Stream::connect(to).await }
}

/// The only connection that is there in the end is the one that the future answered, or the next one.
async fn connect_dropped(
    is_pure: bool,
    connecting: impl AsyncFn(SocketAddr) -> io::Result<Stream>,
) {
    let (to, mut accepted) = listening(is_pure).await;
    at_its_own_awaits(
        &mut accepted,
        async |_| connecting(to).await.expect("connect"),
        async |accepted, made| {
            let mut ours = match made {
                Some(made) => made,
                None => connect(is_pure, to).await.expect("connect"),
            };
            ours.write_all(&[7]).await.expect("write");
            loop {
                let mut theirs = accepted.recv().await.expect("a connection");
                let mut byte = [0];
                match theirs.read(&mut byte).await {
                    Ok(0) => assert!(theirs.peer_addr().ok() != ours.local_addr().ok()),
                    Ok(_) => break assert_eq!(byte, [7]),
                    Err(e) => assert_eq!(e.kind(), io::ErrorKind::ConnectionReset),
                }
            }
        },
    )
    .await;
}

pub(crate) async fn a_connect_leaves_no_connection_behind() {
    connect_dropped(false, async |to| Stream::connect((NAME, to.port())).await).await;
    connect_dropped(false, async |to| Stream::connect_timeout(to, MINUTE).await).await;
    connect_dropped(false, async |to| Builder::new().nodelay(true).connect(to).await).await;
}

pub(crate) async fn a_pure_connect_leaves_no_connection_behind() {
    connect_dropped(true, async |to| rsockets::connect((NAME, to.port())).await).await;
    connect_dropped(true, async |to| rsockets::connect_timeout(to, MINUTE).await).await;
    connect_dropped(true, async |to| rsockets::Builder::new().connect(to).await).await;
}

/// Somebody who is connecting, and then writes.
struct Caller {
    is_pure: bool,
    to: SocketAddr,
    calling: Option<JoinHandle<Stream>>,
}

impl Caller {
    fn call(&mut self) {
        let connecting = connect(self.is_pure, self.to);
        self.calling = Some(tokio::spawn(async move {
            let mut stream = connecting.await.expect("connect");
            stream.write_all(&[7]).await.expect("write");
            stream
        }));
    }
}

/// Whoever calls is accepted once, by the future or by the next one.
async fn accept_dropped<L>(
    listener: L,
    to: SocketAddr,
    is_pure: bool,
    accept: impl AsyncFn(&mut L) -> (Stream, SocketAddr),
) {
    let mut listener = listener;
    let mut caller = Caller { is_pure, to, calling: None };
    let call = async |caller: &mut Caller| {
        caller.call();
        false
    };
    let after = async |listener: &mut L, caller: &mut Caller, accepted: Option<_>| {
        let (mut stream, from): (Stream, SocketAddr) = match accepted {
            Some(accepted) => accepted,
            None => accept(listener).await,
        };
        let mut byte = [0];
        stream.read_exact(&mut byte).await.expect("read");
        assert_eq!(byte, [7]);
        let called = caller.calling.take().expect("a call").await.expect("no panic");
        assert_eq!(from, called.local_addr().expect("address"));
        assert!(poll_times(accept(listener), 3).await.is_none(), "nobody else has called");
    };
    let steps = at_every_await(&mut listener, &mut caller, &accept, call, after).await;
    assert!(steps > EVENT, "it did not wait");
}

pub(crate) async fn an_accept_loses_no_connection() {
    let listener = Listener::bind("127.0.0.1:0").await.expect("bind");
    let to = listener.local_addr().expect("address");
    accept_dropped(listener, to, false, async |l| l.accept().await.expect("accept")).await;
}

pub(crate) async fn a_pure_accept_loses_no_connection() {
    let listener = rsockets::Listener::bind("127.0.0.1:0").await.expect("bind");
    let to = listener.local_addr().expect("address");
    accept_dropped(listener, to, true, async |l| l.accept().await.expect("accept")).await;
}

#[cfg(feature = "axum")]
pub(crate) async fn a_listener_of_axums_loses_no_connection() {
    let listener = Listener::bind("127.0.0.1:0").await.expect("bind");
    let to = listener.local_addr().expect("address");
    accept_dropped(listener, to, false, async |l| axum::serve::Listener::accept(l).await).await;
    let listener = rsockets::Listener::bind("127.0.0.1:0").await.expect("bind");
    let to = listener.local_addr().expect("address");
    accept_dropped(listener, to, true, async |l| axum::serve::Listener::accept(l).await).await;
}

#[cfg(feature = "hyper")]
pub(crate) async fn a_connector_leaves_no_connection_behind() {
    use rsock_tokio::Connector;
    use tower_service::Service;

    for (is_pure, connector) in
        [(false, Connector::new()), (true, Connector::rsockets(rsockets::Builder::new()))]
    {
        connect_dropped(is_pure, async |to| {
            let uri = format!("http://{NAME}:{}/", to.port()).parse().expect("a URI");
            Ok(connector.clone().call(uri).await?.into_inner())
        })
        .await;
    }
}

/// Whatever was bound before, the port is free for the next one.
pub(crate) async fn bind_dropped<L>(
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

/// An address of this host where nobody else takes ports.
fn own_address() -> Ipv4Addr {
    let [_, high, middle, low] = process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | high, middle, low)
}

pub(crate) async fn a_bind_leaves_its_port_free() {
    bind_dropped(async |at| Listener::bind(at).await, Listener::local_addr).await;
    bind_dropped(async |at| Builder::new().bind(at).await, Listener::local_addr).await;
    let addr = rsockets::Listener::local_addr;
    bind_dropped(async |at| rsockets::Listener::bind(at).await, addr).await;
    bind_dropped(async |at| rsockets::Builder::new().bind(at).await, addr).await;
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
