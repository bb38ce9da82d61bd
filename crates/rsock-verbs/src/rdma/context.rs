//! Opened devices.

use super::RdmaContext;
use super::convert::{count, object, zero};
use super::path::RdmaPath;
use super::pd::RdmaPd;
use super::shared_cq::{CqShare, SharedCqs};
use crate::error::Error;
use crate::own_fd;
use crate::types::{DeviceAttr, Gid};
use rsock_rdma_sys::verbs::{
    Verbs, ibv_context, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_gid_type, ibv_mtu,
    ibv_port_attr,
};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// An opened device that may be closed meanwhile.
#[derive(Clone, Debug)]
pub struct WeakRdmaContext(Weak<OpenDevice>);

impl WeakRdmaContext {
    /// The device, if it is still open.
    #[must_use]
    pub fn upgrade(&self) -> Option<RdmaContext> {
        self.0.upgrade().map(RdmaContext)
    }
}

/// An opened device, closed with the last of its users.
///
/// # Invariants
/// `raw` came from `ibv_open_device` and is closed exactly once, in `drop`; every object made from
/// it holds this value.
pub(super) struct OpenDevice {
    raw: NonNull<ibv_context>,
    verbs: &'static Verbs,
    name: String,
    attr: DeviceAttr,
    n_ports: u8,
    /// The domains in use, one per port and peer host.
    domains: Mutex<Vec<Weak<RdmaPd>>>,
    shared_cqs: SharedCqs,
}

// SAFETY: libibverbs's contexts may be used from any thread.
unsafe impl Send for OpenDevice {}
// SAFETY: as above, by several at once: it locks where it must.
unsafe impl Sync for OpenDevice {}

impl std::fmt::Debug for OpenDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaContext").field("name", &self.name).finish_non_exhaustive()
    }
}

/// One address of a device's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The port, from 1.
    pub port: u8,
    /// Its index in the port's table.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// Whether packets with it go over UDP and can be routed: RoCE version 2.
    pub is_roce_v2: bool,
}

impl RdmaContext {
    /// Names of the devices of this host; none where rdma-core is not installed.
    #[must_use]
    pub fn device_names() -> Vec<String> {
        let mut names = Vec::new();
        with_devices(|verbs, device| {
            names.push(name_of(verbs, device));
            None::<()>
        });
        names
    }

    /// Opens a device by its name, or the first one.
    ///
    /// # Errors
    /// `NoDevice`, also where rdma-core is not installed (`ENODEV`); the driver's error.
    pub fn open(name: Option<&str>) -> Result<Self, Error> {
        with_devices(|verbs, device| {
            let found = name_of(verbs, device);
            if name.is_some_and(|name| name != found) {
                return None;
            }
            // SAFETY: the device is in the list, which is not freed yet.
            let raw = unsafe { verbs.ibv_open_device(device) };
            // INVARIANT: opened here, closed by `drop`.
            Some(object("ibv_open_device", raw).map(|raw| (verbs, raw, found)))
        })
        .unwrap_or(Err(Error::NoDevice))
        .and_then(|(verbs, raw, name)| Self::describe(verbs, raw, name))
    }

    fn describe(
        verbs: &'static Verbs,
        raw: NonNull<ibv_context>,
        name: String,
    ) -> Result<Self, Error> {
        let ctx = raw.as_ptr();
        // SAFETY: the context is open.
        let cmd_fd = unsafe { &raw mut (*ctx).cmd_fd };
        // SAFETY: as above.
        let async_fd = unsafe { &raw mut (*ctx).async_fd };
        for fd in [cmd_fd, async_fd] {
            // SAFETY: no other code knows of the context yet, and libibverbs looks its descriptors
            // up in it at each call.
            unsafe { own_fd::raise_at(fd) };
        }
        let mut inner = OpenDevice {
            raw,
            verbs,
            name,
            attr: NOTHING,
            n_ports: 0,
            domains: Mutex::default(),
            shared_cqs: SharedCqs::default(),
        };
        let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open and `attr` is writable.
        let rc = unsafe { verbs.ibv_query_device(raw.as_ptr(), attr.as_mut_ptr()) };
        zero("ibv_query_device", rc)?;
        // SAFETY: all of its fields are numbers, zero where nothing was written.
        let attr = unsafe { attr.assume_init() };
        inner.n_ports = attr.phys_port_cnt;
        inner.attr = DeviceAttr {
            max_qp_wr: count(attr.max_qp_wr),
            max_cqe: count(attr.max_cqe),
            max_inline: MAX_COPY,
            max_send: MAX_COPY,
            write_with_imm: true,
            foreign_remote_write: true,
            notices_peer: false,
        };
        let this = Self(Arc::new(inner));
        Ok(this)
    }

    /// A weak reference, which does not keep it open.
    #[must_use]
    pub fn downgrade(&self) -> WeakRdmaContext {
        WeakRdmaContext(Arc::downgrade(&self.0))
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The addresses of a port.
    ///
    /// # Errors
    /// The driver's error.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>, Error> {
        let attr = self.port(port)?;
        let mut found = Vec::new();
        for index in 0..u8::try_from(attr.gid_tbl_len).unwrap_or(u8::MAX) {
            let mut entry = MaybeUninit::<ibv_gid_entry>::zeroed();
            let (verbs, raw) = (self.verbs(), self.raw());
            let (at, n) = (entry.as_mut_ptr(), size_of::<ibv_gid_entry>());
            // SAFETY: the context is open and there is room for an entry of the size that is given.
            let rc = unsafe {
                verbs._ibv_query_gid_ex(raw, u32::from(port), u32::from(index), at, 0, n)
            };
            if rc != 0 {
                // An empty entry of the table.
                continue;
            }
            // SAFETY: all of its fields are numbers, zero where nothing was written.
            let entry = unsafe { entry.assume_init() };
            // SAFETY: both forms of the union are plain bytes.
            let gid = Gid(unsafe { entry.gid.raw });
            let is_roce_v2 = entry.gid_type == ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0;
            found.push(GidEntry { port, index, gid, is_roce_v2 });
        }
        Ok(found)
    }

