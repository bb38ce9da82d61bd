//! Identifiers: one end of a connection, or a listener, in the kernel's connection manager.

use super::address::{self, Raw};
use super::channel::{EventChannel, check};
use crate::error::Error;
use rsock_rdma_sys::cm::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, rdma_cm_id, rdma_conn_param, rdma_port_space,
};
use rsock_rdma_sys::verbs::{ibv_context, ibv_qp_attr, ibv_qp_state};
use rsock_verbs::{QpNum, QpState, RNR_RETRIES, own_fd};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// An identifier.
///
/// # Invariants
/// `raw` came from `rdma_create_id`, or with a request, and is destroyed exactly once, in `drop`,
/// by the process that made it, before the channel that it is on.
#[derive(Debug)]
pub(super) struct Id {
    raw: NonNull<rdma_cm_id>,
    channel: Mutex<Arc<EventChannel>>,
}

// SAFETY: librdmacm's identifiers may be used from any thread.
unsafe impl Send for Id {}
// SAFETY: as above, by several at once: each call is one message to the kernel, which locks.
unsafe impl Sync for Id {}

impl Id {
    pub(super) fn new(channel: &Arc<EventChannel>) -> Result<Arc<Self>, Error> {
        let mut raw = ptr::null_mut();
        let space = rdma_port_space::RDMA_PS_TCP;
        let cm = channel.cm();
        // SAFETY: the channel is live and `raw` is writable.
        let rc = unsafe { cm.rdma_create_id(channel.raw(), &raw mut raw, ptr::null_mut(), space) };
        check("rdma_create_id", rc)?;
        let raw = NonNull::new(raw).ok_or(Error::LocalState("no identifier"))?;
        // INVARIANT: made here, destroyed by `drop`.
        Ok(Arc::new(Self { raw, channel: Mutex::new(Arc::clone(channel)) }))
    }

    /// Takes the identifier that came with a request.
    ///
    /// # Safety
    /// It is live, on `channel`, and owned by this value.
    pub(super) unsafe fn from_request(
        raw: *mut rdma_cm_id,
        channel: &Arc<EventChannel>,
    ) -> Option<Arc<Self>> {
        // INVARIANT: the caller gives it away.
        let raw = NonNull::new(raw)?;
        Some(Arc::new(Self { raw, channel: Mutex::new(Arc::clone(channel)) }))
    }

    /// The address, to compare with an event's.
    pub(super) fn raw(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }

    fn channel(&self) -> Arc<EventChannel> {
        Arc::clone(&self.channel.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on its events come to `channel`, including those that are pending.
    pub(super) fn migrate(&self, channel: &Arc<EventChannel>) -> Result<(), Error> {
        let mut old = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: both are live; no event of it waits to be acknowledged.
        let rc = unsafe { channel.cm().rdma_migrate_id(self.raw(), channel.raw()) };
        check("rdma_migrate_id", rc)?;
        *old = Arc::clone(channel);
        Ok(())
    }

    pub(super) fn bind(&self, addr: SocketAddr, v6_only: bool) -> Result<(), Error> {
        let cm = self.channel().cm();
        if v6_only {
            let (level, name) = (RDMA_OPTION_ID.0.cast_signed(), RDMA_OPTION_ID_AFONLY.0);
            let mut on = 1i32;
            let (value, len) = ((&raw mut on).cast(), size_of::<i32>());
            let raw = self.raw();
            // SAFETY: the identifier is live and the value has the length that is given.
            let rc = unsafe { cm.rdma_set_option(raw, level, name.cast_signed(), value, len) };
            check("rdma_set_option", rc)?;
        }
        let mut addr = Raw::new(addr);
        // SAFETY: the identifier is live; the address has the length of its family.
        check("rdma_bind_addr", unsafe { cm.rdma_bind_addr(self.raw(), addr.as_mut_ptr()) })?;
        self.raise_descriptors();
        Ok(())
    }

    pub(super) fn listen(&self, backlog: u32) -> Result<(), Error> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: the identifier is live.
        check("rdma_listen", unsafe { self.channel().cm().rdma_listen(self.raw(), backlog) })
    }

    pub(super) fn resolve_addr(&self, to: SocketAddr, within: Duration) -> Result<(), Error> {
        let mut to = Raw::new(to);
        let (cm, ms) = (self.channel().cm(), millis(within));
        // SAFETY: the identifier is live; no source address, and a destination of its family's
        // length.
        let rc = unsafe { cm.rdma_resolve_addr(self.raw(), ptr::null_mut(), to.as_mut_ptr(), ms) };
        check("rdma_resolve_addr", rc)
    }

    pub(super) fn resolve_route(&self, within: Duration) -> Result<(), Error> {
        let (cm, ms) = (self.channel().cm(), millis(within));
        // SAFETY: the identifier is live.
        check("rdma_resolve_route", unsafe { cm.rdma_resolve_route(self.raw(), ms) })
    }

    pub(super) fn connect(&self, qp_num: QpNum, data: &[u8]) -> Result<(), Error> {
        let mut param = conn_param(qp_num, data);
        // SAFETY: the identifier is live; the data outlives the call.
        check("rdma_connect", unsafe {
            self.channel().cm().rdma_connect(self.raw(), &raw mut param)
        })
    }

    pub(super) fn establish(&self) -> Result<(), Error> {
        // SAFETY: the identifier is live.
        check("rdma_establish", unsafe { self.channel().cm().rdma_establish(self.raw()) })
    }

    pub(super) fn accept(&self, qp_num: QpNum, data: &[u8]) -> Result<(), Error> {
        let mut param = conn_param(qp_num, data);
        // SAFETY: the identifier is live; the data outlives the call.
        check("rdma_accept", unsafe { self.channel().cm().rdma_accept(self.raw(), &raw mut param) })
    }

    pub(super) fn reject(&self, data: &[u8]) -> Result<(), Error> {
        let (at, len) = (data.as_ptr().cast(), u8::try_from(data.len()).unwrap_or(0));
        // SAFETY: the identifier is live; the data outlives the call.
        check("rdma_reject", unsafe { self.channel().cm().rdma_reject(self.raw(), at, len) })
    }

    /// Asks the peer to end the connection, or confirms its request.
    pub(super) fn disconnect(&self) {
        let channel = self.channel();
        if channel.is_own() {
            // SAFETY: the identifier is live. It fails where there is nothing to end.
            let _ = unsafe { channel.cm().rdma_disconnect(self.raw()) };
        }
    }

    /// The local canonical address.
    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is live; its addresses are set before it is returned to a caller.
        let raw = unsafe { &raw const (*self.raw()).route.addr.__bindgen_anon_1.src_storage };
        // SAFETY: a whole storage.
        unsafe { address::read(raw.cast()) }
    }

