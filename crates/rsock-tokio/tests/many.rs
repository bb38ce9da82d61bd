//! Hundreds of streams in one process.
//!
//! Alone in its process: it raises the limit of descriptors, of which streams use half at most.

mod common;

use common::{Watchdog, connect_with, settle};
use rsock_tokio::Builder;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// More than the rings that one socket may have in flight.
const STREAMS: usize = 320;

#[test]
fn all_streams_wake_though_all_were_rung_before_the_runtime_ran() {
    let _watchdog = Watchdog::new();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum.map_or(Some(1 << 14), |most| Some(most.min(1 << 14)));
    setrlimit(Resource::Nofile, limit).expect("a limit of descriptors");

    common::current_thread().block_on(async {
        let mut clients = Vec::new();
        for _ in 0..STREAMS {
            // Without spinning: every wait is for the doorbell.
            let settings = Builder::new().spin(Duration::ZERO);
            let (mut client, mut server) = connect_with(settings).await;
            settle(&mut client, &mut server).await;
            tokio::spawn(async move {
                let mut word = [0; 4];
                while server.read_exact(&mut word).await.is_ok() {
                    server.write_all(&word).await.expect("write");
                }
            });
            clients.push(client);
        }
        for round in 0..10u32 {
            tokio::task::yield_now().await;
            // In one thread, without a pause: no server runs before all of them have been rung.
            for client in &clients {
                assert_eq!(client.try_write(&round.to_be_bytes()).expect("room"), 4);
            }
            for client in &mut clients {
                assert_eq!(client.read_u32().await.expect("an answer"), round);
            }
        }
    });
}
