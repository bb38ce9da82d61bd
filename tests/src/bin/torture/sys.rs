//! libc's calls as the operations need them: by number, with what they returned and `errno`.
//!
//! They go through libc's symbols, so that the preload library sees them. A wrong descriptor number
//! is no danger to memory, hence the functions are safe.

use crate::shared::Shared;
use std::env;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;

/// What a call returned; if negative, with `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Returned {
    pub(crate) value: i64,
    pub(crate) errno: i32,
}

impl Returned {
    fn of(value: impl Into<i64>) -> Self {
        let value = value.into();
        let errno = if value < 0 { errno() } else { 0 };
        Self { value, errno }
    }

    pub(crate) fn is_ok(self) -> bool {
        self.value >= 0
    }

    /// The descriptor that was made, if it did not fail.
    pub(crate) fn fd(self) -> Option<RawFd> {
        RawFd::try_from(self.value).ok().filter(|fd| *fd >= 0)
    }

    /// Bytes that were carried, if it did not fail.
    pub(crate) fn len(self) -> Option<usize> {
        usize::try_from(self.value).ok()
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The ways to send.
pub(crate) fn send(fd: RawFd, bytes: &[u8], how: u32) -> Returned {
    let flags = if how & DONTWAIT != 0 { libc::MSG_DONTWAIT } else { 0 } | libc::MSG_NOSIGNAL;
    match how & WAY {
        1 if how & DONTWAIT == 0 => {
            // SAFETY: `bytes` is readable for its length.
            Returned::of(unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) } as i64)
        }
        2 => {
            let mut pieces = pieces(bytes);
            // SAFETY: zeroes are an empty message.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = pieces.as_mut_ptr();
            message.msg_iovlen = pieces.len();
            // SAFETY: the message's pieces are readable, and are only read.
            Returned::of(unsafe { libc::sendmsg(fd, &message, flags) } as i64)
        }
        3 if how & DONTWAIT == 0 => {
            let pieces = pieces(bytes);
            // SAFETY: the pieces are readable.
            Returned::of(unsafe { libc::writev(fd, pieces.as_ptr(), 3) } as i64)
        }
        _ => {
            // SAFETY: `bytes` is readable for its length.
            let n = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
            Returned::of(n as i64)
        }
    }
}

/// The ways to receive.
pub(crate) fn recv(fd: RawFd, bytes: &mut [u8], how: u32) -> Returned {
    let mut flags = if how & DONTWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
    flags |= if how & PEEK != 0 { libc::MSG_PEEK } else { 0 };
    flags |= if how & WAITALL != 0 { libc::MSG_WAITALL } else { 0 };
    match how & WAY {
        1 if flags == 0 => {
            // SAFETY: `bytes` is writable for its length.
            Returned::of(unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) } as i64)
        }
        2 => {
            let mut pieces = pieces(bytes);
            // SAFETY: zeroes are an empty message.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = pieces.as_mut_ptr();
            message.msg_iovlen = pieces.len();
            // SAFETY: the message's pieces are writable: they are those of `bytes`.
            Returned::of(unsafe { libc::recvmsg(fd, &mut message, flags) } as i64)
        }
        3 if flags == 0 => {
            let pieces = pieces(bytes);
            // SAFETY: the pieces are writable: they are those of `bytes`.
            Returned::of(unsafe { libc::readv(fd, pieces.as_ptr(), 3) } as i64)
        }
        _ => {
            // SAFETY: `bytes` is writable for its length.
            Returned::of(
                unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) } as i64
            )
        }
    }
}

/// Three uneven pieces of `bytes`, the first of which may be empty.
fn pieces(bytes: &[u8]) -> [libc::iovec; 3] {
    let (first, rest) = bytes.split_at(bytes.len() / 7);
    let (second, third) = rest.split_at(rest.len() / 3);
    [first, second, third].map(|piece| libc::iovec {
        iov_base: piece.as_ptr().cast_mut().cast(),
        iov_len: piece.len(),
    })
}

/// Bits of how bytes are sent and received.
pub(crate) const WAY: u32 = 3;
pub(crate) const DONTWAIT: u32 = 4;
pub(crate) const PEEK: u32 = 8;
pub(crate) const WAITALL: u32 = 16;

fn address(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::sa_family_t::try_from(libc::AF_INET).expect("a small number"),
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    }
}

fn address_len() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<libc::sockaddr_in>()).expect("few bytes")
}

pub(crate) fn stream_socket() -> Returned {
    // SAFETY: no memory is involved.
    Returned::of(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) })
}