    /// The peer's canonical address.
    pub(super) fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        let raw = unsafe { &raw const (*self.raw()).route.addr.__bindgen_anon_2.dst_storage };
        // SAFETY: a whole storage.
        unsafe { address::read(raw.cast()) }
    }

    /// The device that it is bound to, and its port there.
    pub(super) fn device(&self) -> Result<(String, u8), Error> {
        let no_device = || Error::Device(rsock_verbs::Error::NoDevice);
        let ctx = self.raise_descriptors().ok_or_else(no_device)?;
        // SAFETY: librdmacm keeps the contexts that it names open.
        let device = unsafe { (*ctx.as_ptr()).device };
        let verbs = rsock_rdma_sys::open().map_err(|_| no_device())?;
        // SAFETY: the device of an open context.
        let name = unsafe { verbs.ibv_get_device_name(device) };
        // SAFETY: a device's name is a string that lives as long as the device.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        // SAFETY: the identifier is live.
        Ok((name, unsafe { (*self.raw()).port_num }))
    }

    /// librdmacm's context of the device that it is bound to, if it is. Its descriptors are moved
    /// to the library's range.
    fn raise_descriptors(&self) -> Option<NonNull<ibv_context>> {
        // SAFETY: the identifier is live.
        let ctx = NonNull::new(unsafe { (*self.raw()).verbs })?;
        // SAFETY: librdmacm keeps the contexts that it names open.
        let cmd_fd = unsafe { &raw mut (*ctx.as_ptr()).cmd_fd };
        // SAFETY: as above.
        let async_fd = unsafe { &raw mut (*ctx.as_ptr()).async_fd };
        for fd in [cmd_fd, async_fd] {
            // SAFETY: libibverbs looks its descriptors up in the context at each call, and this
            // crate's calls that use this context come after this.
            unsafe { own_fd::raise_at(fd) };
        }
        Some(ctx)
    }

    /// What a queue pair needs to go to `to`: values, and which of them count.
    pub(super) fn qp_attr(&self, to: QpState) -> Result<(ibv_qp_attr, i32), Error> {
        let mut attr = MaybeUninit::<ibv_qp_attr>::zeroed();
        // SAFETY: all of its fields are numbers.
        unsafe { attr.assume_init_mut() }.qp_state = match to {
            QpState::Rtr => ibv_qp_state::IBV_QPS_RTR,
            _ => ibv_qp_state::IBV_QPS_RTS,
        };
        let mut mask = 0;
        let (cm, at) = (self.channel().cm(), attr.as_mut_ptr());
        // SAFETY: the identifier is live; both places are writable.
        check("rdma_init_qp_attr", unsafe { cm.rdma_init_qp_attr(self.raw(), at, &raw mut mask) })?;
        // SAFETY: as above.
        Ok((unsafe { attr.assume_init() }, mask))
    }
}

/// COMPAT: as in C rsockets, except for the retries: without RDMA READ, and with unlimited RNR
/// retries.
fn conn_param(qp_num: QpNum, data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: data.as_ptr().cast(),
        private_data_len: u8::try_from(data.len()).unwrap_or(0),
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: rsock_verbs::rdma::RETRIES,
        rnr_retry_count: RNR_RETRIES,
        srq: 0,
        qp_num: qp_num.0,
    }
}

fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1)
}

impl Drop for Id {
    fn drop(&mut self) {
        let channel = self.channel();
        if channel.is_own() {
            // SAFETY: owned by this value, on a live channel, and no event of it waits to be
            // acknowledged.
            let _ = unsafe { channel.cm().rdma_destroy_id(self.raw()) };
        }
    }
}
