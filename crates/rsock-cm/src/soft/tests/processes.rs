//! Tests with another process: another user, another network namespace, a forked child.

use super::*;
use rsock_verbs::cred::PeerCred;

/// Runs `body` in a forked child; its result is the exit status.
pub(super) fn in_child(body: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child runs on a copy of this thread alone and leaves by `_exit`. glibc keeps its
    // allocator usable in a forked child.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // SAFETY: requests a signal when the parent ends; a test that hangs must not leave this
        // child behind.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: ends the child without running the test harness's exit handlers.
        unsafe { libc::_exit(i32::from(!ok)) };
    }
    child
}

pub(super) fn wait_for(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this process; `status` is writable.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    status
}

fn kill(child: i32) {
    // SAFETY: a child that has not been waited for, so the number is still its own.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
}

const STRANGER: u32 = 12_345;

/// Root tests this with a process of another user; other users cannot change their id, and test the
/// decision alone.
#[test]
fn another_users_process_is_refused_in_both_roles() {
    let _watchdog = watchdog();
    let own = rustix::process::geteuid().as_raw();
    let cred = |uid| PeerCred { pid: 1, uid, gid: uid };
    assert!(peer_link::check(cred(own)).is_ok());
    let stranger = peer_link::check(cred(STRANGER)).expect_err("another user");
    assert_eq!(errno(stranger), Some(libc::EACCES));
    assert!(peer_link::check(cred(65534)).is_err(), "the overflow user is not trusted");
    if own != 0 {
        return;
    }

    // A client of another user at a listener of this one.
    let mut listener = listen("127.0.0.1:0", 4);
    let to = listener.local_addr();
    let child = in_child(|| {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(STRANGER)).expect("setuid");
        // The listener is root's, which every client trusts; root does not trust this client. The
        // refusal may arrive before the client sends its first message.
        let refused = try_connect(to).and_then(|mut client| {
            let _ = poll(&mut [PollFd::new(&client.as_fd(), PollFlags::IN)], None);
            client.progress(Instant::now())
        });
        matches!(refused, Err(Error::Refused))
    });
    let refused = loop {
        match listener.try_next(Instant::now()).expect("listener") {
            Some(event) => break event,
            None => {
                let _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], None);
            }
        }
    };
    assert!(matches!(refused, SoftEvent::Refused(Error::PeerUntrusted { uid: STRANGER })));
    assert_eq!(wait_for(child), 0);

    // A client of this user at the listener of another one.
    let (told, tell) = rustix::pipe::pipe().expect("pipe");
    let child = in_child(|| {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(STRANGER)).expect("setuid");
        let listener = listen("127.0.0.1:0", 4);
        rustix::io::write(&tell, &listener.local_addr().port().to_ne_bytes()).expect("write");
        // Until it is killed.
        loop {
            let _ = poll(&mut [], None);
        }
    });
    let mut number = [0; 2];
    rustix::io::read(&told, &mut number).expect("read");
    let at = addr(&format!("127.0.0.1:{}", u16::from_ne_bytes(number)));
    let refused = try_connect(at).expect_err("the listener of another user");
    assert!(matches!(refused, Error::PeerUntrusted { uid: STRANGER }));
    kill(child);
    assert_eq!(wait_for(child), libc::SIGKILL, "the signal alone");
}

/// Moves the calling single-threaded process to a network namespace of its own, with loopback up.
fn enter_new_namespace() {
    let uid = rustix::process::geteuid().as_raw();
    let flags =
        if uid == 0 { libc::CLONE_NEWNET } else { libc::CLONE_NEWNET | libc::CLONE_NEWUSER };
    // SAFETY: changes this child's namespaces only.
    assert_eq!(unsafe { libc::unshare(flags) }, 0, "unshare: {}", IoError::last_os_error());
    if uid != 0 {
        // Without a mapping every process in there is of the overflow user.
        std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).expect("uid_map");
    }
    let socket = Port::open(false).expect("socket");
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    let up = i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).expect("flags");
    request.ifr_ifru.ifru_flags = up;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket.as_fd());
    // SAFETY: `request` is an interface request, as SIOCSIFFLAGS requires.
    let r = unsafe { libc::ioctl(fd, libc::SIOCSIFFLAGS, &raw const request) };
    assert_eq!(r, 0, "lo up: {}", IoError::last_os_error());
}