pub(crate) fn bind(fd: RawFd, port: u16) -> Returned {
    let address = address(port);
    // SAFETY: the address is readable for its length.
    Returned::of(unsafe { libc::bind(fd, (&raw const address).cast(), address_len()) })
}

pub(crate) fn listen(fd: RawFd, backlog: i32) -> Returned {
    // SAFETY: no memory is involved.
    Returned::of(unsafe { libc::listen(fd, backlog) })
}

pub(crate) fn connect(fd: RawFd, port: u16) -> Returned {
    let address = address(port);
    // SAFETY: the address is readable for its length.
    Returned::of(unsafe { libc::connect(fd, (&raw const address).cast(), address_len()) })
}

/// Accepts, and tells the peer's port.
pub(crate) fn accept(fd: RawFd) -> (Returned, u16) {
    let mut address = address(0);
    let mut len = address_len();
    // SAFETY: the address is writable for its length.
    let returned = unsafe { libc::accept(fd, (&raw mut address).cast(), &mut len) };
    (Returned::of(returned), u16::from_be(address.sin_port))
}

pub(crate) fn set_option(fd: RawFd, level: i32, name: i32, value: i32) -> Returned {
    let len = libc::socklen_t::try_from(size_of::<i32>()).expect("four");
    // SAFETY: the value is readable for its length.
    Returned::of(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) })
}

pub(crate) fn linger_not_at_all(fd: RawFd) -> Returned {
    let value = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = libc::socklen_t::try_from(size_of::<libc::linger>()).expect("eight");
    let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
    // SAFETY: the value is readable for its length.
    Returned::of(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) })
}

pub(crate) fn shutdown(fd: RawFd, how: i32) -> Returned {
    // SAFETY: no memory is involved.
    Returned::of(unsafe { libc::shutdown(fd, how) })
}

pub(crate) fn close(fd: RawFd) -> Returned {
    // SAFETY: only descriptors of the program's own pool are closed, which nothing else owns.
    Returned::of(unsafe { libc::close(fd) })
}

pub(crate) fn dup(fd: RawFd) -> Returned {
    // SAFETY: no memory is involved.
    Returned::of(unsafe { libc::dup(fd) })
}

pub(crate) fn dup2(from: RawFd, to: RawFd) -> Returned {
    // SAFETY: as `close`.
    Returned::of(unsafe { libc::dup2(from, to) })
}

/// Duplicates at or above `least`; the copy is inherited by programs that this one becomes.
pub(crate) fn dup_above(fd: RawFd, least: RawFd) -> Returned {
    // SAFETY: no memory is involved.
    Returned::of(unsafe { libc::fcntl(fd, libc::F_DUPFD, least) })
}

pub(crate) fn set_nonblocking(fd: RawFd, on: bool) -> Returned {
    // SAFETY: no memory is involved.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Returned::of(flags);
    }
    let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    // SAFETY: no memory is involved.
    Returned::of(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) })
}

pub(crate) fn bytes_readable(fd: RawFd) -> (Returned, i32) {
    let mut n = 0;
    // SAFETY: FIONREAD writes one int.
    (Returned::of(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut n) }), n)
}

/// Polls one descriptor; what it says of it.
pub(crate) fn poll(fd: RawFd, events: i16, limit: i32) -> (Returned, i16) {
    let mut polled = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one entry, as told.
    (Returned::of(unsafe { libc::poll(&raw mut polled, 1, limit) }), polled.revents)
}

/// The same among many entries that name nothing.
pub(crate) fn poll_among_many(fd: RawFd, events: i16, limit: i32) -> (Returned, i16) {
    const MANY: u32 = 80;
    let nothing = libc::pollfd { fd: -1, events: 0, revents: 0 };
    let mut all = [nothing; MANY as usize];
    all[50] = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: as many entries, as told.
    let returned = unsafe { libc::poll(all.as_mut_ptr(), MANY.into(), limit) };
    (Returned::of(returned), all[50].revents)
}

