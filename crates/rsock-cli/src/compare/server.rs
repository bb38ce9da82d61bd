//! Servers of a sample: each on a port of its own, ended with the value that holds it.

use crate::child::{Child, pause};
use crate::error::Error;
use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A server that listens.
#[derive(Debug)]
pub(super) struct Server {
    _child: Child,
    pub(super) port: u16,
}

impl Server {
    /// Starts what `command` makes for a port, and waits until it listens there.
    pub(super) fn start(name: &str, command: impl Fn(u16) -> Command) -> Result<Self, Error> {
        const ATTEMPTS: u32 = 3;
        let mut attempt = 1;
        loop {
            match Self::start_once(name, &command) {
                // Somebody else may have taken the port.
                Err(Error::Failed(_)) if attempt < ATTEMPTS => attempt += 1,
                done => return done,
            }
        }
    }

    fn start_once(name: &str, command: &impl Fn(u16) -> Command) -> Result<Self, Error> {
        const LIMIT: Duration = Duration::from_secs(10);
        const LOOK_EVERY: Duration = Duration::from_millis(2);
        let port = free_port().map_err(Error::io("no free port"))?;
        let mut command = command(port);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = Child::spawn(name, command)?;
        let deadline = Instant::now() + LIMIT;
        // The kernel's list, since a connection would count as a client.
        while !is_listening(port) {
            if let Some(status) = child.wait_until(Instant::now())? {
                return Err(Error::Failed(format!("{name} ended at once: {status}")));
            }
            if Instant::now() >= deadline {
                return Err(Error::Failed(format!("{name} does not listen")));
            }
            pause(LOOK_EVERY);
        }
        Ok(Self { _child: child, port })
    }
}

fn free_port() -> std::io::Result<u16> {
    // On all addresses, since that is where some servers listen.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_told_from_a_connection_on_the_same_port() {
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
