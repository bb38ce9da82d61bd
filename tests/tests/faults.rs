//! What goes wrong around a connection, seen by unmodified programs: peers that die, lie or belong
//! to another user, limits that are reached, and bytes written past the library.
//!
//! Where plain TCP has an answer, it is the same. What cannot be accelerated stays on TCP, works,
//! and `rsock stat` says why.

mod c_program;
mod pair;

use c_program::compiled;
use pair::{MIXED, Outcome, Shim, command, pair, watched};
use rsock_tests::{Piped, copy_program, preload_library, rsock_command};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BOTH: Shim = Shim { server: true, client: true };
const NEITHER: Shim = Shim { server: false, client: false };

/// Runs a part of `program`; `seed` is for those that draw.
fn run(
    program: &'static str,
    part: &'static str,
    warm: &'static str,
    shim: Shim,
    seed: u32,
) -> Outcome {
    let program = compiled(program);
    watched(format!("{part}, warm {warm}, {shim:?}, seed {seed}"), move || {
        let end = |with_shim, role| {
            let mut command = command(&program, with_shim, &[role, part, warm]);
            command.env("SEED", seed.to_string());
            command
        };
        pair(end(shim.server, "server"), end(shim.client, "client"))
    })
}

fn assert_same_in_all_pairs(part: &'static str, warm: &'static str) {
    let plain = run("faults", part, warm, NEITHER, 0);
    assert!(plain.server.status.ends_with(": 0"), "without the library: {plain:?}");
    for shim in MIXED {
        assert_eq!(run("faults", part, warm, shim, 0), plain, "left: {shim:?}, right: without");
    }
}

/// At each of its first calls, in which the ends find each other and move, at later ones, and at
/// any instant; while the survivor waits in each way that there is. The survivor checks that it
/// keeps no descriptor, mapping or name of the dead.
#[test]
fn a_peer_that_is_killed_at_any_step_ends_its_connection_and_leaves_nothing() {
    assert_same_in_all_pairs("deaths", "0");
    let leftovers = ["/dev/shm", "/tmp"].iter().flat_map(fs::read_dir).flatten().flatten();
    let names = leftovers.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let ours: Vec<_> =
        names.filter(|n| n.starts_with("rsock-seg") || n.starts_with("rsock-pair")).collect();
    assert!(ours.is_empty(), "{ours:?}");
}

/// As TCP's reset, which the kernel does not send for bytes that lie on the ring: whatever the
/// survivor waits for, and told once.
#[test]
fn a_peer_that_is_killed_with_unread_bytes_resets_its_connection() {
    assert_same_in_all_pairs("unread", "1");
}

/// What a fork copies without being asked keeps nothing of a dead process alive.
#[test]
fn a_peer_that_is_killed_has_ended_although_a_child_of_its_lives_on() {
    let plain = run("faults", "orphan", "1", NEITHER, 0);
    assert_eq!(plain.client.out, "kill(child, SIGKILL) = 0\n", "without the library: {plain:?}");
    for shim in MIXED {
        assert_eq!(run("faults", "orphan", "1", shim, 0), plain, "left: {shim:?}, right: without");
    }
}

/// Garbage in all that the hostile process shares with its victim, while another stream of the
/// victim's, on the ring of another process, carries checked bytes.
#[test]
fn garbage_in_shared_memory_spoils_no_other_stream() {
    for seed in 1..=12 {
        let outcome = run("hostile", "hostile", "1", BOTH, seed);
        let server = &outcome.server;
        assert_eq!(server.out, "past tcp: 1\n", "seed {seed}: {outcome:?}");
        assert!(server.status.ends_with(": 0"), "seed {seed}: {outcome:?}");
    }
}

/// In a set that several threads wait in, beside a stream of another process: every number, those
/// of other streams, numbers that no set has, and garbage.
#[test]
fn what_a_hostile_peer_announces_to_an_epoll_set_spoils_no_other_stream() {
    for seed in 1..=12 {
        let outcome = run("hostile", "announcing", "1", BOTH, seed);
        let server = &outcome.server;
        assert_eq!(server.out, "past tcp: 1\n", "seed {seed}: {outcome:?}");
        assert!(server.status.ends_with(": 0"), "seed {seed}: {outcome:?}");
        assert!(outcome.client.status.ends_with(": 0"), "seed {seed}: {outcome:?}");
    }
}

#[test]
fn bytes_written_past_the_library_from_the_start_stay_in_order() {
    assert_same_in_all_pairs("foreign_first", "0");
}

