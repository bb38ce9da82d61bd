//! Datagrams of every length arrive once and wake the tasks that wait for them.

use super::{addresses, any, bound, met, past_udp, received_by_device};
use crate::common::{in_both, is_rdma, pattern, poll_times};
use std::collections::HashSet;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::pin::pin;

pub(crate) fn tasks_that_wait_are_woken_by_datagrams_of_every_route() {
    in_both(|| async {
        for addr in addresses() {
            let before = received_by_device();
            let [(a, at_a), (b, at_b)] = met(addr).await;
            let echo = tokio::spawn(async move {
                let mut buf = vec![0; 70_000];
                loop {
                    let (n, from) = b.recv_from(&mut buf).await.expect("receive");
                    assert_eq!(from, at_a);
                    if n == 0 {
                        break b;
                    }
                    b.send_to(&buf[..n], from).await.expect("send");
                }
            });
            let mut buf = vec![0; 70_000];
            // The longest go by UDP.
            for len in (0..600).map(|i| 1 + i % 300).chain([1400, 8000, 9000, 60_000, 3]) {
                let sent = pattern(len, len);
                assert_eq!(a.send_to(&sent, at_b).await.expect("send"), len);
                assert_eq!(a.recv_from(&mut buf).await.expect("receive"), (len, at_b));
                assert!(buf[..len] == sent[..], "{len} bytes");
            }
            a.send_to(&[], at_b).await.expect("send");
            let b = echo.await.expect("echo");
            // Once a second a datagram goes by UDP, to find out whether the peer still exists.
            let (of_a, of_b) = (past_udp(&a), past_udp(&b));
            assert!(of_a.sent > 500 && of_b.sent > 500, "{of_a:?} {of_b:?}");
            assert_eq!(of_a.sent, of_b.received + of_a.lost);
            assert_eq!(of_b.sent, of_a.received + of_b.lost);
            let by_device = received_by_device() - before;
            assert!(!is_rdma() || by_device >= of_a.received + of_b.received, "{by_device}");
        }
    });
}

/// A device does not report what it loses; what arrives, arrives once.
pub(crate) fn batches_arrive_whole_or_are_counted() {
    in_both(|| async {
        const ROUNDS: u32 = 100;
        const BATCH: u32 = 16;
        let [(a, _), (b, at_b)] = met(any()).await;
        let before = past_udp(&a);
        let mut word = [0; 100];
        let mut seen = HashSet::new();
        for round in 0..ROUNDS {
            let numbered = |i: u32| [&(round * BATCH + i).to_ne_bytes()[..], &[7; 60]].concat();
            let datagrams: Vec<_> = (0..BATCH).map(numbered).collect();
            let batch: Vec<_> = datagrams.iter().map(|bytes| IoSlice::new(bytes)).collect();
            let mut n = 0;
            while n < batch.len() {
                match a.try_send_batch(&batch[n..], Some(at_b)) {
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        a.writable().await.expect("writable");
                    }
                    sent => n += sent.expect("sent"),
                }
            }
            while let Ok((64, _)) = b.try_recv_from(&mut word) {
                assert!(word[4..64] == [7; 60]);
                assert!(seen.insert(word[..4].to_vec()), "twice");
            }
        }
        // Datagrams still under way arrive before this one, or go by UDP as it does.
        let end = tokio::spawn(async move {
            loop {
                a.send_to(b"end", at_b).await.expect("send");
                if poll_times(a.readable(), 3).await.is_some() {
                    break a;
                }
            }
        });
        loop {
            match b.recv_from(&mut word).await.expect("receive") {
                (64, _) => assert!(seen.insert(word[..4].to_vec()), "twice"),
                (_, from) => {
                    b.send_to(b"over", from).await.expect("send");
                    break;
                }
            }
        }
        let after = past_udp(&end.await.expect("no panic"));
        let n_sent = u64::from(ROUNDS * BATCH);
        // Once a second a datagram goes by UDP.
        assert!(after.sent - before.sent > n_sent / 2, "{before:?} {after:?}");
        let n_seen = u64::try_from(seen.len()).expect("few");
        if is_rdma() {
            assert!(n_seen > 0 && n_seen <= n_sent, "{n_seen}");
        } else {
            assert_eq!(n_seen + after.lost - before.lost, n_sent);
        }
    });
}

