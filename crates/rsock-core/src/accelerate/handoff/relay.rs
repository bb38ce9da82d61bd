//! The relay: a process that keeps a stream after a handoff and carries bytes between the stream
//! and the socket proxy that the program was given.
//!
//! What each end does reaches the other as it would without the relay: bytes, the end of a
//! direction, a reset, a full buffer. It runs in [`crate::accelerate::handoff::detached_process`],
//! so nothing here allocates; while the ring is in use the relay polls it at intervals, since a
//! doorbell would have to be allocated.

use crate::accelerate::four_tuple::FourTuple;
use crate::accelerate::handoff::Claim;
use crate::accelerate::state::{FLAG_RX_PLAIN, FLAG_TX_PLAIN};
use crate::accelerate::{AcceleratedStream, verify};
use crate::sys;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown, sockopt};
use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

/// Bytes on their way in one direction, at most.
const ROOM: usize = 64 * 1024;
/// The first pause between two polls; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(1);
/// How often the pause is doubled: while bytes may come, and while only the program's end may.
const DOUBLINGS: (u32, u32) = (5, 10);
/// How often an end is checked before it counts as that of one direction: a socket that is being
/// closed ends its direction a moment earlier.
const CHECKS: u32 = 5;

/// Carries bytes until both directions have ended. `socket` is the stream's socket, `program` the
/// end of the socket proxy that rsock kept.
pub(in crate::accelerate) fn run(
    stream: &AcceleratedStream,
    socket: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    claim: Claim,
) {
    let me = rsock_verbs::family::process().0;
    let (Some(inward), Some(outward)) = (Buffer::new(), Buffer::new()) else {
        return reset(program);
    };
    let mut relay = Relay {
        stream,
        socket,
        program,
        me,
        may_read: claim == Claim::Certain,
        inward,
        outward,
        inward_ended: Ended::No,
        outward_ended: Ended::No,
        is_discarding: false,
    };
    let mut idle = 0;
    loop {
        match relay.step() {
            Step::Moved => idle = 0,
            Step::Stuck if relay.wait(idle) => idle += 1,
            Step::Stuck => return reset(program),
            Step::Over => return,
        }
    }
}

struct Relay<'a> {
    stream: &'a AcceleratedStream,
    socket: BorrowedFd<'a>,
    program: BorrowedFd<'a>,
    me: u32,
    /// No other process can want the bytes of the stream.
    may_read: bool,
    /// Bytes to the program.
    inward: Buffer,
    /// Bytes from the program.
    outward: Buffer,
    inward_ended: Ended,
    outward_ended: Ended,
    /// The stream takes no more bytes from the program.
    is_discarding: bool,
}

/// How far the end of a direction has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    No,
    /// Seen, and to be checked this many times more; the bytes before it are on their way.
    Seen(u32),
    /// Passed on.
    PassedOn,
}

#[derive(PartialEq, Eq)]
enum Step {
    Moved,
    Stuck,
    Over,
}

/// Why a transfer moved nothing.
enum Blocked {
    Full,
    Broken,
}

