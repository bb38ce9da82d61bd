//! Owned buffers, sent and received; and remote memory.

use crate::common::{connect, connect_with, in_both, pattern};
use bytes::{Bytes, BytesMut};
use rsock_tokio::Builder;
use std::io::ErrorKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn owned_buffers_carry_every_byte_while_the_stream_moves() {
    in_both(|| async {
        const TOTAL: usize = 6 << 20;
        let (a, b) = connect().await;
        let all = Bytes::from(pattern(0, TOTAL));
        let sent = all.clone();
        let sending = tokio::spawn(async move {
            let (mut rest, mut size) = (sent, 1);
            while !rest.is_empty() {
                size = (size * 7 + 13) % 90_000 + 1;
                let mut part = rest.split_to(size.min(rest.len()));
                a.send(&mut part).await.expect("send");
                assert!(part.is_empty());
            }
        });
        let mut got = BytesMut::new();
        loop {
            let most = got.len() % 50_000 + 1;
            let part = b.recv(most).await.expect("receive");
            assert!(part.len() <= most);
            if part.is_empty() {
                break;
            }
            got.extend_from_slice(&part);
        }
        sending.await.expect("sender");
        assert!(got == all, "{} bytes of {TOTAL}", got.len());
        assert!(b.recv(0).await.expect("nothing asked for").is_empty());
    });
}

#[test]
fn a_failed_send_keeps_what_was_not_sent() {
    in_both(|| async {
        let (a, b) = connect().await;
        drop(b);
        let block = Bytes::from(vec![7; 1 << 20]);
        loop {
            let mut rest = block.clone();
            match a.send(&mut rest).await {
                Ok(()) => assert!(rest.is_empty()),
                Err(e) => {
                    // As on TCP: the peer had read all, and its end came before its reset.
                    assert_eq!(e.kind(), ErrorKind::BrokenPipe);
                    assert!(!rest.is_empty());
                    break;
                }
            }
        }
    });
}

#[test]
fn remote_writes_are_seen_before_the_bytes_that_announce_them() {
    in_both(|| async {
        let (mut a, mut b) = connect_with(Builder::new().iomap_slots(4)).await;
        let early = a.expose(64, 0).await.expect_err("not accelerated yet");
        assert_eq!(early.kind(), ErrorKind::NotConnected);
        assert_eq!(
            b.write_remote(&[1], 0).await.expect_err("nor here").kind(),
            ErrorKind::NotConnected
        );
        tokio::try_join!(a.accelerated(), b.accelerated()).expect("accelerated");
        let memory = a.expose(3 << 20, 1000).await.expect("exposed");
        assert!(memory.len() == 3 << 20 && !memory.is_empty());
        // While the stream still is on TCP, moves, and has moved.
        let mut there = vec![0; 3 << 20];
        for i in 0..60 {
            let len = [1, 48, 49, 4096, 300_000, 3 << 20][i % 6];
            let data = pattern(i, len);
            assert_eq!(b.write_remote(&data, 1000).await.expect("written"), len);
            b.write_all(&[1]).await.expect("write");
            a.read_exact(&mut [0]).await.expect("read");
            memory.read_at(0, &mut there[..len]);
            assert!(there[..len] == data[..], "round {i}");
            a.write_all(&[1]).await.expect("write");
            b.read_exact(&mut [0]).await.expect("read");
        }
        assert!(a.channels().are_accelerated());
        memory.write_at(5, &[9]);
        let mut one = [0];
        memory.read_at(5, &mut one);
        assert_eq!(one, [9]);
        // Beyond the end nothing is written, and nothing at all once the region was dropped.
        assert_eq!(b.write_remote(&[3; 10], 1000 + (3 << 20) - 4).await.expect("written"), 4);
        drop(memory);
        assert!(b.write_remote(&[1], 1000).await.is_err());
        // The stream works on.
        b.write_all(&[1]).await.expect("write");
        a.read_exact(&mut [0]).await.expect("read");
    });
}

#[test]
fn what_was_written_outlives_the_stream() {
    in_both(|| async {
        let (a, b) = connect_with(Builder::new().iomap_slots(1)).await;
        tokio::try_join!(a.accelerated(), b.accelerated()).expect("accelerated");
        let memory = a.expose(16, 0).await.expect("exposed");
        b.write_remote(b"the last bytes", 0).await.expect("written");
        drop((a, b));
        let mut word = [0; 14];
        memory.read_at(0, &mut word);
        assert_eq!(&word, b"the last bytes");
    });
}
