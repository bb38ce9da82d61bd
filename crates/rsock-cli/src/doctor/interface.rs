//! The IP addresses of a network interface, in this process's network namespace: what `/sys` shows of an
//! RDMA device may be of another one.

use std::net::IpAddr;

/// The addresses of the interface called `name` that others can connect to: not those of one link only.
/// Whoever cannot ask the kernel finds none.
pub(super) fn addresses(name: &str) -> Vec<IpAddr> {
    // An address may have a label of its own: the interface's name, a colon and more (ip-address(8)).
    let is_of_it = |label: &str| label.split(':').next() == Some(name);
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    let here = all.iter().filter(|one| is_of_it(&one.name)).map(if_addrs::Interface::ip);
    here.filter(is_meant_for_others).collect()
}

fn is_meant_for_others(ip: &IpAddr) -> bool {
    !ip.is_loopback() && !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_for_nobody_else() {
        let all = if_addrs::get_if_addrs().expect("addresses");
        assert!(all.iter().any(|one| one.name == "lo" && one.ip().is_loopback()));
        assert_eq!(addresses("lo").iter().find(|ip| ip.is_loopback()), None);
        assert_eq!(addresses("no such interface"), Vec::<IpAddr>::new());
    }

    #[test]
    fn addresses_of_one_link_are_not_meant_for_others() {
        let is_meant = |ip: &str| is_meant_for_others(&ip.parse().expect("an address"));
        assert!(is_meant("10.1.0.1") && is_meant("fd09::1"));
        assert!(!is_meant("fe80::1") && !is_meant("127.0.0.1") && !is_meant("::1"));
    }
}