/// Once a stream has moved, a raw system call's bytes cannot be put where they belong: none is
/// delivered in a wrong place, and the reader is told.
#[test]
fn bytes_written_past_the_library_on_the_ring_are_never_misplaced() {
    assert_eq!(run("faults", "foreign", "1", NEITHER, 0).server.out, "complete\n");
    for shim in MIXED {
        let outcome = run("faults", "foreign", "1", shim, 0);
        let expected = if shim == BOTH { "reported\n" } else { "complete\n" };
        assert_eq!(outcome.server.out, expected, "{shim:?}: {outcome:?}");
    }
}

/// One end of a connection that has exchanged much and now waits to be let go.
struct Held(Piped);

impl Held {
    fn start(mut command: Command) -> Self {
        Self(Piped::start(command.stderr(Stdio::inherit())))
    }

    fn line(&mut self) -> String {
        let line = self.0.line();
        assert!(!line.is_empty(), "an end said nothing more");
        line
    }

    fn port(&mut self) -> String {
        self.line().trim_start_matches("port ").to_owned()
    }

    /// What `rsock stat` says about it: nothing if it has no counters.
    fn stat(&self) -> String {
        let pid = self.0.id().to_string();
        let out = Command::new(rsock_command()).args(["stat", &pid]).output().expect("rsock");
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        said.lines().skip(1).map(str::to_owned).collect()
    }

    /// Lets go, without waiting: the other end must be let go too.
    fn release(&mut self) {
        self.0.release();
    }

    fn assert_whole(mut self) {
        assert_eq!(self.line(), "whole");
        assert_eq!(self.0.rest(), "");
    }
}

/// Starts both ends, and hands both to `look` while they hold; then lets them finish.
fn hold(server: Command, client: impl FnOnce(&str) -> Command, look: impl FnOnce(&Held, &Held)) {
    let mut server = Held::start(server);
    let port = server.port();
    let mut client = client(&port);
    client.arg(&port);
    let mut client = Held::start(client);
    // A client that fails leaves its server waiting.
    assert_eq!(client.line(), "ready");
    assert_eq!(server.line(), "ready");
    look(&server, &client);
    server.release();
    client.release();
    server.assert_whole();
    client.assert_whole();
}

fn end_at(program: &Path, role: &str) -> Command {
    command(program, true, &[role, "hold", "0"])
}

/// Runs a pair one of whose ends has little left of something; `expected` is what its line says.
fn with_limit(limit: &'static str, expected: fn(&str) -> bool) {
    let program = compiled("faults");
    for limited in ["server", "client"] {
        let program = program.clone();
        watched(format!("{limited} with {limit}"), move || {
            let end = |role: &str| {
                let mut command = end_at(&program, role);
                if role == limited {
                    command.env("LIMIT", limit);
                }
                command
            };
            hold(
                end("server"),
                |_| end("client"),
                |server, client| {
                    let line = if limited == "server" { server.stat() } else { client.stat() };
                    assert!(expected(&line), "{limited} with {limit}: {line:?}");
                },
            );
        });
    }
}

fn is_on_ring(line: &str) -> bool {
    line.contains("  soft  ")
}

fn says_resources(line: &str) -> bool {
    line.contains("  tcp  ") && line.contains("descriptors or memory nearly exhausted")
}

#[test]
fn without_limits_both_directions_move() {
    with_limit("memlock:0", is_on_ring);
}

#[test]
fn little_address_space_or_file_size_means_tcp_and_stat_says_so() {
    with_limit("as:100000000", says_resources);
    with_limit("fsize:1000000", says_resources);
    // Not even the counters fit.
    with_limit("fsize:0", str::is_empty);
}

#[test]
fn few_descriptors_mean_tcp_and_stat_says_so() {
    with_limit("nofile:7", says_resources);
    // Whichever step runs out: bytes flow, and what did not move says why.
    for limit in ["nofile:9", "nofile:10", "nofile:11", "nofile:12", "nofile:13", "nofile:14"] {
        with_limit(limit, |line| line.is_empty() || is_on_ring(line) || says_resources(line));
    }
}

/// A thread that waits for the first time makes itself a doorbell, if it can.
#[test]
fn a_moved_stream_works_on_when_the_descriptors_run_out() {
    assert_same_in_all_pairs("exhausted", "1");
}

/// A directory that other users can read, gone after the test.
struct Public(PathBuf);

impl Public {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("rsock-public-{}", std::process::id()));
        fs::create_dir(&dir).expect("a directory for temporary files");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("its mode");
        Self(dir)
    }

    fn copy(&self, file: &Path) -> PathBuf {
        let to = self.0.join(file.file_name().expect("a file"));
        copy_program(file, &to);
        to
    }
}

