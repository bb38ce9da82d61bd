//! The waiter of one stream or datagram socket: its source, the wakers of its tasks, and the
//! doorbells and timers that wake them.
//!
//! Above `wakers`, below `waiting`. A wait for the source is in one of two states: *polled* by the
//! poll driver, or *armed*, so that the peer announces the stream to the driver or, if its source
//! cannot be announced, rings a doorbell (`wait_state`).

mod wait_state;

use crate::async_fd;
use crate::poll_driver::PollDriver;
use crate::source::{Mark, Source};
use crate::timer::Timer;
use crate::wakers::{WakerKey, Wakers};
use rsock_core::{Doorbell, ReadyNumber};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use wait_state::{Notifier, WaitState};

/// See the module.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) source: Source,
    pub(crate) this: Weak<Self>,
    pub(crate) wakers: Arc<Wakers>,
    /// Wakes all of `wakers`.
    waker: Waker,
    /// By the numbers that the source gives them.
    doorbells: [OnceLock<AsyncFd<Doorbell>>; Source::DOORBELLS],
    /// Bounds a writer's wait for room, or a reader's for a late end of the stream.
    retry_timer: OnceLock<Timer>,
    keepalive_timer: OnceLock<Timer>,
    state: WaitState,
    /// The number under which it is announced to the driver; `None` in it if it cannot be.
    place: OnceLock<Option<ReadyNumber>>,
    /// Whether that is armed, not a doorbell, and what the driver counts its wait by. Changed under
    /// the lock of `state`.
    is_announced: AtomicBool,
    wait_began: AtomicU32,
    /// Queues of the source as of the last try.
    n_queues: AtomicUsize,
    driver: OnceLock<Arc<PollDriver>>,
    pub(crate) runtime: Handle,
    /// The longest time to poll in one wait.
    spin: Duration,
}

impl Waiter {
    /// Must be called inside a runtime.
    pub(crate) fn new(source: Source, spin: Duration) -> Arc<Self> {
        let wakers = Arc::new(Wakers::default());
        Arc::new_cyclic(|this| Self {
            source,
            this: this.clone(),
            waker: Waker::from(Arc::clone(&wakers)),
            wakers,
            doorbells: Default::default(),
            retry_timer: OnceLock::new(),
            keepalive_timer: OnceLock::new(),
            state: WaitState::new(),
            place: OnceLock::new(),
            is_announced: AtomicBool::new(false),
            wait_began: AtomicU32::new(0),
            n_queues: AtomicUsize::new(0),
            driver: OnceLock::new(),
            runtime: Handle::current(),
            spin,
        })
    }

