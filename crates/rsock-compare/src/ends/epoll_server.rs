//! A server with one thread that sends back what comes on any of its connections.

use super::epoll::Epoll;
use crate::hold::allow_descriptors;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

pub(super) fn run(port: u16) -> io::Result<()> {
    const LISTENER: u64 = 0;
    allow_descriptors(usize::MAX);
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    listener.set_nonblocking(true)?;
    let mut epoll = Epoll::new()?;
    epoll.add(&listener, LISTENER)?;
    let mut streams = HashMap::new();
    let mut last = LISTENER;
    let mut buf = vec![0; 64 << 10];
    loop {
        for number in epoll.wait()? {
            if number != LISTENER {
                if let Some(stream) = streams.get_mut(&number)
                    && !answer(stream, &mut buf)?
                {
                    streams.remove(&number);
                }
                continue;
            }
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nodelay(true)?;
                    stream.set_nonblocking(true)?;
                    last += 1;
                    epoll.add(&stream, last)?;
                    streams.insert(last, stream);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// Sends back what has come; whether more may come. Messages are small and answered one by one, so
/// there is always room for an answer.
pub(super) fn answer(stream: &mut TcpStream, buf: &mut [u8]) -> io::Result<bool> {
    match stream.read(buf) {
        Ok(0) => Ok(false),
        Ok(n) => stream.write_all(&buf[..n]).map(|()| true),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Ok(false),
        Err(e) => Err(e),
    }
}
