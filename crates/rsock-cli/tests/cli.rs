//! The command as a user meets it: its output, and the exit status of every mistake.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use rsock_core::accelerate::FallbackReason;
use rsock_core::metrics::{DatagramEvent, Direction, ReceivePath, StreamSlot, Transport, UdpSlot};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

fn rsock(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsock"));
    command.args(args).env_remove("LD_PRELOAD").env_remove("RSOCK_PRELOAD");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// One line on standard error that holds `part`, nothing on standard output, status 2.
fn assert_refused(mut command: Command, part: &str) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let stderr = text(&stderr);
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert_eq!(text(&stdout), "");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("rsock: ") && stderr.contains(part), "{stderr}");
}

/// A directory that goes away with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rsock-cli-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// A copy of the command in a directory of its own.
    fn own_copy(&self, place: &str) -> PathBuf {
        fs::create_dir(self.0.join(place)).unwrap();
        let exe = self.0.join(place).join("rsock");
        // Another process copies it: a child that another test starts meanwhile would keep a file
        // that is written here open, so that it could not be run.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_rsock")).arg(&exe).status();
        assert!(copied.unwrap().success());
        fs::set_permissions(&exe, fs::Permissions::from_mode(0o755)).unwrap();
        exe
    }

    /// An empty file in the library's place, which the linker skips with a warning.
    fn library(&self) -> PathBuf {
        let path = self.0.join("librsock_preload.so");
        fs::write(&path, "").unwrap();
        path.canonicalize().unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn wrong_arguments_are_one_line_and_status_2() {
    assert_refused(rsock(&["nonsense"]), "nonsense");
    assert_refused(rsock(&["run"]), "PROGRAM");
    assert_refused(rsock(&["perf", "rr", "--size", "0"]), "--size");
    assert_refused(rsock(&["perf", "rr", "--time", "-1"]), "--time");
    assert_refused(rsock(&["perf", "rr", "--device", "pigeon"]), "pigeon");
    assert_refused(rsock(&["perf", "rr", "--cpu", "0,1,2"]), "--cpu");
    assert_refused(rsock(&["perf", "rr", "--cpu", "1000000"]), "1000000");
    assert_refused(rsock(&["perf", "rr", "--server", "--connect", "x"]), "--connect");
    assert_refused(rsock(&["perf", "rr", "--device", "tcp", "--server", "nowhere"]), "nowhere");
    assert_refused(rsock(&["stat", "x"]), "'x'");
    assert_refused(rsock(&["stat", "4194304"]), "there is no process 4194304");
}

#[test]
fn help_is_not_a_mistake() {
    for args in [
        &["--help"][..],
        &["run", "--help"],
        &["stat", "--help"],
        &["perf", "--help"],
        &["perf", "rr", "--help"],
        &["perf", "stream", "--help"],
        &["perf", "connect", "--help"],
        &["perf", "dgram", "--help"],
        &["--version"],
    ] {
        let output = rsock(args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(text(&output.stdout).contains("rsock"), "{args:?}");
    }
}

#[test]
fn generate_describes_every_command_that_help_shows() {
    let dir = Dir::new("generate");
    let output = rsock(&["generate"]).arg(&dir.0).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let help = text(&rsock(&["--help"]).output().unwrap().stdout);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| !line.is_empty());
    let commands: Vec<_> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"run"), "{help}");
    for command in commands.into_iter().filter(|command| *command != "help") {
        let page = fs::read_to_string(dir.0.join(format!("man1/rsock-{command}.1"))).unwrap();
        let title = format!(".TH RSOCK-{} 1", command.to_uppercase());
        assert!(page.starts_with(&title), "{page}");
    }
    for file in ["rsock.bash", "_rsock", "rsock.fish"] {
        let completions = fs::read_to_string(dir.0.join("completions").join(file)).unwrap();
        assert!(completions.contains("doctor"), "{file}");
        for hidden in ["generate", "hold"] {
            assert!(!completions.contains(hidden), "{file} offers {hidden}");
        }
    }
}

#[test]
fn run_names_a_missing_library_or_program() {
    let dir = Dir::new("missing");
    let mut no_library = rsock(&["run", "true"]);
    no_library.env("RSOCK_PRELOAD", dir.0.join("nothing.so"));
    assert_refused(no_library, "nothing.so: no such file");

    let mut directory = rsock(&["run", "true"]);
    directory.env("RSOCK_PRELOAD", &dir.0);
    assert_refused(directory, "not a library file");

    let mut no_program = rsock(&["run", "--", "no-such-program", "-x"]);
    no_program.env("RSOCK_PRELOAD", dir.library());
    assert_refused(no_program, "cannot run no-such-program: no such file");

    let mut not_executable = rsock(&["run", "/etc/passwd"]);
    not_executable.env("RSOCK_PRELOAD", dir.library());
    assert_refused(not_executable, "/etc/passwd: permission denied");

    let spaced = dir.0.join("a b.so");
    fs::write(&spaced, "").unwrap();
    let mut unusable = rsock(&["run", "true"]);
    unusable.env("RSOCK_PRELOAD", spaced);
    assert_refused(unusable, "a space or a colon");
}

