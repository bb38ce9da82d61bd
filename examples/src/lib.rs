//! The examples are the files in this package's directory; `tests/run.rs` runs them. Never
//! published. Here is only what the asynchronous ones share: who they
//! are, and how both ends begin.

#![forbid(unsafe_code)]

use rsock_tokio::Listener;
use std::env;
use std::error::Error;
use std::io;

/// How an asynchronous example ends.
pub type Done = Result<(), Box<dyn Error + Send + Sync>>;

/// Part that an asynchronous example plays, by its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// No arguments: both ends, in one process.
    Both,
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
    pub fn of(program: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let args: Vec<String> = env::args().skip(1).collect();
        match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => Ok(Self::Both),
            ["serve", at] => Ok(Self::Serve(at.to_owned())),
            ["ask", at] => Ok(Self::Ask(at.to_owned())),
            _ => Err(format!("usage: {program} [serve ADDRESS | ask ADDRESS]").into()),
        }
    }
    /// Listens and serves, or asks, or does both at a port of its own.
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
            Self::Both => {
                let listener = listen("127.0.0.1:0").await?;
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
