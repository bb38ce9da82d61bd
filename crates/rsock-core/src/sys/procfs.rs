//! What `/proc` says of other processes.

use super::close;
use rustix::fs::{CWD, Mode, OFlags, RawDir, openat, readlinkat_raw};
use rustix::io::Errno;
use std::io::Write;
use std::mem::MaybeUninit;

/// Whether process `pid` may have a descriptor of the socket with this inode. True where `/proc`
/// does not say, as of a process of another user.
pub(crate) fn may_have_socket(pid: u32, inode: u64) -> bool {
    // Of another process-id namespace the numbers would name other processes.
    is_of_own_namespace() != Some(true) || has_socket(pid, inode).unwrap_or(true)
}

fn has_socket(pid: u32, inode: u64) -> Option<bool> {
    let mut path = [0; 32];
    let mut wanted = [0; 32];
    let (path, wanted) = (
        text(&mut path, format_args!("/proc/{pid}/fd"))?,
        text(&mut wanted, format_args!("socket:[{inode}]"))?,
    );
    let dir = match openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::NOENT | Errno::SRCH) => return Some(false),
        Err(_) => return None,
    };
    let mut room = [MaybeUninit::uninit(); 1024];
    let mut entries = RawDir::new(&dir, &mut room);
    let mut found = Some(false);
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else {
            found = None;
            break;
        };
        let mut target = [MaybeUninit::uninit(); 32];
        let target = readlinkat_raw(&dir, entry.file_name(), &mut target);
        if target.is_ok_and(|(target, _)| target == wanted) {
            found = Some(true);
            break;
        }
    }
    close(dir);
    found
}

/// Whether `/proc` shows the process-id namespace of this process.
fn is_of_own_namespace() -> Option<bool> {
    let mut own = [0; 16];
    let own = text(&mut own, format_args!("{}", rustix::process::getpid().as_raw_nonzero()))?;
    let mut shown = [MaybeUninit::uninit(); 16];
    let (shown, _) = readlinkat_raw(CWD, c"/proc/self", &mut shown).ok()?;
    Some(shown == own)
}

/// `what` as text in `room`; `None` without room for it.
fn text<'a>(room: &'a mut [u8], what: std::fmt::Arguments<'_>) -> Option<&'a [u8]> {
    let len = room.len();
    let mut rest = &mut *room;
    rest.write_fmt(what).ok()?;
    let len = len - rest.len();
    room.get(..len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_has_the_sockets_that_its_descriptors_name() {
        let (socket, other) = UnixStream::pair().expect("a pair");
        let inode = rustix::fs::fstat(socket.as_fd()).expect("its inode").st_ino;
        assert!(may_have_socket(std::process::id(), inode));
        let mut child = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::from(
                other.try_clone().map(std::os::fd::OwnedFd::from).expect("a duplicate"),
            ))
            .spawn()
            .expect("sleep");
        let of_child = rustix::fs::fstat(other.as_fd()).expect("its inode").st_ino;
        assert!(may_have_socket(child.id(), of_child));
        // Until the child has become the other program.
        while may_have_socket(child.id(), inode) {
            std::thread::yield_now();
        }
        drop((socket, other));
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(!may_have_socket(child.id(), of_child));
    }
}
