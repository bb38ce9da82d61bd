//! `cargo xtask lab SCRIPT`: runs a script on real RDMA verbs, on a machine that has no RDMA
//! device.
//!
//! The script runs in a virtual machine with a stock Debian kernel, the host's files as its root
//! (read-only, under a layer of memory) and a soft RoCE device. `lab/README.md` says what a script
//! finds there.

mod cpio;
mod guest;
mod kit;

use crate::steps::{self, Done, Failure};
use guest::{Guest, News, Setup};
use kit::Kit;
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What to run, and where.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Lab {
    /// Guests: 1, or 2 on one wire; the script runs in each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    guests: u8,
    /// Seconds for the whole run
    #[arg(long, default_value_t = 300)]
    limit: u64,
    /// A shell script, or a program
    script: PathBuf,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Fetches what a guest is made of.
pub(crate) fn fetch() -> Done {
    Kit::fetch().map(drop)
}

/// Runs the script; its output goes to standard output, with two guests each line led by the role.
///
/// # Errors
/// If the script fails, or a guest does; then the run's directory, with the consoles, is kept.
pub(crate) fn run(lab: &Lab) -> Done {
    let kit = Kit::fetch()?;
    let run = directory()?;
    prepare(lab, &kit, &run)?;
    match watch(lab, &kit, &run) {
        Ok(()) => steps::remove(&run),
        Err(why) => Err(Failure::new(format!("{why}\nkept: {}", run.display()))),
    }
}

fn watch(lab: &Lab, kit: &Kit, run: &Path) -> Done {
    let roles = &['a', 'b'][..usize::from(lab.guests)];
    let mut wires = wires(roles.len())?;
    let (sender, news) = channel();
    let mut guests = Vec::new();
    for &role in roles {
        let setup = Setup { kit, run, role, n_guests: roles.len(), wire: wires.pop() };
        guests.push(Guest::start(setup, sender.clone())?);
    }
    drop(sender);
    let deadline = Instant::now() + Duration::from_secs(lab.limit);
    let results = listen(&news, roles, deadline);
    drop(guests);
    for (role, status) in results {
        match status {
            Some(0) => {}
            Some(status) => {
                return Err(Failure::new(format!("the script in guest {role} failed: {status}")));
            }
            None => {
                let words = guest::last_words(run, role);
                let limit = lab.limit;
                let why = format!("guest {role} did not finish in {limit} s, or died:\n{words}");
                return Err(Failure::new(why.trim_end()));
            }
        }
    }
    Ok(())
}

/// Passes lines on until every guest is off or time is up; returns what each script ended with.
fn listen(news: &Receiver<News>, roles: &[char], deadline: Instant) -> Vec<(char, Option<i32>)> {
    let mut results: Vec<_> = roles.iter().map(|&role| (role, None)).collect();
    let mut n_on = roles.len();
    while n_on > 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        match news.recv_timeout(left) {
            Ok(News::Line(_, line)) if roles.len() == 1 => println!("{line}"),
            Ok(News::Line(role, line)) => println!("{role}| {line}"),
            Ok(News::Status(role, status)) => {
                for result in results.iter_mut().filter(|result| result.0 == role) {
                    result.1 = Some(status);
                }
            }
            Ok(News::Off) => n_on -= 1,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    results
}

/// The two ends of the wire between two guests; their QEMUs inherit them.
fn wires(n_guests: usize) -> Done<Vec<OwnedFd>> {
    if n_guests < 2 {
        return Ok(Vec::new());
    }
    let why = |e: rustix::io::Errno| Failure::io("a wire for the guests", &e.into());
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(why)?;
    for end in [&a, &b] {
        rustix::io::fcntl_setfd(end, FdFlags::empty()).map_err(why)?;
    }
    Ok(vec![a, b])
}

/// A new directory for one run.
fn directory() -> Done<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let run = steps::target_dir().join(format!("lab/run-{}-{now}", std::process::id()));
    let out = run.join("out");
    fs::create_dir_all(&out).map_err(|e| Failure::io(out.display(), &e))?;
    Ok(run)
}

/// Writes what the guests read: their first file system, the environment and the command.
fn prepare(lab: &Lab, kit: &Kit, run: &Path) -> Done {
    let write = |name: &str, bytes: &[u8]| {
        let path = run.join(name);
        fs::write(&path, bytes).map_err(|e| Failure::io(path.display(), &e))
    };
    let absolute =
        |path: &Path| fs::canonicalize(path).map_err(|e| Failure::io(path.display(), &e));
    write("initrd", &kit.initrd()?)?;
    let start = steps::root().join("lab/start");
    write("start", &fs::read(&start).map_err(|e| Failure::io(start.display(), &e))?)?;

    let mut environment = String::new();
    for (name, value) in std::env::vars() {
        if PASSED_ON.iter().any(|prefix| name.starts_with(prefix)) {
            let _ = writeln!(environment, "export {name}={}", quoted(&value));
        }
    }
    let lab_dir = quoted(&steps::root().join("lab").to_string_lossy());
    let _ = writeln!(environment, "export LAB_DIR={lab_dir}");
    write("environment", environment.as_bytes())?;

    let here = std::env::current_dir().map_err(|e| Failure::io("current directory", &e))?;
    let script = absolute(&lab.script)?;
    let is_shell = script.extension().is_some_and(|ext| ext == "sh");
    let mut command = format!("cd {} || exit 125\n", quoted(&here.to_string_lossy()));
    command.push_str(if is_shell { "exec sh " } else { "exec " });
    command.push_str(&quoted(&script.to_string_lossy()));
    for arg in &lab.args {
        command.push(' ');
        command.push_str(&quoted(&arg.to_string_lossy()));
    }
    command.push('\n');
    write("command", command.as_bytes())
}

/// `text` as one word of a shell command.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Beginnings of the names of environment variables that a script sees.
const PASSED_ON: &[&str] = &["LAB_", "RSOCK_", "RUST_BACKTRACE"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        let word = "it's $HOME \"and\" `more` \\";
        let echo = format!("printf %s {}", quoted(word));
        let out = steps::output(std::process::Command::new("sh").arg("-c").arg(echo)).unwrap();
        assert_eq!(out, word);
    }

    #[test]
    fn results_are_kept_until_every_guest_is_off() {
        let (sender, news) = channel();
        for item in [
            News::Status('b', 3),
            News::Off,
            News::Line('a', "still here".to_owned()),
            News::Status('a', 0),
            News::Off,
        ] {
            sender.send(item).unwrap();
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        let results = listen(&news, &['a', 'b'], deadline);
        assert_eq!(results, [('a', Some(0)), ('b', Some(3))]);
    }

    #[test]
    fn a_guest_that_never_answers_has_no_result() {
        let (_sender, news) = channel();
        assert_eq!(listen(&news, &['a'], Instant::now()), [('a', None)]);
    }
}