    /// A local port that has an address. Where packets can have more than one form, the one that
    /// can be routed.
    ///
    /// # Errors
    /// `NoDevice` if no port has it; the driver's error.
    pub fn find_gid(&self, addr: Gid) -> Result<GidEntry, Error> {
        let mut found = None;
        for port in 1..=self.0.n_ports {
            let gids = self.gids(port)?;
            let mut own = gids.into_iter().filter(|entry| entry.gid == addr);
            let first = own.next();
            found = found.or(own.chain(first).max_by_key(|entry| entry.is_roce_v2));
        }
        found.ok_or(Error::NoDevice)
    }

    /// The path from the local address `from` to the peer's address `to`, with the largest packets
    /// that the local port allows.
    ///
    /// # Errors
    /// The driver's error.
    pub fn path(&self, from: &GidEntry, to: Gid) -> Result<RdmaPath, Error> {
        let attr = self.port(from.port)?;
        Ok(RdmaPath::new(from.port, from.index, to, attr.active_mtu))
    }

    /// A path that consists of a port alone.
    pub(super) fn path_from(&self, port: u8, to: Gid) -> Result<RdmaPath, Error> {
        Ok(RdmaPath::new(port, 0, to, self.port(port)?.active_mtu))
    }

    /// Bytes of payload of the port's largest packets now, and ever.
    pub(super) fn mtus(&self, port: u8) -> Result<(usize, usize), Error> {
        let attr = self.port(port)?;
        let bytes = |mtu: ibv_mtu| 128usize << mtu.0.min(ibv_mtu::IBV_MTU_4096.0);
        let (mtu, max) = (bytes(attr.active_mtu), bytes(attr.max_mtu));
        Ok((mtu, max.max(mtu)))
    }

    fn port(&self, port: u8) -> Result<ibv_port_attr, Error> {
        let mut attr = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the context is open; the call fills an older, shorter form of the structure.
        let rc = unsafe { self.verbs().ibv_query_port(self.raw(), port, attr.as_mut_ptr().cast()) };
        zero("ibv_query_port", rc)?;
        // SAFETY: all of its fields are numbers, zero where nothing was written.
        Ok(unsafe { attr.assume_init() })
    }

    pub(super) fn verbs(&self) -> &'static Verbs {
        self.0.verbs
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.0.raw.as_ptr()
    }

    /// A part of a shared completion queue; `None` if there is none with room for `n` completions.
    pub(super) fn share(&self, n: u32) -> Result<Option<Arc<CqShare>>, Error> {
        self.0.shared_cqs.share(self, n)
    }

    /// The domain for queue pairs on `path`.
    pub(super) fn domain(&self, path: &RdmaPath) -> Result<Arc<RdmaPd>, Error> {
        let mut domains = self.0.domains.lock().unwrap_or_else(PoisonError::into_inner);
        domains.retain(|pd| pd.strong_count() > 0);
        let mut open = domains.iter().filter_map(Weak::upgrade);
        if let Some(pd) = open.find(|pd| pd.leads_to(path)) {
            return Ok(pd);
        }
        let pd = RdmaPd::new(self, path)?;
        domains.push(Arc::downgrade(&pd));
        Ok(pd)
    }

    pub(super) fn limits(&self) -> DeviceAttr {
        self.0.attr
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: the context is open, and it is no longer in use.
        let ctx = unsafe { self.raw.as_ref() };
        own_fd::forget(ctx.cmd_fd);
        own_fd::forget(ctx.async_fd);
        // SAFETY: opened by `ibv_open_device`, and nothing made from it is left.
        let _ = unsafe { self.verbs.ibv_close_device(self.raw.as_ptr()) };
    }
}

/// Calls `f` with each device of the host until it returns a value.
fn with_devices<T>(mut f: impl FnMut(&'static Verbs, *mut ibv_device) -> Option<T>) -> Option<T> {
    let verbs = rsock_rdma_sys::open().ok()?;
    let mut n = 0;
    // SAFETY: `n` is writable.
    let list = NonNull::new(unsafe { verbs.ibv_get_device_list(&raw mut n) })?;
    let mut found = None;
    for i in 0..usize::try_from(n).unwrap_or(0) {
        // SAFETY: the list has `n` entries.
        let device = unsafe { list.add(i) };
        // SAFETY: as above; entries are plain pointers.
        let device = unsafe { device.read() };
        found = f(verbs, device);
        if found.is_some() {
            break;
        }
    }
    // SAFETY: it came from `ibv_get_device_list`; opened devices need it no longer.
    unsafe { verbs.ibv_free_device_list(list.as_ptr()) };
    found
}

fn name_of(verbs: &Verbs, device: *mut ibv_device) -> String {
    // SAFETY: the device is in a list that is not freed yet.
    let name = unsafe { verbs.ibv_get_device_name(device) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: a device's name is a string that lives as long as the device's entry in the list.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

const NOTHING: DeviceAttr = DeviceAttr {
    max_qp_wr: 0,
    max_cqe: 0,
    max_inline: 0,
    max_send: 0,
    write_with_imm: false,
    foreign_remote_write: false,
    notices_peer: false,
};

/// Bytes that are copied for a request while posting, by the device or by this module.
const MAX_COPY: u32 = 64 << 10;
