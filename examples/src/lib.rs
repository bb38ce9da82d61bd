//! The examples are the files in this package's directory; `tests/run.rs` runs them. Never
//! published. Here is only what several share: their arguments, and how both ends begin.

#![forbid(unsafe_code)]

use axum::serve;
use hyper_util::client::legacy::connect::Connect;
use rsock_tokio::{Accelerated, Connector, Listener, Rsockets, Stream, Transport, rsockets};
use std::env;
use std::error::Error;
use std::io;
use std::net::SocketAddr;

/// How an example, or a part of one, ends.
pub type Done<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Part that an example plays, by its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// `both ADDRESS`, or nothing for a port of its own: both ends, in one process.
    Both(String),
    /// `serve ADDRESS`: the server alone.
    Serve(String),
    /// `ask ADDRESS`: the client alone.
    Ask(String),
}

impl Role {
    /// Reads the process's arguments.
    ///
    /// # Errors
    /// A line on how to use `program`.
    pub fn of(program: &str) -> Done<Self> {
        Self::parse(program, env::args().skip(1).collect())
    }

    fn parse(program: &str, args: Vec<String>) -> Done<Self> {
        match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => Ok(Self::Both("127.0.0.1:0".to_owned())),
            ["both", at] => Ok(Self::Both(at.to_owned())),
            ["serve", at] => Ok(Self::Serve(at.to_owned())),
            ["ask", at] => Ok(Self::Ask(at.to_owned())),
            _ => Err(format!("usage: {program} [both|serve|ask ADDRESS]").into()),
        }
    }

    /// Listens and serves, or asks, or does both.
    ///
    /// # Errors
    /// Those of listening, of serving and of asking.
    pub async fn play<S, A>(
        self,
        serve: impl FnOnce(Listener) -> S,
        ask: impl FnOnce(String) -> A,
    ) -> Done
    where
        S: Future<Output = io::Result<()>> + Send + 'static,
        A: Future<Output = Done>,
    {
        match self {
            Self::Serve(at) => Ok(serve(listen(&at).await?).await?),
            Self::Ask(to) => ask(to).await,
            Self::Both(at) => {
                let listener = listen(&at).await?;
                let addr = listener.local_addr()?;
                tokio::spawn(serve(listener));
                ask(addr.to_string()).await
            }
        }
    }
}

async fn listen(at: &str) -> io::Result<Listener> {
    let listener = Listener::bind(at).await?;
    println!("listening on {}", listener.local_addr()?);
    Ok(listener)
}

/// A transport that the examples run on, whichever their first argument chooses.
pub trait Net: Transport + Sized {
    /// What hyper's client connects with.
    type Connector: Connect + Clone + Send + Sync + 'static;
    /// What listens for its streams.
    type Listener: serve::Listener<Io = Stream<Self>, Addr = SocketAddr> + Sync;

    /// Connects.
    fn connect(to: &str) -> impl Future<Output = io::Result<Stream<Self>>> + Send;
    /// Listens, and prints where.
    fn listen(at: &str) -> impl Future<Output = io::Result<Self::Listener>> + Send;
    /// The next connection.
    fn accept(
        from: &Self::Listener,
    ) -> impl Future<Output = io::Result<(Stream<Self>, SocketAddr)>> + Send;
    /// The connector, with the default settings.
    fn connector() -> Self::Connector;
    /// Whether both directions of `stream` bypass TCP now.
    fn bypasses_tcp(stream: &Stream<Self>) -> bool;
}

impl Net for Accelerated {
    type Connector = Connector;
    type Listener = Listener;

    async fn connect(to: &str) -> io::Result<Stream> {
        Stream::connect(to).await
    }

    async fn listen(at: &str) -> io::Result<Listener> {
        listen(at).await
    }

    async fn accept(from: &Listener) -> io::Result<(Stream, SocketAddr)> {
        from.accept().await
    }

    fn connector() -> Connector {
        Connector::new()
    }

    fn bypasses_tcp(stream: &Stream) -> bool {
        stream.channels().are_accelerated()
    }
}

impl Net for Rsockets {
    type Connector = Connector<rsockets::Builder>;
    type Listener = rsockets::Listener;

    async fn connect(to: &str) -> io::Result<Stream<Self>> {
        rsockets::connect(to).await
    }

    async fn listen(at: &str) -> io::Result<rsockets::Listener> {
        let listener = rsockets::Listener::bind(at).await?;
        println!("listening on {}", listener.local_addr()?);
        Ok(listener)
    }

    async fn accept(from: &rsockets::Listener) -> io::Result<(Stream<Self>, SocketAddr)> {
        from.accept().await
    }

    fn connector() -> Connector<rsockets::Builder> {
        Connector::with(rsockets::Builder::new())
    }

    fn bypasses_tcp(_: &Stream<Self>) -> bool {
        true
    }
}

/// Which transport an example runs on, by its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// [`Accelerated`]: any peer.
    Accelerated,
    /// `--rsockets`, the first argument: [`Rsockets`].
    Rsockets,
}

impl Mode {
    /// Reads the process's arguments.
    ///
    /// # Errors
    /// As [`Role::of`].
    pub fn and_role(program: &str) -> Done<(Self, Role)> {
        let mut args: Vec<String> = env::args().skip(1).collect();
        let mode = if args.first().is_some_and(|arg| arg == "--rsockets") {
            args.remove(0);
            Self::Rsockets
        } else {
            Self::Accelerated
        };
        Ok((mode, Role::parse(&format!("{program} [--rsockets]"), args)?))
    }
}
