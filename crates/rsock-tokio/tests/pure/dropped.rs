//! Futures of the pure mode, each dropped at every await: no byte is lost or doubled, and no wait of
//! another is. Those that connect, accept, open and put are in `ends` and `bytes`.

use super::{any, pair};
use crate::common::{in_both, pattern, poll_times};
use bytes::Bytes;
use rsock_tokio::rsockets::{Listener, connect_timeout};
use std::io::ErrorKind;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};

pub(crate) fn a_dropped_write_has_written_all_or_nothing() {
    in_both(|| async {
        let (mut a, mut b) = pair().await;
        let mut sent = 0;
        // Into a full stream: each write is dropped while pending, or says how much it took.
        for i in 0..1_000 {
            let block = pattern(sent, 40_000);
            if let Some(n) = poll_times(a.write(&block), i % 3).await {
                sent += n.expect("write");
            }
        }
        let reader = tokio::spawn(async move {
            let mut got = Vec::new();
            b.read_to_end(&mut got).await.expect("read");
            got
        });
        a.shutdown().await.expect("shutdown");
        let got = reader.await.expect("reader");
        assert!(got == pattern(0, sent), "{} bytes of {sent}", got.len());
    });
}

pub(crate) fn a_dropped_send_leaves_what_it_has_not_sent() {
    in_both(|| async {
        let (a, mut b) = pair().await;
        let all = Bytes::from(pattern(0, 4 << 20));
        let mut rest = all.clone();
        // The reader takes a little after each try: some tries end in the middle.
        let mut got = Vec::new();
        let mut buf = vec![0; 300_000];
        for i in 0.. {
            if poll_times(a.send(&mut rest), i % 3).await.is_some_and(|done| done.is_ok()) {
                break;
            }
            if let Some(n) = poll_times(b.read(&mut buf), 3).await {
                got.extend_from_slice(&buf[..n.expect("read")]);
            }
        }
        assert!(rest.is_empty());
        drop(a);
        b.read_to_end(&mut got).await.expect("read");
        assert!(got == all, "{} bytes of {}", got.len(), all.len());
    });
}

pub(crate) fn dropped_waits_of_streams_and_halves_take_nothing() {
    in_both(|| async {
        let (mut a, b) = pair().await;
        let (mut reading, writing) = b.into_split();
        for i in 0..60 {
            let mut word = [0; 8];
            assert!(poll_times(reading.readable(), i % 4).await.is_none());
            assert!(poll_times(reading.ready(Interest::READABLE), i % 3).await.is_none());
            assert!(poll_times(reading.peek(&mut word), i % 4).await.is_none());
            assert!(poll_times(reading.as_ref().recv(100), i % 4).await.is_none());
            assert!(poll_times(reading.read(&mut word), i % 3).await.is_none());
            assert!(poll_times(writing.writable(), 1 + i % 3).await.is_some());
            a.write_all(&pattern(i, 8)).await.expect("write");
            reading.readable().await.expect("readable");
            assert_eq!(reading.peek(&mut word).await.expect("peek"), 8);
            assert_eq!(reading.as_ref().recv(100).await.expect("receive"), pattern(i, 8));
        }
    });
}

pub(crate) fn a_connect_in_time_may_be_dropped_or_late() {
    in_both(|| async {
        let listener = Listener::bind(any()).await.expect("bind");
        let to = listener.local_addr().expect("address");
        for i in 0..6 {
            drop(poll_times(connect_timeout(to, Duration::from_secs(60)), i % 3).await);
        }
        // No time at all: it is over before anybody has answered, or just made it.
        match connect_timeout(to, Duration::ZERO).await {
            Ok(stream) => drop(stream),
            Err(late) => assert_eq!(late.kind(), ErrorKind::TimedOut),
        }
    });
}
