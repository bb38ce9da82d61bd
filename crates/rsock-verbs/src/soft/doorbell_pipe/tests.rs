use super::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::HashSet;
use std::os::fd::{FromRawFd, OwnedFd};

/// The pipes of this process, as a peer opens them.
fn own_pipes() -> PeerPipes {
    PeerPipes::new(PeerCred::own())
}

fn pipe() -> DoorbellPipe {
    DoorbellPipe::new().expect("a kernel whose pipes report each write")
}

fn word(pipe: &DoorbellPipe) -> u64 {
    pipe.name().to_word()
}

fn is_readable(fd: impl AsFd) -> bool {
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec::default())).expect("poll") == 1
}

/// A set that watches a pipe by edges.
fn set_of(pipe: &DoorbellPipe) -> OwnedFd {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("set");
    let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&set, pipe, epoll::EventData::new_u64(0), edges).expect("watched");
    set
}

fn n_events(set: &OwnedFd) -> usize {
    let mut events = [MaybeUninit::<epoll::Event>::uninit(); 4];
    epoll::wait(set, &mut events, Some(&Timespec::default())).expect("wait").0.len()
}

#[test]
fn a_peer_that_knows_the_name_rings() {
    let (pipe, peer) = (pipe(), own_pipes());
    assert!(!is_readable(&pipe));
    assert!(peer.ring(word(&pipe)) && is_readable(&pipe));
    assert!(pipe.empty() && !is_readable(&pipe) && !pipe.empty());
}

#[test]
fn each_ring_is_an_event_although_nothing_is_taken_out() {
    let (pipe, peer) = (pipe(), own_pipes());
    let set = set_of(&pipe);
    for _ in 0..100 {
        assert_eq!(n_events(&set), 0);
        assert!(peer.ring(word(&pipe)));
        assert_eq!(n_events(&set), 1);
    }
}

#[test]
fn a_full_pipe_leaves_the_ring_to_the_bell_until_it_is_emptied() {
    let (pipe, peer) = (pipe(), own_pipes());
    let n = std::iter::repeat_with(|| peer.ring(word(&pipe))).take_while(|&rung| rung).count();
    assert_eq!(n, pipe.room);
    assert!(!peer.ring(word(&pipe)));
    assert!(pipe.empty() && !pipe.empty());
    assert!(peer.ring(word(&pipe)));
}

#[test]
fn a_name_that_is_no_pipe_of_the_owner_opens_nothing() {
    let (pipe, peer) = (pipe(), own_pipes());
    let file = memfd_create(c"not a pipe", MemfdFlags::CLOEXEC).expect("memfd");
    let PipeName { fd, inode } = pipe.name();
    let file_name = PipeName {
        fd: file.as_raw_fd().cast_unsigned(),
        inode: u32::try_from(fstat(&file).expect("stat").st_ino).expect("small"),
    };
    let words = [
        0,
        u64::MAX,
        file_name.to_word(),
        PipeName { fd: file_name.fd, inode }.to_word(),
        PipeName { fd, inode: inode.wrapping_add(1).max(1) }.to_word(),
        PipeName { fd: i32::MAX.cast_unsigned(), inode }.to_word(),
    ];
    for word in words {
        assert!(!peer.ring(word), "{word:#x}");
    }
    assert_eq!(fstat(&file).expect("stat").st_size, 0);
    assert!(!is_readable(&pipe));
}

#[test]
fn a_pipe_of_another_user_or_of_an_unknown_process_is_not_opened() {
    let (pipe, me) = (pipe(), PeerCred::own());
    for owner in [PeerCred { uid: me.uid + 1, ..me }, PeerCred { pid: 0, ..me }] {
        assert!(!PeerPipes::new(owner).ring(word(&pipe)), "{owner:?}");
    }
    assert!(!is_readable(&pipe));
}

/// Where the calling process has opened the pipe beside the owner's own descriptor.
fn opened_at(pipe: &DoorbellPipe) -> RawFd {
    let own = pipe.as_fd().as_raw_fd();
    let stat = fstat(pipe).expect("stat");
    let is_it = |fd: &RawFd| {
        // SAFETY: only asked for its identity, which fails for a number that is not open.
        let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
        fstat(fd).is_ok_and(|of| (of.st_dev, of.st_ino) == (stat.st_dev, stat.st_ino))
    };
    let numbers = std::fs::read_dir("/proc/self/fd").expect("proc");
    let numbers = numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter(|fd| *fd != own).find(is_it).expect("a second descriptor")
}

