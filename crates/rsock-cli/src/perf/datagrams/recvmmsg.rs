//! `recvmmsg(2)`, which rustix does not have: several datagrams received in one call.

use rustix::net::SocketAddrAny;
use std::io::{self, IoSliceMut};
use std::mem::{self, MaybeUninit};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Receives with `MSG_WAITFORONE`: one datagram into each of `bufs`, and their lengths and senders
/// into `received`.
pub(super) fn recvmmsg(
    udp: BorrowedFd<'_>,
    bufs: &mut [IoSliceMut<'_>],
    received: &mut Vec<(usize, SocketAddr)>,
) -> io::Result<()> {
    let mut names = vec![MaybeUninit::<libc::sockaddr_storage>::zeroed(); bufs.len()];
    let mut messages: Vec<_> = bufs.iter_mut().zip(&mut names).map(message).collect();
    let n = libc::c_uint::try_from(messages.len()).unwrap_or(libc::c_uint::MAX);
    // SAFETY: each message names a buffer and room for an address, which are borrowed until the end
    // of this function; `IoSliceMut` is an `iovec`.
    let n = unsafe {
        let flags = libc::MSG_WAITFORONE;
        libc::recvmmsg(udp.as_raw_fd(), messages.as_mut_ptr(), n, flags, ptr::null_mut())
    };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    for message in &messages[..n] {
        // SAFETY: the kernel has written an address of that length there.
        let from = unsafe {
            SocketAddrAny::read(message.msg_hdr.msg_name.cast(), message.msg_hdr.msg_namelen)
        };
        let from = SocketAddr::try_from(from)?;
        received.push((message.msg_len as usize, from));
    }
    Ok(())
}

fn message(
    (buf, name): (&mut IoSliceMut<'_>, &mut MaybeUninit<libc::sockaddr_storage>),
) -> libc::mmsghdr {
    // SAFETY: all of it is numbers and pointers, which may be zero.
    let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
    message.msg_hdr.msg_name = name.as_mut_ptr().cast();
    message.msg_hdr.msg_namelen = len_of::<libc::sockaddr_storage>();
    message.msg_hdr.msg_iov = ptr::from_mut(buf).cast();
    message.msg_hdr.msg_iovlen = 1;
    message
}

fn len_of<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rsock_core::datagram::n_dropped;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn datagrams_that_wait_are_received_together_and_dropped_ones_are_counted() {
        let [to, from] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let at = to.local_addr().unwrap();
        for n in 1..=3 {
            from.send_to(&[n; 10][..n as usize], at).unwrap();
        }
        let mut room = [[0; 2]; 4];
        let mut bufs = room.each_mut().map(|buf| IoSliceMut::new(buf));
        let mut received = Vec::new();
        recvmmsg(to.as_fd(), &mut bufs, &mut received).unwrap();
        let from_addr = from.local_addr().unwrap();
        assert_eq!(received, [(1, from_addr), (2, from_addr), (2, from_addr)]);
        assert_eq!(room, [[1, 0], [2, 2], [3, 3], [0, 0]]);
        assert_eq!(n_dropped(to.as_fd()), 0);
        const MANY: u64 = 1000;
        for _ in 0..MANY {
            from.send_to(&[0; 4000], at).unwrap();
        }
        to.set_nonblocking(true).unwrap();
        let mut n = 0;
        while to.recv(&mut [0; 8]).is_ok() {
            n += 1;
        }
        assert!(n < MANY);
        assert_eq!(n + n_dropped(to.as_fd()), MANY);
    }
}
