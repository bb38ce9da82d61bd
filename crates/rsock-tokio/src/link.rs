//! What waits for one stream's ring: the ring, the wakers, and the doorbell that wakes them.
//!
//! Above `wakers`, below `shared`. A wait for the ring is in one of two states: *listed*, where the
//! hub looks at the ring now and then, or *armed*, where the peer rings the doorbell (`words`).

mod words;

use crate::hub::Hub;
use crate::ring::{Mark, Ring};
use crate::timer::Timer;
use crate::wakers::{Waiter, Wakers};
use crate::watched;
use rsock_core::Doorbell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use words::{Source, Words};

/// See the module.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) ring: Ring,
    pub(crate) wakers: Arc<Wakers>,
    /// Wakes all of `wakers`.
    waker: Waker,
    /// In the places that the ring gives them.
    bells: [OnceLock<AsyncFd<Doorbell>>; Ring::DOORBELLS],
    timer: OnceLock<Timer>,
    /// For [`Self::look_again`].
    keepalive: OnceLock<Timer>,
    words: Words,
    /// The reach of the ring when somebody last tried.
    reach: AtomicUsize,
    hub: OnceLock<Arc<Hub>>,
    pub(crate) runtime: Handle,
    spin: Duration,
}

impl Link {
    /// Must be called inside a runtime.
    pub(crate) fn new(ring: Ring, spin: Duration) -> Arc<Self> {
        let wakers = Arc::new(Wakers::default());
        Arc::new(Self {
            ring,
            waker: Waker::from(Arc::clone(&wakers)),
            wakers,
            bells: Default::default(),
            timer: OnceLock::new(),
            keepalive: OnceLock::new(),
            words: Words::new(),
            reach: AtomicUsize::new(0),
            hub: OnceLock::new(),
            runtime: Handle::current(),
            spin,
        })
    }

    /// A context that wakes everybody.
    pub(crate) fn context(&self) -> Context<'_> {
        Context::from_waker(&self.waker)
    }

    /// `who` is about to try: it waits no more. Without other waiters the doorbell is disarmed, or
    /// its own progress would ring it.
    pub(crate) fn unpark(&self, who: Waiter) {
        self.words.unpark(self, || self.wakers.remove(who));
    }

    /// `who` is about to wait: it is found by whoever wakes.
    pub(crate) fn park(&self, who: Waiter, waker: &Waker) {
        self.words.park(|| self.wakers.put(who, waker));
    }

    /// After a try: once the peer is found it may be invited to the ring, or a queue has been made whose
    /// number peers learn; those who wait since before do not watch it.
    pub(crate) fn note_reach(&self) {
        let reach = self.ring.reach();
        if self.reach.load(Ordering::Relaxed) != reach
            && self.reach.swap(reach, Ordering::AcqRel) != reach
        {
            self.wakers.wake_all();
        }
    }

    /// Looks at the ring actively, if that has helped lately and there is nobody else to look
    /// after. True if something has changed.
    pub(crate) fn spin(&self, mark: Mark) -> bool {
        if self.spin.is_zero() || !self.ring.is_there() {
            return self.ring.has_changed(mark);
        }
        let others = usize::from(!self.words.is_listed());
        self.hub().spin_alone(others, self.spin, || self.ring.has_changed(mark))
    }

    /// Has the wakers woken when the ring changes after `mark`. Ready if it has, or may have,
    /// changed already. The caller has parked.
    pub(crate) fn watch(self: &Arc<Self>, mark: Mark) -> Poll<io::Result<()>> {
        self.words.watch(&**self, mark.to_bits(), || self.hub().offer(self, self.spin))
    }

    /// The doorbell in `place`, if there is one.
    fn bell(&self, place: usize) -> io::Result<Option<&AsyncFd<Doorbell>>> {
        let place_of = &self.bells[place];
        if place_of.get().is_none()
            && let Some(bell) = self.ring.doorbell(place)?
        {
            let _inside = self.runtime.enter();
            let bell = watched::watch(bell)?;
            return Ok(Some(place_of.get_or_init(|| bell)));
        }
        Ok(place_of.get())
    }

    /// Bounds a writer's wait for a full ring.
    pub(crate) fn wait_at_most(&self, patience: Duration) -> Poll<io::Result<()>> {
        let timer = self.timer_in(&self.timer)?;
        timer.start(patience)?;
        timer.poll(&mut self.context())
    }

    /// Bounds every wait: ready when it is time to look after the peer again.
    pub(crate) fn look_again(&self, after: Duration) -> Poll<io::Result<()>> {
        let timer = self.timer_in(&self.keepalive)?;
        timer.start_no_later(after)?;
        timer.poll(&mut self.context())
    }

    /// The timer in `place`, made on first use.
    fn timer_in<'a>(&self, place: &'a OnceLock<Timer>) -> io::Result<&'a Timer> {
        if let Some(timer) = place.get() {
            return Ok(timer);
        }
        let _inside = self.runtime.enter();
        let timer = Timer::new()?;
        // Another waiter's is as good.
        Ok(place.get_or_init(|| timer))
    }

    fn hub(&self) -> &Arc<Hub> {
        self.hub.get_or_init(|| Hub::join(&self.runtime))
    }

    /// For the hub: whether there is a reason to wake, or none to go on looking.
    pub(crate) fn is_due(&self) -> bool {
        self.words.is_due(self)
    }

    /// For the hub: takes it off the list and wakes whoever waits.
    pub(crate) fn release(&self) {
        self.words.release(self);
    }

    /// For the hub, which stops looking: the doorbell takes over.
    pub(crate) fn settle(&self) {
        self.words.settle(self);
    }

    /// For the hub: whether its doorbell may be armed and disarmed often.
    pub(crate) fn is_cheap_to_settle(&self) -> bool {
        let mut bells = self.bells.iter().filter_map(OnceLock::get);
        bells.all(|bell| self.ring.is_cheap_to_arm(bell.get_ref()))
    }

    /// For the hub, which looks again at those that it has settled: takes the doorbell's place. False if
    /// the stream is not waiting for its doorbell any more.
    pub(crate) fn relist(&self) -> bool {
        self.words.relist(self)
    }

    /// The stream is gone: nothing here is waited for any more.
    pub(crate) fn close(&self) {
        self.words.close(self);
    }
}