    /// A context that wakes every task that waits.
    pub(crate) fn context(&self) -> Context<'_> {
        Context::from_waker(&self.waker)
    }

    /// The task of `key` is about to try, and is taken out of the wakers. If they are empty then,
    /// the doorbell is disarmed, or the task's own progress would ring it.
    pub(crate) fn unpark(&self, key: WakerKey) {
        self.state.unpark(self, || self.wakers.remove(key));
    }

    /// The task of `key` is about to wait, and is put into the wakers.
    pub(crate) fn park(&self, key: WakerKey, waker: &Waker) {
        self.state.park(|| self.wakers.insert(key, waker));
    }

    /// After a try, which may have found the peer or made a queue whose number peers learn: wakes
    /// the tasks that wait since before, because they do not watch the new queue.
    pub(crate) fn wake_for_new_queue(&self) {
        let n = self.source.n_queues();
        if self.n_queues.load(Ordering::Relaxed) != n
            && self.n_queues.swap(n, Ordering::AcqRel) != n
        {
            self.wakers.wake_all();
        }
    }

    /// Polls the source inside the calling task, if that has helped lately and there are no other
    /// streams to poll. True if something has happened since `mark`.
    pub(crate) fn spin(&self, mark: Mark) -> bool {
        if self.spin.is_zero() || !self.source.is_open() {
            return self.source.has_changed(mark);
        }
        let n_others = usize::from(!self.state.is_polled());
        self.driver().spin_in_task(n_others, self.spin, || self.source.has_changed(mark))
    }

    /// Has the wakers woken when the source changes after `mark`. Ready if it has changed already,
    /// or may have. The caller has parked.
    pub(crate) fn wait(self: &Arc<Self>, mark: Mark) -> Poll<io::Result<()>> {
        self.state.wait(&**self, mark.to_bits(), || self.driver().offer(self, self.spin))
    }

    /// Doorbell number `n`, made on first use, if the source has one.
    fn doorbell(&self, n: usize) -> io::Result<Option<&AsyncFd<Doorbell>>> {
        let cell = &self.doorbells[n];
        if cell.get().is_none()
            && let Some(bell) = self.source.doorbell(n)?
        {
            let _inside = self.runtime.enter();
            let bell = async_fd::register(bell)?;
            return Ok(Some(cell.get_or_init(|| bell)));
        }
        Ok(cell.get())
    }

    /// Ready when it is time to try again although no event has come: `after` the first call of one
    /// wait.
    pub(crate) fn poll_retry(&self, after: Duration) -> Poll<io::Result<()>> {
        let timer = self.timer_in(&self.retry_timer)?;
        timer.start(after)?;
        timer.poll(&mut self.context())
    }

    /// Ready when keepalive is due, `after` now or earlier.
    pub(crate) fn poll_keepalive(&self, after: Duration) -> Poll<io::Result<()>> {
        let timer = self.timer_in(&self.keepalive_timer)?;
        timer.start_no_later(after)?;
        timer.poll(&mut self.context())
    }

    /// The timer in `cell`, made on first use.
    fn timer_in<'a>(&self, cell: &'a OnceLock<Timer>) -> io::Result<&'a Timer> {
        if let Some(timer) = cell.get() {
            return Ok(timer);
        }
        let _inside = self.runtime.enter();
        let timer = Timer::new()?;
        // If another task was faster, its timer is kept and this one dropped.
        Ok(cell.get_or_init(|| timer))
    }

    fn driver(&self) -> &Arc<PollDriver> {
        self.driver.get_or_init(|| PollDriver::of(&self.runtime))
    }

    /// For the driver: whether there is a reason to wake the tasks, or none to go on polling.
    pub(crate) fn is_due(&self) -> bool {
        self.state.is_due(self)
    }

    /// For the driver: ends polling and wakes the tasks that wait.
    pub(crate) fn release(&self) {
        self.state.release(self);
    }

    /// For the driver: ends polling and arms the announcement or the doorbell.
    pub(crate) fn arm_instead_of_polling(&self) {
        self.state.arm_instead_of_polling(self);
    }

    /// For the driver: the peer has announced the stream. Whether a task waited for that.
    pub(crate) fn on_announcement(&self) -> bool {
        self.state.on_announcement(self)
    }

    /// Whether the driver may learn of the source's events without checking it.
    pub(crate) fn may_be_announced(&self) -> bool {
        self.place.get().is_none_or(Option::is_some)
    }

    /// Arms the announcement, if the source can be announced and the driver lives; `None`
    /// otherwise.
    fn announce(&self, mark: u64, is_armed: &mut bool) -> Option<Poll<io::Result<()>>> {
        let driver = self.driver();
        (*self.place.get_or_init(|| driver.join_set(self)))?;
        if !self.source.announce(Mark::from_bits(mark)) {
            return Some(Poll::Ready(Ok(())));
        }
        if driver.has_ended() {
            self.source.stop_announcing();
            return None;
        }
        if !self.spin.is_zero() {
            self.wait_began.store(driver.begin_wait(), Ordering::Relaxed);
        }
        self.is_announced.store(true, Ordering::Relaxed);
        *is_armed = true;
        Some(Poll::Pending)
    }

    /// The stream has been dropped: no task waits for it any more.
    pub(crate) fn close(&self) {
        self.state.close(self);
        // Nothing is armed from here on.
        if let (Some(driver), Some(Some(number))) = (self.driver.get(), self.place.get()) {
            driver.leave_set(self, *number);
        }
    }
}

impl Notifier for Waiter {
    type Error = io::Error;

