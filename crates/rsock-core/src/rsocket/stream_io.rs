//! `Read` and `Write` of the sockets of connected streams.

use crate::rsocket::accelerated_socket::AcceleratedSocket;
use crate::rsocket::socket::Socket;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};

/// Implements `Read` and `Write` for references to a socket, by its `recv` and `send`.
macro_rules! impl_stream_io {
    ($socket:ty) => {
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
    };
}

impl_stream_io!(AcceleratedSocket);
impl_stream_io!(Socket);
