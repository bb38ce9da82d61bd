//! Asynchronous events of a device: ports that go down, queue pairs that fail, the removal of the
//! device.

use super::RdmaContext;
use crate::error::Error;
use crate::high_fd::verb;
use crate::types::QpNum;
use rsock_rdma_sys::verbs::{ibv_async_event, ibv_event_type};
use rustix::fs::OFlags;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

/// Asynchronous events of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "ibv_event_type")]
pub enum AsyncEvent {
    /// The device is gone, or unusable: everything on it has ended.
    DeviceGone,
    /// A port carries nothing now.
    PortDown {
        /// The port, from 1.
        port: u8,
    },
    /// A port works again.
    PortUp {
        /// The port, from 1.
        port: u8,
    },
    /// A queue pair failed.
    QueuePairFailed(QpNum),
    /// Anything else, as libibverbs counts.
    Other(u32),
}

impl RdmaContext {
    /// The next event, if there is one; never waits. The context's descriptor is readable when
    /// there is one.
    #[doc(alias = "ibv_get_async_event")]
    pub fn next_event(&self) -> Option<AsyncEvent> {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        let verbs = self.verbs();
        // SAFETY: the context is open and `event` is writable.
        let rc = unsafe { verbs.ibv_get_async_event(self.raw(), event.as_mut_ptr()) };
        if rc != 0 {
            return None;
        }
        // SAFETY: the call has filled it.
        let mut event = unsafe { event.assume_init() };
        let found = convert(&event);
        // SAFETY: taken above, and acknowledged once.
        unsafe { verbs.ibv_ack_async_event(&raw mut event) };
        Some(found)
    }

    /// Reading events must not wait.
    pub(super) fn watch_events(&self) -> Result<(), Error> {
        let flags = rustix::fs::fcntl_getfl(self).map_err(verb("fcntl"))?;
        rustix::fs::fcntl_setfl(self, flags | OFlags::NONBLOCK).map_err(verb("fcntl"))
    }
}

impl AsFd for RdmaContext {
    /// Readable when the device has an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open; its descriptor does not change.
        let fd = unsafe { (*self.raw()).async_fd };
        // SAFETY: the descriptor is open as long as the context, so as long as `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

/// An event that is not acknowledged yet.
fn convert(event: &ibv_async_event) -> AsyncEvent {
    use ibv_event_type as T;
    match event.event_type {
        T::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceGone,
        T::IBV_EVENT_PORT_ERR | T::IBV_EVENT_PORT_ACTIVE => {
            // SAFETY: events of ports carry a number.
            let port = unsafe { event.element.port_num };
            let port = u8::try_from(port).unwrap_or(0);
            if event.event_type == T::IBV_EVENT_PORT_ERR {
                AsyncEvent::PortDown { port }
            } else {
                AsyncEvent::PortUp { port }
            }
        }
        T::IBV_EVENT_QP_FATAL | T::IBV_EVENT_QP_REQ_ERR | T::IBV_EVENT_QP_ACCESS_ERR => {
            // SAFETY: events of queue pairs carry the queue pair.
            let qp = unsafe { event.element.qp };
            // SAFETY: its end waits until the event is acknowledged.
            AsyncEvent::QueuePairFailed(QpNum(unsafe { (*qp).qp_num }))
        }
        other => AsyncEvent::Other(other.0),
    }
}
