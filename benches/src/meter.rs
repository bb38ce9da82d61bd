//! What many tasks get done together.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Counts what tasks do, until it tells them to stop.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    done: AtomicU64,
    over: AtomicBool,
}

impl Meter {
    /// Whether there is more to do.
    pub(crate) fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    /// Another one is done.
    pub(crate) fn count(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// What `tasks` do per second, over `time` after they have warmed up; then they end.
    ///
    /// # Errors
    /// What a task ended with.
    pub(crate) async fn rate(
        &self,
        tasks: Vec<JoinHandle<io::Result<()>>>,
        time: Duration,
    ) -> io::Result<f64> {
        tokio::time::sleep(time / 4).await;
        let (began, before) = (Instant::now(), self.done.load(Ordering::Relaxed));
        tokio::time::sleep(time).await;
        let n = self.done.load(Ordering::Relaxed) - before;
        let rate = n as f64 / began.elapsed().as_secs_f64();
        self.over.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.map_err(io::Error::other)??;
        }
        Ok(rate)
    }
}
