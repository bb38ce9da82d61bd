//! The processes that a run has started.

use std::fs;

/// Every descendant of this process.
pub(crate) fn descendants() -> Vec<i32> {
    let mut found: Vec<i32> = Vec::new();
    let mut todo = vec![std::process::id().cast_signed()];
    while let Some(pid) = todo.pop() {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
            for child in children {
                found.push(child);
                todo.push(child);
            }
        }
    }
    found
}
