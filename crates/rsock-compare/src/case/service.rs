//! Services that wait for events, and the load of each.

/// A service and its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// redis, by redis-benchmark.
    Redis {
        command: RedisCommand,
        clients: u16,
        /// Requests that each client sends at once.
        pipeline: u16,
    },
    /// redis, by redis-cli: each request has a process and a connection of its own.
    RedisCli,
    /// memcached, by memcaslap.
    Memcached { connections: u16 },
    /// PostgreSQL, by pgbench: a row is read by its key, in statements prepared before.
    Postgres { clients: u16 },
    /// nginx, by ab, which makes a connection for each request.
    NginxByAb { clients: u16 },
    /// nginx, by wrk: pages of this many bytes.
    Nginx { connections: u16, size: usize, reuse: Connections },
    /// haproxy before nginx, by wrk: pages of [`Service::PAGE`] bytes, connections that are kept.
    Haproxy { connections: u16 },
    /// Node's HTTP server, by wrk: pages of [`Service::PAGE`] bytes, one connection that is kept.
    Node,
    /// Messages of [`Service::MESSAGE`] bytes come back on one connection.
    Echo(Echo),
    /// The same on [`Service::BUSY`] connections of one thread, which holds so many others that
    /// rest.
    EchoBesideIdle { idle: u16 },
    /// As [`Self::EchoBesideIdle`], by a server that waits in `poll`.
    EchoInPoll { idle: u16 },
}

impl Service {
    /// Bytes of a page.
    pub(crate) const PAGE: usize = 1024;
    /// Bytes of a message that comes back.
    pub(crate) const MESSAGE: usize = 64;
    /// Connections that carry messages beside others that rest.
    pub(crate) const BUSY: u16 = 10;

    /// Whether its connections last long enough to leave TCP.
    pub(crate) fn leaves_tcp(self) -> bool {
        !matches!(
            self,
            Self::RedisCli
                | Self::NginxByAb { .. }
                | Self::Nginx { reuse: Connections::Closed, .. }
        )
    }
}

/// What both ends of an echo are written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Echo {
    /// Streams of Python's asyncio.
    Asyncio,
    /// Selectors and channels of Java's NIO.
    Nio,
    /// Tokio's TCP streams, on its multi-threaded runtime.
    Tokio,
}

/// What redis is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedisCommand {
    Get,
    Set,
}

impl RedisCommand {
    /// As redis-benchmark calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
        }
    }
}

/// Whether a connection serves one request or many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connections {
    Kept,
    Closed,
}
