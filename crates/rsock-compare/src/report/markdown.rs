//! The results as tables for a page of documentation, with the spread of the samples.

use super::{cells, device, on_tcp, spread};
use crate::case::{Place, Side};
use crate::result::{Comparison, Row};
use std::fmt::Write;

const COLUMNS: [&str; 10] = [
    "",
    "kernel",
    "Unix socket",
    "rsock",
    "limit",
    "ratio",
    "of limit",
    "at least",
    "aim",
    "result",
];

/// Returns a table for each placement of the ends: medians, with the least and the greatest sample
/// of kernel TCP and rsock in brackets. `ratio` is rsock : kernel TCP, or kernel UDP for datagrams.
/// Sides on which connections stay on TCP have columns if they were asked for: their ratio, and the
/// median in brackets.
pub(crate) fn markdown(comparison: &Comparison) -> String {
    let mut out = String::new();
    if let Some(commit) = &comparison.environment.commit {
        let _ = writeln!(out, "At commit {commit}.");
    }
    if comparison.environment.endless_loops > 0 {
        let n = comparison.environment.endless_loops;
        let _ = writeln!(out, "Beside endless loops on the same CPUs: {n}.");
    }
    let sides = on_tcp::sides(comparison);
    let places = [
        ("Unpinned", [Place::Free, Place::One].as_slice()),
        ("Pinned to a CPU each", [Place::Two].as_slice()),
    ];
    for (title, places) in places {
        let rows: Vec<_> = comparison
            .rows
            .iter()
            .filter(|row| places.contains(&row.place) && !row.is_on_device())
            .collect();
        if rows.is_empty() {
            continue;
        }
        if !out.is_empty() {
            out.push('\n');
        }
        let columns = COLUMNS.into_iter().chain(sides.iter().map(|side| on_tcp::title(*side)));
        let columns: Vec<&str> = columns.collect();
        let rule = " --- |".repeat(columns.len());
        let head = columns.join(" | ");
        let _ = writeln!(out, "### {title}\n\n|{head} |\n|{rule}");
        for row in rows {
            line(&mut out, row, &sides);
        }
    }
    device::markdown(&mut out, comparison);
    out
}

fn line(out: &mut String, row: &Row, sides: &[Side]) {
    let mut cells = cells(row);
    cells[1] = spread(row, Side::Kernel);
    cells[3] = spread(row, Side::Rsock);
    // The last column, the placement of the CPUs, is left out: the page states it in prose.
    let mut cells = cells[..COLUMNS.len()].to_vec();
    cells.extend(sides.iter().map(|side| on_tcp::cell(row, *side)));
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}
