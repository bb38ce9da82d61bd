//! RDMA devices in tests: what one has received, and one that a test has to itself.

use std::fs;
use std::net::IpAddr;
use std::process::Command;

/// Packets that device `name` has received so far, from any sender, by its own count.
///
/// # Panics
/// If there is no such device, or it does not count.
#[must_use]
pub fn packets_received(name: &str) -> u64 {
    let place = format!("/sys/class/infiniband/{name}/ports/1/hw_counters/rcvd_pkts");
    let counted = fs::read_to_string(&place).unwrap_or_else(|e| panic!("{place}: {e}"));
    counted.trim().parse().expect("a number")
}

/// Runs a command line of plain words.
///
/// # Panics
/// If it fails.
pub fn run(line: &str) {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    let status = command.args(words).status().expect("it runs");
    assert!(status.success(), "{line}: {status}");
}

/// A soft RDMA device with an address of its own, on a network interface of its own: only the test
/// that made it talks over it. Both go away with this value.
#[derive(Debug)]
pub struct OwnDevice {
    name: String,
    interface: String,
}

impl OwnDevice {
    /// A device called `rxe_` and `name`, which is short, with address `ip` of a network that is on
    /// no other device.
    ///
    /// # Panics
    /// If it cannot be made: that takes root, as in the lab.
    #[must_use]
    pub fn new(name: &str, ip: IpAddr) -> Self {
        Self::with_mtu(name, ip, 4200)
    }

    /// The same, on an interface whose packets have `mtu` bytes at most. The device's own are as
    /// long as fits: 1024 bytes of payload in 1500, 2048 in 2300, 4096 in 4200.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn with_mtu(name: &str, ip: IpAddr, mtu: u32) -> Self {
        let this = Self { name: format!("rxe_{name}"), interface: format!("if_{name}") };
        let Self { name, interface } = &this;
        run(&format!("ip link add {interface} type dummy"));
        run(&format!("ip link set {interface} mtu {mtu} up"));
        let (len, more) = if ip.is_ipv4() { (24, "") } else { (64, " nodad") };
        run(&format!("ip addr add {ip}/{len} dev {interface}{more}"));
        run(&format!("rdma link add {name} type rxe netdev {interface}"));
        this
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The network interface's name.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Packets that it has received.
    #[must_use]
    pub fn received(&self) -> u64 {
        packets_received(&self.name)
    }
}

impl Drop for OwnDevice {
    fn drop(&mut self) {
        // A test that failed has said why.
        for line in [["rdma", &self.name], ["ip", &self.interface]] {
            let _ = Command::new(line[0]).args(["link", "del", line[1]]).status();
        }
    }
}
