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
