//! Doors: beside listening sockets of the program, their places in the ports of RDMA devices, for peers
//! that speak rsockets alone. Only where the configuration wants them.
//!
//! `listen` opens one, as it opens the kernel's queue. A process that forks before it has waited for
//! anybody closes it again: who comes to waiting first, the parent or a child, opens the next. A port
//! of a device has one listener, so of several processes that wait on one socket one has the door.
//!
//! Invariant: what keeps the list is locked inside a [`Section`] only, so a signal handler that waits for
//! a listening socket never waits for what it interrupted; and over a fork.

use crate::{errno, fdtable, guard, log};
use libc::c_int;
use rsock_core::accelerate::{self, AcceleratedStream, NativeListener, PollEntry};
use rsock_core::interrupt::{Section, Watch};
use rsock_verbs::HighFd;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::FdFlags;
use rustix::net::sockopt;
use std::io;
use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static DOORS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
/// The lock on the list while the process forks.
static HELD: AtomicPtr<MutexGuard<'static, Vec<Entry>>> = AtomicPtr::new(ptr::null_mut());

/// A listening socket.
struct Entry {
    inode: u64,
    post: Option<Arc<Post>>,
    /// Somebody has waited for it in this process.
    is_awaited: bool,
    tried: Option<Instant>,
}

/// A door, and who stands at it.
pub(crate) struct Post {
    door: NativeListener,
    /// The thread that waits in `accept`, for the door and the kernel's queue; 0 for none. Two could see
    /// one connection come to the queue, and one of them then sleep there, deaf to the door.
    keeper: AtomicU32,
    /// Rung when there is no keeper any more.
    relieved: HighFd,
}

/// How long after a door could not be opened it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// How a call of `accept` ended.
pub(crate) enum Accepted {
    /// The kernel's answer.
    Kernel(c_int),
    /// A visitor's descriptor and address.
    Visitor(c_int, SocketAddr),
    Failed(c_int),
}

/// `fd` listens now.
pub(crate) fn note_listening(fd: c_int) {
    let _section = Section::enter();
    let _ = guard::enter(|| {
        if NativeListener::is_wanted() {
            drop(find(fd, false));
        }
        Ok(())
    });
}

/// `fd`, which listens, is about to be closed.
pub(crate) fn note_closing(fd: c_int) {
    let _section = Section::enter();
    let _ = guard::enter(|| {
        let inode = inode_of(fd)?;
        let is_same = |other: &c_int| *other != fd && inode_of(*other).is_ok_and(|i| i == inode);
        if !fdtable::listening().any(|other| is_same(&other)) {
            let mut doors = lock();
            let closed = doors.iter().position(|entry| entry.inode == inode);
            let closed = closed.map(|i| doors.swap_remove(i));
            drop(doors);
            drop(closed);
        }
        Ok(())
    });
}

/// The door of listening socket `fd`, for somebody who is about to wait.
pub(crate) fn of(fd: c_int) -> Option<Arc<Post>> {
    if guard::is_inside() {
        return None;
    }
    let _section = Section::enter();
    guard::enter(|| find(fd, true)).ok().flatten()
}

/// As `accept` on `fd`; `kernel` asks the kernel's queue of the listening socket that it is given. `None`
/// if there is no door.
pub(crate) fn accept(fd: c_int, flags: c_int, kernel: impl Fn(c_int) -> c_int) -> Option<Accepted> {
    let post = of(fd)?;
    let mut watch = Watch::begin();
    // SAFETY: not -1, since it has a door; only duplicated.
    let named = unsafe { BorrowedFd::borrow_raw(fd) };
    // Other threads may close the number while this one sleeps.
    let kept = guard::enter(|| Ok(HighFd::new(rustix::io::fcntl_dupfd_cloexec(named, 0)?)));
    let kept = match kept {
        Ok(kept) => kept,
        Err(e) => return Some(Accepted::Failed(e)),
    };
    let socket = kept.as_fd();
    let fd = socket.as_raw_fd();
    let is_nonblocking =
        rustix::fs::fcntl_getfl(socket).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
    let limit = sockopt::socket_timeout(socket, sockopt::Timeout::Recv).ok().flatten();
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        match guard::enter(|| post.door.accept(socket)) {
            Ok(Some((near, twin))) => return Some(settle(near, twin, flags)),
            Ok(None) => {}
            Err(e) => return Some(Accepted::Failed(e)),
        }
        if is_nonblocking {
            return Some(Accepted::Kernel(kernel(fd)));
        }
        let is_keeper = post.take();
        if is_keeper && is_ready(socket) {
            let new = kernel(fd);
            post.leave();
            return Some(Accepted::Kernel(new));
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let waited = guard::enter(|| post.wait(is_keeper, fd, left));
        if is_keeper {
            post.leave();
        }
        match waited {
            Ok(0) => return Some(Accepted::Failed(libc::EAGAIN)),
            Ok(_) => {}
            Err(libc::EINTR) if !watch.must_end() && deadline.is_none() => watch.restart(),
            Err(e) => return Some(Accepted::Failed(e)),
        }
    }
}

/// The process is about to fork, inside a section.
pub(crate) fn prepare_fork() {
    let mut doors = lock();
    let _ = guard::enter(|| {
        for entry in doors.iter_mut().filter(|entry| !entry.is_awaited) {
            entry.post = None;
            entry.tried = None;
        }
        Ok(())
    });
    HELD.store(Box::into_raw(Box::new(doors)), Ordering::Relaxed);
}