/// The same with select(2).
pub(crate) fn select(fd: RawFd, events: i16, limit: i32) -> (Returned, i16) {
    // SAFETY: a set of descriptors is bits.
    let mut input: libc::fd_set = unsafe { std::mem::zeroed() };
    let mut output = input;
    // SAFETY: descriptors of the pool are below `FD_SETSIZE`.
    unsafe { libc::FD_SET(fd, if events & libc::POLLIN != 0 { &mut input } else { &mut output }) };
    let mut limit =
        libc::timeval { tv_sec: (limit / 1000).into(), tv_usec: (limit % 1000 * 1000).into() };
    // SAFETY: the sets and the time outlive the call.
    let returned = Returned::of(unsafe {
        libc::select(fd + 1, &raw mut input, &raw mut output, std::ptr::null_mut(), &raw mut limit)
    });
    let mut revents = 0;
    if returned.value > 0 {
        // SAFETY: as above.
        revents |= if unsafe { libc::FD_ISSET(fd, &input) } { libc::POLLIN } else { 0 };
        // SAFETY: as above.
        revents |= if unsafe { libc::FD_ISSET(fd, &output) } { libc::POLLOUT } else { 0 };
    }
    (returned, revents)
}

/// Sends a descriptor with a message of four bytes.
pub(crate) fn send_descriptor(socket: RawFd, fd: RawFd, word: u32) -> Returned {
    let mut bytes = word.to_ne_bytes();
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = [0_u64; 4];
    let mut message = message(&mut piece, &mut control);
    message.msg_controllen = space();
    let header = libc::cmsghdr {
        // SAFETY: computes a length.
        cmsg_len: unsafe { libc::CMSG_LEN(FD_LEN) } as _,
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    // SAFETY: the control buffer has room for a header and one descriptor, and is aligned for it.
    unsafe { control.as_mut_ptr().cast::<libc::cmsghdr>().write(header) };
    // SAFETY: as above; the header is the first.
    let place = unsafe { libc::CMSG_DATA(control.as_ptr().cast()) };
    // SAFETY: as above.
    unsafe { place.copy_from_nonoverlapping(fd.to_ne_bytes().as_ptr(), size_of::<RawFd>()) };
    // SAFETY: the message is whole.
    Returned::of(unsafe { libc::sendmsg(socket, &message, libc::MSG_DONTWAIT) } as i64)
}

/// Receives what [`send_descriptor`] has sent, if something is there.
pub(crate) fn recv_descriptor(socket: RawFd) -> Option<(RawFd, u32)> {
    let mut bytes = [0; 4];
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = [0_u64; 4];
    let mut message = message(&mut piece, &mut control);
    message.msg_controllen = space();
    // SAFETY: the message is whole.
    let n = unsafe { libc::recvmsg(socket, &mut message, libc::MSG_DONTWAIT) };
    // SAFETY: the kernel has filled the message in.
    let header = unsafe { libc::CMSG_FIRSTHDR(&message) };
    if n != 4 || header.is_null() {
        return None;
    }
    // SAFETY: the header lies in the control buffer.
    let place = unsafe { libc::CMSG_DATA(header) };
    let mut fd = [0; size_of::<RawFd>()];
    // SAFETY: a header of ours carries one descriptor.
    unsafe { place.copy_to_nonoverlapping(fd.as_mut_ptr(), fd.len()) };
    Some((RawFd::from_ne_bytes(fd), u32::from_ne_bytes(bytes)))
}

fn message(piece: &mut libc::iovec, control: &mut [u64; 4]) -> libc::msghdr {
    // SAFETY: zeroes are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message
}

/// Bytes of a descriptor in a message.
const FD_LEN: u32 = 4;

fn space() -> usize {
    // SAFETY: computes a length.
    unsafe { libc::CMSG_SPACE(FD_LEN) as usize }
}

/// A pair of Unix sockets that keep messages apart.
pub(crate) fn mailbox() -> io::Result<[RawFd; 2]> {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors.
    match unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, fds.as_mut_ptr()) } {
        0 => Ok(fds),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A memory file of that size.
pub(crate) fn memory_file(len: usize) -> io::Result<RawFd> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"torture".as_ptr(), 0) };
    let len = libc::off_t::try_from(len).expect("a small file");
    // SAFETY: no memory is involved.
    if fd < 0 || unsafe { libc::ftruncate(fd, len) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// Maps the memory file in which a run is written down.
pub(crate) fn map_shared(fd: RawFd) -> io::Result<&'static Shared> {
    let len = size_of::<Shared>();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, placed by the kernel.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is as long as the type, which consists of atomics: any bytes are values
    // of it. It is unmapped by `unmap_shared` only, after the last use.
    Ok(unsafe { &*at.cast_const().cast::<Shared>() })
}

/// Unmaps it. The caller must not use it again, which the driver, alone, does.
pub(crate) fn unmap_shared(shared: &'static Shared) {
    // SAFETY: made by `map_shared`; the driver drops its last reference here.
    unsafe { libc::munmap((&raw const *shared).cast_mut().cast(), size_of::<Shared>()) };
}

