//! `Read` and `Write` of the sockets of connected streams, which lend themselves as
//! `std::net::TcpStream` does.

use crate::rsocket::accelerated_socket::AcceleratedSocket;
use crate::rsocket::socket::Socket;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};

/// Implements both by the `recv` and `send` of each type.
macro_rules! read_and_write {
    ($($socket:ty),+) => {$(
        impl Read for &$socket {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.recv(&mut [IoSliceMut::new(buf)], RecvFlags::empty())
            }

            fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.recv(bufs, RecvFlags::empty())
            }
        }

        impl Write for &$socket {
            fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
                self.send(&[IoSlice::new(buf)], SendFlags::empty())
            }

            fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.send(bufs, SendFlags::empty())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
    )+};
}

read_and_write!(AcceleratedSocket, Socket);
