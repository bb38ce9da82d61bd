//! The C interface's datagrams on a device: `tests/rdma_c/datagrams.c`, both ends in one process.

use super::*;
use rsock_tests::{assert_worked, c_library_dir};
use std::path::PathBuf;

/// Compiles the program, warnings being errors.
fn program() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = env::temp_dir().join(format!("rdma-datagrams-{}", std::process::id()));
    let out = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(here.join("rdma_c/datagrams.c"))
        .arg("-I")
        .arg(here.join("../crates/rsock-capi/include"))
        .arg("-L")
        .arg(c_library_dir())
        .arg("-lrsock")
        .output()
        .expect("a C compiler named cc");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}

/// On devices of its own: what they count is the program's alone.
#[test]
fn every_call_of_the_c_interface_carries_datagrams_of_either_family() {
    let _watchdog = Watchdog::new(Duration::from_secs(200));
    let program = program();
    for (name, mtu, ip, longest) in [
        ("c4", 4200, "10.78.7.1", 2048 - 8),
        ("c6", 4200, "fd78:7::1", 2048 - 24),
        ("c4short", 1500, "10.78.8.1", 1024 - 8),
        ("c6short", 1500, "fd78:8::1", 1024 - 24),
    ] {
        let device = OwnDevice::with_mtu(name, ip.parse().expect("an address"), mtu);
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", c_library_dir());
        command.env("RSOCK_DEVICE", "rdma").args([ip, &longest.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let out = Running::spawn(&mut command).expect("it starts").output().expect("it ends");
        let said = assert_worked(&format!("{ip}, {longest}"), &out);
        let n_sent: u64 = said.trim().parse().expect("a number");
        // All but those before both knew each other and one now and then; each is a packet, and no
        // longer one is.
        let over_device = device.received();
        assert!(over_device <= n_sent, "{over_device} packets of {n_sent} datagrams, {ip}");
        assert!(over_device > n_sent / 10 * 9, "{over_device} packets of {n_sent} datagrams, {ip}");
    }
}
