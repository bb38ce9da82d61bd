//! Doorbell pipes: a faster way to ring the doorbell of an event loop.
//!
//! A ring through a pipe takes half of what a datagram to the [bell](super::bell) takes, and an
//! epoll set that watches the pipe by edges need not take it out: the kernel reports each write.
//! A [`DoorbellPipe`] stands beside a bell and does not replace it. It takes 4,096 rings; after
//! them, and wherever a peer cannot open the pipe, the bell rings, and its owner empties both.
//!
//! The owner writes the pipe's [name](PipeName) into its wait line. The peer opens the pipe through
//! `/proc`, which the kernel permits to a process that may inspect the owner: it could open every
//! other pipe of the owner, too. By a name that a hostile owner made up a peer opens nothing but a
//! pipe of that owner, and only if the owner could stop the peer by a signal.
//!
//! PERF: a wake-up and an answer between two processes on one CPU took 18.2 us by datagrams that
//! are taken out, 10.4 by bytes of a pipe that are taken out, and 7.8 by those that are not.

use crate::cred::PeerCred;
use crate::high_fd::HighFd;
use crate::own_fd;
use crate::raw;
use crate::untrusted;
use rustix::event::{Timespec, epoll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open, readlinkat_raw};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::ffi::CStr;
use std::io::Write;
use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Where another process finds a pipe: the number of a descriptor in its owner's process, and the
/// pipe's inode number, by which a number that means another file by now is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PipeName {
    fd: u32,
    inode: u32,
}

impl PipeName {
    /// As a wait line holds it; never 0, because no inode has number 0.
    pub(super) fn to_word(self) -> u64 {
        u64::from(self.fd) << 32 | u64::from(self.inode)
    }

    /// `None` for a word that names no pipe.
    #[expect(clippy::cast_possible_truncation, reason = "each half is meant")]
    fn of_word(word: u64) -> Option<Self> {
        let (fd, inode) = ((word >> 32) as u32, word as u32);
        (inode != 0 && RawFd::try_from(fd).is_ok()).then_some(Self { fd, inode })
    }
}

/// The owner's end.
#[derive(Debug)]
pub(super) struct DoorbellPipe {
    /// Open for reading and writing, so that the pipe never counts as closed.
    fd: HighFd,
    name: PipeName,
    _counted: Counted,
}

/// An open pipe, counted among those of the process: each takes a descriptor, which the program may
/// need.
#[derive(Debug)]
struct Counted;

static N_OPEN: AtomicU32 = AtomicU32::new(0);
/// Pipes of a process at most, its own and those of peers.
const MOST_OPEN: u32 = 64;