/// Ends what [`prepare_fork`] began.
pub(crate) fn after_fork_in_parent() {
    drop(held());
}

/// Ends what [`prepare_fork`] began, in the child, whose parent's doors are not its own.
pub(crate) fn after_fork_in_child() {
    let Some(mut doors) = held() else { return };
    let _ = guard::enter(|| {
        for entry in doors.iter_mut() {
            entry.is_awaited = false;
            entry.tried = None;
            // Otherwise a thread held it that this process does not have.
            if let Some(post) = entry.post.take().and_then(Arc::into_inner) {
                post.door.abandon();
            }
        }
        Ok(())
    });
}

fn held() -> Option<MutexGuard<'static, Vec<Entry>>> {
    let held = HELD.swap(ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: not null, so what `prepare_fork` stored on this very thread (in a child, its copy), taken
    // once.
    (!held.is_null()).then(|| *unsafe { Box::from_raw(held) })
}

fn lock() -> MutexGuard<'static, Vec<Entry>> {
    DOORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The door of `fd`, opened if need be and not tried a moment ago.
fn find(fd: c_int, is_awaited: bool) -> io::Result<Option<Arc<Post>>> {
    let inode = inode_of(fd)?;
    let mut doors = lock();
    let known = doors.iter().position(|entry| entry.inode == inode);
    let at = known.unwrap_or(doors.len());
    if known.is_none() {
        doors.push(Entry { inode, post: None, is_awaited, tried: None });
    }
    let entry = &mut doors[at];
    entry.is_awaited |= is_awaited;
    if entry.post.is_none() && entry.tried.is_none_or(|tried| tried.elapsed() >= AGAIN) {
        entry.tried = Some(Instant::now());
        match Post::open(fd) {
            Ok(post) => {
                log::line(format_args!("fd {fd}: has a door"));
                entry.post = Some(Arc::new(post));
            }
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                // Never: it is no socket for that.
                doors.swap_remove(at);
                return Ok(None);
            }
            Err(e) => log::line(format_args!("fd {fd}: has no door, {e}")),
        }
    }
    fdtable::note_listening(fd);
    Ok(doors[at].post.clone())
}

fn inode_of(fd: c_int) -> io::Result<u64> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: not negative; only asked about, and nothing follows if it is not open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(rustix::fs::fstat(fd)?.st_ino)
}

/// Whether the kernel's queue has somebody.
fn is_ready(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|n| n != 0)
}

/// Gives a visitor's descriptor to the program.
fn settle(near: OwnedFd, twin: AcceleratedStream, flags: c_int) -> Accepted {
    let peer = twin.sole_addrs().map(|[_, peer]| peer);
    let made = guard::enter(|| {
        let (fd, wishes) = (near.as_raw_fd(), |flag| flags & flag != 0);
        if !wishes(libc::SOCK_NONBLOCK) {
            rustix::fs::fcntl_setfl(&near, OFlags::empty())?;
        }
        if !wishes(libc::SOCK_CLOEXEC) {
            rustix::io::fcntl_setfd(&near, FdFlags::empty())?;
        }
        fdtable::note_stream_made(fd, twin).map_err(io::Error::from_raw_os_error)?;
        Ok((near.into_raw_fd(), peer))
    });
    match made {
        Ok((fd, Some(peer))) => Accepted::Visitor(fd, peer),
        Ok((_, None)) => Accepted::Failed(libc::ECONNABORTED),
        Err(e) => Accepted::Failed(e),
    }
}

impl Post {
    fn open(fd: c_int) -> io::Result<Self> {
        // SAFETY: not negative, since it has an inode; the program's own.
        let door = NativeListener::open(unsafe { BorrowedFd::borrow_raw(fd) })?;
        let relieved = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { door, keeper: AtomicU32::new(0), relieved: HighFd::new(relieved) })
    }

    /// To wait for it in `poll`.
    pub(crate) fn door(&self) -> &NativeListener {
        &self.door
    }

    /// Becomes the keeper; false if another thread is.
    fn take(&self) -> bool {
        let me = this_thread();
        match self.keeper.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                let _ = rustix::io::read(&self.relieved, &mut [0; 8]);
                true
            }
            // From a call that a signal handler left by longjmp.
            Err(keeper) => keeper == me,
        }
    }

    fn leave(&self) {
        self.keeper.store(0, Ordering::Release);
        // It can only fail when the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.relieved, &1u64.to_ne_bytes());
    }

    /// Sleeps as the keeper until somebody comes, or else until there is no keeper.
    fn wait(&self, is_keeper: bool, fd: c_int, left: Option<Duration>) -> io::Result<usize> {
        let (fd, door) = if is_keeper {
            (fd, Some(&self.door))
        } else {
            (self.relieved.as_fd().as_raw_fd(), None)
        };
        let events = PollFlags::IN;
        let revents = PollFlags::empty();
        let mut entries =
            [PollEntry { fd, twin: None, door, udp: None, call: None, events, revents }];
        accelerate::poll(&mut entries, left, None)
    }
}

fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

impl Accepted {
    /// As C has it: the descriptor, or -1 and `errno`.
    pub(crate) fn answer(&self) -> c_int {
        match self {
            Self::Kernel(new) | Self::Visitor(new, _) => *new,
            Self::Failed(e) => errno::fail_int(*e),
        }
    }
}
