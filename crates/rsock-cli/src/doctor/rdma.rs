//! RDMA devices: libraries, device, port and address, then the objects that a stream needs.

use super::{Device, Findings, interface};
use crate::error::reason;
use crate::rdma_devices;
use rsock_cm::Port;
use rsock_cm::manager::Manager;
use rsock_cm::rdma::RdmaManager;
use rsock_verbs::rdma::{RdmaContext, RdmaPath};
use rsock_verbs::{Access, Context, Error, ProtectionDomain};
use rustix::process::{Resource, getrlimit};
use std::fs::OpenOptions;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Looks at the device called `only`, or at all of them.
pub(super) fn look(only: Option<&str>) -> Findings {
    let mut findings = Findings::new(Device::Rdma);
    findings.check_switch(["tcp", "soft"], "RDMA");
    libraries(&mut findings);
    connection_manager(&mut findings);
    let devices = match rdma_devices::devices() {
        Ok(devices) => devices,
        Err(e) => {
            let why = format!("the kernel's list of devices cannot be read: {e}");
            findings.stopped("device", why, "mount /sys, also in the container");
            return findings;
        }
    };
    let is_asked = |device: &rdma_devices::Device| only.is_none_or(|name| name == device.name);
    let devices: Vec<_> = devices.into_iter().filter(is_asked).collect();
    if devices.is_empty() {
        let what = only.map_or("there is no RDMA device".to_owned(), |name| {
            format!("there is no RDMA device called {name}")
        });
        findings.stopped(
            "device",
            what,
            "load the adapter's driver, or make a soft device: modprobe rdma_rxe && rdma link add \
             rxe0 type rxe netdev INTERFACE",
        );
        return findings;
    }
    // One device that works is enough: failures of the others are only limits then.
    let each: Vec<_> = devices.iter().map(examine).collect();
    let has_working = each.iter().any(|findings| !findings.is_stopped());
    for finding in each.into_iter().flat_map(|findings| findings.list) {
        match (finding.state, finding.fix) {
            (super::State::Stopped, Some(fix)) if has_working => {
                findings.limited(finding.check, finding.what, fix);
            }
            (state, fix) => findings.add(finding.check, state, finding.what, fix),
        }
    }
    findings
}

/// Checks that rdma-core's libraries can be opened.
fn libraries(findings: &mut Findings) {
    let verbs = rsock_rdma_sys::open().map(drop);
    let cm = rsock_rdma_sys::open_cm().map(drop);
    for (found, name, package) in
        [(verbs, "libibverbs", "libibverbs1 ibverbs-providers"), (cm, "librdmacm", "librdmacm1")]
    {
        match found {
            Ok(()) => findings.fine("library", format!("{name} is there")),
            Err(e) => findings.stopped(
                "library",
                format!("{name} cannot be opened: {e}"),
                format!("apt install {package} (elsewhere: rdma-core)"),
            ),
        }
    }
}

/// Checks the kernel's side of librdmacm.
fn connection_manager(findings: &mut Findings) {
    match OpenOptions::new().read(true).write(true).open(CM) {
        Ok(_) => findings.fine("rdma_cm", format!("{CM} can be opened")),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => findings.stopped(
            "rdma_cm",
            format!("{CM} is not ours to open"),
            format!("chmod 666 {CM}; to last, by the udev rule of rdma-core's package"),
        ),
        Err(e) => findings.stopped(
            "rdma_cm",
            format!("{CM} cannot be opened: {}", reason(&e)),
            "modprobe rdma_ucm; in a container: --device /dev/infiniband",
        ),
    }
}

/// Checks one device; each step builds on what the ones before it found.
fn examine(device: &rdma_devices::Device) -> Findings {
    let mut findings = Findings::new(Device::Rdma);
    let name = &device.name;
    let ctx = match RdmaContext::open(Some(name)) {
        Ok(ctx) => {
            findings.fine("device", format!("{name} can be opened"));
            Some(ctx)
        }
        Err(e) => {
            let (what, fix) = not_opened(name, &e);
            findings.stopped("device", what, fix);
            None
        }
    };
    let Some(address) = address(&mut findings, device, interface::addresses) else {
        return findings;
    };
    let Some(ctx) = ctx else { return findings };
    let found = ctx.find_gid(address.into()).and_then(|gid| ctx.path(&gid, gid.gid));
    let Some(path) = gid(&mut findings, name, address, found) else { return findings };
    registering(&mut findings, &ctx, &path);
    listening(&mut findings, name, address);
    findings
}

