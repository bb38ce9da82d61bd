//! Futures of remote memory, of both transports.

use super::at_every_await::{EVENT, at_every_await, at_its_own_awaits};
use crate::common::{connect_with, pattern};
use rsock_tokio::{Accelerated, Builder, ExposedRegion, Rsockets, Stream, Transport, rsockets};
use std::io;
use std::io::ErrorKind;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{JoinHandle, coop};

/// The number under which memory is exposed.
const HERE: u64 = 5;

/// A transport, with its operations on remote memory.
pub(crate) trait RemoteMemory: Transport + Sized {
    /// Two ends, each of which offers two slots.
    async fn pair() -> (Stream<Self>, Stream<Self>);
    async fn expose(of: &Stream<Self>, len: usize, offset: u64) -> io::Result<ExposedRegion>;
    async fn write(of: &Stream<Self>, bytes: &[u8], offset: u64) -> io::Result<usize>;
}

impl RemoteMemory for Accelerated {
    async fn pair() -> (Stream, Stream) {
        let (a, b) = connect_with(Builder::new().iomap_slots(2)).await;
        tokio::try_join!(a.accelerated(), b.accelerated()).expect("accelerated");
        (a, b)
    }

    async fn expose(of: &Stream, len: usize, offset: u64) -> io::Result<ExposedRegion> {
        of.expose(len, offset).await
    }

    async fn write(of: &Stream, bytes: &[u8], offset: u64) -> io::Result<usize> {
        of.write_remote(bytes, offset).await
    }
}

impl RemoteMemory for Rsockets {
    async fn pair() -> (Stream<Self>, Stream<Self>) {
        let settings = rsockets::Builder::new().iomap_slots(2);
        let listener = settings.bind("127.0.0.1:0").await.expect("bind");
        let to = listener.local_addr().expect("address");
        let made = tokio::try_join!(settings.connect(to), listener.accept());
        let (client, (server, _)) = made.expect("a connection");
        (client, server)
    }

    async fn expose(of: &Stream<Self>, len: usize, offset: u64) -> io::Result<ExposedRegion> {
        of.expose(len, offset).await
    }

    async fn write(of: &Stream<Self>, bytes: &[u8], offset: u64) -> io::Result<usize> {
        of.write_remote(bytes, offset).await
    }
}

/// The other end, which begins to search when the event happens.
struct Other {
    stream: Arc<Stream>,
    searching: Option<JoinHandle<()>>,
}

async fn not_yet_accelerated() -> (Stream, Other) {
    let (a, b) = connect_with(Builder::new().iomap_slots(2)).await;
    (a, Other { stream: Arc::new(b), searching: None })
}

pub(crate) async fn a_dropped_search_continues_at_the_next_call() {
    let (mut a, mut b) = not_yet_accelerated().await;
    let steps = at_every_await(
        &mut a,
        &mut b,
        async |a| a.accelerated().await.expect("found"),
        async |b| {
            let stream = Arc::clone(&b.stream);
            let search = async move { stream.accelerated().await.expect("found") };
            b.searching = Some(tokio::spawn(search));
            // The first end is woken by its timer, found or not.
            false
        },
        async |a, b, _| {
            a.accelerated().await.expect("found");
            b.searching.take().expect("a search").await.expect("no panic");
            drop(a.expose(64, HERE).await.expect("exposed"));
            (*a, *b) = not_yet_accelerated().await;
        },
    )
    .await;
    assert!(steps > EVENT, "it did not wait");
}

pub(crate) async fn a_dropped_exposure_is_withdrawn() {
    drop_exposures::<Accelerated>().await;
    drop_exposures::<Rsockets>().await;
}

