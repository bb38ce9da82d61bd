//! One meaning for each name: a crate has no two public types that are called the same, so that the
//! name alone says which one is meant.

use crate::sources;
use crate::steps::{self, Done, Failure};
use std::collections::BTreeMap;
use std::fs;

/// Checks every crate below `crates`.
pub(crate) fn check() -> Done {
    let root = steps::root();
    let mut types: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for file in sources::files("crates")? {
        let shown = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        let Some((name, inside)) = shown.strip_prefix("crates/").and_then(|s| s.split_once('/'))
        else {
            continue;
        };
        if !inside.starts_with("src/") {
            continue;
        }
        let text = fs::read_to_string(&file).map_err(|e| Failure::io(&shown, &e))?;
        for (number, line) in text.lines().enumerate() {
            if let Some(declared) = declared_type(line) {
                let places = types.entry((name.to_owned(), declared.to_owned())).or_default();
                places.push(format!("{shown}:{}", number + 1));
            }
        }
    }
    let wrong = types.iter().filter(|(name, places)| places.len() > 1 && !is_allowed(name)).map(
        |((in_crate, name), places)| {
            format!("{in_crate}: several public types `{name}`: {}", places.join(", "))
        },
    );
    sources::verdict("types", &wrong.collect::<Vec<_>>())
}

/// The public type that a line declares.
fn declared_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
    let rest = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end])
}

fn is_allowed((in_crate, name): &(String, String)) -> bool {
    ALLOWED.iter().any(|(listed, names, _)| listed == in_crate && names.contains(&name.as_str()))
}

/// Crates, types that they have several of, and why.
const ALLOWED: &[(&str, &[&str], &str)] = &[
    (
        "rsock-rdma-sys",
        &["__be16", "__be32", "__be64", "__u16", "__u32", "__u64"],
        "generated: each of the two libraries' bindings has the kernel's types",
    ),
    (
        "rsock",
        &["Builder", "Incoming", "Listener", "Stream"],
        "the module `rsockets` has the same types over the rsockets protocol alone",
    ),
    (
        "rsock-tokio",
        &[
            "Builder",
            "Incoming",
            "Listener",
            "OwnedReadHalf",
            "OwnedWriteHalf",
            "ReadHalf",
            "Stream",
            "WriteHalf",
        ],
        "as in `rsock`",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_types_are_found_and_others_are_not() {
        assert_eq!(declared_type("pub struct Stream<T>(T);"), Some("Stream"));
        assert_eq!(declared_type("    pub unsafe trait Wire: Copy {"), Some("Wire"));
        assert_eq!(declared_type("pub type Done<T = ()> = Result<T>;"), Some("Done"));
        assert_eq!(declared_type("pub(crate) struct Stream;"), None);
        assert_eq!(declared_type("/// pub struct Stream;"), None);
        assert_eq!(declared_type("pub fn stream() {}"), None);
    }
}
