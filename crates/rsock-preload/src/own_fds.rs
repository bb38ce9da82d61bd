//! The descriptors of this library in the epoll set of a program.

use crate::raw_epoll;
use libc::epoll_event;
use rsock_verbs::soft::SoftReadySet;
use rsock_verbs::{Bell as _, HighFd};
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, RawFd};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// The ready set of the rings, and the set of the kernel's that watches the members' sockets.
pub(crate) struct OwnFds {
    pub(crate) ready: SoftReadySet,
    sockets: HighFd,
}

const IN: u32 = libc::EPOLLIN.cast_unsigned();
const EDGE: u32 = libc::EPOLLET.cast_unsigned();

/// What the kernel is asked of the socket of a member that the library watches. Each event is
/// reported once, and says that the socket is to be asked.
pub(crate) const OF_SOCKET: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLET)
        .cast_unsigned();

/// The data of this library's own events in sets of the program, the same in all of them: the
/// doorbell's is this number, the next ones are the socket watch's and the doorbell pipe's. Random,
/// so that no program has it.
static OWN_DATA: AtomicU64 = AtomicU64::new(0);

fn own_data() -> u64 {
    let known = OWN_DATA.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mut random = [0; 8];
    // Without randomness the number is still one that no pointer and no small number has.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK);
    let fresh = u64::from_ne_bytes(random) & !3 | 1 << 63;
    match OWN_DATA.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fresh,
        Err(other) => other,
    }
}

/// What the socket watch tells of a member.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tells {
    /// Its socket has an event.
    Socket,
    /// Something has happened on the ring of a stream between hosts.
    Doorbell,
    /// The device or the peer's host may have ended the connection.
    Connection,
}

impl Tells {
    fn data(self, member: u32) -> u64 {
        (self as u64) << 32 | u64::from(member)
    }

    fn of(data: u64) -> (u32, Self) {
        #[expect(clippy::cast_possible_truncation, reason = "each half is meant")]
        let (tells, member) = ((data >> 32) as u32, data as u32);
        let tells = match tells {
            0 => Self::Socket,
            1 => Self::Doorbell,
            _ => Self::Connection,
        };
        (member, tells)
    }
}

/// An event of this library's own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnEvent {
    Doorbell,
    Sockets,
    Pipe,
}

impl OwnEvent {
    /// How many there are, each of which may take the place of an event of the program.
    pub(crate) const COUNT: usize = 3;

    /// The data of such an event.
    pub(crate) fn data(self) -> u64 {
        match self {
            Self::Doorbell => own_data(),
            Self::Sockets => own_data() | 1,
            Self::Pipe => own_data() | 2,
        }
    }

    /// Which event of this library's own an event of the kernel is, if it is one.
    pub(crate) fn of(event: &epoll_event) -> Option<Self> {
        let (data, own) = (event.u64, OWN_DATA.load(Ordering::Relaxed));
        if own == 0 || data & !3 != own {
            return None;
        }
        match data & 3 {
            0 => Some(Self::Doorbell),
            1 => Some(Self::Sockets),
            2 => Some(Self::Pipe),
            _ => None,
        }
    }
}

impl OwnFds {
    /// Adds descriptors to `set`.
    ///
    /// # Errors
    /// When no descriptor is free, or no memory.
    pub(crate) fn new(set: RawFd) -> io::Result<Self> {
        let ready = SoftReadySet::new().map_err(|_| rustix::io::Errno::MFILE)?;
        let sockets = HighFd::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let data = OwnEvent::Doorbell.data();
        raw_epoll::add(set, ready.as_fd().as_raw_fd(), IN | EDGE, data)?;
        let added = raw_epoll::add(set, sockets.as_fd().as_raw_fd(), IN, OwnEvent::Sockets.data());
        if added.is_err() {
            let _ = raw_epoll::remove(set, ready.as_fd().as_raw_fd());
        }
        added.map(|()| Self { ready, sockets })
    }

    /// Gives the doorbell a pipe, which `set` watches too, if it has rung often.
    pub(crate) fn add_pipe_if_busy(&self, set: RawFd) {
        self.ready.bell().add_pipe_if_busy(|pipe| {
            let data = OwnEvent::Pipe.data();
            raw_epoll::add(set, pipe.as_raw_fd(), IN | EDGE, data).is_ok()
        });
    }

    /// Takes the descriptors out of `set`.
    pub(crate) fn leave(&self, set: RawFd) {
        let _ = raw_epoll::remove(set, self.ready.as_fd().as_raw_fd());
        let _ = raw_epoll::remove(set, self.sockets.as_fd().as_raw_fd());
        if let Some(pipe) = self.ready.bell().pipe() {
            let _ = raw_epoll::remove(set, pipe.as_raw_fd());
        }
    }

    /// Watches the socket of a member. It is watched already where a member that the program knows
    /// by a closed number has this number now.
    ///
    /// # Errors
    /// As `epoll_ctl(2)`.
    pub(crate) fn watch_socket(&self, fd: RawFd, member: u32) -> io::Result<()> {
        let data = Tells::Socket.data(member);
        match raw_epoll::add(self.sockets.as_fd().as_raw_fd(), fd, OF_SOCKET, data) {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            done => done,
        }
    }

    /// Watches a descriptor beside the socket of a member, which `tells` of its ring or of its
    /// connection, until that is closed or [`Self::unwatch_socket`] is called.
    ///
    /// # Errors
    /// As `epoll_ctl(2)`.
    pub(crate) fn watch_beside(&self, fd: RawFd, member: u32, tells: Tells) -> io::Result<()> {
        raw_epoll::add(self.sockets.as_fd().as_raw_fd(), fd, IN | EDGE, tells.data(member))
    }

    /// Ends [`Self::watch_socket`] and [`Self::watch_beside`].
    pub(crate) fn unwatch_socket(&self, fd: RawFd) {
        let _ = raw_epoll::remove(self.sockets.as_fd().as_raw_fd(), fd);
    }

    /// Takes one of this library's own events, which the kernel has reported. If it is the socket
    /// watch's, calls `found` with each member of which that tells something.
    pub(crate) fn take_event(&self, event: OwnEvent, found: impl FnMut((u32, Tells))) {
        match event {
            OwnEvent::Doorbell => drop(self.ready.drain()),
            OwnEvent::Pipe => self.ready.note_waker(),
            OwnEvent::Sockets => self.take_socket_events(found),
        }
    }

    /// Calls `found` with each member of which the socket watch tells something.
    pub(crate) fn take_socket_events(&self, mut found: impl FnMut((u32, Tells))) {
        const ROOM: usize = 64;
        let mut events = [epoll_event { events: 0, u64: 0 }; ROOM];
        while let Ok(n) = raw_epoll::take(self.sockets.as_fd().as_raw_fd(), &mut events) {
            for event in &events[..n] {
                found(Tells::of(event.u64));
            }
            if n < ROOM {
                break;
            }
        }
    }
}
