//! `Read` and `Write` of streams.

/// Implements `Read` and `Write` for a stream, or for references to it: by its `recv` and `send`,
/// and several pieces by those of its `socket`. The names are those that the caller imports.
macro_rules! impl_stream_io {
    ($stream:ty) => {
        impl Read for $stream {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.recv(buf)
            }

            fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.socket.recv(bufs, RecvFlags::empty())
            }
        }

        impl Write for $stream {
            fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
                self.send(buf)
            }

            fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.socket.send(bufs, SendFlags::empty())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
    };
}

pub(crate) use impl_stream_io;