    fn has_changed(&self, mark: u64) -> bool {
        self.source.has_changed(Mark::from_bits(mark))
    }

    fn is_open(&self) -> bool {
        self.source.is_open()
    }

    fn arm(&self, mark: u64, is_armed: &mut bool) -> Poll<io::Result<()>> {
        if let Some(armed) = self.announce(mark, is_armed) {
            return armed;
        }
        for n in 0..Source::DOORBELLS {
            let Some(bell) = self.doorbell(n)? else { continue };
            if !self.source.arm(bell.get_ref(), Mark::from_bits(mark)) {
                if std::mem::replace(is_armed, false) {
                    self.disarm();
                }
                return Poll::Ready(Ok(()));
            }
            *is_armed = true;
            if let Poll::Ready(guard) = bell.poll_read_ready(&mut self.context()) {
                bell.get_ref().drain();
                guard?.clear_ready();
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }

    fn disarm(&self) {
        if self.is_announced.swap(false, Ordering::Relaxed) {
            self.source.stop_announcing();
            if !self.spin.is_zero()
                && let Some(driver) = self.driver.get()
            {
                driver.end_wait(self.wait_began.load(Ordering::Relaxed));
            }
            return;
        }
        for bell in self.doorbells.iter().filter_map(OnceLock::get) {
            self.source.disarm(bell.get_ref());
            // If it rang, take the ring: one that lies untaken in the kernel counts against what
            // the peer may send.
            if let Poll::Ready(Ok(mut guard)) = bell.poll_read_ready(&mut self.context()) {
                bell.get_ref().drain();
                guard.clear_ready();
            }
        }
    }

    fn wake_all(&self) {
        self.wakers.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting::Waitable;
    use crate::{Builder, Listener, Stream, Transport, rsockets};
    use rsock_core::SoftReadySet;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::runtime::Runtime;
    use tokio::task::{JoinHandle, yield_now};

    fn runtime() -> Runtime {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("descriptors for a runtime")
    }

    /// A connected pair, accelerated both ways, whose waits never poll.
    async fn pair() -> (Stream, Stream) {
        let settings = Builder::new().spin(Duration::ZERO);
        let listener: Listener = settings.bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("an address");
        let mut client = settings.connect(addr).await.expect("connect");
        let (mut server, _) = listener.accept().await.expect("accept");
        while !client.channels().are_accelerated() || !server.channels().are_accelerated() {
            client.write_u8(1).await.expect("write");
            server.read_u8().await.expect("read");
            server.write_u8(1).await.expect("write");
            client.read_u8().await.expect("read");
        }
        (client, server)
    }

    /// Waits for a byte in a task of its own.
    fn reader<T: Transport>(mut stream: Stream<T>) -> (Weak<Waiter>, JoinHandle<io::Result<u8>>) {
        let waiter = stream.waiter().map(Arc::downgrade).expect("a waiter");
        (waiter, tokio::spawn(async move { stream.read_u8().await }))
    }

    async fn is_armed(waiter: &Waiter) {
        while !*waiter.state.lock() {
            yield_now().await;
        }
    }

    fn is_announced(waiter: &Waiter) -> bool {
        waiter.is_announced.load(Ordering::Relaxed) && waiter.doorbells[0].get().is_none()
    }

    async fn rsockets_pair() -> (rsockets::Stream, rsockets::Stream) {
        let settings = rsockets::Builder::new().spin(Duration::ZERO);
        let listener = settings.bind("127.0.0.1:0").await.expect("bind");
        let connecting = settings.connect(listener.local_addr().expect("an address"));
        let both = tokio::try_join!(connecting, listener.accept());
        let (client, (server, _)) = both.expect("a connection");
        (client, server)
    }

    #[test]
    fn an_announced_stream_wakes_its_task_again_and_again_without_a_doorbell() {
        runtime().block_on(async {
            let (mut client, mut server) = pair().await;
            for i in 0..50 {
                let waiter = server.waiter().map(Arc::downgrade).expect("a waiter");
                let task = tokio::spawn(async move { (server.read_u8().await, server) });
                let waiter = waiter.upgrade().expect("a waiter");
                is_armed(&waiter).await;
                assert!(is_announced(&waiter));
                client.write_u8(i).await.expect("write");
                let (byte, stream) = task.await.expect("a task");
                assert_eq!(byte.expect("a byte"), i);
                server = stream;
            }
        });
    }

    #[test]
    fn a_stream_that_another_set_watches_has_a_doorbell() {
        runtime().block_on(async {
            let (mut client, server) = rsockets_pair().await;
            let set = SoftReadySet::new().expect("a set");
            let source = server.waiter().map(|waiter| waiter.source.clone()).expect("a source");
            source.join_set(&set).expect("a place");
            let (waiter, task) = reader(server);
            let waiter = waiter.upgrade().expect("a waiter");
            is_armed(&waiter).await;
            assert!(!is_announced(&waiter) && waiter.doorbells[0].get().is_some());
            client.write_u8(7).await.expect("write");
            assert_eq!(task.await.expect("a task").expect("a byte"), 7);
        });
    }

    #[test]
    fn a_stream_that_moves_to_another_runtime_is_announced_to_its_driver() {
        let first = runtime();
        let (client, server) = first.block_on(rsockets_pair());
        let waiter = server.waiter().map(Arc::downgrade).expect("a waiter");
        let (first_task, server) = first.block_on(async move {
            let mut server = server;
            let is_waiting = tokio::select! {
                biased;
                byte = server.read_u8() => byte.is_err(),
                () = yield_now() => true,
            };
            (is_waiting, server)
        });
        assert!(first_task && waiter.upgrade().is_some_and(|of| of.place.get().is_some()));
        let socket = server.into_blocking();
        runtime().block_on(async {
            let server = rsockets::Stream::from_connected(socket, Duration::ZERO).expect("here");
            let (waiter, task) = reader(server);
            let waiter = waiter.upgrade().expect("a waiter");
            is_armed(&waiter).await;
            assert!(is_announced(&waiter));
            let sent = client.try_write(&[9]).expect("room");
            assert_eq!((sent, task.await.expect("a task").expect("a byte")), (1, 9));
        });
    }

    #[test]
    fn a_task_that_waits_in_another_runtime_is_woken_when_the_stream_s_own_ends() {
        let own = runtime();
        let (_client, server) = own.block_on(pair());
        let other = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        let other = other.expect("descriptors for a runtime");
        let (waiter, task) = {
            let waiter = server.waiter().map(Arc::downgrade).expect("a waiter");
            let mut server = server;
            (waiter, other.spawn(async move { server.read_u8().await }))
        };
        let waiter = waiter.upgrade().expect("a waiter");
        other.block_on(is_armed(&waiter));
        assert!(is_announced(&waiter));
        drop(own);
        assert!(other.block_on(task).expect("a task").is_err(), "no runtime watches its socket");
    }

    #[test]
    fn many_streams_share_the_doorbell_of_the_driver_and_are_dropped_when_they_end() {
        const STREAMS: usize = 16;
        runtime().block_on(async {
            let mut waiting = Vec::new();
            for _ in 0..STREAMS {
                let (client, server) = pair().await;
                let (waiter, task) = reader(server);
                waiting.push((client, waiter, task));
            }
            for (_, waiter, _) in &waiting {
                let waiter = waiter.upgrade().expect("a waiter");
                is_armed(&waiter).await;
                assert!(is_announced(&waiter));
            }
            let (mut first, _, task) = waiting.swap_remove(0);
            first.write_u8(1).await.expect("write");
            assert_eq!(task.await.expect("a task").expect("a byte"), 1);
            for (client, waiter, _) in &mut waiting {
                is_armed(&waiter.upgrade().expect("a waiter")).await;
                client.write_u8(2).await.expect("write");
            }
            for (_, waiter, task) in waiting {
                assert_eq!(task.await.expect("a task").expect("a byte"), 2);
                // The driver sleeps, and has no more than a weak reference.
                assert!(waiter.upgrade().is_none(), "it was dropped with its stream");
            }
        });
    }
}