impl Counted {
    fn new() -> Option<Self> {
        let more = |n: u32| (n < MOST_OPEN).then_some(n + 1);
        N_OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        N_OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Room in a pipe, in bytes: the smallest, a page.
const ROOM: usize = 4096;
/// Answers of [`reports_each_write`]; 0 if it is not known yet.
const YES: u8 = 1;
const NO: u8 = 2;

impl DoorbellPipe {
    /// A pipe, if this process can have one that rings as a doorbell has to.
    pub(super) fn new() -> Option<Self> {
        static REPORTS_EACH_WRITE: AtomicU8 = AtomicU8::new(0);
        if untrusted::is_restricted() || REPORTS_EACH_WRITE.load(Ordering::Relaxed) == NO {
            return None;
        }
        let counted = Counted::new()?;
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        let (reader, _writer) = (HighFd::in_passing(reader), HighFd::in_passing(writer));
        // The kernel counts a user's pipes by their pages. Best effort.
        let _ = fcntl_setpipe_size(&reader, ROOM);
        let fd = open_again(reader.as_fd())?;
        let name = PipeName {
            fd: u32::try_from(fd.as_fd().as_raw_fd()).ok()?,
            inode: u32::try_from(fstat(&fd).ok()?.st_ino).ok()?,
        };
        let this = Self { fd, name, _counted: counted };
        if REPORTS_EACH_WRITE.load(Ordering::Relaxed) == 0 {
            let reports = this.reports_each_write()?;
            REPORTS_EACH_WRITE.store(if reports { YES } else { NO }, Ordering::Relaxed);
            if !reports {
                return None;
            }
        }
        Some(this)
    }

    pub(super) fn name(&self) -> PipeName {
        self.name
    }

    /// Takes the rings out; returns whether there were any.
    pub(super) fn empty(&self) -> bool {
        let mut bytes = [MaybeUninit::<u8>::uninit(); ROOM];
        // Once: a hostile peer must not keep this thread here by writing on.
        rustix::io::read(&self.fd, &mut bytes).is_ok_and(|(read, _)| !read.is_empty())
    }

    /// Whether the kernel reports each write to a set that watches by edges, also while the pipe
    /// holds earlier bytes. Linux 5.5 to 5.13 did not (pipe: make pipe writes always wake up
    /// readers, 3a34b13a88ca). `None` if that cannot be found out.
    fn reports_each_write(&self) -> Option<bool> {
        let set = HighFd::in_passing(epoll::create(epoll::CreateFlags::CLOEXEC).ok()?);
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, &self.fd, epoll::EventData::new_u64(0), edges).ok()?;
        let mut reports = true;
        for _ in 0..2 {
            let mut events = [MaybeUninit::<epoll::Event>::uninit(); 1];
            rustix::io::write(&self.fd, &[1]).ok()?;
            let (found, _) = epoll::wait(&set, &mut events, Some(&Timespec::default())).ok()?;
            reports &= found.len() == 1;
        }
        self.empty();
        Some(reports)
    }
}

impl AsFd for DoorbellPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The doorbell pipes of a peer that this process has opened.
#[derive(Debug)]
pub(super) struct PeerPipes {
    owner: PeerCred,
    /// Never waited for: a child that was forked while it was held would wait for ever.
    opened: Mutex<Opened>,
}

#[derive(Debug, Default)]
struct Opened {
    pipes: [Option<Known>; MOST],
    /// Which one gives way to the next.
    oldest: usize,
    /// Rings by names for which there was no room.
    n_missed: u32,
}

/// Pipes of one peer that are kept open. A peer with more sleeping threads hears its bells.
const MOST: usize = 16;
/// Of the rings by names for which there is no room, each so many-th makes room for its name: pipes
/// whose owners have gone give way to others.
const REPLACE_EVERY: u32 = 256;

/// A name that a peer has given.
#[derive(Debug)]
struct Known {
    name: PipeName,
    /// `None` if it could not be opened.
    pipe: Option<PeerPipe>,
}

impl PeerPipes {
    pub(super) fn new(owner: PeerCred) -> Self {
        Self { owner, opened: Mutex::default() }
    }

