//! Futures of iomaps, beside TCP and in the pure mode.

use crate::common::awaits::{EVENT, at_every_await, at_its_own_awaits};
use crate::common::{connect_with, pattern};
use rsock_tokio::{Builder, Opened, Stream, rsockets};
use std::io::ErrorKind;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{JoinHandle, coop};

/// The name of open memory.
const HERE: u64 = 5;

/// Two ends, each of which offers two places.
async fn paired(is_pure: bool) -> (Stream, Stream) {
    if is_pure {
        let settings = rsockets::Builder::new().iomap_slots(2);
        let listener = settings.bind("127.0.0.1:0").await.expect("bind");
        let to = listener.local_addr().expect("address");
        let made = tokio::try_join!(settings.connect(to), listener.accept());
        let (client, (server, _)) = made.expect("a connection");
        return (client, server);
    }
    let (a, b) = connect_with(Builder::new().iomap_slots(2)).await;
    tokio::try_join!(a.paired(), b.paired()).expect("paired");
    (a, b)
}

/// The end that begins to search when the other one does so already.
struct Other {
    stream: Arc<Stream>,
    searching: Option<JoinHandle<()>>,
}

async fn strangers() -> (Stream, Other) {
    let (a, b) = connect_with(Builder::new().iomap_slots(2)).await;
    (a, Other { stream: Arc::new(b), searching: None })
}

pub(crate) async fn a_search_goes_on_where_it_was() {
    let (mut a, mut b) = strangers().await;
    let steps = at_every_await(
        &mut a,
        &mut b,
        async |a| a.paired().await.expect("found"),
        async |b| {
            let stream = Arc::clone(&b.stream);
            b.searching = Some(tokio::spawn(async move { stream.paired().await.expect("found") }));
            // Found or not, it is woken to look.
            false
        },
        async |a, b, _| {
            a.paired().await.expect("found");
            b.searching.take().expect("a search").await.expect("no panic");
            // And it is of use.
            drop(a.open(64, HERE).await.expect("opened"));
            (*a, *b) = strangers().await;
        },
    )
    .await;
    assert!(steps > EVENT, "it did not wait");
}

pub(crate) async fn an_opening_closes_what_it_opened() {
    for is_pure in [false, true] {
        let mut ends = paired(is_pure).await;
        at_its_own_awaits(
            &mut ends,
            async |(a, _)| a.open(64, HERE).await.expect("a place"),
            async |(a, b), opened: Option<Opened>| {
                if let Some(opened) = opened {
                    tell(a, b).await;
                    assert_eq!(b.put(&[3], HERE + 1).await.expect("put"), 1);
                    tell(b, a).await;
                    let mut there = [0; 2];
                    opened.read_at(0, &mut there);
                    assert_eq!(there, [0, 3]);
                }
                // Whatever was opened, both places are free, and no more.
                let one = a.open(64, HERE).await.expect("the first place");
                let two = a.open(64, 1 << 20).await.expect("the second place");
                let none = a.open(64, 1 << 30).await.expect_err("there are two");
                assert_eq!(none.kind(), ErrorKind::OutOfMemory);
                drop((one, two));
                tell(a, b).await;
                let closed = b.put(&[3], HERE).await.expect_err("nothing is open");
                assert_eq!(closed.raw_os_error(), Some(rustix::io::Errno::FAULT.raw_os_error()));
            },
        )
        .await;
    }
}

/// Two owners of memory and the bytes that are put there, old and new.
struct Board {
    owner: Stream,
    putter: Stream,
    memory: Opened,
    round: usize,
}

impl Board {
    const LEN: usize = 1 << 20;

    fn bytes(&self, round: usize) -> Vec<u8> {
        pattern(round, Self::LEN)
    }
}

pub(crate) async fn a_put_has_written_the_first_bytes_or_none() {
    for is_pure in [false, true] {
        let (owner, putter) = paired(is_pure).await;
        let memory = owner.open(Board::LEN, HERE).await.expect("opened");
        let mut board = Board { owner, putter, memory, round: 0 };
        tell(&mut board.owner, &mut board.putter).await;
        let bytes = board.bytes(0);
        assert_eq!(board.putter.put(&bytes, HERE).await.expect("put"), Board::LEN);
        let mut cuts = Vec::new();
        for budget in 0..4 {
            cuts.extend(puts(&mut board, budget).await);
        }
        // Before it began, at its end, and between.
        cuts.sort_unstable();
        cuts.dedup();
        assert!(cuts.len() > 2, "{cuts:?}");
    }
}

/// Puts with `budget` turns left, over what was put before; how far the dropped ones got.
async fn puts(board: &mut Board, budget: usize) -> Vec<usize> {
    let cuts = std::cell::RefCell::new(Vec::new());
    at_its_own_awaits(
        board,
        async |board| {
            let bytes = board.bytes(board.round + 1);
            // A task has this many turns.
            for _ in budget..128 {
                coop::consume_budget().await;
            }
            board.putter.put(&bytes, HERE).await.expect("put")
        },
        async |board, put| {
            tell(&mut board.putter, &mut board.owner).await;
            let mut there = vec![0; Board::LEN];
            board.memory.read_at(0, &mut there);
            let (old, new) = (board.bytes(board.round), board.bytes(board.round + 1));
            let n = there.iter().zip(&new).take_while(|(there, new)| there == new).count();
            assert!(there[n..] == old[n..], "what was put stops at one place");
            assert!(put.is_none_or(|len| len == n && len == Board::LEN));
            cuts.borrow_mut().push(n);
            // Again is harmless.
            assert_eq!(board.putter.put(&new, HERE).await.expect("put"), Board::LEN);
            tell(&mut board.putter, &mut board.owner).await;
            board.memory.read_at(0, &mut there);
            assert!(there == new);
            board.round += 1;
        },
    )
    .await;
    cuts.into_inner()
}

/// What `from` did before this is done when this returns.
async fn tell(from: &mut Stream, to: &mut Stream) {
    from.write_all(&[1]).await.expect("write");
    to.read_exact(&mut [0]).await.expect("read");
}
