//! `rsock doctor` on a machine that has an RDMA device. `cargo xtask test` runs this in the lab.
//!
//! A test that breaks a device makes one of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The device of the lab.
const DEVICE: &str = "rxe0";
const ADDRESS: &str = "10.9.0.1";

fn doctor(device: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsock"));
    command.args(["doctor", device, "--json"]).env_remove("RSOCK_DEVICE");
    command
}

fn findings(out: &Output) -> Vec<Value> {
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(said, "");
    serde_json::from_slice(&out.stdout).unwrap()
}

/// The findings that say `state`, as `check: what`.
fn in_state(found: &[Value], state: &str) -> Vec<String> {
    let such = found.iter().filter(|f| f["state"] == state);
    such.map(|f| format!("{}: {}", f["check"].as_str().unwrap(), f["what"].as_str().unwrap()))
        .collect()
}

fn run(line: &str) {
    let mut words = line.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{line}");
}

/// Ends the whole test process unless it is dropped in time.
struct Watchdog(#[expect(dead_code, reason = "its end is what is watched")] Sender<()>);

impl Watchdog {
    fn new() -> Self {
        const LIMIT: Duration = Duration::from_secs(120);
        let (alive, watched) = channel();
        std::thread::spawn(move || {
            if watched.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("watchdog: the kernel never showed what was waited for");
                std::process::abort();
            }
        });
        Self(alive)
    }
}

/// A soft device on a network interface of its own; both go away with this value.
struct Own {
    interface: String,
    device: String,
}

impl Own {
    fn new(name: &str) -> Self {
        let (interface, device) = (format!("if_{name}"), format!("rxe_{name}"));
        run(&format!("ip link add {interface} type dummy"));
        run(&format!("ip link set {interface} up"));
        run(&format!("rdma link add {device} type rxe netdev {interface}"));
        Self { interface, device }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        run(&format!("rdma link del {}", self.device));
        run(&format!("ip link del {}", self.interface));
    }
}

#[test]
fn a_device_that_works_is_found_working() {
    for asked in ["rdma", DEVICE] {
        let out = doctor(asked).output().unwrap();
        let found = findings(&out);
        assert_eq!(out.status.code(), Some(0), "{found:#?}");
        let fine = in_state(&found, "fine");
        for part in [
            "library: libibverbs is there",
            "library: librdmacm is there",
            "rdma_cm: /dev/infiniband/rdma_cm can be opened",
            "device: rxe0 can be opened",
            &format!("gid: rxe0 has a GID for {ADDRESS}"),
            "memory: memory can be registered",
            &format!("listening: rxe0 takes connections at {ADDRESS}"),
        ] {
            assert!(fine.iter().any(|line| line.starts_with(part)), "{part}: {fine:#?}");
        }
    }
}

