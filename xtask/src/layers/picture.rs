//! The list of a crate's modules in ARCHITECTURE.md, from the top down, each with those it uses.

use super::cycles::Arrows;
use super::references::Sources;
use crate::steps::{self, Done, Failure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

const DOCUMENT: &str = "ARCHITECTURE.md";

/// Checks that the document has the list of `crate_name` as `arrows` have it.
pub(super) fn check(
    crate_name: &str,
    sources: &Sources,
    arrows: &Arrows,
    wrong: &mut Vec<String>,
) -> Done {
    let text =
        fs::read_to_string(steps::root().join(DOCUMENT)).map_err(|e| Failure::io(DOCUMENT, &e))?;
    let heading = format!("modules of {crate_name}, and what they use\n");
    let modules = sources.modules.iter().filter(|module| module.len() == 1);
    let expected = heading.clone() + &list(modules.map(|module| module[0].as_str()), arrows);
    let found = text.find(&heading).and_then(|at| text[at..].split("```").next());
    if found != Some(&expected) {
        wrong.push(format!("{DOCUMENT}: this block is missing or differs:\n{expected}"));
    }
    Ok(())
}

/// One line for each module: its name, and the modules it uses. A module comes before those that
/// it uses, as far as there is no circle.
fn list<'a>(modules: impl Iterator<Item = &'a str>, arrows: &Arrows) -> String {
    let mut uses = modules.map(|module| (module, Vec::new())).collect::<BTreeMap<_, _>>();
    for (from, to) in arrows.keys() {
        uses.entry(from).or_default().push(to.as_str());
    }
    let width = uses.keys().map(|module| module.len()).max().unwrap_or(0);
    let mut listed = BTreeSet::new();
    let mut lines = String::new();
    while listed.len() < uses.len() {
        let rest = || uses.keys().filter(|module| !listed.contains(*module));
        let is_used = |module: &str| rest().any(|other| uses[other].contains(&module));
        let next = rest().filter(|module| !is_used(module)).copied().collect::<Vec<_>>();
        let next = if next.is_empty() { rest().copied().collect() } else { next };
        for module in next {
            let line = format!("{module:width$}  {}", uses[module].join(" "));
            lines += line.trim_end();
            lines.push('\n');
            listed.insert(module);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_listed_above_those_it_uses() {
        let arrow = |from: &str, to: &str| ((from.to_owned(), to.to_owned()), String::new());
        let arrows = Arrows::from([arrow("b", "c"), arrow("b", "long"), arrow("a", "b")]);
        let list = list(["a", "b", "c", "long", "lonely"].into_iter(), &arrows);
        assert_eq!(list, "a       b\nlonely\nb       c long\nc\nlong\n");
    }
}
