//! Descriptors that are closed, and reused, under calls in progress.

use crate::closing::*;
use rsock_verbs::own_fd;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::thread;

fn inode(fd: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(fd).expect("open").st_ino
}

/// A file with an inode of its own.
fn file() -> OwnedFd {
    rustix::fs::memfd_create("closing", rustix::fs::MemfdFlags::CLOEXEC).expect("a file")
}

/// Whether the duplicate `kept` of the file with that inode is open or listed. Another test may
/// have its number by now.
fn is_left(kept: RawFd, inode: u64) -> bool {
    let is_listed = duplicates::is_listed(kept);
    match std::fs::metadata(format!("/proc/self/fd/{kept}")) {
        Ok(owner) => owner.ino() == inode,
        Err(_) => is_listed,
    }
}

#[test]
fn a_call_keeps_to_its_file_when_its_number_is_closed_and_reused() {
    let closings = Closings::new();
    let victim = file();
    let original = inode(victim.as_fd());
    let number = victim.as_raw_fd();
    // SAFETY: open; closed below while `call` is in progress, as the test intends.
    let named = unsafe { BorrowedFd::borrow_raw(number) };
    let call = Call::begin(&closings, Descriptor::new(named, closings.count()));
    assert_eq!(call.fd().expect("open").as_raw_fd(), number);
    let is_closed = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            closings.keep(Some(victim.as_fd()), || {}, || 1);
            is_closed.store(true, Ordering::Release);
        });
        while closings.count() == 0 {
            thread::yield_now();
        }
        // The closer waits for this.
        assert_ne!(call.fd().expect("kept").as_raw_fd(), number);
    });
    assert!(is_closed.load(Ordering::Acquire));
    let mut reused = victim;
    rustix::io::dup2(file(), &mut reused).expect("replaced");
    assert_ne!(inode(reused.as_fd()), original);
    assert_eq!(inode(call.fd().expect("kept")), original);
    let kept = call.fd().expect("kept").as_raw_fd();
    drop(call);
    assert!(!is_left(kept, original), "the duplicate outlived its last call");
    // A call that begins now has the number's new owner to itself.
    let next = Call::begin(&closings, Descriptor::new(reused.as_fd(), closings.count()));
    assert_eq!(next.fd().expect("open").as_raw_fd(), number);
}

/// Such a call gets no processor for long; or a `longjmp` has left it.
#[test]
fn a_call_that_switches_late_finds_its_file_until_another_closing_revokes_it() {
    let closings = Closings::new();
    let victim = file();
    let original = inode(victim.as_fd());
    let call = Call::begin(&closings, Descriptor::new(victim.as_fd(), 0));
    closings.keep(Some(victim.as_fd()), || {}, || 1);
    assert_eq!(inode(call.fd().expect("left for it")), original);
    duplicates::revoke(Duration::ZERO);
    let kept = call.fd().expect("a reserved number").as_raw_fd();
    let placeholder = inode(call.fd().expect("a reserved number"));
    assert_ne!(placeholder, original);
    drop(call);
    assert!(own_fd::is_own(kept));
    drop(closings);
    assert!(!is_left(kept, placeholder), "it outlived its socket");
}

#[test]
fn a_call_fails_if_its_number_was_closed_without_a_duplicate() {
    let closings = Closings::new();
    let victim = file();
    let late = Call::begin(&closings, Descriptor::new(victim.as_fd(), 0));
    closings.keep(None, || {}, || 1);
    assert_eq!(late.fd().unwrap_err().raw_os_error(), Some(libc::EBADF));
}

/// Other calls have switched, and have ended, before this one looks.
#[test]
fn a_call_goes_on_by_its_number_when_another_number_of_its_file_was_closed() {
    let closings = Closings::new();
    let file = file();
    let named = file.as_raw_fd();
    let above = |n| rustix::io::fcntl_dupfd_cloexec(&file, named + n).expect("a number");
    let is_told_apart = |other: &OwnedFd| other.as_raw_fd() % 64 != named % 64;
    let other = (1..).map(above).find(is_told_apart).expect("some are");
    let late = Call::begin(&closings, Descriptor::new(file.as_fd(), closings.count()));
    let early = Call::begin(&closings, Descriptor::new(file.as_fd(), closings.count()));
    let n_asked = Cell::new(0);
    let others = || {
        // As if the late call had not begun yet when the closer looked.
        n_asked.set(n_asked.get() + 1);
        if n_asked.get() > 1 {
            early.fd().expect("the duplicate");
        }
        1
    };
    closings.keep(Some(other.as_fd()), || {}, others);
    drop(early);
    assert_eq!(late.fd().expect("still open").as_raw_fd(), named);
    let by_closed = Call::begin(&closings, Descriptor::new(other.as_fd(), 0));
    assert_eq!(by_closed.fd().unwrap_err().raw_os_error(), Some(libc::EBADF));
}

#[test]
fn nothing_is_duplicated_while_no_other_call_is_in_progress() {
    let closings = Closings::new();
    let victim = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
    closings.keep(Some(victim.as_fd()), || panic!("nothing to wake"), || 0);
    assert_eq!(closings.count(), 0);
}

#[test]
fn two_closings_share_one_duplicate() {
    let closings = Closings::new();
    let victim = file();
    let call = Call::begin(&closings, Descriptor::new(victim.as_fd(), 0));
    let answer = || {
        let _ = call.fd();
        1
    };
    closings.keep(Some(victim.as_fd()), || {}, answer);
    let first = call.fd().expect("kept").as_raw_fd();
    closings.keep(Some(victim.as_fd()), || {}, answer);
    assert_eq!(call.fd().expect("kept").as_raw_fd(), first);
    assert_eq!(inode(call.fd().expect("kept")), inode(victim.as_fd()));
}

/// Runs the test `name` again, in a process of its own: a process has one notice, and other tests
/// close descriptors too.
fn alone(name: &str, test: impl FnOnce()) {
    const IS_ALONE: &str = "CLOSING_TEST_IS_ALONE";
    if std::env::var_os(IS_ALONE).is_some() {
        return test();
    }
    let name = format!("closing::tests::{name}");
    let mut child = Command::new(std::env::current_exe().expect("a test has an executable"));
    let out = child.args(["--exact", &name]).env(IS_ALONE, "1").output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("1 passed"), "{out:?}");
}

/// A thread that sleeps in `ppoll` and gets no CPU while the closer waits: it looks at the
/// descriptor when it runs again.
#[test]
fn a_sleeper_that_gets_its_cpu_late_finds_the_notice_readable() {
    alone("a_sleeper_that_gets_its_cpu_late_finds_the_notice_readable", late_sleeper);
}

fn late_sleeper() {
    let is_readable = |entry: libc::pollfd| {
        let mut entries = [entry];
        sys::ppoll(&mut entries, Some(Duration::ZERO), None).expect("poll") != 0
    };
    let asleep = notice::entry();
    let closings = Closings::new();
    let victim = file();
    let call = Call::begin(&closings, Descriptor::new(victim.as_fd(), 0));
    closings.keep(Some(victim.as_fd()), || {}, || 1);
    assert!(is_readable(asleep), "it would sleep on, on a number that is closed");
    assert!(!is_readable(notice::entry()), "it wakes later sleeps too");
    drop(call);
}
