//! A network in which packets get stuck: the kernel keeps them in the socket that sent them, since
//! no host answers for the address that they are meant for.

use crate::{assert_worked, in_own_network, tools};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x77);

/// Such a network, which the process of one test has for itself.
#[derive(Debug)]
pub struct StuckNetwork {
    /// The address of this process.
    pub ip: IpAddr,
    /// Another, which is of one link; with port 0.
    pub link_local: SocketAddrV6,
    /// Where packets do not arrive.
    pub unreached: SocketAddr,
}

impl StuckNetwork {
    /// Runs `test`, called `name`, in a process of its own in such a network.
    ///
    /// # Panics
    /// If the test fails; if the network cannot be made, which takes user namespaces, `unshare`,
    /// `ip` and the kernel's veth devices.
    pub fn run(name: &str, test: impl FnOnce(&Self)) {
        in_own_network(name, || test(&Self::make()));
    }

    fn make() -> Self {
        ip("link set lo up");
        ip("link add stuck type veth peer name other");
        ip("address add 10.77.0.1/24 dev stuck");
        ip(&format!("address add {LINK_LOCAL}/64 dev stuck nodad"));
        ip("link set stuck up");
        ip("link set other up");
        // The kernel keeps asking for as long as the test runs.
        ip("ntable change name arp_cache dev stuck mcast_probes 1000000");
        let address = |last| Ipv4Addr::new(10, 77, 0, last);
        let shown = ip("-oneline link show stuck");
        let scope = shown.split(':').next().and_then(|number| number.parse().ok());
        let link_local = SocketAddrV6::new(LINK_LOCAL, 0, 0, scope.expect("a number"));
        Self { ip: address(1).into(), link_local, unreached: (address(2), 9).into() }
    }

    /// Lets the packets go, and those that are sent from now on.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn let_go(&self) {
        let to = self.unreached.ip();
        ip(&format!("neigh replace {to} lladdr 02:00:00:00:00:02 dev stuck nud permanent"));
    }
}

fn ip(arguments: &str) -> String {
    let mut command = tools::require("ip").command();
    let out = command.args(arguments.split(' ')).output().expect("`ip` runs");
    assert_worked(&format!("ip {arguments}"), &out)
}