fn not_opened(name: &str, e: &Error) -> (String, &'static str) {
    let errno = match e {
        Error::Verb { source, .. } => source.raw_os_error(),
        _ => None,
    };
    match (e, errno) {
        (Error::NoDevice, _) => (
            format!("the kernel has {name}, and libibverbs does not see it"),
            "apt install ibverbs-providers, modprobe ib_uverbs; in a container: --device \
             /dev/infiniband",
        ),
        (_, Some(libc::EACCES | libc::EPERM)) => (
            format!("{name} is not ours to open"),
            "chmod 666 /dev/infiniband/uverbs*; to last, by the udev rule of rdma-core's package",
        ),
        _ => (format!("{name} cannot be opened: {e}"), "look at the kernel's messages: dmesg"),
    }
}

/// Looks for a port that is up and has an address that others can connect to. `own` returns the
/// addresses of an interface.
fn address(
    findings: &mut Findings,
    device: &rdma_devices::Device,
    own: impl Fn(&str) -> Vec<IpAddr>,
) -> Option<IpAddr> {
    let mut found = None;
    for port in &device.ports {
        let interface = port.interface.as_deref().unwrap_or("INTERFACE");
        let at = format!("{} port {}", device.name, port.number);
        if !port.is_active() {
            let fix = format!("ip link set {interface} up, and look after the cable");
            let ib = "look after the cable, the switch and the subnet manager";
            let fix = if port.is_ethernet { fix } else { ib.to_owned() };
            findings.stopped("port", format!("{at} is {}", port.state.to_lowercase()), fix);
            continue;
        }
        let single = rdma_devices::Device { name: device.name.clone(), ports: vec![port.clone()] };
        match rdma_devices::first_address(&[single]) {
            Some((_, ip)) => {
                let all: Vec<_> = port.addresses.iter().map(IpAddr::to_string).collect();
                findings.fine("address", format!("{at} is up and has {}", all.join(", ")));
                found = found.or(Some(ip));
            }
            None if port.is_ethernet => match own(interface).first() {
                // The interface has an address that the device does not know.
                Some(ip) => no_gid(findings, &at, *ip, Some(interface)),
                None => findings.stopped(
                    "address",
                    format!("{at} is up and has no IP address"),
                    format!("ip addr add ADDRESS/LENGTH dev {interface}"),
                ),
            },
            None => findings.stopped(
                "address",
                format!("{at} is InfiniBand: connections need the address of an IPoIB interface"),
                "modprobe ib_ipoib, then ip addr add ADDRESS/LENGTH dev ib0",
            ),
        }
    }
    found
}

/// Checks that the address is in the device's GID table, and returns its path if that was `found`.
fn gid(
    findings: &mut Findings,
    name: &str,
    address: IpAddr,
    found: Result<RdmaPath, Error>,
) -> Option<RdmaPath> {
    match found {
        Ok(path) => {
            findings.fine("gid", format!("{name} has a GID for {address}"));
            return Some(path);
        }
        Err(Error::NoDevice) => no_gid(findings, name, address, None),
        Err(e) => findings.stopped(
            "gid",
            format!("{name}'s GIDs cannot be read: {e}"),
            "look at the kernel's messages: dmesg",
        ),
    }
    None
}

/// Adds a finding about a missing GID. The kernel makes one for each address of the interface.
fn no_gid(findings: &mut Findings, at: &str, address: IpAddr, interface: Option<&str>) {
    let interface = interface.unwrap_or("INTERFACE");
    findings.stopped(
        "gid",
        format!("{at} has no RoCE v2 GID for {address}"),
        format!(
            "in a container: run it in the host's network (--network host); else make the kernel \
             add one: ip addr del {address}/LENGTH dev {interface}, then ip addr add the same"
        ),
    );
}

/// Checks that memory can be registered as a stream does it.
fn registering(findings: &mut Findings, ctx: &RdmaContext, path: &RdmaPath) {
    /// As many bytes as a stream registers at its start at most.
    const MEMORY: usize = 1 << 20;
    let register = || -> Result<(), Error> {
        let domain = ctx.alloc_pd(path)?;
        domain.alloc_mr(MEMORY, Access::LOCAL_WRITE | Access::REMOTE_WRITE).map(drop)
    };
    let limit = getrlimit(Resource::Memlock).current;
    let shown = limit.map_or("no limit".to_owned(), |limit| format!("{} KiB", limit >> 10));
    match register() {
        Ok(()) => findings.fine("memory", format!("memory can be registered (ulimit -l: {shown})")),
        Err(e) if limit.is_some() => findings.stopped(
            "memory",
            format!("1 MiB of memory cannot be registered ({e}); ulimit -l is {shown}"),
            "ulimit -l unlimited, LimitMEMLOCK=infinity for a service, or memlock in \
             /etc/security/limits.conf",
        ),
        Err(e) => findings.stopped(
            "memory",
            format!("1 MiB of memory cannot be registered: {e}"),
            "look at the kernel's messages: dmesg",
        ),
    }
}

