//! Event channels of rdma_cm: a descriptor, and the kernel's events of the identifiers on it.

use crate::error::Error;
use rsock_rdma_sys::cm::{Cm, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_event_channel};
use rsock_verbs::family::{ProcessId, process};
use rsock_verbs::{QpNum, own_fd};
use rustix::fs::OFlags;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// An event channel.
///
/// # Invariants
/// `raw` came from `rdma_create_event_channel` and is destroyed exactly once, in `drop`, by the
/// process that made it; identifiers on it hold this value. Every event taken is acknowledged at
/// once.
pub(super) struct EventChannel {
    raw: NonNull<rdma_event_channel>,
    cm: &'static Cm,
    owner: ProcessId,
}

impl std::fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventChannel").field("fd", &self.as_fd()).finish_non_exhaustive()
    }
}

// SAFETY: librdmacm's channels may be used from any thread.
unsafe impl Send for EventChannel {}
// SAFETY: as above, by several at once.
unsafe impl Sync for EventChannel {}

/// An event, copied.
#[derive(Debug)]
pub(super) struct CmEvent {
    /// The identifier that it is about. An address to compare, and for a request one to own.
    pub(super) id: *mut rdma_cm_id,
    pub(super) kind: rdma_cm_event_type,
    /// A negative errno, or the reason of a rejection.
    pub(super) status: i32,
    /// The peer's queue pair, if the event has it.
    pub(super) qp_num: QpNum,
    data: [u8; 255],
    len: usize,
}

impl CmEvent {
    pub(super) fn data(&self) -> &[u8] {
        &self.data[..self.len]
    }
}

/// Calls that return 0, or -1 and set errno.
pub(super) fn check(call: &'static str, rc: i32) -> Result<(), Error> {
    if rc == 0 {
        return Ok(());
    }
    Err(Error::System { call, source: io::Error::last_os_error() })
}

impl EventChannel {
    pub(super) fn new() -> Result<Arc<Self>, Error> {
        const NO_DEVICE: Error = Error::Device(rsock_verbs::Error::NoDevice);
        // librdmacm writes to standard error where the kernel has no connection manager.
        rustix::fs::access(DEVICE, rustix::fs::Access::EXISTS).map_err(|_| NO_DEVICE)?;
        let cm = rsock_rdma_sys::open_cm().map_err(|_| NO_DEVICE)?;
        // SAFETY: needs nothing.
        let raw = NonNull::new(unsafe { cm.rdma_create_event_channel() });
        let Some(raw) = raw else {
            let source = io::Error::last_os_error();
            return Err(match source.raw_os_error() {
                // Neither the kernel's rdma_cm nor a device.
                Some(libc::ENODEV | libc::ENOENT | libc::ENOSYS) => NO_DEVICE,
                _ => Error::System { call: "rdma_create_event_channel", source },
            });
        };
        // SAFETY: the channel is live, and no other thread knows of it yet.
        let fd = unsafe { &raw mut (*raw.as_ptr()).fd };
        // SAFETY: librdmacm looks the descriptor up in the channel at each call.
        unsafe { own_fd::raise_at(fd) };
        // INVARIANT: made here, destroyed by `drop`.
        let this = Arc::new(Self { raw, cm, owner: process() });
        let flags = rustix::fs::fcntl_getfl(&*this).map_err(Error::system("fcntl"))?;
        rustix::fs::fcntl_setfl(&*this, flags | OFlags::NONBLOCK)
            .map_err(Error::system("fcntl"))?;
        Ok(this)
    }

    pub(super) fn cm(&self) -> &'static Cm {
        self.cm
    }

    pub(super) fn raw(&self) -> *mut rdma_event_channel {
        self.raw.as_ptr()
    }

    /// Whether this process made it: an inherited one is the parent's to use.
    pub(super) fn is_own(&self) -> bool {
        self.owner == process()
    }

    /// The next event, if there is one; never waits.
    pub(super) fn next(&self) -> Result<Option<CmEvent>, Error> {
        let mut raw: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the channel is live and `raw` is writable.
        let rc = unsafe { self.cm.rdma_get_cm_event(self.raw(), &raw mut raw) };
        if rc != 0 {
            let source = io::Error::last_os_error();
            return match source.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(Error::System { call: "rdma_get_cm_event", source }),
            };
        }
        // SAFETY: the call gave a live event.
        let event = unsafe { copy(raw) };
        // SAFETY: taken above, acknowledged once, and not looked at any more.
        unsafe { self.cm.rdma_ack_cm_event(raw) };
        Ok(Some(event))
    }
}

/// # Safety
/// `raw` is live.
unsafe fn copy(raw: *const rdma_cm_event) -> CmEvent {
    // SAFETY: live, as the caller promises; so below.
    let id = unsafe { (*raw).id };
    // SAFETY: as above.
    let kind = unsafe { (*raw).event };
    // SAFETY: as above.
    let status = unsafe { (*raw).status };
    // SAFETY: as above; identifiers of this crate are connected ones, so this is the union's form.
    let conn = unsafe { &raw const (*raw).param.conn };
    // SAFETY: as above; this form of the union has numbers and a pointer, for which all bits are
    // valid.
    let param = unsafe { conn.cast::<rsock_rdma_sys::cm::rdma_conn_param>().read() };
    let mut event =
        CmEvent { id, kind, status, qp_num: QpNum(param.qp_num), data: [0; 255], len: 0 };
    let has_data = matches!(
        kind,
        rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST
            | rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_RESPONSE
            | rdma_cm_event_type::RDMA_CM_EVENT_REJECTED
    );
    if has_data && !param.private_data.is_null() {
        event.len = usize::from(param.private_data_len);
        let to = event.data.as_mut_ptr();
        // SAFETY: the event has so many bytes there until it is acknowledged; 255 fit.
        unsafe { ptr::copy_nonoverlapping(param.private_data.cast::<u8>(), to, event.len) };
    }
    event
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        own_fd::forget(self.as_fd().as_raw_fd());
        if self.is_own() {
            // SAFETY: made by `rdma_create_event_channel`; no identifier is left on it.
            unsafe { self.cm.rdma_destroy_event_channel(self.raw.as_ptr()) };
        } else {
            // A copy keeps the parent's listeners and connections in the kernel alive.
            let copy = self.as_fd().as_raw_fd();
            // SAFETY: this process's copy of the parent's descriptor; nothing in this process names
            // it any more.
            unsafe { rustix::io::close(copy) };
        }
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is live; its descriptor does not change.
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the descriptor is open as long as the channel, so as long as `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

/// The kernel's connection manager.
const DEVICE: &str = "/dev/infiniband/rdma_cm";
