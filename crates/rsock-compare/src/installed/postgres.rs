//! PostgreSQL's programs, which packages put beside each other, and the user that may run them.

use super::Program;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The programs, all of one version, and their user.
#[derive(Debug)]
pub(crate) struct Postgres {
    pub(crate) postgres: Program,
    pub(crate) initdb: Program,
    pub(crate) pgbench: Program,
    pub(crate) pg_isready: Program,
    /// The user of both ends, if this process is privileged.
    pub(crate) user: Option<User>,
}

/// An account of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl User {
    /// Has `command` run as this user.
    pub(crate) fn run(self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }
}

impl Postgres {
    /// Looks below `root`, then where packages install it, then in `path`.
    pub(super) fn find(root: Option<&Path>, path: &[PathBuf]) -> Result<Self, String> {
        let unpacked = root.into_iter().flat_map(|root| {
            let own = [root.join("bin")].into_iter().chain(versions(&root.join("usr")));
            own.map(move |dir| (dir, Some(root)))
        });
        let installed = versions(Path::new("/usr")).into_iter().chain(path.iter().cloned());
        let mut dirs = unpacked.chain(installed.map(|dir| (dir, None)));
        let found = dirs.find_map(|(dir, root)| Self::find_in(dir, root));
        let mut found = found.ok_or("postgres was not found")?;
        if rustix::process::geteuid().is_root() {
            let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
            let user = user(&users, "postgres").or_else(|| unprivileged(&users));
            let why = "PostgreSQL does not run as root, and there is no user without privileges";
            found.user = Some(user.ok_or(why)?);
        }
        found.check()?;
        Ok(found)
    }

    fn find_in(dir: PathBuf, root: Option<&Path>) -> Option<Self> {
        let dirs = [dir];
        let find = |name| Program::find_in(name, &dirs, root);
        Some(Self {
            postgres: find("postgres")?,
            initdb: find("initdb")?,
            pgbench: find("pgbench")?,
            pg_isready: find("pg_isready")?,
            user: None,
        })
    }

    /// Its user has to be allowed to read its files.
    fn check(&self) -> Result<(), String> {
        let mut command = self.postgres.command();
        command.arg("--version").current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
        if let Some(user) = self.user {
            user.run(&mut command);
        }
        let is_run = command.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        let path = self.postgres.path().display();
        if is_run { Ok(()) } else { Err(format!("{path} cannot be run as an unprivileged user")) }
    }
}

/// Where Debian puts the programs below a prefix: the latest version comes first.
fn versions(prefix: &Path) -> Vec<PathBuf> {
    let entries = prefix.join("lib/postgresql").read_dir().into_iter().flatten().flatten();
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let mut found: Vec<_> = entries.map(|entry| entry.path()).collect();
    found.sort_by_key(|path| std::cmp::Reverse(version(path)));
    found.into_iter().map(|path| path.join("bin")).collect()
}

/// The user of that name in the text of `/etc/passwd`.
fn user(passwd: &str, name: &str) -> Option<User> {
    passwd.lines().find(|line| line.split(':').next() == Some(name)).and_then(numbers)
}

/// The user without rights that systems have for processes that need none.
fn unprivileged(passwd: &str) -> Option<User> {
    const UID: u32 = 65_534;
    passwd.lines().filter_map(numbers).find(|user| user.uid == UID)
}

fn numbers(line: &str) -> Option<User> {
    let mut numbers = line.split(':').skip(2).map(str::parse);
    Some(User { uid: numbers.next()?.ok()?, gid: numbers.next()?.ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name_or_because_it_has_no_rights() {
        let passwd = "postgres2:x:7:8::/:/bin/sh\npostgres:x:101:104::/:/bin/sh\n\
            weak:x:65534:65533:weak:/none:/bin/false\n";
        let found = |name| user(passwd, name);
        assert_eq!(found("postgres"), Some(User { uid: 101, gid: 104 }));
        assert_eq!(found("gres"), None);
        assert_eq!(unprivileged(passwd), Some(User { uid: 65534, gid: 65533 }));
    }

    #[test]
    fn what_is_not_there_has_a_reason() {
        let found = Postgres::find_in(PathBuf::from("/nonexistent"), None);
        assert!(found.is_none());
    }
}
