//! The netlink socket by which the kernel is asked about other sockets (`sock_diag(7)`). Every
//! search asks once or twice, so a process keeps one socket.

use rsock_verbs::family::{ProcessId, process};
use rsock_verbs::mutex::try_lock;
use rsock_verbs::{HighFd, own_fd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::fstat;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netlink, recv, sendto,
    socket_with,
};
use std::io;
use std::sync::Mutex;

/// The socket that is kept.
static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

/// A bit that no process id has (`PID_MAX_LIMIT` is 1 << 22).
const NO_PROCESS: u32 = 1 << 30;
/// `nlmsg_seq` of `struct nlmsghdr`.
const AT_NUMBER: usize = 8;
/// Answers to earlier requests that are passed over: one that a signal or a shortage of memory
/// ended may have left its answer.
const MOST_STALE: usize = 8;

#[derive(Debug)]
struct Kept {
    socket: HighFd,
    /// The process that opened it: a forked child that shares it would take answers from it.
    owner: ProcessId,
    inode: u64,
    /// The number of the last request.
    number: u32,
}

impl Kept {
    fn open() -> io::Result<Self> {
        let socket = HighFd::new(open()?);
        // The kernel would give it the process id, by which programs may want to have a socket of
        // their own. No process has this one; where it is taken all the same the kernel chooses.
        let _ = bind(&socket, &SocketAddrNetlink::new(process().0 | NO_PROCESS, 0));
        let inode = fstat(&socket)?.st_ino;
        Ok(Self { socket, owner: process(), inode, number: 0 })
    }

    fn is_own(&self) -> bool {
        self.owner == process()
    }

    /// Whether it is still open: a program may have closed it without this library, and have a file
    /// of its own under that number.
    fn is_open(&self) -> bool {
        fstat(&self.socket).is_ok_and(|stat| stat.st_ino == self.inode)
    }

    /// Gives up a socket that another process has too, or that is no longer open.
    fn discard(self) {
        if !self.is_open() {
            own_fd::forget(self.socket.as_fd().as_raw_fd());
            std::mem::forget(self.socket);
        }
    }
}

/// Sends `request`, a netlink message, and receives the answer. Returns its length. The socket that
/// is kept belongs to the network namespace in which it was opened: where `is_expected` does not
/// hold of its answer, the answer is that of a socket of this thread's namespace.
///
/// # Errors
/// When no descriptor is free, and what the kernel answers.
pub(in crate::accelerate) fn ask(
    request: &mut [u8],
    answer: &mut [u8],
    is_expected: impl Fn(&[u8]) -> bool,
) -> io::Result<usize> {
    if let Some(n) = ask_by_kept(request, answer)
        && is_expected(&answer[..n])
    {
        return Ok(n);
    }
    ask_by(open()?.as_fd(), 0, request, answer)
}

/// The answer to the socket that is kept, unless another thread uses it.
fn ask_by_kept(request: &mut [u8], answer: &mut [u8]) -> Option<usize> {
    let mut kept = try_lock(&KEPT)?;
    if let Some(other) = kept.take_if(|kept| !kept.is_own() || !kept.is_open()) {
        other.discard();
    }
    let kept = match &mut *kept {
        Some(kept) => kept,
        none => none.insert(Kept::open().ok()?),
    };
    kept.number = kept.number.wrapping_add(1);
    ask_by(kept.socket.as_fd(), kept.number, request, answer).ok()
}

fn ask_by(
    socket: BorrowedFd<'_>,
    number: u32,
    request: &mut [u8],
    answer: &mut [u8],
) -> io::Result<usize> {
    let number = number.to_ne_bytes();
    let at_number = request.get_mut(AT_NUMBER..AT_NUMBER + number.len());
    at_number.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(&number);
    sendto(socket, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    for _ in 0..MOST_STALE {
        // The kernel answers within `sendto`: this never waits.
        let (n, _) = recv(socket, &mut *answer, RecvFlags::DONTWAIT)?;
        if answer[..n].get(AT_NUMBER..).is_some_and(|rest| rest.starts_with(&number)) {
            return Ok(n);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn open() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request about a connection that does not exist, which the kernel answers by an error.
    fn request() -> [u8; 72] {
        let mut request = [0; 72];
        request[0] = 72;
        request[4] = 20; // SOCK_DIAG_BY_FAMILY
        request[6] = 1; // NLM_F_REQUEST
        request[16..18].copy_from_slice(&[2, 6]); // AF_INET, IPPROTO_TCP
        request
    }

    #[test]
    fn an_answer_that_was_left_is_not_taken_for_the_next() {
        let socket = open().expect("a socket");
        let to = SocketAddrNetlink::new(0, 0);
        sendto(&socket, &request(), SendFlags::empty(), &to).expect("asked");
        let mut answer = [0; 512];
        let n = ask_by(socket.as_fd(), 7, &mut request(), &mut answer).expect("an answer");
        assert_eq!(answer[AT_NUMBER..n].first_chunk(), Some(&7u32.to_ne_bytes()));
        let none = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT).map(|_| ());
        assert_eq!(none, Err(rustix::io::Errno::AGAIN));
    }

    #[test]
    fn another_file_under_the_number_of_the_socket_is_left_alone() {
        // As if the program had closed the socket and opened this under its number.
        let file = std::fs::File::open("/dev/null").expect("open");
        let kept = Kept { socket: HighFd::new(file.into()), ..Kept::open().expect("a socket") };
        let number = kept.socket.as_fd().as_raw_fd();
        assert!(kept.is_own() && !kept.is_open() && own_fd::is_own(number));
        kept.discard();
        assert!(!own_fd::is_own(number));
        let file = std::fs::read_link(format!("/proc/self/fd/{number}")).expect("still open");
        assert_eq!(file, std::path::Path::new("/dev/null"));
    }
}
