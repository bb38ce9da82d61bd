//! The next definition of each exported symbol: libc's, or that of another preloaded library.
//!
//! Resolved lazily, because constructors of other libraries run before this one's and call the
//! exported functions, and all at once in this library's constructor, because `dlsym` must not run
//! in a signal handler.

use crate::errno;
use libc::{c_char, c_int, c_uint, c_ulong, c_void, off_t, size_t, ssize_t};
use rsock_core::accelerate::note_kernel_call;
use std::ffi::CStr;
use std::mem;
use std::ptr;

/// What a C function without a result returns.
type Nothing = ();

/// The next definition of a symbol, or null.
#[unsafe(link_section = "rsock_hooks")]
fn find_next(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string; `RTLD_NEXT` is resolved relative to this library, which is
    // where the call stands.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// The address of a symbol in whatever object comes first, or null.
pub(crate) fn find_anywhere(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// The next definition of a symbol that one of `libraries` has. A library that was loaded at run
/// time for local use is not in the order in which symbols are looked up, so it is searched by its
/// name.
pub(crate) fn find_in(name: &CStr, libraries: &[&CStr]) -> Option<*mut c_void> {
    let found = find_next(name);
    if !found.is_null() {
        return Some(found);
    }
    libraries.iter().find_map(|library| {
        // SAFETY: a C string; nothing is loaded that is not.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: an open library and a C string.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        // SAFETY: counted by `dlopen` just now; the caller's own use keeps it.
        unsafe { libc::dlclose(handle) };
        (!found.is_null()).then_some(found)
    })
}

macro_rules! next {
    ($($name:ident ($($arg:ident: $ty:ty),*) -> $ret:ty = $missing:expr;)*) => {
        mod symbol {
            use crate::symbol::Symbol;
            $(
                #[allow(non_upper_case_globals, reason = "named after the C symbol")]
                #[unsafe(link_section = "rsock_startup")]
                pub(super) static $name: Symbol = Symbol::new();
            )*
        }

        mod name {
            use crate::symbol::c_name;
            use std::ffi::CStr;
            $(
                #[allow(non_upper_case_globals, reason = "named after the C symbol")]
                pub(super) const $name: &CStr = c_name(concat!(stringify!($name), "\0"));
            )*
        }

        $(
            /// The next definition; fails with `ENOSYS` where there is none.
            ///
            /// # Safety
            /// As the C function of that name.
            #[allow(dead_code, reason = "few are called by address only")]
            #[allow(non_snake_case, reason = "named after the C function")]
            #[inline]
            pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
                let at = symbol::$name.get(name::$name, find_next);
                if at.is_null() {
                    errno::set(libc::ENOSYS);
                    return $missing;
                }
                note_kernel_call();
                // SAFETY: `at` is the C function of this name, and this is its signature.
                let f = unsafe {
                    mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($ty),*) -> $ret>(at)
                };
                // SAFETY: the caller's promise.
                unsafe { f($($arg),*) }
            }
        )*

        /// The addresses of the next definitions.
        pub(crate) mod address {
            $(
                #[allow(dead_code, reason = "few are called by address")]
                #[inline]
                #[allow(non_snake_case, reason = "named after the C function")]
                pub(crate) fn $name() -> *mut std::ffi::c_void {
                    super::symbol::$name.get(super::name::$name, super::find_next)
                }
            )*
        }

        /// Looks up every symbol that has not been needed yet.
        #[unsafe(link_section = "rsock_hooks")]
        pub(crate) fn resolve_all() {
            $( symbol::$name.get(name::$name, find_next); )*
        }
    };
}

next! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = -1;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int = -1;
    bind(fd: c_int, addr: *const libc::sockaddr, len: libc::socklen_t) -> c_int = -1;
    listen(fd: c_int, backlog: c_int) -> c_int = -1;
    epoll_create(size: c_int) -> c_int = -1;
    epoll_create1(flags: c_int) -> c_int = -1;
    epoll_wait(set: c_int, events: *mut libc::epoll_event, n: c_int, timeout: c_int) -> c_int = -1;
    epoll_pwait(set: c_int, events: *mut libc::epoll_event, n: c_int, timeout: c_int,
        mask: *const libc::sigset_t) -> c_int = -1;
    epoll_pwait2(set: c_int, events: *mut libc::epoll_event, n: c_int,
        timeout: *const libc::timespec, mask: *const libc::sigset_t) -> c_int = -1;
    accept(fd: c_int, addr: *mut libc::sockaddr, len: *mut libc::socklen_t) -> c_int = -1;
    accept4(fd: c_int, addr: *mut libc::sockaddr, len: *mut libc::socklen_t, flags: c_int)
        -> c_int = -1;
    connect(fd: c_int, addr: *const libc::sockaddr, len: libc::socklen_t) -> c_int = -1;
    shutdown(fd: c_int, how: c_int) -> c_int = -1;
    getsockname(fd: c_int, addr: *mut libc::sockaddr, len: *mut libc::socklen_t) -> c_int = -1;
    getpeername(fd: c_int, addr: *mut libc::sockaddr, len: *mut libc::socklen_t) -> c_int = -1;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void,
        len: *mut libc::socklen_t) -> c_int = -1;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: libc::socklen_t)
        -> c_int = -1;

    read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = -1;
    readv(fd: c_int, iov: *const libc::iovec, n: c_int) -> ssize_t = -1;
    preadv2(fd: c_int, iov: *const libc::iovec, n: c_int, offset: off_t, flags: c_int)
        -> ssize_t = -1;
    write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t = -1;
    writev(fd: c_int, iov: *const libc::iovec, n: c_int) -> ssize_t = -1;
    pwritev2(fd: c_int, iov: *const libc::iovec, n: c_int, offset: off_t, flags: c_int)
        -> ssize_t = -1;
    send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t = -1;
    sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const libc::sockaddr,
        addr_len: libc::socklen_t) -> ssize_t = -1;
    sendmsg(fd: c_int, msg: *const libc::msghdr, flags: c_int) -> ssize_t = -1;
    sendmmsg(fd: c_int, msgs: *mut libc::mmsghdr, n: c_uint, flags: c_int) -> c_int = -1;
    recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t = -1;
    recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut libc::sockaddr,
        addr_len: *mut libc::socklen_t) -> ssize_t = -1;
    recvmsg(fd: c_int, msg: *mut libc::msghdr, flags: c_int) -> ssize_t = -1;
    recvmmsg(fd: c_int, msgs: *mut libc::mmsghdr, n: c_uint, flags: c_int,
        timeout: *mut libc::timespec) -> c_int = -1;
    sendfile(out: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t = -1;
    splice(from: c_int, from_at: *mut libc::loff_t, to: c_int, to_at: *mut libc::loff_t,
        len: size_t, flags: c_uint) -> ssize_t = -1;
    __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t = -1;
    __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int)
        -> ssize_t = -1;
    __recvfrom_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int,
        addr: *mut libc::sockaddr, addr_len: *mut libc::socklen_t) -> ssize_t = -1;

    poll(fds: *mut libc::pollfd, n: libc::nfds_t, timeout: c_int) -> c_int = -1;
    ppoll(fds: *mut libc::pollfd, n: libc::nfds_t, timeout: *const libc::timespec,
        mask: *const libc::sigset_t) -> c_int = -1;
    __poll_chk(fds: *mut libc::pollfd, n: libc::nfds_t, timeout: c_int, room: size_t)
        -> c_int = -1;
    __ppoll_chk(fds: *mut libc::pollfd, n: libc::nfds_t, timeout: *const libc::timespec,
        mask: *const libc::sigset_t, room: size_t) -> c_int = -1;
    select(n: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set,
        except: *mut libc::fd_set, timeout: *mut libc::timeval) -> c_int = -1;
    pselect(n: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set,
        except: *mut libc::fd_set, timeout: *const libc::timespec, mask: *const libc::sigset_t)
        -> c_int = -1;
    epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int = -1;

    close(fd: c_int) -> c_int = -1;
    closefrom(first: c_int) -> Nothing = Nothing::default();
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = -1;
    dup(fd: c_int) -> c_int = -1;
    dup2(old: c_int, new: c_int) -> c_int = -1;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int = -1;
    fcntl(fd: c_int, command: c_int, arg: *mut c_void) -> c_int = -1;
    fcntl64(fd: c_int, command: c_int, arg: *mut c_void) -> c_int = -1;
    ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int = -1;
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE = ptr::null_mut();
    fclose(file: *mut libc::FILE) -> c_int = -1;

    sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction)
        -> c_int = -1;
    pthread_cancel(thread: libc::pthread_t) -> c_int = libc::ENOSYS;
    pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int = libc::ENOSYS;
    posix_spawn_file_actions_adddup2(actions: *mut libc::posix_spawn_file_actions_t, fd: c_int,
        new: c_int) -> c_int = libc::ENOSYS;
    posix_spawn(pid: *mut libc::pid_t, path: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, argv: *const *mut c_char,
        envp: *const *mut c_char) -> c_int = libc::ENOSYS;
    posix_spawnp(pid: *mut libc::pid_t, file: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, argv: *const *mut c_char,
        envp: *const *mut c_char) -> c_int = libc::ENOSYS;
    pidfd_spawn(pidfd: *mut c_int, path: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, argv: *const *mut c_char,
        envp: *const *mut c_char) -> c_int = libc::ENOSYS;
    pidfd_spawnp(pidfd: *mut c_int, file: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, argv: *const *mut c_char,
        envp: *const *mut c_char) -> c_int = libc::ENOSYS;
    pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int = -1;
    backtrace_symbols_fd(frames: *const *mut c_void, n: c_int, fd: c_int) -> Nothing
        = Nothing::default();
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char)
        -> c_int = -1;
    execv(path: *const c_char, argv: *const *const c_char) -> c_int = -1;
    execvp(file: *const c_char, argv: *const *const c_char) -> c_int = -1;
    execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char)
        -> c_int = -1;
    fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int = -1;
    execveat(dir: c_int, path: *const c_char, argv: *const *const c_char,
        envp: *const *const c_char, flags: c_int) -> c_int = -1;
    system(command: *const c_char) -> c_int = -1;
    popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE = ptr::null_mut();
    dlopen() -> Nothing = Nothing::default();
    dlmopen() -> Nothing = Nothing::default();
    execl() -> Nothing = Nothing::default();
    execle() -> Nothing = Nothing::default();
    execlp() -> Nothing = Nothing::default();
    vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int = -1;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, args: *mut c_void)
        -> c_int = -1;
    aio_read(request: *mut libc::aiocb) -> c_int = -1;
    aio_write(request: *mut libc::aiocb) -> c_int = -1;
    lio_listio(mode: c_int, list: *const *mut libc::aiocb, n: c_int, event: *mut libc::sigevent)
        -> c_int = -1;
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int = -1;
    syscall() -> Nothing = Nothing::default();
    vfork() -> Nothing = Nothing::default();
    clone() -> Nothing = Nothing::default();
    _Fork() -> libc::pid_t = -1;
    dprintf() -> Nothing = Nothing::default();
    __dprintf_chk() -> Nothing = Nothing::default();
}
