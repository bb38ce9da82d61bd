//! Soak: connections, datagrams and forked servers that come and go, and what is left of them.
//!
//! A client and a server run under the library. The driver lets the client make some thousand
//! connections at a time, and between these rounds, when none is open, counts what the processes
//! have.

mod client;
mod figures;
mod server;

pub(crate) use client::run as client;
pub(crate) use server::run as server;

use crate::sys;
use figures::Figures;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

/// Connections of a round.
const ROUND: u64 = 2000;

/// What memory may grow by with each connection, and once: less than a third of the leak that an
/// audit found, and the allocator's own coming and going.
const BYTES_EACH: u64 = 40;
const BYTES_ONCE: u64 = 384 << 10;

/// How long what remains of a round may take to go.
const SETTLING: u64 = 10_000_000_000;

/// Runs `soak --library FILE --seconds N`.
pub(crate) fn run(args: &[String]) -> ExitCode {
    match soak(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("soak: {what}");
            ExitCode::FAILURE
        }
    }
}

fn soak(args: &[String]) -> Result<(), String> {
    let value = |name: &str| {
        let mut pairs = args.windows(2);
        pairs.find(|pair| pair[0] == name).map(|pair| pair[1].clone())
    };
    let library = PathBuf::from(value("--library").ok_or("--library is needed")?);
    let seconds: u64 = value("--seconds").and_then(|n| n.parse().ok()).unwrap_or(60);
    sys::adopt_orphans();
    if sys::own_network() {
        crate::torture::bring_up_loopback();
    }
    let mut server = Player::start(&library, &["soak-server"])?;
    let ports = server.line()?;
    let mut client = Player::start(&library, &["soak-client", &ports])?;
    let begin = sys::now();
    let warmed = round(&mut client, &server, None)?;
    println!("soak: after {ROUND} connections: {warmed}");
    if !warmed.has_moved {
        return Err("no connection has left TCP".to_owned());
    }
    let mut n = 0;
    loop {
        let now = round(&mut client, &server, Some(&warmed))?;
        n += ROUND;
        let seconds_so_far = (sys::now() - begin) / 1_000_000_000;
        println!("soak: {n} more, {seconds_so_far} s: {now}");
        if let Some(what) = warmed.left_in(&now, BYTES_ONCE + n * BYTES_EACH) {
            return Err(format!("after {n} connections {what}"));
        }
        if seconds_so_far >= seconds {
            println!("soak: {n} connections, and no more is left of them than may be");
            return Ok(());
        }
    }
}

/// Lets the client make connections, then counts. What is to go may take a moment.
fn round(
    client: &mut Player,
    server: &Player,
    before: Option<&Figures>,
) -> Result<Figures, String> {
    client.say(ROUND)?;
    let said = client.line()?;
    if said != "done" {
        return Err(format!("the client says `{said}`"));
    }
    let begin = sys::now();
    loop {
        let figures = Figures::of(&[server.pid(), client.pid()]);
        let is_settled = match before {
            None => sys::now() - begin > SETTLING / 10,
            Some(before) => before.counts_are_met(&figures),
        };
        if is_settled || sys::now() - begin > SETTLING {
            return Ok(figures);
        }
        sys::pause(20_000);
    }
}

/// A process of the soak, killed at the end.
struct Player {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Player {
    fn start(library: &Path, args: &[&str]) -> Result<Self, String> {
        let mut command = Command::new("/proc/self/exe");
        command.args(args).env("LD_PRELOAD", library).env("RSOCK_DGRAM", "on");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let prepare = || {
            sys::die_with_parent();
            Ok(())
        };
        // SAFETY: one system call, which a fork of a single-threaded process may make.
        unsafe { command.pre_exec(prepare) };
        let mut child = command.spawn().map_err(|e| format!("starting a process: {e}"))?;
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Ok(Self { child, input, output })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn say(&mut self, n: u64) -> Result<(), String> {
        writeln!(self.input, "{n}").map_err(|e| format!("a process does not listen: {e}"))
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|e| e.to_string())?;
        if line.is_empty() {
            return Err(format!("a process has ended: {:?}", self.child.wait()));
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
