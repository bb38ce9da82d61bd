//! UDP sockets in the table.
//!
//! One that `socket` made is a candidate, and nothing is allocated for it before it has been used for some
//! time: a program that asks a name server has closed it by then.

use super::{
    ADOPTING, CHUNKS, DATAGRAM_TWIN, DATAGRAMS, EMPTY, PER_CHUNK, TWIN, WATCHED, Word, claim,
    entry, entry_or_map, known, replace,
};
use crate::chunked::Chunked;
use crate::epoll_sets;
use crate::guard;
use crate::log;
use crate::slot::{self, Handle, Held, Side};
use crate::tcp_only;
use libc::c_int;
use rsock_core::accelerate::FallbackReason;
use rsock_core::datagram::kernel_udp::{self, AcceleratedUdp};
use rsock_core::interrupt::{self, Section};
use rustix::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Calls that send or receive before a socket is adopted, and between two attempts.
const FIRST_CALLS: u64 = 8;
const ONE_CALL: u64 = 1 << 32;

/// Threads that receive from a candidate in the kernel, by its number: it must not be adopted meanwhile,
/// because it may open then, and they would be deaf to its queue.
static DEAF_AT: Chunked<AtomicU32, PER_CHUNK, CHUNKS> = Chunked::new();
/// Threads that poll candidates, whichever.
static DEAF: AtomicU32 = AtomicU32::new(0);

