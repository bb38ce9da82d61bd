//! The examples are the files in this package's directory; `tests/run.rs` runs them. Never
//! published. Here is only what several share: their command line, and how both ends begin.

#![forbid(unsafe_code)]

use rsock_tokio::{Connector, Listener, Stream, rsockets};
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

/// Which streams an example uses that runs on both kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// TCP first: any peer.
    TcpFirst,
    /// `--rsockets`, the first argument: rsockets streams, without TCP.
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
            Self::TcpFirst
        };
        Ok((mode, Role::parse(&format!("{program} [--rsockets]"), args)?))
    }

    /// Connects.
    ///
    /// # Errors
    /// As the mode's own way.
    pub async fn connect(self, to: &str) -> io::Result<Stream> {
        match self {
            Self::TcpFirst => Stream::connect(to).await,
            Self::Rsockets => rsockets::connect(to).await,
        }
    }

    /// Listens, and says where.
    ///
    /// # Errors
    /// As the mode's own way.
    pub async fn listen(self, at: &str) -> io::Result<EitherListener> {
        match self {
            Self::TcpFirst => listen(at).await.map(EitherListener::TcpFirst),
            Self::Rsockets => {
                let listener = rsockets::Listener::bind(at).await?;
                println!("listening on {}", listener.local_addr()?);
                Ok(EitherListener::Rsockets(Box::new(listener)))
            }
        }
    }

    /// What hyper's client connects with.
    #[must_use]
    pub fn connector(self) -> Connector {
        match self {
            Self::TcpFirst => Connector::new(),
            Self::Rsockets => Connector::rsockets(rsockets::Builder::new()),
        }
    }
}

/// A listener of either mode, whose streams are of one type.
#[derive(Debug)]
pub enum EitherListener {
    /// [`Mode::TcpFirst`].
    TcpFirst(Listener),
    /// [`Mode::Rsockets`].
    Rsockets(Box<rsockets::Listener>),
}

impl EitherListener {
    /// The next connection.
    ///
    /// # Errors
    /// As the listener's own.
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Self::TcpFirst(listener) => listener.accept().await,
            Self::Rsockets(listener) => listener.accept().await,
        }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::TcpFirst(listener) => listener.local_addr(),
            Self::Rsockets(listener) => listener.local_addr(),
        }
    }
}
