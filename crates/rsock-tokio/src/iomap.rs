//! iomaps: memory that one end opens and the other writes into directly.
//!
//! Above `stream`. What a stream beside TCP waits for has no event of its own (the peer looks for
//! us, or takes messages again), and is over soon or never: its futures try again at growing
//! intervals. Those of the pure mode wait as writers do.

use crate::shared::{Base, unsupported};
use crate::stream::Stream;
use crate::timer::Timer;
use crate::waiting::{Side, retry};
use rsock_core::accelerate;
use rsock_core::rsocket::ExposedRegion;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::task::coop;

/// The first pause between two tries, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(10));
/// Bytes that are put before other tasks get their turn.
const PIECE: usize = 256 << 10;

impl Stream {
    /// Waits until the peer has been found in shared memory: [`Self::open`] and [`Self::put`] work
    /// from then on. In the pure mode that is so from the start. Otherwise both ends must take part,
    /// by this method; bytes may be sent and received meanwhile, and need not have been.
    ///
    /// # Errors
    /// `Unsupported` if it will never be, because the peer is on another host, is no rsock stream, or for
    /// another of the reasons of [`Self::pin_reason`]. A peer that never looks is waited for without end.
    ///
    /// # Cancel safety
    /// Cancel safe: the search goes on where it was.
    pub async fn paired(&self) -> io::Result<()> {
        let Base::Tcp(tcp) = &self.shared.base else { return Ok(()) };
        let twin = tcp.twin.as_ref().ok_or_else(unsupported)?;
        at_intervals(|| match twin.find_peer(self.as_fd())? {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        })
        .await?;
        self.shared.note_reach();
        Ok(())
    }

    /// Opens `len` bytes of fresh zeroed memory to the peer's [`Self::put`] under `offset`, any
    /// number that both ends know, for as long as the answer lives. The peer knows before it sees
    /// what is sent after this returned.
    ///
    /// # Errors
    /// `NotConnected` before [`Self::paired`]; `OutOfMemory` if the peer has no place left for it: it
    /// offers as many as its [`Builder::iomap_slots`](crate::Builder::iomap_slots) says.
    ///
    /// # Cancel safety
    /// Cancel safe: a dropped future closes what it opened.
    pub async fn open(&self, len: usize, offset: u64) -> io::Result<Opened> {
        match &self.shared.base {
            Base::Tcp(tcp) => {
                let twin = tcp.twin.as_ref().ok_or_else(unsupported)?;
                let opened = Opened(Memory::AcceleratedStream(twin.expose(len, offset)?));
                at_intervals(|| twin.try_announce()).await?;
                Ok(opened)
            }
            Base::Pure(pure) => {
                let opened = Opened(Memory::Pure(pure.stream().expose(len, offset)?));
                // It goes ahead of whatever is sent, be that nothing.
                retry(&*self.shared, Side::Write, || pure.try_send(&[])).await?;
                Ok(opened)
            }
        }
    }

    /// Writes `bytes` into the memory that the peer opened under `offset`, without its help and
    /// without another copy. It is not told, but what is sent afterwards arrives afterwards. Fewer
    /// bytes than given are written where the open memory ends.
    ///
    /// # Errors
    /// `EFAULT` if nothing is open there; `NotConnected` before [`Self::paired`]; `ConnectionReset`,
    /// `BrokenPipe` once the peer has gone.
    ///
    /// # Cancel safety
    /// A dropped future has written the first of the bytes, or none or all; putting them again is harmless.
    pub async fn put(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        for piece in bytes.chunks(PIECE) {
            let mut left = piece;
            while !left.is_empty() {
                let at = offset.wrapping_add(done as u64);
                match self.put_some(left, at).await {
                    Ok(n) => {
                        done += n;
                        left = &left[n..];
                    }
                    Err(_) if done > 0 => return Ok(done),
                    Err(e) => return Err(e),
                }
            }
            coop::consume_budget().await;
        }
        Ok(done)
    }

    async fn put_some(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        match &self.shared.base {
            Base::Tcp(tcp) => {
                let twin = tcp.twin.as_ref().ok_or_else(unsupported)?;
                at_intervals(|| twin.try_write_remote(bytes, offset)).await
            }
            Base::Pure(pure) => {
                retry(&*self.shared, Side::Write, || pure.socket.try_write_remote(bytes, offset))
                    .await
            }
        }
    }
}

/// Tries `io` until it answers something other than that it would block.
async fn at_intervals<R>(mut io: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    let mut timer = None;
    let mut pause = PAUSES.0;
    loop {
        match io() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
        let timer = match &timer {
            Some(timer) => timer,
            None => timer.insert(Timer::new()?),
        };
        timer.start(pause)?;
        poll_fn(|cx| timer.poll(cx)).await?;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Memory that the peer may write at any time; made by [`Stream::open`]. Closed when dropped; what
/// was put stays readable after the stream has gone.
///
/// # Examples
///
/// ```
/// use rsock_tokio::{Builder, Listener};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// const BOARD: u64 = 1; // a name that both ends know
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let client = Builder::new().iomap_slots(1).connect(listener.local_addr()?).await?;
/// let (server, _) = listener.accept().await?;
/// let (mut client, mut server) = (client, server);
/// tokio::try_join!(client.paired(), server.paired())?;
///
/// let board = server.open(4096, BOARD).await?;
/// server.write_all(b"!").await?; // the peer may begin
///
/// client.read_exact(&mut [0]).await?;
/// client.put(b"hello", BOARD + 10).await?;
/// client.write_all(b"!").await?; // it is there
///
/// server.read_exact(&mut [0]).await?;
/// let mut word = [0; 5];
/// board.read_at(10, &mut word);
/// assert_eq!(&word, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Opened(Memory);

#[derive(Debug)]
enum Memory {
    AcceleratedStream(accelerate::AcceleratedRegion),
    Pure(ExposedRegion),
}

impl Opened {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Memory::AcceleratedStream(opened) => opened.len(),
            Memory::Pure(opened) => opened.len(),
        }
    }

    /// Whether it is empty; never true.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies out what is there now. Bytes that the peer is writing at this moment arrive torn.
    ///
    /// # Panics
    /// If `at..at + dst.len()` is not inside.
    pub fn read_at(&self, at: usize, dst: &mut [u8]) {
        match &self.0 {
            Memory::AcceleratedStream(opened) => opened.read_at(at, dst),
            Memory::Pure(opened) => opened.read_at(at, dst),
        }
    }

    /// Copies `src` in.
    ///
    /// # Panics
    /// If `at..at + src.len()` is not inside.
    pub fn write_at(&self, at: usize, src: &[u8]) {
        match &self.0 {
            Memory::AcceleratedStream(opened) => opened.write_at(at, src),
            Memory::Pure(opened) => opened.write_at(at, src),
        }
    }
}