pub(crate) fn batches_of_every_size_are_received_by_every_route() {
    in_both(|| async {
        let [(a, at_a), (b, at_b)] = met(any()).await;
        let strangers = [bound(any()).await, bound(any()).await];
        let [(c, at_c), (d, at_d)] = &strangers;
        for [(from, at_from), (to, at_to)] in [[(&a, at_a), (&b, at_b)], [(c, *at_c), (d, *at_d)]] {
            let mut space = [[0; 100]; 8];
            for n in (1..=32).chain([3, 0, 1]) {
                let datagrams: Vec<_> = (0..n).map(|i| pattern(n + i, 1 + i)).collect();
                let batch: Vec<_> = datagrams.iter().map(|bytes| IoSlice::new(bytes)).collect();
                let receiver = async {
                    let mut got = Vec::new();
                    while got.len() < n {
                        let mut out = [None; 8];
                        let mut bufs = space.each_mut().map(|buf| IoSliceMut::new(buf));
                        let n = to.recv_batch(&mut bufs, &mut out).await.expect("receive");
                        assert!(n > 0 && out[n..].iter().all(Option::is_none), "{n}");
                        for (received, buf) in out.iter().flatten().zip(&space) {
                            assert_eq!(received.from, at_from);
                            got.push(buf[..received.len].to_vec());
                        }
                    }
                    // They may be reordered while the route changes.
                    got.sort_by_key(Vec::len);
                    assert!(got == datagrams, "{n} datagrams");
                };
                let sender = async {
                    let mut n_sent = 0;
                    while n_sent < n {
                        let sent = from.send_batch(&batch[n_sent..], Some(at_to)).await;
                        n_sent += sent.expect("sent");
                    }
                };
                tokio::join!(receiver, sender);
            }
            let mut bufs = space.each_mut().map(|buf| IoSliceMut::new(buf));
            let none = to.try_recv_batch(&mut bufs, &mut [None; 8]).expect_err("all were taken");
            assert_eq!(none.kind(), ErrorKind::WouldBlock);
            // Without a buffer or an entry nothing is waited for.
            assert_eq!(to.recv_batch(&mut [], &mut [None; 8]).await.expect("nothing"), 0);
            assert_eq!(to.recv_batch(&mut bufs, &mut []).await.expect("nothing"), 0);
            assert_eq!(from.send_batch(&[], Some(at_to)).await.expect("nothing"), 0);
        }
    });
}

pub(crate) fn a_datagram_that_is_too_long_for_the_buffer_is_cut() {
    in_both(|| async {
        let [(a, at_a), (b, at_b)] = met(any()).await;
        let mut word = [0; 4];
        for len in [5, 100, 9000] {
            a.send_to(&pattern(0, len), at_b).await.expect("send");
            assert_eq!(b.peek_from(&mut word).await.expect("peek"), (4, at_a));
            assert_eq!(b.recv_from(&mut word).await.expect("receive"), (4, at_a));
            assert_eq!(word[..], pattern(0, 4)[..]);
        }
        b.send_to(b"next", at_a).await.expect("send");
        assert_eq!(a.recv_from(&mut word).await.expect("receive"), (4, at_b));
    });
}

/// A sender waits for a full device, whether or not it receives meanwhile, but not for its
/// receiver.
pub(crate) fn a_sender_makes_progress_while_its_receiver_does_not_read() {
    const N: u32 = 5000;
    in_both(|| async {
        let [(a, at_a), (b, at_b)] = met(any()).await;
        let before = past_udp(&a).sent;
        b.send_to(b"unread", at_a).await.expect("send");
        let sender = tokio::spawn(async move {
            for i in 0..N {
                let bytes = [&i.to_ne_bytes()[..], &[0; 500]].concat();
                let sent = match i % 2 {
                    0 => a.send_to(&bytes, at_b).await,
                    _ => loop {
                        a.writable().await.expect("writable");
                        match a.try_send_to(&bytes, at_b) {
                            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                            sent => break sent,
                        }
                    },
                };
                assert_eq!(sent.expect("sent"), bytes.len());
            }
            let sent = past_udp(&a).sent - before;
            assert!(sent > u64::from(N) / 2, "{:?}", a.counters());
            let mut word = [0; 16];
            assert_eq!(a.recv_from(&mut word).await.expect("receive"), (6, at_b));
            assert_eq!(word[..6], b"unread"[..]);
            let over = async { while a.recv(&mut word).await.expect("receive") != 4 {} };
            let mut over = pin!(over);
            // Each may be lost.
            while poll_times(over.as_mut(), 3).await.is_none() {
                a.send_to(b"end", at_b).await.expect("send");
            }
        });
        let mut seen = HashSet::new();
        let mut buf = [0; 1000];
        loop {
            let (n, from) = b.recv_from(&mut buf).await.expect("receive");
            assert_eq!(from, at_a);
            if n == 3 {
                break;
            }
            assert_eq!(n, 504);
            assert!(seen.insert(buf[..4].to_vec()), "twice");
        }
        assert!(seen.len() > 100, "{} of {N}", seen.len());
        b.send_to(b"over", at_a).await.expect("send");
        sender.await.expect("no panic");
    });
}
