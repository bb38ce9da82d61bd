//! RDMA devices as the kernel lists them in `/sys/class/infiniband`. This needs no library, so
//! `rsock doctor` can use it where rdma-core is missing.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// The directory in which the kernel lists them.
const DEVICES: &str = "/sys/class/infiniband";

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The kernel's name for it.
    pub name: String,
    /// Its ports, in the order of their numbers.
    pub ports: Vec<Port>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number; the first is 1.
    pub number: u32,
    /// The kernel's name for its state, such as `ACTIVE`, `DOWN` or `INIT`.
    pub state: String,
    /// Whether it is Ethernet (RoCE) rather than InfiniBand.
    pub is_ethernet: bool,
    /// The network interface that its addresses come from, if there is one.
    pub interface: Option<String>,
    /// The IP addresses in its GID table without link-local ones; an InfiniBand port has none.
    pub addresses: Vec<IpAddr>,
}

impl Port {
    /// Whether packets can pass.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// Returns the devices, sorted by name.
///
/// # Errors
/// The error of reading `/sys`. A missing directory means that there is no device.
pub fn devices() -> io::Result<Vec<Device>> {
    devices_below(Path::new(DEVICES))
}

/// Returns an active port's first address, IPv4 before IPv6, and its device's name.
#[must_use]
pub fn first_address(devices: &[Device]) -> Option<(&str, IpAddr)> {
    let all = devices.iter().flat_map(|device| {
        let ports = device.ports.iter().filter(|port| port.is_active());
        let addresses = ports.flat_map(|port| &port.addresses);
        addresses.map(|address| (device.name.as_str(), *address))
    });
    let all: Vec<_> = all.collect();
    all.iter().find(|(_, address)| address.is_ipv4()).or(all.first()).copied()
}

/// Returns the devices' own counters that are not 0, by device, port and counter.
///
/// # Errors
/// As [`devices`].
pub(crate) fn counters() -> io::Result<BTreeMap<String, u64>> {
    counters_below(Path::new(DEVICES))
}

fn counters_below(dir: &Path) -> io::Result<BTreeMap<String, u64>> {
    let mut found = BTreeMap::new();
    for (device, dir) in entries(dir)? {
        for (port, dir) in entries(&dir.join("ports"))? {
            for kind in ["counters", "hw_counters"] {
                for (name, file) in entries(&dir.join(kind))? {
                    let n = text(&file).parse().ok().filter(|n| *n != 0);
                    found.extend(n.map(|n: u64| (format!("{device}/{port} {name}"), n)));
                }
            }
        }
    }
    Ok(found)
}

fn devices_below(dir: &Path) -> io::Result<Vec<Device>> {
    let mut found = Vec::new();
    for (name, dir) in entries(dir)? {
        let mut ports = Vec::new();
        for (number, port) in entries(&dir.join("ports"))? {
            ports.extend(number.parse().ok().map(|number| read_port(number, &dir, &port)));
        }
        ports.sort_by_key(|port: &Port| port.number);
        found.push(Device { name, ports });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn read_port(number: u32, device: &Path, dir: &Path) -> Port {
    // `4: ACTIVE`
    let state = text(&dir.join("state"));
    let state = state.rsplit(' ').next().unwrap_or_default().to_owned();
    let mut addresses = Vec::new();
    let mut interface = None;
    let mut gids = entries(&dir.join("gids")).unwrap_or_default();
    gids.sort_by_key(|(index, _)| index.parse::<u32>().unwrap_or(u32::MAX));
    for (index, gid) in gids {
        // The file is absent for an empty place in the table.
        let owner = text(&dir.join("gid_attrs/ndevs").join(&index));
        if owner.is_empty() {
            continue;
        }
        interface = interface.or(Some(owner));
        // The table has every address once for each version of RoCE.
        let address = text(&gid).parse().ok().and_then(usable);
        addresses.extend(address.filter(|address| !addresses.contains(address)));
    }
    let net = || Some(entries(&device.join("device/net")).ok()?.into_iter().next()?.0);
    let parent = || Some(text(&device.join("parent"))).filter(|name| !name.is_empty());
    Port {
        number,
        state,
        is_ethernet: text(&dir.join("link_layer")) == "Ethernet",
        // A soft device names its parent itself.
        interface: interface.or_else(parent).or_else(net),
        addresses,
    }
}

/// The GID as an IP address to connect to; `None` for link-local ones and for InfiniBand's own.
fn usable(gid: Ipv6Addr) -> Option<IpAddr> {
    let is_link_local = (gid.segments()[0] & 0xffc0) == 0xfe80;
    (!is_link_local && !gid.is_unspecified()).then(|| IpAddr::V6(gid).to_canonical())
}

/// Names and paths in a directory; empty if there is no such directory.
fn entries(dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let list = match fs::read_dir(dir) {
        Ok(list) => list,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut found = Vec::new();
    for entry in list {
        let entry = entry?;
        found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    Ok(found)
}

/// A file's text; empty if it cannot be read, as with empty places in a table.
fn text(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(file: &Path, text: &str) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn ports_and_addresses_are_read_as_the_kernel_shows_them() {
        let root = std::env::temp_dir().join(format!("rsock-fabric-{}", std::process::id()));
        let port = root.join("rxe0/ports/1");
        write(&port.join("state"), "4: ACTIVE\n");
        write(&port.join("link_layer"), "Ethernet\n");
        for (index, gid, owner) in [
            (0, "fe80:0000:0000:0000:5054:00ff:fe00:0901", "eth0"),
            (1, "fd09:0000:0000:0000:0000:0000:0000:0001", "eth0"),
            (2, "0000:0000:0000:0000:0000:ffff:0a09:0001", "eth0"),
            (10, "0000:0000:0000:0000:0000:ffff:0a09:0001", "eth0"),
            (3, "0000:0000:0000:0000:0000:0000:0000:0000", ""),
        ] {
            write(&port.join(format!("gids/{index}")), gid);
            write(&port.join(format!("gid_attrs/ndevs/{index}")), owner);
        }
        write(&root.join("ib0/ports/1/state"), "1: DOWN\n");
        write(&port.join("hw_counters/rcvd_pkts"), "17\n");
        write(&port.join("hw_counters/lifespan"), "10 ms\n");
        write(&port.join("counters/excessive_buffer_overrun_errors"), "0\n");
        let counters = counters_below(&root).unwrap();
        assert_eq!(counters, BTreeMap::from([("rxe0/1 rcvd_pkts".to_owned(), 17)]));
        let found = devices_below(&root);
        fs::remove_dir_all(&root).unwrap();
        let found = found.unwrap();
        let addresses: [IpAddr; 2] = ["fd09::1", "10.9.0.1"].map(|ip| ip.parse().unwrap());
        let rxe = Port {
            number: 1,
            state: "ACTIVE".into(),
            is_ethernet: true,
            interface: Some("eth0".into()),
            addresses: addresses.into(),
        };
        let ib = Port {
            number: 1,
            state: "DOWN".into(),
            is_ethernet: false,
            interface: None,
            addresses: Vec::new(),
        };
        assert_eq!(found[0], Device { name: "ib0".into(), ports: vec![ib] });
        assert_eq!(found[1], Device { name: "rxe0".into(), ports: vec![rxe] });
        assert_eq!(first_address(&found), Some(("rxe0", addresses[1])));
    }

    #[test]
    fn a_host_without_the_directory_has_no_device() {
        assert_eq!(devices_below(Path::new("/no/such/directory")).unwrap(), []);
    }
}
