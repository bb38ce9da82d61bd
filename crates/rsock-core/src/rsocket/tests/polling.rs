//! `poll` over sockets and descriptors.

use crate::rsocket::tests::*;
use std::os::fd::AsRawFd;
use std::time::Instant;

const IN_OUT: PollFlags = PollFlags::IN.union(PollFlags::OUT);
const NOW: Option<Duration> = Some(Duration::ZERO);

#[test]
fn readiness_follows_the_stream() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    assert_eq!(poll_one(&server, IN_OUT, NOW), PollFlags::OUT);
    assert_eq!(poll_one(&server, PollFlags::IN, NOW), PollFlags::empty());
    send(&client, b"xy").expect("send");
    assert_eq!(poll_one(&server, IN_OUT, None), IN_OUT);
    recv(&server, 9).expect("recv");
    assert_eq!(poll_one(&server, PollFlags::IN, NOW), PollFlags::empty());
    client.set_nonblocking(true);
    while send(&client, &[0; 100_000]).is_ok() {}
    assert_eq!(poll_one(&client, PollFlags::OUT, NOW), PollFlags::empty(), "full");
    while poll_one(&server, PollFlags::IN, NOW) == PollFlags::IN {
        recv(&server, 1 << 20).expect("recv");
    }
    assert_eq!(poll_one(&client, PollFlags::OUT, None), PollFlags::OUT);
}

#[test]
fn the_end_is_readable_and_the_hang_up_shows_after_the_last_byte() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    send(&client, b"x").expect("send");
    client.close();
    assert_eq!(poll_one(&server, PollFlags::IN, None), PollFlags::IN);
    assert_eq!(recv(&server, 9).expect("recv"), b"x");
    let end = poll_one(&server, PollFlags::IN, None);
    assert_eq!(end, PollFlags::IN | PollFlags::HUP);
    assert_eq!(recv(&server, 9).expect("end"), b"");
}

#[test]
fn sockets_descriptors_and_nothing_are_polled_together() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    let idle = Socket::new(Family::V4).expect("socket");
    let (reader, writer) = rustix::pipe::pipe().expect("pipe");
    let entry = |source| PollEntry { source, events: PollFlags::IN, revents: PollFlags::empty() };
    let mut entries = [
        entry(Source::Socket(&server)),
        entry(Source::Fd(reader.as_raw_fd())),
        entry(Source::Fd(-1)),
        entry(Source::Socket(&idle)),
        entry(Source::Fd(1 << 19)),
    ];
    assert_eq!(poll(&mut entries, NOW, None).expect("poll"), 1);
    assert_eq!(entries[4].revents, PollFlags::NVAL);
    let entries = &mut entries[..4];
    assert_eq!(poll(entries, NOW, None).expect("poll"), 0);

    rustix::io::write(&writer, b"!").expect("write");
    assert_eq!(poll(entries, None, None).expect("poll"), 1);
    assert_eq!(entries[1].revents, PollFlags::IN);
    rustix::io::read(&reader, &mut [0]).expect("read");

    send(&client, b"x").expect("send");
    assert_eq!(poll(entries, None, None).expect("poll"), 1);
    assert_eq!((entries[0].revents, entries[1].revents), (PollFlags::IN, PollFlags::empty()));
    assert_eq!(entries[2].revents | entries[3].revents, PollFlags::empty());
}

#[test]
fn a_sleeping_poll_is_woken_by_whatever_happens_first() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    let listener = listening("127.0.0.1:0");
    let to = listener.local_addr().expect("name");
    let events = || {
        let entry =
            |source| PollEntry { source, events: PollFlags::IN, revents: PollFlags::empty() };
        let mut entries = [entry(Source::Socket(&server)), entry(Source::Socket(&listener))];
        assert_eq!(poll(&mut entries, None, None).expect("poll"), 1);
        (entries[0].revents, entries[1].revents)
    };
    std::thread::scope(|s| {
        let data = s.spawn(events);
        send(&client, b"x").expect("send");
        assert_eq!(data.join().expect("thread"), (PollFlags::IN, PollFlags::empty()));
        recv(&server, 1).expect("recv");

        let connection = s.spawn(events);
        let other = Socket::new(Family::V4).expect("socket");
        other.connect(to, None).expect("connect");
        assert_eq!(connection.join().expect("thread"), (PollFlags::empty(), PollFlags::IN));
        listener.accept().expect("accept");

        let end = s.spawn(events);
        drop(client);
        let (stream, _) = end.join().expect("thread");
        assert!(stream.contains(PollFlags::IN), "{stream:?}");
    });
}

#[test]
fn a_time_limit_ends_a_poll_not_before_its_time() {
    let _watchdog = watchdog();
    let (client, server) = pair();
    let limit = Duration::from_millis(40);
    for socket in [&client, &server] {
        let before = Instant::now();
        assert_eq!(poll_one(socket, PollFlags::IN, Some(limit)), PollFlags::empty());
        assert!(before.elapsed() >= limit);
    }
    let before = Instant::now();
    assert_eq!(poll(&mut [], Some(limit), None).expect("poll"), 0);
    assert!(before.elapsed() >= limit);
}
