//! `rsock compare incast` and the batches of `rsock perf dgram`: every datagram is accounted for,
//! and paced clients lose next to none. The figures themselves depend on the machine and are not
//! tested.

use rsock_tests::report::{number, shares};
use rsock_tests::{Running, Watchdog, assert_worked, rsock_command};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Runs `rsock` with `args`.
fn rsock(args: &str) -> Output {
    let mut command = Command::new(rsock_command());
    command.args(args.split(' ')).env_remove("LD_PRELOAD").env_remove("RSOCK_DEVICE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::spawn(&mut command).expect("rsock starts").output().expect("rsock ends")
}

/// The JSON that it prints, without spaces.
fn json(args: &str) -> String {
    let said = assert_worked(args, &rsock(&format!("{args} --json")));
    said.split_whitespace().collect()
}

/// Asserts that no datagram is missing, in total and of every client. Returns how many were sent,
/// received and dropped.
fn assert_accounted(run: &str) -> [f64; 3] {
    assert_eq!(number(run, "unaccounted"), 0.0, "{run}");
    assert_eq!(number(run, "out_of_order"), 0.0, "{run}");
    let (clients, total) = shares(run);
    let sum = |name| clients.iter().map(|client| number(client, name)).sum::<f64>();
    for name in ["sent", "received", "lost"] {
        assert_eq!(sum(name), number(total, name), "{name}: {run}");
    }
    for client in &clients {
        assert!(number(client, "sent") > 0.0, "{run}");
        assert_eq!(number(client, "sent") - number(client, "received"), number(client, "lost"));
    }
    let (_, drops) = run.split_once("\"drops\":{").expect("drops");
    let drops = drops.split('}').next().expect("an end");
    let dropped = drops.split(',').filter_map(|drop| drop.rsplit(':').next()?.parse::<f64>().ok());
    let [sent, received] = ["sent", "received"].map(|name| number(total, name));
    let dropped = dropped.sum();
    assert_eq!(sent, received + dropped, "{run}");
    [sent, received, dropped]
}

#[test]
fn in_shared_memory_every_datagram_was_received_or_counted_as_dropped() {
    let _dog = Watchdog::new(Duration::from_secs(300));
    for args in [
        "--clients 3 --threads 2 --size 4096 --depth 33",
        "--clients 1 --threads 3 --size 1024 --depth 17 --no-copy",
        "--clients 4 --threads 1 --mtu 2048 --depth 65",
        "--clients 2 --threads 1 --size 16 --depth 1",
    ] {
        let report = json(&format!("compare incast --time 0.2 {args}"));
        let (head, run) = report.split_once("\"runs\":[").expect("runs");
        assert_eq!(number(head, "clients"), shares(run).0.len() as f64);
        let [_, received, _] = assert_accounted(run);
        assert!(received > 0.0, "{run}");
        assert_eq!(number(run, "by_udp"), 0.0, "{run}");
    }
}

#[test]
fn a_slow_reader_loses_much_and_all_of_it_is_counted() {
    let _dog = Watchdog::new(Duration::from_secs(300));
    for device in ["soft", "udp"] {
        let report =
            json(&format!("compare incast --device {device} --time 0.3 --slow-reader 5ms"));
        let [sent, received, dropped] = assert_accounted(&report);
        assert!(received > 0.0 && dropped > sent / 10.0, "{report}");
    }
}

#[test]
fn kernel_udp_is_accounted_for_by_its_sockets() {
    let _dog = Watchdog::new(Duration::from_secs(300));
    let report = json("compare incast --device udp --clients 3 --time 0.3");
    let [_, received, _] = assert_accounted(&report);
    assert!(received > 0.0, "{report}");
}

#[test]
fn clients_that_are_paced_lose_next_to_nothing_of_which_nothing_is_missing() {
    let _dog = Watchdog::new(Duration::from_secs(300));
    for args in ["", " --size 1024 --clients 7", " --slow-reader 2ms", " --clients 1 --threads 1"] {
        let report = json(&format!("compare incast --time 0.5 --pacing{args}"));
        let (_, run) = report.split_once("\"runs\":[").expect("runs");
        let [sent, received, dropped] = assert_accounted(run);
        // A client that probes while the server has no time for it may lose the probe.
        assert!(received > 0.0 && dropped < 20.0 + sent / 1000.0, "{args}: {run}");
        assert!(number(run, "feedbacks") > 0.0, "{run}");
    }
}

#[test]
fn both_are_measured_in_one_run_and_compared() {
    let _dog = Watchdog::new(Duration::from_secs(300));
    let report = json("compare incast --time 0.3 --pacing=both --clients 2");
    let (_, runs) = report.split_once("\"runs\":[").expect("runs");
    let (unpaced, paced) = runs.split_once("{\"pacing\":true").expect("two runs");
    let totals = [unpaced, paced].map(|run| {
        assert_accounted(run);
        number(shares(run).1, "gib_per_second")
    });
    let ratio = number(&report, "goodput_ratio");
    assert!((ratio - totals[1] / totals[0]).abs() < 1e-6, "{report}");
}

#[test]
fn a_server_serves_one_test_after_the_other() {
    use std::io::{BufRead, BufReader};
    let _dog = Watchdog::new(Duration::from_secs(300));
    let mut command = Command::new(rsock_command());
    command.args(["compare", "incast", "--server"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Running::spawn(&mut command).expect("server");
    let mut line = String::new();
    let out = server.stdout.take().expect("its output");
    BufReader::new(out).read_line(&mut line).expect("a line");
    let addr = line.trim().rsplit(' ').next().expect("an address");
    // Connections that carry rubbish or nothing are closed.
    for rubbish in [&b"hello\n"[..], b"", b"{\"Prepare\":{\"clients\":0}}\n"] {
        let mut stream = std::net::TcpStream::connect(addr).expect("connection");
        std::io::Write::write_all(&mut stream, rubbish).expect("written");
    }
    for args in ["--clients 2", "--clients 1 --pacing"] {
        let report = json(&format!("compare incast --connect {addr} --time 0.1 {args}"));
        assert_accounted(&report[report.find("\"runs\"").expect("runs")..]);
    }
}

#[test]
fn without_json_the_results_are_a_table() {
    let _dog = Watchdog::new(Duration::from_secs(300));
    let out = rsock("compare incast --time 0.1 --clients 2");
    let said = assert_worked("incast", &out);
    for part in ["incast over soft: 2 clients", "#0", "#1", "total", "sent = received + dropped"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    let _dog = Watchdog::new(Duration::from_secs(300));
    for (args, part) in [
        ("compare incast --clients 0", "--clients"),
        ("compare incast --threads 1000", "--threads"),
        ("compare incast --size 15", "from 16"),
        ("compare incast --size 1M", "65000"),
        ("compare incast --depth 0", "--depth"),
        ("compare incast --slow-reader 5", "needs a unit"),
        ("compare incast --slow-reader 1h", "needs a unit"),
        ("compare incast --pacing=perhaps", "perhaps"),
        ("compare incast --cpu 0,1,2", "--cpu"),
        ("compare incast --server nowhere", "nowhere"),
        ("perf dgram --batch 0", "--batch"),
        ("perf dgram --batch 257", "--batch"),
        ("perf dgram --size 1M", "65000"),
    ] {
        let Output { status, stdout, stderr } = rsock(args);
        let said = String::from_utf8_lossy(&stderr);
        assert_eq!((status.code(), stdout.len()), (Some(2), 0), "{args}: {said}");
        assert!(said.lines().count() == 1 && said.contains(part), "{args}: {said}");
    }
}

#[test]
fn batches_lose_what_is_counted_and_nothing_else() {
    let _dog = Watchdog::new(Duration::from_secs(300));
    for batch in [1, 32, 256] {
        let report = json(&format!("perf dgram --time 0.2 --batch {batch}"));
        assert_eq!(number(&report, "batch"), f64::from(batch));
        let [sent, received] = ["sent", "received"].map(|name| number(&report, name));
        assert!(received > 0.0);
        assert_eq!(sent, received + number(&report, "counted"), "{report}");
    }
    let report = json("perf dgram --device udp --time 0.2 --batch 32");
    assert!(number(&report, "received") > 0.0, "{report}");
}
