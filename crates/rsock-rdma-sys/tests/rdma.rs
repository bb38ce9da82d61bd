//! The bindings against a real libibverbs and a real device: each field has the value that C
//! reports. `cargo xtask test` runs this in the lab.

use rsock_rdma_sys::verbs::*;
use rsock_rdma_sys::{open, open_cm};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;

/// Opens the first device, calls `test`, closes it.
fn with_device(test: impl FnOnce(&Verbs, *mut ibv_context)) {
    let verbs = open().expect("libibverbs");
    let mut n = 0;
    // SAFETY: `n` is writable.
    let list = unsafe { verbs.ibv_get_device_list(&raw mut n) };
    assert!(!list.is_null() && n > 0, "no device");
    // SAFETY: the list has an entry.
    let device = unsafe { list.read() };
    // SAFETY: the device is in the list, which is not freed yet.
    let ctx = unsafe { verbs.ibv_open_device(device) };
    assert!(!ctx.is_null());
    // SAFETY: the list came from `ibv_get_device_list`, and an opened device needs it no longer.
    unsafe { verbs.ibv_free_device_list(list) };
    test(verbs, ctx);
    // SAFETY: opened above, and nothing made from it is left.
    assert_eq!(unsafe { verbs.ibv_close_device(ctx) }, 0);
}

#[test]
fn a_device_describes_itself() {
    with_device(|verbs, ctx| {
        // SAFETY: the context is open.
        let device = unsafe { (*ctx).device };
        // SAFETY: it is the context's own device.
        let name = unsafe { verbs.ibv_get_device_name(device) };
        // SAFETY: a device's name is a string that lives as long as the device.
        let name = unsafe { CStr::from_ptr(name) };
        let expected = std::env::var("LAB_DEVICE").expect("the lab names its device");
        assert_eq!(name.to_str(), Ok(expected.as_str()));

        let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open and `attr` is writable.
        assert_eq!(unsafe { verbs.ibv_query_device(ctx, attr.as_mut_ptr()) }, 0);
        // SAFETY: all of its fields are numbers.
        let attr = unsafe { attr.assume_init() };
        assert_eq!(attr.phys_port_cnt, 1, "the last field");
        assert!(attr.max_qp > 0 && attr.max_sge > 1 && attr.max_srq_wr > 0 && attr.max_cqe > 0);
    });
}

#[test]
fn a_port_has_the_address_of_its_network_device() {
    with_device(|verbs, ctx| {
        let mut port = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the context is open; the function fills an older, shorter form of the structure.
        assert_eq!(unsafe { verbs.ibv_query_port(ctx, 1, port.as_mut_ptr().cast()) }, 0);
        // SAFETY: all of its fields are numbers, zero where nothing was written.
        let port = unsafe { port.assume_init() };
        assert_eq!(port.state, ibv_port_state::IBV_PORT_ACTIVE);
        assert_eq!(port.active_mtu, ibv_mtu::IBV_MTU_4096);
        assert_eq!(port.link_layer, 2, "IBV_LINK_LAYER_ETHERNET");
        let ip: std::net::Ipv4Addr = std::env::var("LAB_IP").expect("address").parse().expect("IP");
        let gids = (0..port.gid_tbl_len).filter_map(|index| {
            let mut gid = ibv_gid { raw: [0; 16] };
            // SAFETY: the context is open and `gid` is writable.
            let rc = unsafe { verbs.ibv_query_gid(ctx, 1, index, &raw mut gid) };
            // SAFETY: both forms of the union are plain bytes.
            let raw = unsafe { gid.raw };
            (rc == 0).then_some(raw)
        });
        assert!(gids.into_iter().any(|gid| gid == ip.to_ipv6_mapped().octets()));
    });
}

/// A queue of completions that is empty, through the table of operations.
#[test]
fn the_data_path_reaches_the_driver() {
    with_device(|verbs, ctx| {
        // SAFETY: the context is open; no channel.
        let cq = unsafe { verbs.ibv_create_cq(ctx, 4, ptr::null_mut(), ptr::null_mut(), 0) };
        assert!(!cq.is_null());
        let mut wc = [const { MaybeUninit::<ibv_wc>::uninit() }; 4];
        // SAFETY: the queue is live and there is room for four.
        let n = unsafe { rsock_rdma_sys::inline::poll_cq(cq, 4, wc.as_mut_ptr().cast()) };
        assert_eq!(n, 0);
        // SAFETY: the queue is live.
        assert_eq!(unsafe { rsock_rdma_sys::inline::req_notify_cq(cq, false) }, 0);
        // SAFETY: made above, destroyed once.
        assert_eq!(unsafe { verbs.ibv_destroy_cq(cq) }, 0);
    });
}

#[test]
fn a_connection_identifier_binds_to_the_device() {
    let cm = open_cm().expect("librdmacm");
    // SAFETY: needs nothing.
    let channel = unsafe { cm.rdma_create_event_channel() };
    assert!(!channel.is_null());
    let mut id = ptr::null_mut();
    let space = rsock_rdma_sys::cm::rdma_port_space::RDMA_PS_TCP;
    // SAFETY: the channel is live and `id` is writable.
    let rc = unsafe { cm.rdma_create_id(channel, &raw mut id, ptr::null_mut(), space) };
    assert_eq!(rc, 0);
    let ip: std::net::Ipv4Addr = std::env::var("LAB_IP").expect("address").parse().expect("IP");
    // SAFETY: an address of zeros is valid.
    let mut addr = unsafe { MaybeUninit::<libc::sockaddr_in>::zeroed().assume_init() };
    addr.sin_family = libc::sa_family_t::try_from(libc::AF_INET).expect("family");
    addr.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
    // SAFETY: the identifier is live and the address is of the family it says.
    assert_eq!(unsafe { cm.rdma_bind_addr(id, (&raw mut addr).cast()) }, 0);
    // SAFETY: the identifier is live, and bound: it has a device.
    assert!(!unsafe { (*id).verbs }.is_null());
    // SAFETY: as above.
    assert_ne!(unsafe { cm.rdma_get_src_port(id) }, 0);
    // SAFETY: as above; a bound identifier has its device's port.
    assert_eq!(unsafe { (*id).port_num }, 1);
    // SAFETY: made above, destroyed once, and no event of it is left.
    assert_eq!(unsafe { cm.rdma_destroy_id(id) }, 0);
    // SAFETY: made above; its only identifier is gone.
    unsafe { cm.rdma_destroy_event_channel(channel) };
}