impl Source for Link {
    type Error = io::Error;

    fn has_changed(&self, mark: u64) -> bool {
        self.ring.has_changed(Mark::from_bits(mark))
    }

    fn is_there(&self) -> bool {
        self.ring.is_there()
    }

    fn arm(&self, mark: u64, is_armed: &mut bool) -> Poll<io::Result<()>> {
        for place in 0..Ring::DOORBELLS {
            let Some(bell) = self.bell(place)? else { continue };
            if !self.ring.arm(bell.get_ref(), Mark::from_bits(mark)) {
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
        for bell in self.bells.iter().filter_map(OnceLock::get) {
            self.ring.disarm(bell.get_ref());
            // It rang: a ring that lies in the kernel untaken is one that its sender pays for.
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

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.get() {
            hub.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, Listener, Stream};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::Weak;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::runtime::Runtime;
    use tokio::task::{JoinHandle, yield_now};

    fn runtime() -> Runtime {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("descriptors for a runtime")
    }

    /// A pair on its ring, which never looks for long.
    async fn pair() -> (Stream, Stream) {
        let settings = Builder::new().spin(Duration::ZERO);
        let listener: Listener = settings.bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("an address");
        let mut client = settings.connect(addr).await.expect("connect");
        let (mut server, _) = listener.accept().await.expect("accept");
        while client.on_ring() != (true, true) || server.on_ring() != (true, true) {
            client.write_u8(1).await.expect("write");
            server.read_u8().await.expect("read");
            server.write_u8(1).await.expect("write");
            client.read_u8().await.expect("read");
        }
        (client, server)
    }

    /// Waits for a byte in a task of its own.
    fn reader(mut stream: Stream) -> (Weak<Link>, JoinHandle<io::Result<u8>>) {
        let link = stream.shared.link.as_ref().map(Arc::downgrade).expect("a link");
        (link, tokio::spawn(async move { stream.read_u8().await }))
    }

    async fn is_armed(link: &Link) {
        while !*link.words.lock() {
            yield_now().await;
        }
    }

    fn rings(link: &Link) -> bool {
        let bell = link.bells[0].get().expect("a doorbell");
        let mut fds = [PollFd::new(bell.get_ref(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("poll") == 1
    }

    #[test]
    fn a_settled_stream_is_listed_again_in_the_place_of_its_doorbell() {
        runtime().block_on(async {
            let (mut client, server) = pair().await;
            let (link, task) = reader(server);
            let link = link.upgrade().expect("a link");
            is_armed(&link).await;
            assert!(link.is_cheap_to_settle() && !link.is_due());
            assert!(link.relist());
            assert!(!link.relist(), "it is listed already");
            client.write_u8(5).await.expect("write");
            assert!(link.is_due());
            assert!(!rings(&link), "nobody was asked to ring");
            link.release();
            assert_eq!(task.await.expect("a task").expect("a byte"), 5);
        });
    }

    #[test]
    fn what_came_before_a_stream_was_listed_again_is_found() {
        runtime().block_on(async {
            let (mut client, server) = pair().await;
            let (link, task) = reader(server);
            let link = link.upgrade().expect("a link");
            is_armed(&link).await;
            client.write_u8(6).await.expect("write");
            assert!(rings(&link));
            assert!(link.relist());
            assert!(link.is_due());
            link.settle();
            assert_eq!(task.await.expect("a task").expect("a byte"), 6);
        });
    }

    #[test]
    fn many_streams_sleep_and_wake_together_and_are_let_go_when_they_end() {
        const STREAMS: usize = 16;
        runtime().block_on(async {
            let mut waiting = Vec::new();
            for _ in 0..STREAMS {
                let (client, server) = pair().await;
                let (link, task) = reader(server);
                waiting.push((client, link, task));
            }
            for (_, link, _) in &waiting {
                is_armed(&link.upgrade().expect("a link")).await;
            }
            let (mut first, _, task) = waiting.swap_remove(0);
            first.write_u8(1).await.expect("write");
            assert_eq!(task.await.expect("a task").expect("a byte"), 1);
            for (client, link, _) in &mut waiting {
                is_armed(&link.upgrade().expect("a link")).await;
                client.write_u8(2).await.expect("write");
            }
            for (_, link, task) in waiting {
                assert_eq!(task.await.expect("a task").expect("a byte"), 2);
                // The hub sleeps, and may know it still.
                assert!(link.upgrade().is_none(), "nobody has it any more");
            }
        });
    }
}