/// Checks that the connection manager can listen at the device's address.
fn listening(findings: &mut Findings, name: &str, address: IpAddr) {
    let listen = || -> Result<(), rsock_cm::Error> {
        let port = Port::open(address.is_ipv6())?;
        port.bind(SocketAddr::new(address, 0))?;
        RdmaManager.listen(Arc::new(port), 1).map(drop)
    };
    match listen() {
        Ok(()) => findings.fine("listening", format!("{name} takes connections at {address}")),
        Err(e) => findings.stopped(
            "listening",
            format!("{name} takes no connections at {address}: {e}"),
            "see the lines above; then the kernel's messages: dmesg",
        ),
    }
}

/// The file of the kernel's connection manager.
const CM: &str = "/dev/infiniband/rdma_cm";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    fn device(state: &str, is_ethernet: bool, addresses: &[&str]) -> rdma_devices::Device {
        let port = rdma_devices::Port {
            number: 1,
            state: state.into(),
            is_ethernet,
            interface: Some("eth7".into()),
            addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
        };
        rdma_devices::Device { name: "rxe7".into(), ports: vec![port] }
    }

    #[test]
    fn a_port_needs_to_be_up_and_to_have_an_address_and_the_fix_names_the_interface() {
        let look = |device: rdma_devices::Device| {
            let mut findings = Findings::new(Device::Rdma);
            let found = address(&mut findings, &device, |_| Vec::new());
            let last = findings.list.remove(0);
            (found, last.state, last.what, last.fix.unwrap_or_default())
        };
        let (found, state, what, _) = look(device("ACTIVE", true, &["fd09::1", "10.9.0.1"]));
        assert_eq!((found, state), (Some("10.9.0.1".parse().unwrap()), State::Fine), "{what}");
        for (device, part, fix) in [
            (device("DOWN", true, &["10.9.0.1"]), "rxe7 port 1 is down", "ip link set eth7 up"),
            (device("INIT", false, &[]), "is init", "subnet manager"),
            (device("ACTIVE", true, &[]), "no IP address", "ip addr add ADDRESS/LENGTH dev eth7"),
            (device("ACTIVE", false, &[]), "IPoIB", "ib_ipoib"),
        ] {
            let (found, state, what, how) = look(device);
            assert_eq!((found, state), (None, State::Stopped));
            assert!(what.contains(part) && how.contains(fix), "{what}; {how}");
        }
    }

    #[test]
    fn an_address_without_a_gid_is_no_missing_address_and_no_lack_of_memory() {
        let ip: IpAddr = "10.9.0.1".parse().unwrap();
        let mut findings = Findings::new(Device::Rdma);
        let own = |name: &str| {
            assert_eq!(name, "eth7");
            vec![ip]
        };
        assert_eq!(address(&mut findings, &device("ACTIVE", true, &[]), own), None);
        assert!(gid(&mut findings, "rxe7", ip, Err(Error::NoDevice)).is_none());
        // Another error than a missing GID is not reported as one.
        assert!(gid(&mut findings, "rxe7", ip, Err(Error::Exhausted("ports"))).is_none());
        let expected = [
            ("rxe7 port 1 has no RoCE v2 GID for 10.9.0.1", "ip addr del 10.9.0.1/LENGTH dev eth7"),
            ("rxe7 has no RoCE v2 GID for 10.9.0.1", "ip addr del 10.9.0.1/LENGTH dev INTERFACE"),
            ("rxe7's GIDs cannot be read: out of ports", "dmesg"),
        ];
        assert_eq!(findings.list.len(), expected.len());
        for (finding, (what, part)) in findings.list.iter().zip(expected) {
            let fix = finding.fix.as_deref().unwrap_or_default();
            assert_eq!((finding.check, finding.state), ("gid", State::Stopped));
            assert_eq!(finding.what, what);
            assert!(fix.contains(part) && !fix.contains("ulimit"), "{fix}");
        }
    }

    #[test]
    fn why_a_device_does_not_open_decides_the_fix() {
        let verb = |errno| Error::Verb {
            call: "ibv_open_device",
            source: io::Error::from_raw_os_error(errno),
        };
        assert!(not_opened("rxe0", &Error::NoDevice).1.contains("ibverbs-providers"));
        assert!(not_opened("rxe0", &verb(libc::EACCES)).1.contains("chmod"));
        assert!(not_opened("rxe0", &verb(libc::EIO)).1.contains("dmesg"));
    }
}