#[test]
fn run_becomes_the_program_with_the_library_first() {
    let dir = Dir::new("run");
    let library = dir.library();
    let mut command = rsock(&["run", "--spin-us", "7", "--", "sh", "-c"]);
    command.arg("echo $LD_PRELOAD $RSOCK_SPIN_US \"$0\" \"$@\"; exit 5").args(["a", "--json"]);
    command.env("RSOCK_PRELOAD", &library).env("LD_PRELOAD", "other.so");
    let output = command.output().unwrap();
    let expected = format!("{}:other.so 7 a --json\n", library.display());
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(5), expected));
}

#[test]
fn run_finds_the_library_beside_the_command_and_where_packages_put_it() {
    let dir = Dir::new("search");
    let exe = dir.own_copy("bin");
    let preloaded = |place: &std::path::Path| {
        fs::create_dir_all(place).unwrap();
        let library = place.join("librsock_preload.so");
        fs::write(&library, "").unwrap();
        let mut command = Command::new(&exe);
        command.args(["run", "sh", "-c", "echo $LD_PRELOAD"]).env_remove("RSOCK_PRELOAD");
        let output = command.env_remove("LD_PRELOAD").output().unwrap();
        let library = library.canonicalize().unwrap();
        assert_eq!(text(&output.stdout).trim_end(), library.to_str().unwrap());
    };
    let mut nowhere = Command::new(&exe);
    nowhere.args(["run", "true"]).env_remove("RSOCK_PRELOAD");
    assert_refused(nowhere, "cannot find librsock_preload.so");
    // Each comes before those that are there already.
    preloaded(&dir.0.join("lib"));
    preloaded(&dir.0.join("lib64"));
    preloaded(&dir.0.join(format!("lib/{}-linux-gnu", std::env::consts::ARCH)));
    preloaded(&dir.0.join("lib/rsock"));
    preloaded(&dir.0.join("bin"));
}

#[test]
fn perf_measures_every_test_on_every_device() {
    for device in ["rsock", "soft", "tcp", "unix"] {
        for (test, size) in [("rr", "1"), ("stream", "1K"), ("connect", "100")] {
            let args =
                ["perf", test, "--device", device, "--size", size, "--time", "0.05", "--json"];
            let output = rsock(&args).output().unwrap();
            assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!((&report["test"], &report["device"]), (&test.into(), &device.into()));
            assert!(report["per_second"].as_f64().unwrap() > 0.0, "{report}");
            let latency = &report["latency_us"];
            if test == "stream" {
                assert!(report["gbit_per_second"].as_f64().unwrap() > 0.0, "{report}");
            } else {
                let [min, p50, max] = ["min", "p50", "max"].map(|p| latency[p].as_f64().unwrap());
                assert!(0.0 < min && min <= p50 && p50 <= max, "{report}");
                // The round trips follow each other without pauses.
                let mean = latency["mean"].as_f64().unwrap();
                assert!(mean * report["per_second"].as_f64().unwrap() > 0.5e6, "{report}");
            }
        }
    }
}

#[test]
fn perf_measures_datagrams_and_counts_those_that_are_lost() {
    for device in ["soft", "udp"] {
        for size in ["1", "64", "1400", "20000"] {
            let args = ["perf", "dgram", "--device", device, "--size", size, "--time", "0.05"];
            let output = rsock(&args).arg("--json").output().unwrap();
            assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let number = |name: &str| report[name].as_u64().unwrap();
            assert!(report["round_trips_per_second"].as_f64().unwrap() > 0.0);
            assert!(report["latency_us"]["p50"].as_f64().unwrap() > 0.0);
            assert!(number("received") > 0);
            assert_eq!(number("sent"), number("received") + number("lost"));
            // Datagrams too long for shared memory go by UDP, which does not tell its losses.
            if device == "soft" && size != "20000" {
                assert_eq!(number("counted"), number("lost"));
            }
        }
    }
    assert_refused(rsock(&["perf", "dgram", "--size", "1M"]), "--size");
    assert_refused(rsock(&["perf", "dgram", "--cpu", "0,1,2"]), "--cpu");
}

