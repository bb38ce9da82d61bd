//! Documents that point into the tree: every relative link and every source file that they name
//! must exist, so that a move does not leave a newcomer at a dead end. And the manual has every
//! variable that the crates read.

use crate::sources;
use crate::steps::{self, Done, Failure};
use std::fs;
use std::path::{Path, PathBuf};

/// Checks every document of the project.
pub(crate) fn check() -> Done {
    let root = steps::root();
    let mut wrong = Vec::new();
    let mut sources: Vec<String> = Vec::new();
    for dir in ["crates", "tests", "benches", "examples", "xtask"] {
        sources.extend(sources::files(dir)?.iter().map(|path| path.to_string_lossy().into_owned()));
    }
    for document in documents(&root)? {
        let shown = document.strip_prefix(&root).unwrap_or(&document).display().to_string();
        let text = fs::read_to_string(&document).map_err(|e| Failure::io(&shown, &e))?;
        let dir = document.parent().unwrap_or(&root);
        for (number, line) in text.lines().enumerate() {
            let at = number + 1;
            for link in links(line).filter(|link| !dir.join(link).exists()) {
                wrong.push(format!("{shown}:{at}: link to `{link}`, which is not there"));
            }
            for file in files_named(line).filter(|file| !is_source(&sources, file)) {
                wrong.push(format!("{shown}:{at}: names `{file}`, which is not there"));
            }
        }
    }
    variables(&mut wrong)?;
    sources::verdict("docs", &wrong)
}

/// Every variable of the environment that a crate names is in the manual.
fn variables(wrong: &mut Vec<String>) -> Done {
    let page = steps::root().join(VARIABLES);
    let page = fs::read_to_string(&page).map_err(|e| Failure::io(page.display(), &e))?;
    for file in sources::files("crates")? {
        let shown = file.strip_prefix(steps::root()).unwrap_or(&file).display().to_string();
        if !shown.contains("/src/") {
            continue;
        }
        let text = fs::read_to_string(&file).map_err(|e| Failure::io(&shown, &e))?;
        for name in variables_in(&text).filter(|name| !page.contains(&format!("`{name}`"))) {
            wrong.push(format!("{shown}: {name} is not in {VARIABLES}"));
        }
    }
    Ok(())
}

/// Names in quotes that begin as our variables do.
fn variables_in(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').filter(|name| {
        name.strip_prefix("RSOCK_").is_some_and(|rest| {
            !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
        })
    })
}

/// Markdown files of the root and of `docs`.
fn documents(root: &Path) -> Done<Vec<PathBuf>> {
    let mut found = Vec::new();
    for dir in ["", "docs", "docs/decisions", "docs/man", "examples", "lab"] {
        let dir = root.join(dir);
        for entry in fs::read_dir(&dir).map_err(|e| Failure::io(dir.display(), &e))? {
            let path = entry.map_err(|e| Failure::io(dir.display(), &e))?.path();
            if path.extension().is_some_and(|ext| ext == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Targets of the relative links of a line, without their fragments.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| {
        let target = rest.split(')').next()?.split('#').next()?;
        (!target.is_empty() && !target.contains("://")).then_some(target)
    })
}

/// Rust files that a line names in backticks.
fn files_named(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted.filter(|name| name.ends_with(".rs") && !name.contains(['*', ' ', '{']))
}

/// Whether a name is the end of a source file's path; `rsock-core/src/x.rs` and `x.rs` both serve.
fn is_source(sources: &[String], name: &str) -> bool {
    sources
        .iter()
        .any(|source| source.strip_suffix(name).is_some_and(|before| before.ends_with('/')))
}

const VARIABLES: &str = "docs/man/rsock-preload.7.md";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_found_in_strings_alone() {
        let text = "// RSOCK_A\nread(\"RSOCK_B_C\"); start(\"RSOCK_\"); log(c\"RSOCK_D\")";
        assert_eq!(variables_in(text).collect::<Vec<_>>(), ["RSOCK_B_C", "RSOCK_D"]);
    }

    #[test]
    fn relative_links_are_found() {
        let line = "see [a](docs/a.md#part), [b](https://example.org), [c](#here) and [d](d.md)";
        assert_eq!(links(line).collect::<Vec<_>>(), ["docs/a.md", "d.md"]);
    }

    #[test]
    fn files_in_backticks_are_found_and_matched_by_their_end() {
        let line = "`accelerate/send.rs` calls `send`; `no*.rs`";
        assert_eq!(files_named(line).collect::<Vec<_>>(), ["accelerate/send.rs"]);
        let sources = ["/w/crates/rsock-core/src/accelerate/send.rs".to_owned()];
        assert!(is_source(&sources, "accelerate/send.rs"));
        assert!(!is_source(&sources, "rate/send.rs"));
    }
}