async fn drop_exposures<T: RemoteMemory>() {
    let mut ends = T::pair().await;
    at_its_own_awaits(
        &mut ends,
        async |(a, _)| T::expose(a, 64, HERE).await.expect("a slot"),
        async |(a, b), exposed: Option<ExposedRegion>| {
            if let Some(region) = exposed {
                synchronize(a, b).await;
                assert_eq!(T::write(b, &[3], HERE + 1).await.expect("written"), 1);
                synchronize(b, a).await;
                let mut there = [0; 2];
                region.read_at(0, &mut there);
                assert_eq!(there, [0, 3]);
            }
            // Whatever was exposed, the two slots are free again.
            let one = T::expose(a, 64, HERE).await.expect("the first slot");
            let two = T::expose(a, 64, 1 << 20).await.expect("the second slot");
            let none = T::expose(a, 64, 1 << 30).await.expect_err("there are two");
            assert_eq!(none.kind(), ErrorKind::OutOfMemory);
            drop((one, two));
            synchronize(a, b).await;
            let withdrawn = T::write(b, &[3], HERE).await.expect_err("nothing is exposed");
            assert_eq!(withdrawn.raw_os_error(), Some(rustix::io::Errno::FAULT.raw_os_error()));
        },
    )
    .await;
}

/// Exposed memory, its owner, the peer that writes it, and the number of the last write.
struct Board<T: Transport> {
    owner: Stream<T>,
    writer: Stream<T>,
    memory: ExposedRegion,
    round: usize,
}

const BOARD_LEN: usize = 1 << 20;

/// The bytes that write number `round` writes.
fn board_bytes(round: usize) -> Vec<u8> {
    pattern(round, BOARD_LEN)
}

pub(crate) async fn a_dropped_remote_write_has_written_a_prefix() {
    drop_writes::<Accelerated>().await;
    drop_writes::<Rsockets>().await;
}

async fn drop_writes<T: RemoteMemory>() {
    let (owner, writer) = T::pair().await;
    let memory = T::expose(&owner, BOARD_LEN, HERE).await.expect("exposed");
    let mut board = Board { owner, writer, memory, round: 0 };
    synchronize(&mut board.owner, &mut board.writer).await;
    let written = T::write(&board.writer, &board_bytes(0), HERE).await;
    assert_eq!(written.expect("written"), BOARD_LEN);
    let mut lengths = Vec::new();
    for budget in 0..4 {
        lengths.extend(drop_writes_with(&mut board, budget).await);
    }
    // Nothing, everything, and lengths between.
    lengths.sort_unstable();
    lengths.dedup();
    assert!(lengths.len() > 2, "{lengths:?}");
}

/// Drops writes over what was written before, with `budget` left of the task's cooperative budget;
/// returns how much each has written.
async fn drop_writes_with<T: RemoteMemory>(board: &mut Board<T>, budget: usize) -> Vec<usize> {
    let lengths = std::cell::RefCell::new(Vec::new());
    at_its_own_awaits(
        board,
        async |board| {
            let bytes = board_bytes(board.round + 1);
            // A task's budget is 128.
            for _ in budget..128 {
                coop::consume_budget().await;
            }
            T::write(&board.writer, &bytes, HERE).await.expect("written")
        },
        async |board, written| {
            synchronize(&mut board.writer, &mut board.owner).await;
            let mut there = vec![0; BOARD_LEN];
            board.memory.read_at(0, &mut there);
            let (old, new) = (board_bytes(board.round), board_bytes(board.round + 1));
            let n = there.iter().zip(&new).take_while(|(there, new)| there == new).count();
            assert!(there[n..] == old[n..], "new bytes only before old ones");
            assert!(written.is_none_or(|len| len == n && len == BOARD_LEN));
            lengths.borrow_mut().push(n);
            // Writing again is harmless.
            let again = T::write(&board.writer, &new, HERE).await;
            assert_eq!(again.expect("written"), BOARD_LEN);
            synchronize(&mut board.writer, &mut board.owner).await;
            board.memory.read_at(0, &mut there);
            assert!(there == new);
            board.round += 1;
        },
    )
    .await;
    lengths.into_inner()
}

/// When this returns, `to` sees what `from` did before.
async fn synchronize<T: Transport>(from: &mut Stream<T>, to: &mut Stream<T>) {
    from.write_all(&[1]).await.expect("write");
    to.read_exact(&mut [0]).await.expect("read");
}
