//! Cycles between the modules of one folder, and the arrows that are allowed to close one.

use super::references::Sources;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The arrows of one folder: the module that uses, the module that is used, and where.
pub(super) type Arrows = BTreeMap<(String, String), String>;

/// The arrows of every folder with more than two modules, by the folder's path: the crate's name,
/// and the modules in which it lies.
pub(super) fn arrows(crate_name: &str, sources: &Sources) -> BTreeMap<String, Arrows> {
    let mut modules = BTreeMap::<&[String], usize>::new();
    for module in &sources.modules {
        if let Some((_, folder)) = module.split_last() {
            *modules.entry(folder).or_default() += 1;
        }
    }
    let mut found = BTreeMap::<String, Arrows>::new();
    for reference in sources.references() {
        let (from, to) = (&reference.from, &reference.to);
        let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        if modules.get(&from[..shared]).is_some_and(|n| *n > 2) {
            let folder = [&[crate_name.to_owned()], &from[..shared]].concat().join("::");
            let arrow = (from[shared].clone(), to[shared].clone());
            found.entry(folder).or_default().entry(arrow).or_insert(reference.at);
        }
    }
    found
}

/// An arrow that closes a cycle and may stay.
#[derive(Debug)]
pub(super) struct Allowed {
    pub(super) folder: &'static str,
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    pub(super) why: &'static str,
}

/// Checks the arrows of one folder and returns what is wrong with them.
pub(super) fn check(folder: &str, arrows: &Arrows, allowed: &[Allowed]) -> Vec<String> {
    let mut wrong = Vec::new();
    let allowed = allowed.iter().filter(|entry| entry.folder == folder).collect::<Vec<_>>();
    let mut rest = arrows.clone();
    for entry in &allowed {
        rest.remove(&(entry.from.to_owned(), entry.to.to_owned()));
    }
    for entry in allowed {
        let arrow = (entry.from.to_owned(), entry.to.to_owned());
        let closes_a_cycle = arrows.get(&arrow).is_some_and(|at| {
            let mut with = rest.clone();
            with.insert(arrow.clone(), at.clone());
            shortest_from(entry.from, &with).is_some()
        });
        if !closes_a_cycle {
            wrong.push(format!(
                "{folder}: the arrow {} -> {} closes no cycle any more ({}): take it off the list",
                entry.from, entry.to, entry.why
            ));
        }
    }
    while let Some(cycle) = shortest(&rest) {
        let names = cycle.iter().map(|(from, _)| from.as_str());
        let names = names.chain([cycle[0].0.as_str()]).collect::<Vec<_>>().join(" -> ");
        let mut message = format!("{folder}: modules use each other in a circle: {names}");
        for arrow in cycle {
            let at = rest.remove(&arrow).unwrap_or_default();
            message += &format!("\n    {} uses {} in {at}", arrow.0, arrow.1);
        }
        wrong.push(message);
    }
    wrong
}

/// A shortest cycle, arrow by arrow.
fn shortest(arrows: &Arrows) -> Option<Vec<(String, String)>> {
    let modules = arrows.keys().map(|(from, _)| from.as_str()).collect::<BTreeSet<_>>();
    let cycles = modules.into_iter().filter_map(|module| shortest_from(module, arrows));
    cycles.min_by_key(Vec::len)
}

