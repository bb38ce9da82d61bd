//! The servers of a sample: each on a port of its own, ended with the value that holds it.

use crate::installed::Program;
use rsock_cli::child::{Child, pause};
use rsock_cli::error::Error;
use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Where the kernel shows that a server listens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Listening<'a> {
    /// In the kernel's list of TCP sockets.
    OnTcp,
    /// In the kernel's list of RDMA identifiers, which the `rdma` program prints.
    OnDevice(&'a Program),
}

impl Listening<'_> {
    fn shows(self, port: u16) -> bool {
        match self {
            Self::OnTcp => is_listening(port),
            Self::OnDevice(rdma) => {
                let out = rdma.command().args(["resource", "show", "cm_id"]).output();
                out.is_ok_and(|out| shows_listener(&String::from_utf8_lossy(&out.stdout), port))
            }
        }
    }
}

/// A server that listens on a port.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    name: String,
    pub(super) port: u16,
}

impl Server {
    /// Starts the program that `command` makes for a port, and waits until it listens there.
    pub(super) fn start(
        name: &str,
        listening: Listening<'_>,
        command: impl Fn(u16) -> Result<Command, Error>,
    ) -> Result<Self, Error> {
        const ATTEMPTS: u32 = 3;
        let mut attempt = 1;
        loop {
            match Self::start_once(name, listening, &command) {
                // Another process may have taken the port.
                Err(Error::Failed(_)) if attempt < ATTEMPTS => attempt += 1,
                done => return done,
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Waits until it has ended of its own accord.
    pub(super) fn finish(mut self, deadline: Instant) -> Result<(), Error> {
        let status = self.child.wait_until(deadline)?;
        let name = &self.name;
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(Error::Failed(format!("the server, {name}: {status}"))),
            None => Err(Error::Failed(format!("the server, {name}, did not end in time"))),
        }
    }

    fn start_once(
        name: &str,
        listening: Listening<'_>,
        command: &impl Fn(u16) -> Result<Command, Error>,
    ) -> Result<Self, Error> {
        // Java compiles its source first.
        const LIMIT: Duration = Duration::from_secs(30);
        const LOOK_EVERY: Duration = Duration::from_millis(2);
        let port = free_port().map_err(Error::io("no free port"))?;
        let mut command = command(port)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = Child::spawn(name, command)?;
        let deadline = Instant::now() + LIMIT;
        // Looks into the kernel's list, since the server would take a connection for its client.
        while !listening.shows(port) {
            if let Some(status) = child.wait_until(Instant::now())? {
                return Err(Error::Failed(format!("{name} ended at once: {status}")));
            }
            if Instant::now() >= deadline {
                return Err(Error::Failed(format!("{name} does not listen")));
            }
            pause(LOOK_EVERY);
        }
        Ok(Self { child, name: name.to_owned(), port })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        const LIMIT: Duration = Duration::from_secs(5);
        self.child.terminate(Instant::now() + LIMIT);
    }
}

fn free_port() -> std::io::Result<u16> {
    // Bound to all addresses, as some of the servers are.
    Ok(TcpListener::bind("[::]:0")
        .or_else(|_| TcpListener::bind("0.0.0.0:0"))?
        .local_addr()?
        .port())
}

fn is_listening(port: u16) -> bool {
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .iter()
        .any(|list| fs::read_to_string(list).is_ok_and(|text| lists_listener(&text, port)))
}

/// Whether a line of `/proc/net/tcp` has this local port and the listening state.
fn lists_listener(text: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    text.lines().any(|line| {
        let mut fields = line.split_whitespace();
        let local = fields.nth(1).and_then(|field| field.rsplit(':').next());
        let local = local.and_then(|hex| u16::from_str_radix(hex, 16).ok());
        local == Some(port) && fields.nth(1) == Some(LISTEN)
    })
}

/// Whether a line of `rdma resource show cm_id` is about a listener at this port.
fn shows_listener(text: &str, port: u16) -> bool {
    let address = format!(":{port} ");
    // The address may be the last column, without a space behind it.
    text.lines().any(|line| line.contains("LISTEN") && format!("{line} ").contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_the_device_differs_from_connections_and_from_longer_numbers() {
        let text = "link rxe0/1 cm-idn 0 lqpn 17 qp-type RC state CONNECT ps TCP \
            src-addr 10.9.0.1:80\n\
            link rxe0/- cm-idn 1 state LISTEN ps TCP pid 5 comm rstream src-addr 10.9.0.1:7471\n";
        let shows = |port| shows_listener(text, port);
        assert_eq!((shows(7471), shows(471), shows(747), shows(80)), (true, false, false, false));
    }

    #[test]
    fn a_listener_differs_from_a_connection_on_the_same_port() {
        let text = "  sl  local_address rem_address   st tx_queue\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n\
            1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000\n";
        let listens = |port| lists_listener(text, port);
        assert_eq!((listens(8080), listens(8081), listens(1)), (true, false, false));
    }

    #[test]
    fn a_real_listener_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(is_listening(listener.local_addr().unwrap().port()));
    }
}
