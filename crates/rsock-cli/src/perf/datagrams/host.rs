//! The kernel's counters of UDP on the whole host, from `/proc/net`.

use super::Counters;
use std::fs;

/// Names the datagrams that a UDP socket dropped, for lack of room or because of a wrong checksum.
pub(super) const UDP_DROPS: &str = "dropped by UDP socket";

/// Drops and marks of congestion since the host was started, by the kernel's names.
pub(super) fn counters() -> Counters {
    let mut found = Counters::new();
    for (file, group, names) in [
        ("/proc/self/net/snmp", "Udp:", &["InErrors", "RcvbufErrors", "SndbufErrors"][..]),
        ("/proc/self/net/snmp6", "Udp6", &["InErrors", "RcvbufErrors", "SndbufErrors"]),
        ("/proc/self/net/netstat", "IpExt:", &["InCEPkts", "InECT0Pkts", "InECT1Pkts"]),
    ] {
        // A missing file leaves its counters out.
        let text = fs::read_to_string(file).unwrap_or_default();
        let all = if group.ends_with(':') { table(&text, group) } else { list(&text, group) };
        let wanted = all.into_iter().filter(|(name, _)| names.contains(&name.as_str()));
        found
            .extend(wanted.map(|(name, n)| (format!("{} {name}", group.trim_end_matches(':')), n)));
    }
    let softnet = fs::read_to_string("/proc/self/net/softnet_stat").unwrap_or_default();
    found.insert("queues of CPUs, dropped".to_owned(), softnet_dropped(&softnet));
    found
}

/// Parses a line of names and one of numbers, both of which begin with `group`.
fn table(text: &str, group: &str) -> Vec<(String, u64)> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group));
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else { return Vec::new() };
    let pairs = names.split_whitespace().zip(numbers.split_whitespace());
    pairs.filter_map(|(name, n)| Some((name.to_owned(), n.parse().ok()?))).collect()
}

/// Parses lines of a name, which begins with `group`, and a number.
fn list(text: &str, group: &str) -> Vec<(String, u64)> {
    let fields = |line: &str| {
        let (name, n) = line.strip_prefix(group)?.split_once(char::is_whitespace)?;
        Some((name.to_owned(), n.trim().parse().ok()?))
    };
    text.lines().filter_map(fields).collect()
}

/// Sums the second number of every line: packets that found the queue of that line's CPU full.
fn softnet_dropped(text: &str) -> u64 {
    let dropped = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    text.lines().filter_map(dropped).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_three_formats_are_read() {
        let snmp = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams InErrors\nUdp: 17 4\n\
            UdpLite: InErrors\nUdpLite: 9\n";
        assert_eq!(table(snmp, "Udp:"), [("InDatagrams".into(), 17), ("InErrors".into(), 4)]);
        assert_eq!(table(snmp, "Icmp:"), []);
        let snmp6 = "Ip6InReceives  \t5\nUdp6InErrors   \t7\nUdpLite6InErrors \t8\n";
        assert_eq!(list(snmp6, "Udp6"), [("InErrors".into(), 7)]);
        assert_eq!(softnet_dropped("00000010 0000000a 0\n00000001 00000001 0\n"), 11);
    }

    #[test]
    fn this_host_counts() {
        let found = counters();
        assert!(found.contains_key("Udp RcvbufErrors"), "{found:?}");
        assert!(found.contains_key("IpExt InCEPkts"), "{found:?}");
    }
}