pub(crate) fn thread_id() -> i32 {
    // SAFETY: no memory is involved.
    unsafe { libc::gettid() }
}

#[expect(clippy::disallowed_methods, reason = "this is a program, and means the hooked call")]
pub(crate) fn signal_thread(pid: i32, tid: i32, signal: i32) -> Returned {
    // SAFETY: no memory is involved.
    Returned::of(unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) })
}

pub(crate) fn kill(pid: i32, signal: i32) -> Returned {
    // SAFETY: no memory is involved.
    Returned::of(unsafe { libc::kill(pid, signal) })
}

pub(crate) fn handle(signal: i32, handler: extern "C" fn(i32), flags: i32) {
    // SAFETY: zeroes are a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = flags;
    // SAFETY: the handler only counts, in atomics.
    unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
}

/// Ends this process at once.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: nothing is to be cleaned up.
    unsafe { libc::_exit(status) }
}

/// A thread that has not been joined.
pub(crate) struct Joining(libc::pthread_t);

/// A thread that runs `run`; `None` if there can be none now. (A thread of the standard library
/// takes a lock as it begins and as it ends, and a child that is forked meanwhile could begin
/// none.)
pub(crate) fn spawn(run: impl FnOnce() + Send + 'static) -> Option<Joining> {
    extern "C" fn start(run: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the box that `spawn` gave away for this thread.
        let run = unsafe { Box::from_raw(run.cast::<Box<dyn FnOnce() + Send>>()) };
        run();
        std::ptr::null_mut()
    }
    let run: Box<dyn FnOnce() + Send> = Box::new(run);
    let run = Box::into_raw(Box::new(run));
    let mut thread = 0;
    // SAFETY: `start` takes the box that `run` points to, once.
    let status =
        unsafe { libc::pthread_create(&raw mut thread, std::ptr::null(), start, run.cast()) };
    if status == 0 {
        return Some(Joining(thread));
    }
    // SAFETY: no thread has begun that would take it.
    drop(unsafe { Box::from_raw(run) });
    None
}

/// Waits for the end of a thread.
pub(crate) fn join(thread: Joining) {
    // SAFETY: joined once, as `thread` is given away.
    unsafe { libc::pthread_join(thread.0, std::ptr::null_mut()) };
}

/// 0 in the child.
pub(crate) fn fork() -> Returned {
    // SAFETY: the child makes its own threads and takes no lock of its parent's other threads:
    // glibc's are free in it.
    Returned::of(unsafe { libc::fork() })
}

/// Becomes this program again, with these arguments, and without those variables of the
/// environment; returns only if that fails. (The standard library's would switch the handling of
/// `SIGPIPE` off first, while other threads run.)
pub(crate) fn exec(args: &[&str], without: Option<&str>) -> Returned {
    let string = |text: &OsStr| CString::new(text.as_bytes()).expect("no zero bytes");
    let arguments: Vec<CString> = args.iter().map(|arg| string(arg.as_ref())).collect();
    let kept = env::vars_os().filter(|(name, _)| without.is_none_or(|other| name != other));
    let variables: Vec<CString> = kept
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            string(&name)
        })
        .collect();
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, envp) = (pointers(&arguments), pointers(&variables));
    let program = c"/proc/self/exe".as_ptr();
    // SAFETY: both lists end with a null pointer and outlive the call, as do their strings.
    Returned::of(unsafe { libc::execve(program, argv.as_ptr(), envp.as_ptr()) })
}

/// Lets `microseconds` pass, which an operation asks for; nothing is waited for thereby.
pub(crate) fn pause(microseconds: u64) {
    let time = libc::timespec {
        tv_sec: i64::try_from(microseconds / 1_000_000).unwrap_or(0),
        tv_nsec: i64::try_from(microseconds % 1_000_000).unwrap_or(0) * 1000,
    };
    // SAFETY: the time outlives the call.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}

/// Nanoseconds of the monotonic clock, which all processes share.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let (seconds, rest) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + rest.unwrap_or(0)
}

/// Makes orphans among its descendants the caller's children.
pub(crate) fn adopt_orphans() {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// Has the kernel kill this process when its parent ends.
pub(crate) fn die_with_parent() {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Has the kernel forget children as they end.
pub(crate) fn ignore_children() {
    // SAFETY: no handler is involved.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// A child that has ended, with its status; 0 if none has.
pub(crate) fn reap() -> (Returned, i32) {
    let mut status = 0;
    // SAFETY: writes one status.
    (Returned::of(unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) }), status)
}

/// A network of its own; whether the caller may have one.
pub(crate) fn own_network() -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 }
}
