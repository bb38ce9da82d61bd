//! Commit subjects of at most 72 characters, where the history is there: a tarball has none.

use crate::sources;
use crate::steps::{self, Done};
use std::process::Command;

/// Checks the commits after [`BASE`].
pub(crate) fn check() -> Done {
    let Ok(log) = steps::quiet(&mut git(&["log", "--format=%h %s", &format!("{BASE}..HEAD")]))
    else {
        steps::say("no git history, or not so far back: commit subjects not checked here");
        return Ok(());
    };
    let wrong = log.lines().filter_map(too_long).collect::<Vec<_>>();
    sources::verdict("commits", &wrong)
}

/// What is wrong with a line of a commit's short name and subject.
fn too_long(line: &str) -> Option<String> {
    let (commit, subject) = line.split_once(' ')?;
    let n = subject.chars().count();
    (n > LONGEST)
        .then(|| format!("commit {commit}: a subject of {n} characters, at most {LONGEST}"))
}

fn git(args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.current_dir(steps::root()).args(args);
    command
}

/// Older subjects stay as they are.
const BASE: &str = "6524479";

const LONGEST: usize = 72;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_of_73_characters_is_too_long() {
        assert_eq!(too_long(&format!("1234567 {}", "ä".repeat(72))), None);
        assert!(too_long(&format!("1234567 {}", "x".repeat(73))).is_some());
    }
}
