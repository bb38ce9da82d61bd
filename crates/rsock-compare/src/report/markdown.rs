//! The results as tables for a page of documentation, with the spread of the samples.

use super::{cells, device, spread};
use crate::case::{Place, Side};
use crate::result::{Comparison, Row};
use std::fmt::Write;

const HEAD: &str = "\
| | kernel | Unix socket | rsock | limit | ratio | of limit | at least | aim | result |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
";

/// Returns a table for each placement of the ends: medians, with the least and the greatest sample
/// of kernel TCP and rsock in brackets. `ratio` is rsock : kernel TCP, or kernel UDP for datagrams.
pub(crate) fn markdown(comparison: &Comparison) -> String {
    let mut out = String::new();
    if let Some(commit) = &comparison.environment.commit {
        let _ = writeln!(out, "At commit {commit}.");
    }
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
        let _ = write!(out, "### {title}\n\n{HEAD}");
        for row in rows {
            line(&mut out, row);
        }
    }
    device::markdown(&mut out, comparison);
    out
}

fn line(out: &mut String, row: &Row) {
    let mut cells = cells(row);
    cells[1] = spread(row, Side::Kernel);
    cells[3] = spread(row, Side::Rsock);
    // The last column, the placement of the CPUs, is left out: the page states it in prose.
    let _ = writeln!(out, "| {} |", cells[..10].join(" | "));
}