#[test]
fn names_belong_to_the_network_namespace() {
    let _watchdog = watchdog();
    let outside = listen("127.0.0.1:0", 4);
    let at = outside.local_addr();
    let child = in_child(|| {
        enter_new_namespace();
        // The listener outside is not there, so its address is free.
        assert!(matches!(try_connect(at), Err(Error::Refused)));
        let mut inside = listen(&at.to_string(), 4);
        let client = connect(at);
        let (server_end, _, _) = establish(&mut inside, client);
        server_end.local_addr() == at
    });
    assert_eq!(wait_for(child), 0);
}

#[test]
fn parent_and_forked_child_accept_from_one_listener() {
    let _watchdog = watchdog();
    let mut listener = listen("127.0.0.1:0", 4);
    // A client that the parent has begun to serve stays the parent's.
    let mut begun = connect(listener.local_addr());
    let Either::Client(Ok(SoftProgress::Path(..))) = drive(&mut listener, &mut begun) else {
        panic!("path first");
    };
    let (told, tell) = rustix::pipe::pipe().expect("pipe");
    let child = in_child(|| {
        let now = Instant::now();
        assert!(listener.try_next(now).expect("listener").is_none());
        assert_eq!(listener.n_pending(), 0, "the child has none of the parent's clients");
        rustix::io::write(&tell, b"!").expect("write");
        loop {
            match listener.try_next(Instant::now()).expect("listener") {
                Some(SoftEvent::Request(r)) => {
                    listener.accept(r.id, QpNum(0x22), b"yes").expect("accept");
                }
                Some(SoftEvent::Established { .. }) => return true,
                Some(_) => return false,
                None => {
                    let _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], None);
                }
            }
        }
    });
    rustix::io::read(&told, &mut [0]).expect("read");
    let mut client = connect(listener.local_addr());
    loop {
        match client.progress(Instant::now()).expect("progress") {
            SoftProgress::Path(..) => client.send_request(QpNum(0x11), b"please").expect("request"),
            SoftProgress::Accepted(_) => break,
            SoftProgress::Rejected(_) => panic!("rejected"),
            SoftProgress::Pending => {
                let _ =
                    poll(&mut [PollFd::from_borrowed_fd(client.as_fd(), client.interest())], None);
            }
        }
    }
    let child_end = client.establish().expect("established");
    assert_eq!(wait_for(child), 0);
    assert_eq!(child_end.status(), Status::Gone, "the child has exited");
    let (server_end, _client_end, _) = establish_with_event(&mut listener, begun);
    assert_eq!(server_end.status(), Status::Connected);
}

#[test]
fn a_pause_ends_although_a_forked_child_still_holds_its_timer() {
    let _watchdog = watchdog();
    let mut listener = listen("127.0.0.1:0", 16);
    let _silent: Vec<_> = (0..16).map(|_| hostile::raw_client(&listener)).collect();
    hostile::settle(&mut listener);
    // Every place is taken: the listener waits for its timer.
    let client = connect(listener.local_addr());
    hostile::settle(&mut listener);
    let (told, tell) = rustix::pipe::pipe().expect("pipe");
    let child = in_child(|| rustix::io::read(&told, &mut [0]).is_ok());
    assert!(matches!(hostile::refusal(&mut listener), Error::TimedOut));
    // The child's copy of the timer has expired too, and refuses no other client.
    let _ = establish(&mut listener, client);
    rustix::io::write(&tell, b"!").expect("write");
    assert_eq!(wait_for(child), 0);
}

/// [`establish`] for a client that knows its path already.
fn establish_with_event(
    listener: &mut SoftListener,
    mut client: SoftConnecting,
) -> (SoftConnection, SoftConnection, SoftRequest) {
    client.send_request(QpNum(0x11), b"please").expect("request");
    establish(listener, client)
}
