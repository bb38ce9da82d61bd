//! The IP addresses of a network interface in this process's network namespace. `/sys` may show an
//! RDMA device whose interface is in another namespace.

use std::net::IpAddr;

/// Returns the addresses of the interface called `name` that other hosts can connect to, without
/// link-local ones. The list is empty if the kernel cannot be asked.
pub(super) fn addresses(name: &str) -> Vec<IpAddr> {
    // An address may have a label: the interface's name, a colon and more (ip-address(8)).
    let belongs = |label: &str| label.split(':').next() == Some(name);
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    let here = all.iter().filter(|one| belongs(&one.name)).map(if_addrs::Interface::ip);
    here.filter(is_reachable).collect()
}

fn is_reachable(ip: &IpAddr) -> bool {
    !ip.is_loopback() && !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_left_out() {
        let all = if_addrs::get_if_addrs().expect("addresses");
        assert!(all.iter().any(|one| one.name == "lo" && one.ip().is_loopback()));
        assert_eq!(addresses("lo").iter().find(|ip| ip.is_loopback()), None);
        assert_eq!(addresses("no such interface"), Vec::<IpAddr>::new());
    }

    #[test]
    fn link_local_addresses_are_not_reachable() {
        let is_reachable_from_others = |ip: &str| is_reachable(&ip.parse().expect("an address"));
        assert!(is_reachable_from_others("10.1.0.1") && is_reachable_from_others("fd09::1"));
        assert!(
            !is_reachable_from_others("fe80::1")
                && !is_reachable_from_others("127.0.0.1")
                && !is_reachable_from_others("::1")
        );
    }
}