#[test]
fn perf_fails_with_status_1_without_a_server() {
    let output = rsock(&["perf", "rr", "--device", "unix", "--connect", "@rsock-no-server"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr).lines().count(), 1);
}

#[test]
fn stat_shows_the_connections_of_a_process() {
    let slot = StreamSlot::open("127.0.0.1:5".parse().unwrap(), "[::1]:6".parse().unwrap(), 99);
    slot.set_transport(Direction::Send, Transport::Soft);
    slot.add_bytes(Direction::Send, Transport::Soft, 2048);
    slot.add_bytes(Direction::Recv, Transport::Tcp, 7);
    slot.set_fallback(FallbackReason::Remote);
    let pid = std::process::id().to_string();

    let output = rsock(&["stat", &pid]).output().unwrap();
    let table = text(&output.stdout);
    let row = table.lines().find(|line| line.contains("127.0.0.1:5")).unwrap();
    let fields: Vec<_> = row.split_whitespace().collect();
    assert_eq!(fields[0], pid);
    assert_eq!(fields[2..8], ["127.0.0.1:5", "[::1]:6", "soft/tcp", "2.0K", "7", "0"]);
    assert!(row.ends_with("the peer is on another host"), "{row}");

    // The list of all processes has it too.
    let output = rsock(&["stat", "--json"]).output().unwrap();
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let pid: u32 = std::process::id();
    let own = all.as_array().unwrap().iter().find(|process| process["pid"] == pid).unwrap();
    let connections = own["connections"].as_array().unwrap();
    let shown = connections.iter().find(|c| c["local"] == "127.0.0.1:5").unwrap();
    assert_eq!((&shown["sends_over"], &shown["receives_over"]), (&"soft".into(), &"tcp".into()));
    assert_eq!(shown["sent"]["bytes"]["soft"], 2048);
    assert_eq!(shown["received"]["bytes"]["tcp"], 7);
    assert_eq!(shown["why_on_tcp"], "the peer is on another host");
    let on_rdma = own["rdma"].as_object().unwrap();
    assert!(on_rdma.len() == 3 && on_rdma.values().all(|n| n == 0), "{on_rdma:?}");
    assert!(!table.contains("on RDMA devices"), "{table}");
    drop(slot);
}

#[test]
fn stat_shows_the_udp_sockets_of_a_process() {
    let local = "127.0.0.1:7".parse().unwrap();
    let socket = UdpSlot::open(local, Some("[::1]:8".parse().unwrap()), 98);
    socket.set_peers(2, 5);
    socket.set_receives(ReceivePath::SharedPort);
    for (what, n) in [
        (DatagramEvent::Sent, 70),
        (DatagramEvent::Dropped, 3),
        (DatagramEvent::Rescued, 1),
        (DatagramEvent::ByKernel, 10),
        (DatagramEvent::Received, 60),
        (DatagramEvent::Foreign, 4),
        (DatagramEvent::ReceivedByKernel, 20),
    ] {
        (0..n).for_each(|_| socket.count(what));
    }
    let pid = std::process::id();
    let output = rsock(&["stat", &pid.to_string()]).output().unwrap();
    let table = text(&output.stdout);
    let row = table.lines().find(|line| line.contains("127.0.0.1:7")).unwrap();
    let fields: Vec<_> = row.split_whitespace().collect();
    assert_eq!(fields[2..11], ["127.0.0.1:7", "[::1]:8", "2", "5", "70", "10", "60", "20", "7"]);
    assert!(row.ends_with("other sockets might get what is sent to its port"), "{row}");

    let output = rsock(&["stat", "--json"]).output().unwrap();
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let own = all.as_array().unwrap().iter().find(|process| process["pid"] == pid).unwrap();
    let sockets = own["datagram_sockets"].as_array().unwrap();
    let shown = sockets.iter().find(|socket| socket["inode"] == 98).unwrap();
    assert_eq!(
        (&shown["local"], &shown["connected_to"]),
        (&"127.0.0.1:7".into(), &"[::1]:8".into())
    );
    assert_eq!((&shown["peers"]["soft"], &shown["peers"]["udp"]), (&2.into(), &5.into()));
    assert_eq!((&shown["sent"]["soft"], &shown["sent"]["udp"]), (&70.into(), &10.into()));
    assert_eq!(
        (&shown["sent"]["dropped"], &shown["sent"]["rescued_by_udp"]),
        (&3.into(), &1.into())
    );
    assert_eq!(
        (&shown["received"]["soft"], &shown["received"]["foreign"]),
        (&60.into(), &4.into())
    );
    assert_eq!(shown["receives_over"], "udp");
    assert_eq!(shown["why_on_udp"], "other sockets might get what is sent to its port");
    drop(socket);
}