impl Relay<'_> {
    fn step(&mut self) -> Step {
        self.may_read = self.may_read || !self.stream.dirs.holders.0.has_others(self.me);
        let mut moved = false;
        if self.inward_ended == Ended::No && self.may_read && self.inward.is_empty() {
            match self.read_stream() {
                Ok(0) => self.inward_ended = Ended::Seen(0),
                Ok(_) => moved = true,
                Err(Blocked::Full) => {}
                Err(Blocked::Broken) => return self.end_with_stream(),
            }
        }
        match self.write_program() {
            Ok(n) => moved |= n != 0,
            Err(Blocked::Full) => {}
            Err(Blocked::Broken) => return self.end_with_program(true),
        }
        if self.inward_ended == Ended::Seen(0) && self.inward.is_empty() {
            let _ = shutdown(self.program, Shutdown::Write);
            self.inward_ended = Ended::PassedOn;
            moved = true;
        }
        if self.outward_ended == Ended::No && self.outward.is_empty() {
            match self.read_program() {
                Ok(0) => self.outward_ended = Ended::Seen(CHECKS),
                Ok(_) => moved = true,
                Err(Blocked::Full) => {}
                Err(Blocked::Broken) => return self.end_with_program(true),
            }
        }
        if self.is_discarding {
            self.outward.clear();
        }
        match self.write_stream() {
            Ok(n) => moved |= n != 0,
            Err(Blocked::Full) => {}
            Err(Blocked::Broken) if self.inward_ended == Ended::PassedOn => {
                return self.end_with_stream();
            }
            Err(Blocked::Broken) => {
                // The program still gets what came before the end. What it writes meanwhile is
                // lost, as on TCP, and must not keep it waiting for room: a Unix socket refuses it,
                // another one's is discarded.
                self.outward.clear();
                self.is_discarding = true;
                let _ = shutdown(self.program, Shutdown::Read);
            }
        }
        match self.outward_ended {
            Ended::No => {}
            _ if self.is_closed() => return self.end_with_program(false),
            Ended::Seen(0) if self.outward.is_empty() => {
                let _ = self.stream.shutdown(self.socket, Shutdown::Write);
                self.outward_ended = Ended::PassedOn;
                moved = true;
            }
            Ended::Seen(n) => self.outward_ended = Ended::Seen(n.saturating_sub(1)),
            Ended::PassedOn => {}
        }
        let is_outward_over = self.is_discarding || self.outward_ended == Ended::PassedOn;
        if self.inward_ended == Ended::PassedOn && is_outward_over {
            self.close_in_order();
            return Step::Over;
        }
        if moved { Step::Moved } else { Step::Stuck }
    }

    fn read_stream(&mut self) -> Result<usize, Blocked> {
        let mut bufs = [IoSliceMut::new(self.inward.room())];
        let n = self.stream.recv(self.socket, &mut bufs, RecvFlags::DONTWAIT);
        let n = n.map_err(|e| Blocked::from(Errno::from_io_error(&e)))?;
        self.inward.filled(n);
        Ok(n)
    }

    fn write_program(&mut self) -> Result<usize, Blocked> {
        if self.inward.is_empty() {
            return Ok(0);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let n =
            send(self.program, self.inward.rest(), flags).map_err(|e| Blocked::from(Some(e)))?;
        self.inward.taken(n);
        Ok(n)
    }

    fn read_program(&mut self) -> Result<usize, Blocked> {
        let got = recv(self.program, self.outward.room(), RecvFlags::DONTWAIT);
        let (n, _) = got.map_err(|e| Blocked::from(Some(e)))?;
        self.outward.filled(n);
        Ok(n)
    }

    fn write_stream(&mut self) -> Result<usize, Blocked> {
        if self.outward.is_empty() {
            return Ok(0);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let n = self.stream.send(self.socket, &[IoSlice::new(self.outward.rest())], flags);
        let n = n.map_err(|e| Blocked::from(Errno::from_io_error(&e)))?;
        self.outward.taken(n);
        Ok(n)
    }

    /// The stream's connection is broken: breaks the program's too.
    fn end_with_stream(&self) -> Step {
        reset(self.program);
        Step::Over
    }

    /// The program has closed its descriptors, or reset them. If no other process holds the stream
    /// this is its end, with a reset if something is unread, as on TCP.
    fn end_with_program(&self, was_reset: bool) -> Step {
        let unread = || {
            let ring = self.stream.path().map_or(0, |path| path.bytes_readable());
            was_reset || !self.inward.is_empty() || ring != 0
        };
        if !self.stream.dirs.holders.0.has_others(self.me) && unread() {
            reset(self.socket);
        } else {
            self.close_in_order();
        }
        Step::Over
    }

    /// The program may have set `SO_LINGER` 0 on the stream's socket. Its own close has done what
    /// that asks for; the relay's close must not reset a connection that has ended in order. Other
    /// processes keep the option.
    fn close_in_order(&self) {
        if !self.stream.dirs.holders.0.has_others(self.me) {
            let _ = sockopt::set_socket_linger(self.socket, None);
        }
    }

    /// Whether the program holds no descriptor any more.
    fn is_closed(&self) -> bool {
        match FourTuple::of(self.program) {
            Ok(Some(tuple)) => match verify::other_end(&tuple) {
                Ok(id) => id.inode == 0,
                Err(e) => e.kind() == std::io::ErrorKind::NotFound,
            },
            // A Unix socket shows the close by itself.
            Ok(None) => {
                let program = self.program.as_raw_fd();
                let mut fds = [libc::pollfd { fd: program, events: 0, revents: 0 }];
                let asked = sys::ppoll(&mut fds, Some(Duration::ZERO), None);
                asked.is_ok() && fds[0].revents & libc::POLLHUP != 0
            }
            // It is not connected any more.
            Err(_) => true,
        }
    }

    /// Sleeps until something can move, `idle` times in a row so far. Returns `false` if the stream
    /// broke after its end had been passed on.
    fn wait(&self, idle: u32) -> bool {
        let reads_stream =
            self.inward_ended == Ended::No && self.may_read && self.inward.is_empty();
        let mut stream = 0;
        if reads_stream {
            stream |= libc::POLLIN | libc::POLLRDHUP;
        }
        if !self.outward.is_empty() {
            stream |= libc::POLLOUT;
        }
        let mut program = 0;
        if self.outward_ended == Ended::No && self.outward.is_empty() {
            program |= libc::POLLIN;
        }
        if !self.inward.is_empty() {
            program |= libc::POLLOUT;
        }
        // Errors are reported unasked, again and again: a descriptor is left out if its answer
        // could not be acted on.
        let may_break = self.inward_ended == Ended::PassedOn && self.outward_ended == Ended::No;
        let fd_if = |is_polled, fd: BorrowedFd<'_>| if is_polled { fd.as_raw_fd() } else { -1 };
        let mut fds = [
            libc::pollfd {
                fd: fd_if(stream != 0 || may_break, self.socket),
                events: stream,
                revents: 0,
            },
            libc::pollfd { fd: fd_if(program != 0, self.program), events: program, revents: 0 },
        ];
        let on_ring = reads_stream && !self.stream.has(FLAG_RX_PLAIN)
            || !self.outward.is_empty() && !self.stream.has(FLAG_TX_PLAIN);
        let doublings = match self.outward_ended {
            Ended::Seen(_) => Some(0),
            _ if on_ring || !self.may_read => Some(DOUBLINGS.0),
            Ended::PassedOn => Some(DOUBLINGS.1),
            Ended::No => None,
        };
        let _ = sys::ppoll(&mut fds, doublings.map(|most| PAUSE * (1 << idle.min(most))), None);
        !may_break || fds[0].revents & (libc::POLLERR | libc::POLLHUP) == 0
    }
}

impl From<Option<Errno>> for Blocked {
    fn from(e: Option<Errno>) -> Self {
        match e {
            Some(Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::NOBUFS) => Self::Full,
            _ => Self::Broken,
        }
    }
}

/// Makes the close of `socket` a reset for the other end.
fn reset(socket: BorrowedFd<'_>) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Bytes that were taken from one side and not yet given to the other.
struct Buffer {
    bytes: &'static mut [u8],
    /// The bytes left are `start..end`.
    start: usize,
    end: usize,
}

impl Buffer {
    fn new() -> Option<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), ROOM, access, MapFlags::PRIVATE) };
        let at = at.ok()?.cast::<u8>();
        // SAFETY: mapped above with that size, zeroed, never unmapped, and referenced only here.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at, ROOM) };
        Some(Self { bytes, start: 0, end: 0 })
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Where to put bytes; only to be used when the buffer is empty.
    fn room(&mut self) -> &mut [u8] {
        self.bytes
    }

    fn filled(&mut self, n: usize) {
        (self.start, self.end) = (0, n);
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn taken(&mut self, n: usize) {
        self.start += n;
    }

    fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }
}
