//! A server with one thread that sends back what comes on any of its connections, as programs do
//! that wait in `poll(2)`.

use super::epoll_server::answer;
use crate::hold::{allow_descriptors, poll};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};

pub(super) fn run(port: u16) -> io::Result<()> {
    allow_descriptors(usize::MAX);
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    listener.set_nonblocking(true)?;
    let mut streams = Vec::new();
    // The listener comes first, then the streams in their order.
    let mut fds = vec![entry(listener.as_raw_fd())];
    let mut buf = vec![0; 64 << 10];
    loop {
        poll(&mut fds)?;
        // From the back, since a stream that ended is removed.
        for index in (0..streams.len()).rev() {
            if fds[index + 1].revents != 0 && !answer(&mut streams[index], &mut buf)? {
                streams.swap_remove(index);
                fds.swap_remove(index + 1);
            }
        }
        while fds[0].revents != 0 {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nodelay(true)?;
                    stream.set_nonblocking(true)?;
                    fds.push(entry(stream.as_raw_fd()));
                    streams.push(stream);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
    }
}

fn entry(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}