    /// Rings through the pipe that the peer has named by `word`. False if the bell is to be rung
    /// instead.
    #[cold]
    pub(super) fn ring(&self, word: u64) -> bool {
        let Some(name) = PipeName::of_word(word) else { return false };
        // Its own system calls are those that such a program is known to need.
        if untrusted::is_restricted() {
            return false;
        }
        let Some(mut opened) = self.try_lock() else { return false };
        let Some(known) = opened.known(name, || PeerPipe::open(self.owner, name)) else {
            return false;
        };
        known.pipe.take_if(|pipe| !pipe.is_still_there());
        known.pipe.as_ref().is_some_and(PeerPipe::ring)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Opened>> {
        match self.opened.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Opened {
    fn known(
        &mut self,
        name: PipeName,
        open: impl FnOnce() -> Option<PeerPipe>,
    ) -> Option<&mut Known> {
        let is_it = |known: &Option<Known>| known.as_ref().is_some_and(|known| known.name == name);
        let known = self.pipes.iter().position(is_it);
        let at = match known.or_else(|| self.pipes.iter().position(Option::is_none)) {
            Some(at) => at,
            None => self.make_room()?,
        };
        Some(self.pipes[at].get_or_insert_with(|| Known { name, pipe: open() }))
    }

    /// A place for a further name, if one is to give way to it.
    fn make_room(&mut self) -> Option<usize> {
        self.n_missed = self.n_missed.wrapping_add(1);
        if !self.n_missed.is_multiple_of(REPLACE_EVERY) {
            return None;
        }
        let at = self.oldest;
        self.oldest = (at + 1) % MOST;
        self.pipes[at] = None;
        Some(at)
    }
}

/// A pipe of a peer, and its identity.
///
/// # Invariants
/// The descriptor is given up once, in `drop`.
#[derive(Debug)]
struct PeerPipe {
    fd: ManuallyDrop<HighFd>,
    device: u64,
    inode: u64,
    _counted: Counted,
}

impl PeerPipe {
    /// Opens the pipe that `owner` calls `name`. Nothing is opened but a pipe: another file could
    /// wait, or do something when it is opened.
    fn open(owner: PeerCred, name: PipeName) -> Option<Self> {
        if owner.pid == 0 || !may_stop_this_process(owner) {
            return None;
        }
        let counted = Counted::new()?;
        let mut path = [0; 48];
        write!(&mut path[..], "/proc/{}/fd/{}\0", owner.pid, name.fd).ok()?;
        // A look at a file that calls none of its operations.
        let looked = open(c_str(&path)?, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let looked = HighFd::in_passing(looked);
        if !is_pipe(looked.as_fd(), name.inode) {
            return None;
        }
        let fd = open_again(looked.as_fd())?;
        let stat = fstat(&fd).ok()?;
        let fd = ManuallyDrop::new(fd);
        Some(Self { fd, device: stat.st_dev, inode: stat.st_ino, _counted: counted })
    }

    /// Whether the descriptor is still the pipe. A program may have closed it without this library,
    /// and have a file of its own under that number.
    fn is_still_there(&self) -> bool {
        fstat(&*self.fd).is_ok_and(|stat| {
            (stat.st_dev, stat.st_ino) == (self.device, self.inode)
                && FileType::from_raw_mode(stat.st_mode) == FileType::Fifo
        })
    }

    /// False if the pipe is full.
    fn ring(&self) -> bool {
        rustix::io::write(&*self.fd, &[1]) == Ok(1)
    }
}

impl Drop for PeerPipe {
    fn drop(&mut self) {
        let is_there = self.is_still_there();
        // SAFETY: `self` is being dropped; the field is not used again.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if !is_there {
            // The number is the program's.
            own_fd::forget(fd.as_fd().as_raw_fd());
            mem::forget(fd);
        }
    }
}

/// Whether the kernel would let a process stop this one by a signal (`kill(2)`). A pipe's writer
/// waits while another process that has the pipe open holds its lock, which that can drag out by a
/// page fault in a file system of its own. So only a process that could stop this one anyway is
/// rung by a pipe.
fn may_stop_this_process(other: PeerCred) -> bool {
    let (mut real, mut effective, mut saved) = (0u32, 0u32, 0u32);
    // SAFETY: the three numbers are writable during the call.
    let asked = unsafe {
        raw::syscall!(libc::SYS_getresuid, &raw mut real, &raw mut effective, &raw mut saved)
    };
    asked.is_ok() && [real, effective, saved] == [other.uid; 3]
}

fn c_str(bytes: &[u8]) -> Option<&CStr> {
    CStr::from_bytes_until_nul(bytes).ok()
}

/// Whether `fd` is the pipe with this inode number, by the name that the kernel gives it. The name
/// of a file in a file system begins with a slash.
fn is_pipe(fd: BorrowedFd<'_>, inode: u32) -> bool {
    let is_named_so = || {
        let (mut path, mut expected) = ([0; 32], [0; 32]);
        write!(&mut path[..], "/proc/self/fd/{}\0", fd.as_raw_fd()).ok()?;
        write!(&mut expected[..], "pipe:[{inode}]\0").ok()?;
        let mut room = [MaybeUninit::<u8>::uninit(); 32];
        let (name, _) = readlinkat_raw(rustix::fs::CWD, c_str(&path)?, &mut room).ok()?;
        Some(name == c_str(&expected)?.to_bytes())
    };
    is_named_so().unwrap_or(false)
}

/// Opens a pipe for reading and writing, with a file description of this process's own: only this
/// process decides whether its calls wait.
fn open_again(pipe: BorrowedFd<'_>) -> Option<HighFd> {
    let mut path = [0; 32];
    write!(&mut path[..], "/proc/self/fd/{}\0", pipe.as_raw_fd()).ok()?;
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(c_str(&path)?, flags, Mode::empty()).ok().map(HighFd::new)
}

#[cfg(test)]
mod tests;