/// A shortest cycle through `start`.
fn shortest_from(start: &str, arrows: &Arrows) -> Option<Vec<(String, String)>> {
    let mut reached_by = BTreeMap::<&str, &(String, String)>::new();
    let mut todo = VecDeque::from([start]);
    while let Some(module) = todo.pop_front() {
        for arrow in arrows.keys().filter(|(from, _)| from == module) {
            if !reached_by.contains_key(arrow.1.as_str()) {
                reached_by.insert(&arrow.1, arrow);
                todo.push_back(&arrow.1);
            }
        }
    }
    let mut cycle = vec![(*reached_by.get(start)?).clone()];
    while cycle[cycle.len() - 1].0 != start {
        let from = cycle[cycle.len() - 1].0.as_str();
        cycle.push((*reached_by.get(from)?).clone());
    }
    cycle.reverse();
    Some(cycle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;
    use std::fs;
    use std::path::PathBuf;

    /// A crate of a test, in a directory that is removed with it.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = env::temp_dir().join(format!("rsock-layers-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().expect("a directory")).expect("made");
                fs::write(path, text).expect("written");
            }
            Self(root)
        }

        fn check(&self, allowed: &[Allowed]) -> Vec<String> {
            let sources = Sources::read(&self.0.join("lib.rs"), &self.0).expect("sources");
            let arrows = arrows("tree", &sources);
            arrows.iter().flat_map(|(folder, arrows)| check(folder, arrows, allowed)).collect()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const ROOT: (&str, &str) = ("lib.rs", "mod high;\nmod low;\nmod middle;\npub use low::Low;\n");

    #[test]
    fn a_circle_is_found_with_a_line_for_each_arrow() {
        let tree = Tree::new(
            "circle",
            &[
                ROOT,
                ("high/mod.rs", "mod part;\n"),
                ("high/part.rs", "use crate::{middle::Middle, Low};\n"),
                ("middle.rs", "pub struct Middle;\n\nfn f() -> super::Low {\n    todo!()\n}\n"),
                ("low.rs", "pub struct Low;\nfn f() {\n    vec![crate::high::g()];\n}\n"),
            ],
        );
        assert_eq!(
            tree.check(&[]),
            ["tree: modules use each other in a circle: high -> low -> high\n    \
              high uses low in high/part.rs:1\n    low uses high in low.rs:3"]
        );
    }

    #[test]
    fn tests_and_the_items_of_the_folder_itself_make_no_arrows() {
        let tree = Tree::new(
            "plain",
            &[
                ROOT,
                ("high/mod.rs", "mod part;\nuse crate::middle;\nstruct Whole;\n"),
                ("high/part.rs", "use super::Whole;\n"),
                ("middle.rs", "use crate::low::Low;\n"),
                (
                    "low.rs",
                    "pub struct Low;\n#[cfg(all(test, not(loom)))]\nmod tests {\n    \
                     use crate::high;\n}\n#[cfg(any(test, fuzzing))]\nfn f(_: crate::high::A) {}\n",
                ),
            ],
        );
        assert_eq!(tree.check(&[]), [""; 0]);
    }

    #[test]
    fn a_circle_within_a_folder_is_found() {
        let tree = Tree::new(
            "folder",
            &[
                ("lib.rs", "mod folder;\n"),
                ("folder/mod.rs", "mod a;\nmod b;\nmod c;\npub use c::*;\n"),
                ("folder/a.rs", "use super::{b, C};\n"),
                ("folder/b.rs", "pub mod inner {\n    use super::super::c::C;\n}\n"),
                ("folder/c.rs", "pub struct C;\nuse crate::folder::a;\n"),
            ],
        );
        assert_eq!(
            tree.check(&[]),
            ["tree::folder: modules use each other in a circle: a -> c -> a\n    \
              a uses c in folder/a.rs:1\n    c uses a in folder/c.rs:2"]
        );
    }

    #[test]
    fn an_allowed_arrow_must_be_needed() {
        let files = [
            ROOT,
            ("high.rs", "use crate::low;\n"),
            ("low.rs", "use crate::high;\n"),
            ("middle.rs", ""),
        ];
        let tree = Tree::new("allowed", &files);
        let allow = |from, to| Allowed { folder: "tree", from, to, why: "of a test" };
        assert_eq!(tree.check(&[allow("low", "high")]), [""; 0]);
        let unneeded = "tree: the arrow low -> middle closes no cycle any more (of a test): \
                        take it off the list";
        assert_eq!(tree.check(&[allow("low", "high"), allow("low", "middle")]), [unneeded]);
    }
}