/// `fd` has just been made, a datagram socket of the internet.
pub(crate) fn note_made(fd: c_int) {
    if kernel_udp::is_enabled()
        && !tcp_only::is_on()
        && let Some(entry) = entry_or_map(fd)
    {
        let _ = entry.compare_exchange(0, DATAGRAMS, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Whether `fd` is a UDP socket that we know of.
#[inline]
pub(crate) fn is_one(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| Word(entry.load(Ordering::Relaxed)).is_datagram())
}

/// The socket behind `fd` for a data call in the given direction, which is counted. `None`: the kernel's
/// business.
#[inline]
pub(crate) fn enter(fd: c_int, side: Side) -> Option<Handle> {
    let entry = entry(fd)?;
    let word = Word(entry.load(Ordering::Acquire));
    if !word.is_datagram() || guard::is_inside() {
        return None;
    }
    if word.kind() == EMPTY {
        count(fd, word);
        return None;
    }
    let handle = slot::enter(word.key()?, side, fd)?;
    if !super::is_unchanged(entry, word) {
        return None;
    }
    handle.udp().is_some_and(|udp| !udp.is_plain()).then_some(handle)
}

/// The socket behind `fd`, plain or not, if it has been adopted.
pub(crate) fn find(fd: c_int, side: Side) -> Option<Handle> {
    let word = Word(entry(fd)?.load(Ordering::Acquire));
    if !word.is_datagram() || guard::is_inside() {
        return None;
    }
    slot::enter(word.key()?, side, fd)
}

/// Counts a call on a candidate, and adopts it when it is time: the next call finds it.
fn count(fd: c_int, word: Word) {
    let Some(entry) = entry(fd) else { return };
    let more = Word(word.0.wrapping_add(ONE_CALL));
    let n = more.0 >> 32;
    // Fails where another thread counts: one of them is enough.
    let is_wanted = !tcp_only::is_on() && !interrupt::is_in_handler();
    let is_due = n != 0 && n.is_multiple_of(FIRST_CALLS) && is_wanted;
    if !replace(entry, word, more) || !is_due {
        return;
    }
    let section = Section::enter();
    claim::make(
        entry,
        more.0,
        more.with_kind(ADOPTING).0,
        || {
            let key = if is_heard(fd) { adopt(fd, word) } else { None };
            key.map_or(Err(more.0), |key| Ok(Word::of_twin(key).0 | DATAGRAM_TWIN))
        },
        // The number was closed meanwhile.
        |made| Word(made).key().into_iter().for_each(slot::retire),
    );
    drop(section);
}

/// Makes a UDP socket of the candidate; one that is to stay with the kernel says why to `rsock stat`.
fn adopt(fd: c_int, word: Word) -> Option<slot::Key> {
    let reason = word.reason();
    let key = guard::enter(|| {
        // SAFETY: not -1, since the table has it; the program's own, as in `Handle::fd`.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let udp = AcceleratedUdp::adopt(socket);
        if let Some(udp) = udp.as_ref().filter(|_| word.0 & WATCHED != 0) {
            udp.note_in_epoll_set();
        }
        if let Some(udp) = udp.as_ref().filter(|_| reason != FallbackReason::None) {
            udp.pin(reason);
        }
        Ok(udp.and_then(|udp| slot::insert(Held::Datagrams(Box::new(udp)))))
    });
    let key = key.ok().flatten()?;
    log::line(format_args!("fd {fd}: datagrams, adopted as {key:?}, {reason:?}"));
    Some(key)
}

/// Counts this thread among those that poll candidates, if one of `fds` is one; true if so, and then
/// [`retract`] follows. In between none is adopted: what the table says of `fds` after this call holds until then.
#[inline]
pub(crate) fn announce(fds: impl Iterator<Item = c_int> + Clone) -> bool {
    let is_needed = kernel_udp::is_enabled() && fds.clone().any(is_candidate);
    if is_needed {
        count_in(&DEAF, fds);
    }
    is_needed
}

/// Ends what [`announce`] began. Left out where a thread is cancelled or jumps in between: its candidates stay with
/// the kernel.
#[inline]
pub(crate) fn retract(was_announced: bool) {
    if was_announced {
        claim::count_out(&DEAF);
    }
}

/// Receives from `fd`: by `ours`, or where that says `None` by `kernel`, which may sleep there. While it does the
/// socket is not adopted, and it does not if that has happened meanwhile. A frame of this has nothing to drop.
#[inline(always)]
pub(crate) fn receive<R>(
    fd: c_int,
    mut ours: impl FnMut() -> Option<R>,
    kernel: impl FnOnce() -> R,
) -> R {
    let was_candidate = is_candidate(fd);
    if let Some(result) = ours() {
        return result;
    }
    let place = || DEAF_AT.get_or_map(usize::try_from(fd).ok()?);
    let Some(deaf) = (if was_candidate { place() } else { None }) else { return kernel() };
    count_in(deaf, std::iter::once(fd));
    if is_candidate(fd) {
        let result = kernel();
        claim::count_out(deaf);
        return result;
    }
    claim::count_out(deaf);
    ours().unwrap_or_else(kernel)
}

/// Runs `change`, which changes what an epoll set watches of `fd`. Meanwhile no way begins for `fd` that sets do not
/// know: what is open then gets its stand-in from `change`, what opens later puts it into all sets.
pub(crate) fn while_changing_sets<R>(fd: c_int, change: impl FnOnce() -> R) -> R {
    kernel_udp::register_epoll_sets(epoll_sets::put_stand_in);
    let place = usize::try_from(fd).ok().and_then(|fd| DEAF_AT.get_or_map(fd));
    let (Some(deaf), Some(entry)) = (place, entry(fd)) else {
        super::pin(fd, FallbackReason::Epoll);
        return change();
    };
    count_in(deaf, std::iter::once(fd));
    if is_candidate(fd) {
        let watch = |word| {
            Some(word | WATCHED).filter(|_| Word(word).is_datagram() && Word(word).kind() == EMPTY)
        };
        let _ = entry.fetch_update(Ordering::AcqRel, Ordering::Acquire, watch);
        let result = change();
        claim::count_out(deaf);
        return result;
    }
    claim::count_out(deaf);
    let handle = find(fd, Side::Send);
    let Some(udp) = handle.as_ref().and_then(Handle::udp) else { return change() };
    udp.note_in_epoll_set();
    let deaf = udp.begin_kernel_wait();
    let result = change();
    drop(deaf);
    result
}

/// Counts this thread in `deaf`, and waits for adoptions of `fds` that may not have seen it.
fn count_in(deaf: &AtomicU32, fds: impl Iterator<Item = c_int> + Clone) {
    let is_being_adopted = |entry: &AtomicU64| {
        let word = Word(entry.load(Ordering::Acquire));
        word.is_datagram() && word.kind() == ADOPTING
    };
    // By another thread: it is inside a section, which no handler interrupts.
    let any = || fds.clone().filter_map(entry).any(is_being_adopted);
    claim::count_in(deaf, any, rustix::thread::sched_yield);
}

/// Whether `fd` is a UDP socket that has not been adopted.
#[inline]
fn is_candidate(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| {
        let word = Word(entry.load(Ordering::Acquire));
        word.is_datagram() && word.kind() != TWIN
    })
}

fn is_heard(fd: c_int) -> bool {
    let at = usize::try_from(fd).ok().and_then(|fd| DEAF_AT.get(fd));
    claim::is_heard(at.into_iter().chain([&DEAF]))
}

/// Keeps an adopted socket to the kernel.
pub(super) fn pin(fd: c_int, reason: FallbackReason) {
    if let Some(handle) = find(fd, Side::Send)
        && let Some(udp) = handle.udp()
        && udp.pin_reason() == FallbackReason::None
    {
        log::line(format_args!("fd {fd}: datagrams, pinned, {reason:?}"));
        let _ = guard::enter(|| {
            udp.pin(reason);
            Ok(())
        });
    }
}

/// Keeps every adopted socket to the kernel.
pub(crate) fn pin_all(reason: FallbackReason) {
    let section = Section::enter();
    for fd in known(0, u32::MAX) {
        pin(fd, reason);
    }
    drop(section);
}

/// The socket is about to end: what it has done goes to the log.
pub(super) fn note_end(handle: &Handle) {
    let Some(udp) = handle.udp() else { return };
    log::line(format_args!("datagrams, ending: {:?}", udp.counters()));
}

/// What has happened to the socket goes to the log.
#[inline]
pub(crate) fn tell_news(fd: c_int, udp: &AcceleratedUdp) {
    if let Some(news) = udp.first_use() {
        log::line(format_args!("fd {fd}: datagrams past the kernel, {news:?}"));
    }
}

/// The program has connected `fd`, or disconnected it.
pub(crate) fn note_connected(fd: c_int) {
    with(fd, |udp, fd| udp.note_connected(fd));
}

/// The program may have changed the flags of `fd`.
pub(crate) fn note_flags(fd: c_int) {
    with(fd, |udp, fd| udp.note_flags(fd));
}

/// The program has called `shutdown`.
pub(crate) fn note_shutdown(fd: c_int) {
    if is_one(fd) {
        super::pin(fd, FallbackReason::Option);
        with(fd, |udp, _| udp.note_shutdown());
    }
}

/// A set watches `fd` for edges.
pub(crate) fn note_edges(fd: c_int) {
    with(fd, |udp, _| udp.note_edge_triggered());
}

/// This thread is about to wait for an epoll set.
#[inline]
pub(crate) fn before_epoll_wait() {
    if AcceleratedUdp::any_has_unreported() {
        tell_of_rest();
    }
}

#[cold]
fn tell_of_rest() {
    for fd in known(0, u32::MAX).filter(|&fd| is_one(fd)) {
        with(fd, |udp, _| udp.report_unreported());
    }
}

/// Other sockets may be bound to the same port from now on.
pub(crate) fn note_reuse(fd: c_int) {
    with(fd, |udp, _| udp.note_reuse());
}

/// A UDP socket of this process has been bound: perhaps to a port that another one has.
pub(crate) fn note_bound(fd: c_int) {
    if !is_one(fd) {
        return;
    }
    for other in known(0, u32::MAX).filter(|&other| other != fd) {
        with(other, |udp, other| udp.check_port_sharing(other));
    }
}

fn with(fd: c_int, f: impl FnOnce(&AcceleratedUdp, BorrowedFd<'_>)) {
    if let Some(handle) = find(fd, Side::Send)
        && let Some(udp) = handle.udp()
    {
        let section = Section::enter();
        let _ = guard::enter(|| {
            f(udp, handle.fd());
            Ok(())
        });
        drop(section);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
    use std::process::Command;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    /// Runs the test `name` once more, in a process where UDP sockets may have queues.
    fn with_queues(name: &str, test: impl FnOnce()) {
        if kernel_udp::is_enabled() {
            return test();
        }
        let name = format!("fdtable::datagrams::tests::{name}");
        let mut child = Command::new(std::env::current_exe().expect("a test has an executable"));
        child.args(["--exact", &name]).env("RSOCK_DGRAM", "on").env_remove("RSOCK_DEVICE");
        let out = child.output().expect("it runs");
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && said.contains("1 passed"), "{out:?}");
    }

    /// A socket that the table knows as a candidate.
    fn candidate() -> (UdpSocket, c_int) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let fd = socket.as_raw_fd();
        note_made(fd);
        assert!(is_candidate(fd));
        (socket, fd)
    }

    /// As a thread does that uses it.
    fn use_often(fd: c_int) {
        for _ in 0..4 * FIRST_CALLS {
            drop(enter(fd, Side::Recv));
        }
    }

    /// Before the number is closed, and given to another test's socket.
    fn forget(socket: UdpSocket) {
        super::super::note_closing(socket.as_raw_fd());
        drop(socket);
    }

    #[test]
    fn nobody_is_adopted_while_a_thread_polls() {
        with_queues("nobody_is_adopted_while_a_thread_polls", || {
            let (socket, fd) = candidate();
            assert!(announce([fd].into_iter()));
            use_often(fd);
            assert!(is_candidate(fd));
            retract(true);
            use_often(fd);
            assert!(!is_candidate(fd));
            assert!(!announce([fd].into_iter()));
            forget(socket);
        });
    }

    /// An adoption that has not seen the thread ends before the thread looks at the table.
    #[test]
    fn who_is_about_to_poll_waits_for_an_adoption_under_way() {
        with_queues("who_is_about_to_poll_waits_for_an_adoption_under_way", || {
            let (socket, fd) = candidate();
            let entry = entry(fd).expect("in the table");
            let claim = Word(DATAGRAMS).with_kind(ADOPTING);
            entry.store(claim.0, Ordering::Release);
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while DEAF.load(Ordering::SeqCst) == 0 {
                        thread::yield_now();
                    }
                    for _ in 0..1000 {
                        thread::yield_now();
                    }
                    is_over.store(true, Ordering::SeqCst);
                    entry.store(DATAGRAMS, Ordering::Release);
                });
                assert!(announce([fd].into_iter()));
                assert!(is_over.load(Ordering::SeqCst));
            });
            retract(true);
            forget(socket);
        });
    }

    #[test]
    fn nobody_is_adopted_while_a_thread_receives_from_the_kernel() {
        with_queues("nobody_is_adopted_while_a_thread_receives_from_the_kernel", || {
            let (socket, fd) = candidate();
            let received = receive(
                fd,
                || None,
                || {
                    use_often(fd);
                    is_candidate(fd)
                },
            );
            assert!(received);
            use_often(fd);
            assert!(!is_candidate(fd));
            forget(socket);
        });
    }

    #[test]
    fn nothing_is_counted_where_datagrams_have_no_queues() {
        if kernel_udp::is_enabled() {
            return;
        }
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let fd = socket.as_raw_fd();
        entry_or_map(fd).expect("a place").store(DATAGRAMS, Ordering::Release);
        assert!(!announce([fd].into_iter()));
        forget(socket);
    }

    /// A call that a longjmp has left never ends: the queue closes with the last name, not with it.
    #[test]
    fn a_queue_closes_with_the_last_name() {
        with_queues("a_queue_closes_with_the_last_name", || {
            let (socket, fd) = candidate();
            use_often(fd);
            let inside = find(fd, Side::Recv).expect("adopted");
            let reason = || inside.udp().expect("a UDP socket").pin_reason();
            assert_eq!(reason(), FallbackReason::None);
            forget(socket);
            assert_eq!(reason(), FallbackReason::Passed);
        });
    }

    /// A program that is started gets standard input, and must not miss what a queue brings.
    #[test]
    fn what_is_standard_input_of_another_program_is_the_kernel_s() {
        with_queues("what_is_standard_input_of_another_program_is_the_kernel_s", || {
            // SAFETY: the test has a process of its own, which does not read it.
            unsafe { rustix::io::close(0) };
            let (socket, fd) = candidate();
            assert_eq!(fd, 0);
            use_often(fd);
            crate::handover::before_spawn().expect("nothing in the way");
            let handle = find(fd, Side::Send).expect("adopted");
            assert_eq!(handle.udp().map(AcceleratedUdp::pin_reason), Some(FallbackReason::Passed));
            drop(handle);
            forget(socket);
        });
    }

    /// Between the look at the table and the kernel's call another thread adopts: the call would be deaf.
    #[test]
    fn a_receive_looks_again_after_an_adoption() {
        with_queues("a_receive_looks_again_after_an_adoption", || {
            let (socket, fd) = candidate();
            let mut n = 0;
            let ours = || {
                n += 1;
                use_often(fd);
                (n == 2).then_some("ours")
            };
            assert_eq!(receive(fd, ours, || "the kernel's"), "ours");
            // What ours leaves to the kernel then is the kernel's.
            assert_eq!(receive(fd, || None, || "the kernel's"), "the kernel's");
            forget(socket);
        });
    }
}