impl Drop for Public {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes `command` run as a user that the tests' own user does not trust.
fn as_stranger(mut command: Command, library: &Path) -> Command {
    let is_root = fs::metadata("/proc/self").expect("procfs").uid() == 0;
    if is_root {
        // Not the kernel's substitute for unknown users: that one is refused for itself.
        command.uid(54321).gid(54321);
        return command;
    }
    // Only root can become another user. In a user namespace of its own a process does not know
    // this process's user, so it refuses the connection.
    let mut other = Command::new("unshare");
    other.args(["--user", "--"]).arg(command.get_program()).args(command.get_args());
    other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    other.env("LD_PRELOAD", library);
    other.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    other
}

/// Below or above the server's port: that decides whether the client publishes or searches.
const SIDES: [&str; 2] = ["1", "0"];

/// A process that reserves a client's port on `side`, and troubles the meeting point.
fn trouble(program: &Path, role: &str, side: &str, server_port: &str) -> (Held, String) {
    let mut held = Held::start(command(program, false, &[role, side, server_port]));
    let port = held.line();
    (held, port)
}

#[test]
fn another_users_process_is_refused_and_the_connection_stays_on_tcp() {
    watched("another user".to_owned(), || {
        let public = Public::new();
        let program = public.copy(&compiled("faults"));
        let library = public.copy(&preload_library());
        let mut refusals = 0;
        for _ in 0..6 {
            let stranger = |_: &str| {
                let mut command = end_at(&program, "client");
                command.env("LD_PRELOAD", &library);
                as_stranger(command, &library)
            };
            let mut server = end_at(&program, "server");
            server.env("LD_PRELOAD", &library);
            hold(server, stranger, |server, client| {
                for line in [server.stat(), client.stat()] {
                    assert!(line.contains("  tcp  "), "{line:?}");
                    refusals += usize::from(line.contains("another user or unverified"));
                }
            });
        }
        // The searching end is refused; the end that publishes goes on waiting.
        assert_ne!(refusals, 0);
    });
}

/// Makes `command` run in a process-id namespace of its own: what is outside of it has no id there.
fn in_own_namespace(command: &Command) -> Command {
    let mut inside = Command::new("unshare");
    if fs::metadata("/proc/self").expect("procfs").uid() != 0 {
        inside.args(["--user", "--map-root-user"]);
    }
    inside.args(["--pid", "--fork", "--kill-child", "--"]);
    inside.arg(command.get_program()).args(command.get_args());
    inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    inside.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    inside
}

/// As containers of one pod are: they share the network, and not the process ids.
#[test]
fn a_peer_that_has_no_process_id_here_is_talked_to_over_tcp() {
    watched("no process id".to_owned(), || {
        let program = compiled("faults");
        // Either end publishes, as the ports come.
        for _ in 0..4 {
            let client = |_: &str| in_own_namespace(&end_at(&program, "client"));
            hold(end_at(&program, "server"), client, |server, _| {
                assert!(server.stat().contains("  tcp  "), "{:?}", server.stat());
            });
        }
    });
}

#[test]
fn a_squatted_meeting_point_means_tcp_and_stat_says_so() {
    watched("squatter".to_owned(), || {
        let program = compiled("faults");
        for side in SIDES {
            let mut squatter = None;
            let client = |port: &str| {
                let (held, from) = trouble(&program, "squat", side, port);
                squatter = Some(held);
                let mut command = end_at(&program, "client");
                command.env("CLIENT_PORT", from);
                command
            };
            hold(end_at(&program, "server"), client, |server, client| {
                let (publisher, finder) =
                    if side == "1" { (client, server) } else { (server, client) };
                let (publisher, finder) = (publisher.stat(), finder.stat());
                assert!(publisher.contains("  tcp  "), "{publisher:?}");
                assert!(publisher.contains("another user or unverified"), "{publisher:?}");
                assert!(finder.contains("  tcp  "), "{finder:?}");
                assert!(finder.contains("the fast path failed"), "{finder:?}");
            });
        }
    });
}

#[test]
fn strangers_at_the_meeting_point_are_turned_away_and_the_ends_still_find_each_other() {
    watched("pesterer".to_owned(), || {
        let program = compiled("faults");
        for side in SIDES {
            let mut pesterer = None;
            let client = |port: &str| {
                let (held, from) = trouble(&program, "pester", side, port);
                pesterer = Some(held);
                let mut command = end_at(&program, "client");
                command.env("CLIENT_PORT", from);
                command
            };
            hold(end_at(&program, "server"), client, |server, client| {
                assert!(is_on_ring(&server.stat()), "{:?}", server.stat());
                assert!(is_on_ring(&client.stat()), "{:?}", client.stat());
            });
        }
    });
}