#[test]
fn a_missing_key_for_other_hosts_is_named_with_the_fix() {
    let dir = std::env::temp_dir().join(format!("rsock-doctor-hosts-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join("rsock.toml");
    let look = || {
        let out = doctor("rdma").env("RSOCK_CONFIG", &file).output().unwrap();
        let found = findings(&out);
        let line = found.iter().find(|f| f["check"] == "hosts").expect("a line").clone();
        // It stops nothing: programs that use RDMA themselves need no key.
        assert_eq!(out.status.code(), Some(0), "{found:#?}");
        [line["state"].as_str().unwrap().to_owned(), line["fix"].to_string()]
    };
    let [state, fix] = look();
    assert!(state == "limited" && fix.contains("key_file"), "{state}: {fix}");
    fs::write(&file, "trust_fabric = [\"10.9.0.0/24\"]\n").unwrap();
    assert_eq!(look()[0], "fine");
    fs::write(&file, "trust_fabric = 10.9.0.0/24\n").unwrap();
    let [state, fix] = look();
    assert!(state == "limited" && fix.contains("NETWORK/LENGTH"), "{state}: {fix}");
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_port_without_an_address_or_a_link_is_named_with_the_fix() {
    let _watchdog = Watchdog::new();
    let own = Own::new("doc");
    // The kernel follows what happens to an interface a little later, in a thread of its own.
    let look = |check: &str| {
        loop {
            let out = doctor(&own.device).output().unwrap();
            let found = findings(&out);
            let line = found.iter().find(|f| f["check"] == check && f["state"] == "stopped");
            assert_eq!(out.status.code(), Some(i32::from(!in_state(&found, "stopped").is_empty())));
            if let Some(line) = line {
                return ["what", "fix"].map(|key| line[key].as_str().unwrap().to_owned());
            }
        }
    };
    let [what, fix] = look("address");
    assert_eq!(what, "rxe_doc port 1 is up and has no IP address");
    assert_eq!(fix, "ip addr add ADDRESS/LENGTH dev if_doc");
    missing_gid(&own);
    // This is the fix that the doctor names.
    run(&format!("ip addr add 10.77.0.1/24 dev {}", own.interface));
    while doctor(&own.device).output().unwrap().status.code() != Some(0) {}
    run(&format!("ip link set {} down", own.interface));
    let [what, fix] = look("port");
    assert_eq!(what, "rxe_doc port 1 is down");
    assert!(fix.starts_with("ip link set if_doc up"), "{fix}");
    // Another device works, so that RDMA as a whole is not stopped.
    let out = doctor("rdma").output().unwrap();
    let found = findings(&out);
    assert_eq!(out.status.code(), Some(0), "{found:#?}");
    let mut limited = in_state(&found, "limited");
    limited.retain(|line| !line.starts_with("hosts: "));
    assert_eq!(limited, ["port: rxe_doc port 1 is down"]);
}

/// In another network namespace, as in a container, the interface of that name is not the device's.
/// Its address, which the device does not know, is reported as a missing GID.
fn missing_gid(own: &Own) {
    let script = format!(
        "ip link add {0} type dummy; ip addr add 10.78.0.1/24 dev {0}; ip link set {0} up; \
         exec \"$0\" doctor {1} --json",
        own.interface, own.device
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-ec", &script, env!("CARGO_BIN_EXE_rsock")]);
    let out = command.env_remove("RSOCK_DEVICE").output().unwrap();
    let found = findings(&out);
    let gid = found.iter().find(|f| f["check"] == "gid").expect("a finding");
    assert_eq!(gid["state"], "stopped");
    assert_eq!(gid["what"], "rxe_doc port 1 has no RoCE v2 GID for 10.78.0.1");
    assert!(gid["fix"].as_str().unwrap().contains("host's network"), "{gid}");
    assert!(!found.iter().any(|f| f["check"] == "address" || f["check"] == "memory"), "{found:#?}");
}

#[test]
fn another_user_learns_of_its_limits_and_permissions() {
    const NOBODY: u32 = 65534;
    // A place where every user may run it, wherever the tests were built.
    let copy = std::env::temp_dir().join(format!("rsock-doctor-{}", std::process::id()));
    // Another process copies it: children of other tests would keep a file that is written here
    // open, so that it could not be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_rsock")).arg(&copy).status().unwrap();
    assert!(copied.success());
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |limit: &str| {
        let script = format!("ulimit -l {limit}; exec {} doctor {DEVICE} --json", copy.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir("/").env_remove("RSOCK_DEVICE");
        command.uid(NOBODY).gid(NOBODY).output().unwrap()
    };
    let enough = as_nobody("65536");
    let little = as_nobody("64");
    let cm = "/dev/infiniband/rdma_cm";
    let mode = fs::metadata(cm).unwrap().permissions();
    fs::set_permissions(cm, fs::Permissions::from_mode(0o600)).unwrap();
    let refused = as_nobody("65536");
    fs::set_permissions(cm, mode).unwrap();
    fs::remove_file(&copy).unwrap();

    assert_eq!(enough.status.code(), Some(0), "{:#?}", findings(&enough));
    let found = findings(&little);
    assert_eq!(little.status.code(), Some(1), "{found:#?}");
    let stopped = in_state(&found, "stopped");
    assert_eq!(stopped.len(), 1, "{stopped:#?}");
    assert!(stopped[0].starts_with("memory: 1 MiB of memory cannot be registered"), "{stopped:?}");
    assert!(stopped[0].ends_with("ulimit -l is 64 KiB"), "{stopped:?}");
    let found = findings(&refused);
    assert_eq!(refused.status.code(), Some(1), "{found:#?}");
    let stopped = in_state(&found, "stopped");
    assert_eq!(stopped[0], format!("rdma_cm: {cm} is not ours to open"), "{found:#?}");
}

/// The findings that stop the device in a mount namespace that `script` prepared: check, what, fix.
fn stopped_after(script: &str) -> Vec<[String; 3]> {
    let script = format!("set -e; {script}; exec \"$0\" doctor {DEVICE} --json");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_rsock")]);
    let out = command.env_remove("RSOCK_DEVICE").output().unwrap();
    let found = findings(&out);
    assert_eq!(out.status.code(), Some(1), "{found:#?}");
    let stopped = found.iter().filter(|f| f["state"] == "stopped");
    let text = |f: &Value| ["check", "what", "fix"].map(|key| f[key].as_str().unwrap().to_owned());
    stopped.map(text).collect()
}

#[test]
fn a_library_that_cannot_be_opened_is_named_with_its_package() {
    let empty = std::env::temp_dir().join(format!("rsock-doctor-empty-{}", std::process::id()));
    fs::write(&empty, "").unwrap();
    for (library, package, others) in [
        ("librdmacm", "librdmacm1", 0),
        // The other library needs it.
        ("libibverbs", "libibverbs1 ibverbs-providers", 1),
    ] {
        let place = format!("/usr/lib/*-linux-gnu/{library}.so.1");
        let mut stopped = stopped_after(&format!("mount --bind {} {place}", empty.display()));
        stopped.retain(|[check, ..]| check == "library");
        assert_eq!(stopped.len(), 1 + others, "{stopped:#?}");
        let cannot = format!("{library} cannot be opened: ");
        let line = stopped.iter().find(|[_, what, _]| what.starts_with(&cannot));
        let [_, _, fix] = line.expect("a line");
        assert_eq!(*fix, format!("apt install {package} (elsewhere: rdma-core)"));
    }
    fs::remove_file(&empty).unwrap();
}

#[test]
fn files_of_the_kernel_that_are_not_there_are_named_with_the_fix() {
    let cm = [
        "rdma_cm",
        "/dev/infiniband/rdma_cm cannot be opened: no such file or directory",
        "modprobe rdma_ucm; in a container: --device /dev/infiniband",
    ];
    // All files are missing, as in a container.
    let stopped = stopped_after("mount -t tmpfs none /dev/infiniband");
    assert_eq!(stopped[0], cm, "{stopped:#?}");
    assert_eq!(stopped[1][..2], ["device", "the kernel has rxe0, and libibverbs does not see it"]);
    assert!(stopped[1][2].ends_with("in a container: --device /dev/infiniband"), "{stopped:#?}");
    // Only the connection manager's file is missing.
    let dir = std::env::temp_dir().join(format!("rsock-doctor-dev-{}", std::process::id()));
    let at = dir.display();
    let stopped = stopped_after(&format!(
        "cp -a /dev/infiniband {at}; rm {at}/rdma_cm; mount --bind {at} /dev/infiniband"
    ));
    assert_eq!(stopped[0], cm, "{stopped:#?}");
    assert!(!stopped.iter().any(|[check, ..]| check == "device"), "{stopped:#?}");
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn perf_measures_on_the_device() {
    let _watchdog = Watchdog::new();
    for test in ["rr", "stream", "connect"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsock"));
        command.args(["perf", test, "--device", "rdma", "--time", "0.3", "--json"]);
        let out = command.env_remove("RSOCK_DEVICE").output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{test}: {said}");
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(report["device"], "rdma", "{report}");
        assert!(report["per_second"].as_f64().unwrap() > 0.0, "{report}");
        let of = |what| report["rdma"][what].as_u64().unwrap();
        assert!(of("queue_pairs") >= 1 && of("completion_queues") == 1, "{report}");
        assert!(of("registered_bytes") >= 20 << 10, "{report}");
    }
}

/// The sender does not know what is lost; the device's own counters are reported too.
#[test]
fn perf_measures_datagrams_on_the_device_and_accounts_for_them() {
    let _watchdog = Watchdog::new();
    for (size, batch) in [("64", "1"), ("1400", "16")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsock"));
        command.args(["perf", "dgram", "--device", "rdma", "--time", "0.3", "--json"]);
        command.args(["--size", size, "--batch", batch]);
        let out = command.env_remove("RSOCK_DEVICE").output().unwrap();
        assert!(out.status.success(), "{size}: {}", String::from_utf8_lossy(&out.stderr));
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(report["device"], "rdma", "{report}");
        let [sent, received, lost] =
            ["sent", "received", "lost"].map(|what| report[what].as_u64().unwrap());
        assert!(sent > 0 && received > 0, "{report}");
        assert_eq!(lost, sent.checked_sub(received).unwrap(), "{report}");
        assert!(report["counted"].is_null(), "{report}");
        assert!(report["round_trips_per_second"].as_f64().unwrap() > 0.0, "{report}");
        // The device has counted them.
        let of_device = report["device_counters"].as_object().unwrap();
        let passed = of_device.iter().filter(|(name, _)| name.ends_with("rcvd_pkts"));
        let passed: u64 = passed.map(|(_, n)| n.as_u64().unwrap()).sum();
        assert!(passed >= received / 2, "{report}");
    }
}
