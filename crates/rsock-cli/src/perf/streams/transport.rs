//! The transports that the loops run on, behind the few calls that the loops make.

use crate::rdma_devices;
use rsock::rsockets;
use rustix::fs::{FileType, lstat};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};

/// A kind of byte stream. Addresses are text, as the user writes them.
pub(super) trait Transport {
    /// As given to `--device`.
    const NAME: &'static str;
    type Listener: Send;
    type Stream: Stream;

    /// Listens at `addr`, or at a free address of this host.
    fn listen(addr: Option<&str>) -> io::Result<Self::Listener>;
    /// The address that a client connects to.
    fn address(listener: &Self::Listener) -> io::Result<String>;
    fn accept(listener: &Self::Listener) -> io::Result<Self::Stream>;
    fn connect(addr: &str) -> io::Result<Self::Stream>;
}

/// A connected stream, set to send small writes at once.
pub(super) trait Stream: Read + Write + Send + 'static {
    /// Ends the sending direction; the peer reads end of file.
    fn finish_writing(&self) -> io::Result<()>;
}

/// Kernel TCP.
#[derive(Debug)]
pub(super) struct Tcp;

/// Unix stream sockets.
#[derive(Debug)]
pub(super) struct Unix;

/// rsock's counterpart of `std::net`: TCP first.
#[derive(Debug)]
pub(super) struct Rsock;

/// rsock's sockets of the rsockets API: shared memory from the first byte.
#[derive(Debug)]
pub(super) struct Rsockets;

/// The same on RDMA devices alone, as this process's environment asks.
#[derive(Debug)]
pub(super) struct Rdma;

const ANY_LOCAL: &str = "127.0.0.1:0";

/// Implements [`Transport`] for types with the calls of `std::net`.
macro_rules! transport_of_net {
    ($transport:ty, $name:literal, $listener:ty, $stream:ty) => {
        impl Transport for $transport {
            const NAME: &'static str = $name;
            type Listener = $listener;
            type Stream = $stream;

            fn listen(addr: Option<&str>) -> io::Result<$listener> {
                <$listener>::bind(addr.unwrap_or(ANY_LOCAL))
            }

            fn address(listener: &$listener) -> io::Result<String> {
                Ok(listener.local_addr()?.to_string())
            }

            fn accept(listener: &$listener) -> io::Result<$stream> {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(stream)
            }

            fn connect(addr: &str) -> io::Result<$stream> {
                let stream = <$stream>::connect(addr)?;
                stream.set_nodelay(true)?;
                Ok(stream)
            }
        }

        impl Stream for $stream {
            fn finish_writing(&self) -> io::Result<()> {
                self.shutdown(Shutdown::Write)
            }
        }
    };
}

transport_of_net!(Tcp, "tcp", TcpListener, TcpStream);
transport_of_net!(Rsock, "rsock", rsock::Listener, rsock::Stream);

impl Transport for Unix {
    const NAME: &'static str = "unix";
    type Listener = UnixListener;
    type Stream = UnixStream;

    fn listen(addr: Option<&str>) -> io::Result<UnixListener> {
        let own = format!("@rsock-perf-{}", std::process::id());
        let addr = addr.unwrap_or(&own);
        // A socket file may be left behind by a process that has ended.
        let is_socket =
            lstat(addr).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Socket);
        if is_socket && UnixStream::connect(addr).is_err() {
            std::fs::remove_file(addr)?;
        }
        UnixListener::bind_addr(&unix_addr(addr)?)
    }

    fn address(listener: &UnixListener) -> io::Result<String> {
        let addr = listener.local_addr()?;
        let text = match (addr.as_abstract_name(), addr.as_pathname()) {
            (Some(name), _) => format!("@{}", String::from_utf8_lossy(name)),
            (None, path) => path.unwrap_or("".as_ref()).display().to_string(),
        };
        Ok(text)
    }

    fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
        Ok(listener.accept()?.0)
    }

    fn connect(addr: &str) -> io::Result<UnixStream> {
        UnixStream::connect_addr(&unix_addr(addr)?)
    }
}

impl Stream for UnixStream {
    fn finish_writing(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Transport for Rsockets {
    const NAME: &'static str = "soft";
    type Listener = rsockets::Listener;
    type Stream = rsockets::Stream;

    fn listen(addr: Option<&str>) -> io::Result<rsockets::Listener> {
        rsockets::Listener::bind(addr.unwrap_or(ANY_LOCAL))
    }

    fn address(listener: &rsockets::Listener) -> io::Result<String> {
        Ok(listener.local_addr()?.to_string())
    }

    fn accept(listener: &rsockets::Listener) -> io::Result<rsockets::Stream> {
        Ok(listener.accept()?.0)
    }

    fn connect(addr: &str) -> io::Result<rsockets::Stream> {
        rsockets::connect(addr)
    }
}

impl Transport for Rdma {
    const NAME: &'static str = "rdma";
    type Listener = rsockets::Listener;
    type Stream = rsockets::Stream;

    fn listen(addr: Option<&str>) -> io::Result<rsockets::Listener> {
        let at = match addr {
            Some(addr) => resolve(addr)?,
            None => {
                let devices = rdma_devices::devices()?;
                let first = rdma_devices::first_address(&devices);
                let (_, ip) = first.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
                SocketAddr::new(ip, 0)
            }
        };
        rsockets::Listener::bind(at)
    }

    fn address(listener: &rsockets::Listener) -> io::Result<String> {
        Rsockets::address(listener)
    }

    fn accept(listener: &rsockets::Listener) -> io::Result<rsockets::Stream> {
        Rsockets::accept(listener)
    }

    fn connect(addr: &str) -> io::Result<rsockets::Stream> {
        Rsockets::connect(addr)
    }
}

impl Stream for rsockets::Stream {
    fn finish_writing(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

fn resolve(addr: &str) -> io::Result<SocketAddr> {
    addr.to_socket_addrs()?.next().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

fn unix_addr(addr: &str) -> io::Result<UnixAddr> {
    match addr.strip_prefix('@') {
        Some(name) => UnixAddr::from_abstract_name(name),
        None => UnixAddr::from_pathname(addr),
    }
}
