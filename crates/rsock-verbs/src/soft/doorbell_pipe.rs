//! Doorbell pipes: a faster way to ring the doorbell of an event loop.
//!
//! A ring through a pipe takes half of what a datagram to the [bell](super::bell) takes, and an
//! epoll set that watches the pipe by edges need not take it out: the kernel reports each write.
//! A [`DoorbellPipe`] stands beside a bell and does not replace it. It takes as many rings as a
//! page has bytes; after them, and wherever a peer cannot open the pipe, the bell rings, and its
//! owner empties both.
//!
//! The owner writes the pipe's [name](PipeName) into its wait line. The peer opens the pipe through
//! `/proc`, which the kernel permits to a process that may inspect the owner: it could open every
//! other pipe of the owner, too. By a name that a hostile owner made up a peer opens nothing but a
//! pipe that the owner has open, and only if the owner could stop the peer by a signal.
//!
//! PERF: a wake-up and an answer between two processes on one CPU took 18.2 us by datagrams that
//! are taken out, 10.4 by bytes of a pipe that are taken out, and 7.8 by those that are not.

use crate::cred::PeerCred;
use crate::high_fd::HighFd;
use crate::mutex::try_lock;
use crate::own_fd;
use crate::raw;
use crate::untrusted;
use rustix::event::{Timespec, epoll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open, readlinkat_raw};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};
use rustix::process::{Resource, getrlimit};
use std::ffi::CStr;
use std::io::Write;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

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

/// A descriptor of a pipe, and which pipe that is. A program may close it without this library, and
/// have a file of its own under that number: then nothing is read, written or closed here.
///
/// # Invariants
/// The descriptor is closed once, in `drop`, if it is still the pipe's.
#[derive(Debug)]
struct PipeFd {
    fd: ManuallyDrop<HighFd>,
    device: u64,
    inode: u64,
    _counted: Counted,
}

impl PipeFd {
    /// Opens the pipe that descriptor `of` means for reading and writing, with a file description
    /// of this process's own: only this process decides whether its calls wait.
    fn open_again(of: BorrowedFd<'_>, counted: Counted) -> Option<Self> {
        let mut path = [0; 40];
        write!(&mut path[..], "/proc/thread-self/fd/{}\0", of.as_raw_fd()).ok()?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let low = open(c_str(&path)?, flags, Mode::empty()).ok()?;
        let number = low.as_raw_fd();
        let fd = HighFd::new(low);
        // A program counts on low numbers, and it can do without a pipe.
        let is_high = fd.as_fd().as_raw_fd() != number;
        let expected = fstat(of).ok()?;
        let (device, inode) = (expected.st_dev, expected.st_ino);
        let this = Self { fd: ManuallyDrop::new(fd), device, inode, _counted: counted };
        (is_high && this.is_still_there()).then_some(this)
    }

    fn is_still_there(&self) -> bool {
        fstat(&*self.fd).is_ok_and(|stat| {
            (stat.st_dev, stat.st_ino) == (self.device, self.inode)
                && FileType::from_raw_mode(stat.st_mode) == FileType::Fifo
        })
    }
}

impl Drop for PipeFd {
    fn drop(&mut self) {
        // Another system call may end a program that has restricted its own.
        if untrusted::is_restricted() || self.is_still_there() {
            // SAFETY: `self` is being dropped; the field is not used again.
            drop(unsafe { ManuallyDrop::take(&mut self.fd) });
        } else if matches!(fstat(&*self.fd), Err(Errno::BADF)) {
            own_fd::forget(self.fd.as_fd().as_raw_fd());
        }
    }
}

