//! `rsock compare incast` over a device of its own: datagrams that were sent and did not arrive are
//! lost, the device has counted them, and paced clients lose next to none. Figures that depend on
//! the machine are not tested.

use super::*;
use rsock_tests::report::{number, shares};
use rsock_tests::rsock_command;
use std::io::{BufRead, BufReader};

/// Runs `rsock compare incast` over RDMA.
fn incast(args: &str) -> Running {
    let mut command = Command::new(rsock_command());
    command.args(["compare", "incast", "--device", "rdma"]).args(args.split(' '));
    command.env_remove("RSOCK_DEVICE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::spawn(&mut command).expect("rsock starts")
}

/// A server at `ip`, and where it is.
fn server(ip: &str) -> (Running, String) {
    let mut server = incast(&format!("--server {ip}:0"));
    let mut line = String::new();
    let out = server.stdout.take().expect("its output");
    BufReader::new(out).read_line(&mut line).expect("a line");
    let addr = line.trim().rsplit(' ').next().expect("an address").to_owned();
    (server, addr)
}

/// What is lost is what was sent and not received, of every client and of all; how many were sent,
/// received and lost.
fn assert_accounted(run: &str) -> [f64; 3] {
    let (clients, total) = shares(run);
    let names = ["sent", "received", "lost"];
    for client in &clients {
        let [sent, received, lost] = names.map(|name| number(client, name));
        assert!(received > 0.0, "{run}");
        assert_eq!(sent - received, lost, "{run}");
    }
    for name in names {
        let sum = clients.iter().map(|client| number(client, name)).sum::<f64>();
        assert_eq!(sum, number(total, name), "{name}: {run}");
    }
    names.map(|name| number(total, name))
}

#[test]
fn an_incast_over_a_device_counts_what_is_lost_and_paced_clients_lose_next_to_nothing() {
    let _watchdog = Watchdog::new(Duration::from_secs(200));
    let ip = "10.78.4.1";
    let device = OwnDevice::new("incast", ip.parse().expect("an address"));
    let (_server, addr) = server(ip);
    for args in ["--clients 2 --threads 1", "--clients 3 --threads 2 --size 500 --no-copy"] {
        let args = format!("--connect {addr} --time 1 --pacing=both --json {args}");
        let out = incast(&args).output().expect("rsock ends");
        let report: String = assert_worked(&args, &out).split_whitespace().collect();
        println!("{report}");
        let (_, runs) = report.split_once("\"runs\":[").expect("runs");
        let (unpaced, paced) = runs.split_once("{\"pacing\":true").expect("two runs");
        for run in [unpaced, paced] {
            let [sent, received, _] = assert_accounted(run);
            let [by_udp, feedbacks] = ["by_udp", "feedbacks"].map(|name| number(run, name));
            // All came in at the device but what went by UDP: what is lost had no room in the
            // queue.
            let counted = format!("{}/1rcvd_pkts", device.name());
            let over_device = number(run, &counted);
            assert!(over_device >= sent - by_udp, "{over_device} packets: {run}");
            assert!(over_device <= sent + feedbacks, "{over_device} packets: {run}");
            assert!(received > 0.0);
        }
        let [sent, _, lost] = assert_accounted(paced);
        assert!(lost < sent / 1000.0, "{paced}");
        assert!(number(paced, "feedbacks") > 0.0, "{paced}");
    }
}

#[test]
fn an_incast_of_datagrams_that_a_device_does_not_carry_is_refused() {
    let _watchdog = Watchdog::new(Duration::from_secs(100));
    for (args, most) in [("--size 4096", 2040), ("--size 2048", 2040), ("--mtu 2041", 2040)] {
        let (_server, addr) = server(ADDRESSES[0]);
        let args = format!("--connect {addr} --time 0.1 --clients 1 {args}");
        let out = incast(&args).output().expect("rsock ends");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success(), "{args}: {said}");
        assert!(said.contains(&format!("at most {most}")), "{args}: {said}");
    }
}
