//! OpenSSH behaves the same with and without the preload library, at both ends. Its server starts
//! itself again for every connection, hands the socket to further processes, and restricts the
//! system calls of the one that talks to a client first.

use rsock_core::metrics::FallbackReason;
use rsock_tests::tools::{self, Tool};
use rsock_tests::{
    Running, Watchdog, await_tcp_listener, fallback_reasons, free_port, has_used_ring,
    preload_library,
};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Many times what it needs.
const LIMIT: Duration = Duration::from_secs(180);
const LEN: usize = 5 << 20;

/// Keys, configuration and files of one test.
struct Site {
    dir: PathBuf,
    port: u16,
    user: String,
}

impl Site {
    fn new(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ssh").join(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a directory in the target directory");
        for key in ["host", "user"] {
            let mut keygen = tools::require("ssh-keygen").command();
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(key));
            assert!(keygen.status().expect("ssh-keygen").success());
        }
        let id = Command::new("id").arg("-un").output().expect("id");
        let user = String::from_utf8_lossy(&id.stdout).trim().to_owned();
        let port = free_port(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let shown = dir.display();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {shown}/host\nPidFile none\nUsePAM no\n\
             AuthorizedKeysFile {shown}/user.pub\nStrictModes no\nPasswordAuthentication no\n\
             PermitRootLogin yes\nSubsystem sftp internal-sftp\n"
        );
        fs::write(dir.join("config"), config).expect("the configuration");
        fs::write(dir.join("data"), data()).expect("the data");
        Self { dir, port, user }
    }

    /// The server, which root runs only where the machine has a user for it to fall back to.
    fn server(&self, with_shim: bool) -> Running {
        let sshd = tools::require("sshd");
        let is_root = fs::metadata("/proc/self").expect("a proc file system").uid() == 0;
        let mut command = if is_root {
            let passwd = fs::read_to_string("/etc/passwd").expect("the machine's users");
            let others = passwd.lines().filter(|line| !line.starts_with("sshd:"));
            let own = "sshd:x:65533:65534::/run/sshd:/bin/false";
            let users: Vec<&str> = others.chain([own]).collect();
            fs::write(self.dir.join("passwd"), users.join("\n") + "\n").expect("users");
            let script = "mount --bind \"$0\" /etc/passwd && mount -t tmpfs none /run \
                          && mkdir -m 755 /run/sshd && exec \"$@\"";
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
            command.arg(self.dir.join("passwd")).arg(&sshd.path);
            command
        } else {
            Command::new(&sshd.path)
        };
        command.args(["-D", "-e", "-f"]).arg(self.dir.join("config")).stdin(Stdio::null());
        with(&mut command, &sshd, with_shim);
        let log = fs::File::create(self.dir.join("log")).expect("a log");
        command.stderr(log);
        let mut server = Running::spawn(&mut command).expect("sshd starts");
        await_tcp_listener(self.port, &mut server);
        server
    }

    fn client(&self, program: &str, with_shim: bool) -> Command {
        let tool = tools::require(program);
        let mut command = tool.command();
        with(&mut command, &tool, with_shim);
        command.args(["-F", "/dev/null", "-o", "StrictHostKeyChecking=no", "-o"]);
        command.args(["UserKnownHostsFile=/dev/null", "-o", "IdentitiesOnly=yes"]);
        command.args(["-o", "LogLevel=ERROR", "-o", &format!("Port={}", self.port), "-i"]);
        command.arg(self.dir.join("user"));
        command
    }

    fn remote(&self) -> String {
        format!("{}@127.0.0.1", self.user)
    }

    fn assert_same(&self, name: &str) {
        let got = fs::read(self.dir.join(name)).expect("the copy");
        assert!(got == data(), "{name} differs, {} bytes", got.len());
        fs::remove_file(self.dir.join(name)).expect("the copy");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

/// Bytes that differ everywhere.
fn data() -> Vec<u8> {
    let mut x = 88172645463325252u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    (0..LEN / 8).flat_map(|_| next()).collect()
}

/// Sets the libraries of `tool`, and ours.
fn with(command: &mut Command, tool: &Tool, with_shim: bool) {
    command.env_remove("LD_PRELOAD");
    if let Some(lib_path) = &tool.lib_path {
        command.env("LD_LIBRARY_PATH", lib_path);
    }
    if with_shim {
        command.env("LD_PRELOAD", preload_library());
    }
}

/// Copies to the server and back, and through a command there.
fn assert_copies(name: &str, with_server: bool, with_client: bool) {
    let _watchdog = Watchdog::new(LIMIT);
    let site = Site::new(name);
    let _server = site.server(with_server);
    let input = fs::File::open(site.dir.join("data")).expect("the data");
    let output = fs::File::create(site.dir.join("echo")).expect("a file");
    let mut ssh = site.client("ssh", with_client);
    let status = ssh.arg(site.remote()).arg("cat").stdin(input).stdout(output).status();
    assert!(status.expect("ssh").success(), "{}", site.log());
    site.assert_same("echo");
    let there = format!("{}:{}", site.remote(), site.dir.join("there").display());
    let here = site.dir.join("data").display().to_string();
    let back = site.dir.join("back").display().to_string();
    for (from, to) in [(&here, &there), (&there, &back)] {
        let mut scp = site.client("scp", with_client);
        scp.arg("-q").arg("-S").arg(tools::require("ssh").path).arg(from).arg(to);
        let status = scp.stdin(Stdio::null()).status();
        assert!(status.expect("scp").success(), "{from} to {to}: {}", site.log());
    }
    site.assert_same("there");
    site.assert_same("back");
}

#[test]
fn without_the_library() {
    assert_copies("neither", false, false);
}

#[test]
fn with_the_library_at_both_ends() {
    assert_copies("both", true, true);
}

#[test]
fn with_the_library_at_the_server() {
    assert_copies("server", true, false);
}

#[test]
fn with_the_library_at_the_client() {
    assert_copies("client", false, true);
}

/// Processes that `pid` has started, and those that they have.
fn descendants(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = list.split_whitespace().filter_map(|child| child.parse::<u32>().ok());
    children.flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}

/// The process of sshd that serves a session has begun as a program of its own, with the connection
/// as standard input, so it never looks for its peer. `rsock stat` says so of the client.
#[test]
fn the_connection_stays_on_tcp_and_the_client_shows_why() {
    let _watchdog = Watchdog::new(LIMIT);
    let site = Site::new("reason");
    let server = site.server(true);
    let mut ssh = site.client("ssh", true);
    ssh.arg(site.remote()).arg("cat").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = Running::spawn(&mut ssh).expect("ssh");
    let mut answers = BufReader::new(client.stdout.take().expect("piped"));
    let mut input = client.stdin.take().expect("piped");
    let question = [b"question".repeat(1000), b"\n".to_vec()].concat();
    let reasons = loop {
        input.write_all(&question).expect("the session");
        let mut answer = Vec::new();
        answers.read_until(b'\n', &mut answer).expect("the session");
        assert!(answer == question, "{}", site.log());
        let reasons = fallback_reasons(client.id());
        if !reasons.is_empty() {
            break reasons;
        }
    };
    assert_eq!(reasons, [FallbackReason::NoPeer]);
    let servers = descendants(server.id());
    assert!(!servers.is_empty() && !servers.into_iter().any(has_used_ring));
    assert!(!has_used_ring(client.id()));
    drop(input);
    assert!(client.wait().expect("ssh").success(), "{}", site.log());
}