#[test]
fn compare_becomes_the_program_beside_the_command_or_in_path() {
    let dir = Dir::new("compare");
    let exe = dir.own_copy("bin");
    let compare = |args: &[&str]| {
        let mut command = Command::new(&exe);
        command.arg("compare").args(args).env("PATH", dir.0.join("path"));
        command
    };
    assert_refused(compare(&["--list"]), "cannot find rsock-compare in ");
    assert_refused(compare(&["--help"]), "cargo build --release -p rsock-compare");
    for place in ["path", "bin"] {
        fs::create_dir_all(dir.0.join(place)).unwrap();
        let program = dir.0.join(place).join("rsock-compare");
        fs::write(&program, format!("#!/bin/sh\necho {place} \"$@\"; exit 5\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        // A child that another test started meanwhile may keep the script open for a moment.
        let output = loop {
            let output = compare(&["--quick", "incast", "--help", "-x"]).output().unwrap();
            if !text(&output.stderr).contains("text file busy") {
                break output;
            }
        };
        let expected = format!("{place} --quick incast --help -x\n");
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(5), expected));
    }
}

fn findings(out: &Output) -> Vec<serde_json::Value> {
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn doctor_finds_shared_memory_working_where_these_tests_run() {
    let dir = Dir::new("doctor");
    let mut command = rsock(&["doctor", "soft", "--json"]);
    let out = command.env("RSOCK_PRELOAD", dir.library()).env_remove("RSOCK_DEVICE").output();
    let out = out.unwrap();
    let found = findings(&out);
    assert_eq!(out.status.code(), Some(0), "{found:#?}");
    assert!(found.iter().all(|f| f["device"] == "soft" && f["state"] != "stopped"), "{found:#?}");
    let checks: Vec<_> = found.iter().map(|f| f["check"].as_str().unwrap()).collect();
    let all = ["memory", "names", "owners", "descriptors", "iomap", "copies", "library", "stream"];
    assert_eq!(checks, all);
}

#[test]
fn doctor_names_what_stops_a_device_and_the_fix_and_ends_with_status_1() {
    let mut command = rsock(&["doctor", "no-such-device"]);
    let out = command.env_remove("RSOCK_DEVICE").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(text(&out.stderr), "");
    let said = text(&out.stdout);
    let line = said.lines().find(|line| line.contains("no RDMA device called no-such-device"));
    let line = line.unwrap();
    assert!(line.starts_with("STOPPED rdma  device ") && line.contains("rdma link add"), "{line}");
}

/// Most machines have no device; the finding that matters there is that there is none.
#[test]
fn doctor_and_the_kernel_agree_on_whether_there_is_a_device() {
    let has_device =
        fs::read_dir("/sys/class/infiniband").is_ok_and(|mut list| list.next().is_some());
    let out = rsock(&["doctor", "rdma", "--json"]).env_remove("RSOCK_DEVICE").output().unwrap();
    let found = findings(&out);
    let is_missing = found.iter().any(|f| {
        f["check"] == "device" && f["what"] == "there is no RDMA device" && f["fix"].is_string()
    });
    assert_eq!(is_missing, !has_device, "{found:#?}");
    assert!(has_device || out.status.code() == Some(1));
    assert!(found.iter().all(|f| (f["state"] == "fine") != f["fix"].is_string()), "{found:#?}");
}

#[test]
fn doctor_says_so_when_a_setting_switches_a_device_off() {
    for (value, device) in [("tcp", "soft"), ("rdma", "soft"), ("tcp", "rdma"), ("soft", "rdma")] {
        let out = rsock(&["doctor", device, "--json"]).env("RSOCK_DEVICE", value).output().unwrap();
        let found = findings(&out);
        let switch = found.iter().find(|f| f["check"] == "switch").unwrap();
        assert_eq!((out.status.code(), &switch["state"]), (Some(1), &"stopped".into()), "{switch}");
        assert_eq!(switch["fix"], "unset RSOCK_DEVICE");
    }
}

#[test]
fn doctor_sees_few_descriptors_as_a_limit() {
    let mut command = Command::new("sh");
    let script = format!("ulimit -n 200; exec {} doctor soft --json", env!("CARGO_BIN_EXE_rsock"));
    let out = command.args(["-c", &script]).env_remove("RSOCK_DEVICE").output().unwrap();
    let found = findings(&out);
    let limit = found.iter().find(|f| f["check"] == "descriptors").unwrap();
    assert_eq!((out.status.code(), &limit["state"]), (Some(0), &"limited".into()), "{found:#?}");
    assert!(limit["what"].as_str().unwrap().starts_with("200 "), "{limit}");
}