#[test]
fn a_file_that_the_program_opened_under_the_pipes_number_gets_no_byte_and_stays_open() {
    let (pipe, peer) = (pipe(), own_pipes());
    assert!(peer.ring(word(&pipe)));
    let number = opened_at(&pipe);
    let file = memfd_create(c"of the program", MemfdFlags::CLOEXEC).expect("memfd");
    // SAFETY: `number` is open, and its owner finds out that it means another file.
    let mut target = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    rustix::io::dup2(&file, &mut target).expect("dup2");
    assert!(!peer.ring(word(&pipe)));
    drop(peer);
    assert_eq!(fstat(&*target).expect("still open").st_ino, fstat(&file).expect("stat").st_ino);
    assert_eq!(fstat(&file).expect("stat").st_size, 0);
    drop(ManuallyDrop::into_inner(target));
}

#[test]
fn a_ring_does_not_wait_for_another_thread() {
    let (pipe, peer) = (pipe(), own_pipes());
    let held = peer.opened.lock();
    assert!(!peer.ring(word(&pipe)));
    drop(held);
    assert!(peer.ring(word(&pipe)));
}

#[test]
fn names_without_room_leave_the_ring_to_the_bell_and_replace_old_ones_in_time() {
    let name = |n: u32| PipeName { fd: n, inode: 1 };
    let mut opened = Opened::default();
    let mut n_tried = 0;
    for n in (0..16).chain(0..16) {
        let known = opened.known(name(n), || {
            n_tried += 1;
            Err(Refused::ForGood)
        });
        assert!(known.is_some_and(|known| known.pipe.is_none()));
    }
    assert_eq!(n_tried, 16, "each is tried once");
    let known =
        |opened: &mut Opened, n: u32| opened.known(name(n), || Err(Refused::ForGood)).is_some();
    let n = (1..=REPLACE_EVERY).find(|_| known(&mut opened, 16));
    assert_eq!(n, Some(REPLACE_EVERY));
    let numbers: HashSet<u32> = opened.pipes.iter().flatten().map(|known| known.name.fd).collect();
    assert_eq!(numbers, (1..=16).collect());
}

#[test]
fn a_name_that_had_to_wait_for_a_descriptor_is_tried_again() {
    let pipe = pipe();
    let mut opened = Opened::default();
    assert!(opened.known(pipe.name(), || Err(Refused::ForNow)).is_none());
    let known = opened.known(pipe.name(), || open_of_peer(PeerCred::own(), pipe.name()));
    assert!(known.is_some_and(|known| known.pipe.is_some()));
}

#[test]
fn a_new_pipe_of_the_same_number_replaces_the_old_one() {
    let (old, new) = (PipeName { fd: 7, inode: 1 }, PipeName { fd: 7, inode: 2 });
    let mut opened = Opened::default();
    for name in [old, new] {
        assert!(opened.known(name, || Err(Refused::ForGood)).is_some());
    }
    let names: Vec<_> = opened.pipes.iter().flatten().map(|known| known.name).collect();
    assert_eq!(names, [new]);
}

#[test]
fn a_file_that_the_program_opened_under_the_number_of_the_owners_end_is_neither_read_nor_closed() {
    let pipe = pipe();
    let number = pipe.as_fd().as_raw_fd();
    let (reader, writer) = rustix::pipe::pipe().expect("pipe");
    rustix::io::write(&writer, b"of the program").expect("write");
    // SAFETY: `number` is open, and its owner finds out that it means another file.
    let mut target = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    rustix::io::dup2(&reader, &mut target).expect("dup2");
    assert!(!pipe.empty());
    drop(pipe);
    let mut bytes = [0; 32];
    assert_eq!(rustix::io::read(&*target, &mut bytes), Ok(b"of the program".len()));
    drop(ManuallyDrop::into_inner(target));
}

/// In a process of its own, because there it has no more pipes.
#[test]
fn a_process_opens_no_more_pipes_than_it_may() {
    const CHILD: &str = "MANY_DOORBELL_PIPES";
    if std::env::var_os(CHILD).is_some() {
        let pipes: Vec<_> = std::iter::from_fn(DoorbellPipe::new).collect();
        assert_eq!(pipes.len() as u64, MOST_OPEN);
        let peers: Vec<_> = (0..pipes.len()).map(|_| own_pipes()).collect();
        let more = own_pipes();
        assert!(peers.iter().all(|peer| peer.ring(word(&pipes[0]))));
        assert!(!more.ring(word(&pipes[0])));
        drop((pipes, peers));
        let (pipe, peer) = (pipe(), more);
        assert!(peer.ring(word(&pipe)));
        untrusted::note_restricted();
        assert!(!peer.ring(word(&pipe)), "a forbidden system call may end the program");
        assert!(DoorbellPipe::new().is_none());
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"));
    let name = "soft::doorbell_pipe::tests::a_process_opens_no_more_pipes_than_it_may";
    let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output();
    let output = output.expect("a child");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
}
