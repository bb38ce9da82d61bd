//! How many bytes went through the kernel's TCP socket in each direction, by the kernel's own
//! count.
//!
//! Counting in rsock is not enough: stdio, io_uring, raw system calls and other holders of the
//! descriptor write and read without rsock. The kernel counts all of them. Where its count and
//! rsock's differ, something else uses the descriptor and the stream stays on TCP.

use rsock_verbs::raw;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;
use std::time::Duration;

/// Bytes of `struct tcp_info` up to and including `tcpi_bytes_retrans` (Linux 4.19).
const INFO_LEN: usize = 216;
const STATE: usize = 0;
const LAST_ACK_RECV: usize = 56;
const BYTES_RECEIVED: usize = 128;
const NOTSENT_BYTES: usize = 144;
const BYTES_SENT: usize = 200;
const BYTES_RETRANS: usize = 208;

/// The state of a socket of which the peer has ended its direction in good order, and this end has
/// not.
const CLOSE_WAIT: u8 = 8;

/// The state of a socket after the connection, by a reset or because both directions have ended.
const CLOSE: u8 = 7;

/// Payload bytes that were written to a socket, by all its holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// All of them: sent once, plus not yet sent.
    pub(super) total: u64,
    /// Those that the kernel has not sent yet.
    pub(super) unsent: u32,
}

/// What was written to the socket so far. `None` if the connection is over.
///
/// # Source
/// `tcpi_bytes_sent`, `tcpi_bytes_retrans` and `tcpi_notsent_bytes` count payload only, so neither
/// SYN nor FIN needs a correction (Linux, `include/uapi/linux/tcp.h`).
pub(super) fn written(fd: BorrowedFd<'_>) -> io::Result<Option<Written>> {
    let info = tcp_info(fd)?;
    if info[STATE] == CLOSE {
        return Ok(None);
    }
    let sent = u64_at(&info, BYTES_SENT).wrapping_sub(u64_at(&info, BYTES_RETRANS));
    let unsent = u32_at(&info, NOTSENT_BYTES);
    Ok(Some(Written { total: sent.wrapping_add(unsent.into()), unsent }))
}

/// Payload bytes read from the socket so far, by all its holders. Exact while there is no other
/// reader and no FIN has arrived (`tcpi_bytes_received` counts a FIN as one byte). `None` if so
/// much arrives that no two answers of the kernel agree: ask again later.
pub(super) fn read(fd: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    // Data may arrive between the two questions; ask until the answer does not change.
    const TRIES: usize = 8;
    for _ in 0..TRIES {
        let before = rustix::io::ioctl_fionread(fd)?;
        let info = tcp_info(fd)?;
        if rustix::io::ioctl_fionread(fd)? == before {
            return Ok(Some(u64_at(&info, BYTES_RECEIVED).wrapping_sub(before)));
        }
    }
    Ok(None)
}

/// How long ago the peer's end (FIN) arrived, by the kernel's clock; `None` if there was none, or a
/// reset. For a socket that has ended its own direction too, this is known only with `tcp_bytes`:
/// the payload bytes that came before the end.
///
/// # Source
/// `tcpi_state` (Linux, `include/net/tcp_states.h`); a FIN counts as one byte in
/// `tcpi_bytes_received`, and as the last acknowledgement in `tcpi_last_ack_recv`.
pub(super) fn fin(fd: BorrowedFd<'_>, tcp_bytes: Option<u64>) -> io::Result<Option<Duration>> {
    let info = tcp_info(fd)?;
    let counted = tcp_bytes.map(|n| n.wrapping_add(1));
    let is_there = info[STATE] == CLOSE_WAIT || counted == Some(u64_at(&info, BYTES_RECEIVED));
    Ok(is_there.then(|| Duration::from_millis(u32_at(&info, LAST_ACK_RECV).into())))
}

/// How much has arrived so far, which wraps, and the state of the socket. The peer's end counts as
/// one byte.
pub(super) fn arrived(fd: BorrowedFd<'_>) -> io::Result<(u32, u8)> {
    #[expect(clippy::cast_possible_truncation, reason = "the count wraps")]
    tcp_info(fd).map(|info| (u64_at(&info, BYTES_RECEIVED) as u32, info[STATE]))
}

/// Bytes in the send queue that the peer's kernel has not acknowledged (`SIOCOUTQ`).
pub(super) fn queued(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut n: libc::c_int = 0;
    // SAFETY: the request writes one int, to a live one.
    unsafe { raw::syscall!(libc::SYS_ioctl, fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut n) }?;
    Ok(usize::try_from(n).unwrap_or(0))
}

fn tcp_info(fd: BorrowedFd<'_>) -> io::Result<[u8; INFO_LEN]> {
    let mut info = [0u8; INFO_LEN];
    let mut len = libc::socklen_t::try_from(INFO_LEN).unwrap_or(0);
    // SAFETY: the buffer holds `len` writable bytes, and both outlive the call.
    unsafe {
        raw::syscall!(
            libc::SYS_getsockopt,
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr(),
            &raw mut len,
        )
    }?;
    if len as usize != INFO_LEN {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    Ok(info)
}

fn u64_at(info: &[u8; INFO_LEN], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&info[at..at + 8]);
    u64::from_ne_bytes(bytes)
}

fn u32_at(info: &[u8; INFO_LEN], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&info[at..at + 4]);
    u32::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn the_kernel_counts_what_was_written_and_read_at_both_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let mut client =
            TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let (mut server, _) = listener.accept().expect("accept");
        let total = |socket: &TcpStream| {
            written(socket.as_fd()).expect("info").map(|written| written.total)
        };
        assert_eq!(total(&client), Some(0));
        assert_eq!(read(server.as_fd()).expect("info"), Some(0));
        // More than the reader takes, and enough that part of it stays unsent for a while.
        client.set_nonblocking(true).expect("flags");
        let mut sent = 0;
        while let Ok(n) = client.write(&[7; 100_000]) {
            sent += n as u64;
        }
        assert_eq!(total(&client), Some(sent));
        let mut buf = vec![0; 70_001];
        server.read_exact(&mut buf).expect("read");
        // The rest is still arriving.
        let taken = loop {
            if let Some(taken) = read(server.as_fd()).expect("info") {
                break taken;
            }
        };
        assert_eq!(taken, 70_001);
        server.write_all(b"answer").expect("write");
        assert_eq!(total(&server), Some(6));
        assert_eq!(total(&client), Some(sent));
    }
}