impl AsFd for PipeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An open pipe, counted among its kind in this process: each takes a descriptor, which the program
/// may need.
#[derive(Debug)]
struct Counted(&'static AtomicU32);

/// The doorbell pipes of this process, and those of peers that it has open.
static N_OWN: AtomicU32 = AtomicU32::new(0);
static N_OF_PEERS: AtomicU32 = AtomicU32::new(0);
/// Pipes of each kind at most, and for how many descriptors that the process may have there is one.
const MOST_OPEN: u64 = 32;
const DESCRIPTORS_EACH: u64 = 16;

impl Counted {
    fn new(count: &'static AtomicU32) -> Option<Self> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = MOST_OPEN.min(limit / DESCRIPTORS_EACH);
        let more = |n: u32| (u64::from(n) < most).then_some(n + 1);
        let counted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.ok().map(|_| Self(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The owner's end.
#[derive(Debug)]
pub(super) struct DoorbellPipe {
    /// Open for reading and writing, so that the pipe never counts as closed.
    fd: PipeFd,
    name: PipeName,
    /// Bytes that it can hold.
    room: usize,
}

/// Bytes that one look takes out of a pipe.
const AT_ONCE: usize = 256;
/// Answers of [`DoorbellPipe::reports_each_write`]; 0 if it is not known yet.
const YES: u8 = 1;
const NO: u8 = 2;

impl DoorbellPipe {
    /// A pipe, if this process can have one that rings as a doorbell has to.
    pub(super) fn new() -> Option<Self> {
        static REPORTS_EACH_WRITE: AtomicU8 = AtomicU8::new(0);
        if untrusted::is_restricted() || REPORTS_EACH_WRITE.load(Ordering::Relaxed) == NO {
            return None;
        }
        let counted = Counted::new(&N_OWN)?;
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        let (reader, _writer) = (HighFd::new(reader), HighFd::new(writer));
        // The kernel counts a user's pipes by their pages, and has one page at least. Best effort.
        let _ = fcntl_setpipe_size(&reader, 1);
        let room = fcntl_getpipe_size(&reader).ok()?;
        let fd = PipeFd::open_again(reader.as_fd(), counted)?;
        let name = PipeName {
            fd: u32::try_from(fd.as_fd().as_raw_fd()).ok()?,
            inode: u32::try_from(fd.inode).ok()?,
        };
        let this = Self { fd, name, room };
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
        if untrusted::is_restricted() || !self.fd.is_still_there() {
            return false;
        }
        let mut any = false;
        // As many bytes as it can hold: a hostile peer must not keep this thread by writing on.
        for _ in 0..self.room.div_ceil(AT_ONCE) {
            let mut bytes = [MaybeUninit::<u8>::uninit(); AT_ONCE];
            let taken = rustix::io::read(&self.fd, &mut bytes).map_or(0, |(taken, _)| taken.len());
            any |= taken != 0;
            if taken < AT_ONCE {
                break;
            }
        }
        any
    }

    /// Whether the kernel reports each write to a set that watches by edges, also while the pipe
    /// holds earlier bytes. Linux 5.5 to 5.13 did not (pipe: make pipe writes always wake up
    /// readers, 3a34b13a88ca). `None` if that cannot be found out.
    fn reports_each_write(&self) -> Option<bool> {
        let set = HighFd::new(epoll::create(epoll::CreateFlags::CLOEXEC).ok()?);
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
    /// `None` if it could not be opened, or is there no more.
    pipe: Option<PipeFd>,
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
        // `sendto` on the bell is a call that a program with sockets may make in any case.
        if untrusted::is_restricted() {
            return false;
        }
        let Some(mut opened) = try_lock(&self.opened) else { return false };
        let Some(known) = opened.known(name, || open_of_peer(self.owner, name)) else {
            return false;
        };
        known.pipe.take_if(|pipe| !pipe.is_still_there());
        // False if the pipe is full.
        known.pipe.as_ref().is_some_and(|pipe| rustix::io::write(pipe, &[1]) == Ok(1))
    }
}

impl Opened {
    /// What is known of `name`, which `open` finds out the first time. `None` if there is no room
    /// for it, or no descriptor now.
    fn known(
        &mut self,
        name: PipeName,
        open: impl FnOnce() -> Result<PipeFd, Refused>,
    ) -> Option<&mut Known> {
        // The owner has closed another pipe of the same number.
        let is_it = |known: &Option<Known>| known.as_ref().is_some_and(|k| k.name.fd == name.fd);
        let known = self.pipes.iter().position(is_it);
        let at = match known.or_else(|| self.pipes.iter().position(Option::is_none)) {
            Some(at) => at,
            None => self.make_room()?,
        };
        let place = &mut self.pipes[at];
        if place.as_ref().is_none_or(|known| known.name != name) {
            // Closes the old one first.
            *place = None;
            *place = match open() {
                Ok(pipe) => Some(Known { name, pipe: Some(pipe) }),
                Err(Refused::ForGood) => Some(Known { name, pipe: None }),
                Err(Refused::ForNow) => None,
            };
        }
        place.as_mut()
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

/// Opens the pipe that `owner` calls `name`. Nothing is opened but a pipe: another file could do
/// something when it is opened.
fn open_of_peer(owner: PeerCred, name: PipeName) -> Result<PipeFd, Refused> {
    if owner.pid == 0 || !may_stop_this_process(owner) {
        return Err(Refused::ForGood);
    }
    let counted = Counted::new(&N_OF_PEERS).ok_or(Refused::ForNow)?;
    let looked = look_at(owner, name).map_err(|error| match error {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Refused::ForNow,
        _ => Refused::ForGood,
    })?;
    if !is_pipe(looked.as_fd(), name.inode) {
        return Err(Refused::ForGood);
    }
    PipeFd::open_again(looked.as_fd(), counted).ok_or(Refused::ForGood)
}

/// Why a pipe is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    ForGood,
    /// For want of descriptors.
    ForNow,
}

/// A descriptor that shows which file `owner` calls `name`, and opens nothing.
fn look_at(owner: PeerCred, name: PipeName) -> Result<HighFd, Errno> {
    let mut path = [0; 48];
    write!(&mut path[..], "/proc/{}/fd/{}\0", owner.pid, name.fd).map_err(|_| Errno::INVAL)?;
    let path = c_str(&path).ok_or(Errno::INVAL)?;
    open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map(HighFd::new)
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
        let (mut path, mut expected) = ([0; 40], [0; 32]);
        write!(&mut path[..], "/proc/thread-self/fd/{}\0", fd.as_raw_fd()).ok()?;
        write!(&mut expected[..], "pipe:[{inode}]\0").ok()?;
        let mut room = [MaybeUninit::<u8>::uninit(); 32];
        let (name, _) = readlinkat_raw(rustix::fs::CWD, c_str(&path)?, &mut room).ok()?;
        Some(name == c_str(&expected)?.to_bytes())
    };
    is_named_so().unwrap_or(false)
}

#[cfg(test)]
mod tests;
