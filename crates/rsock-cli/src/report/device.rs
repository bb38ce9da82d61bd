//! The rows on an RDMA device, a table of their own: C's rsockets, rsock, and bare verbs as the limit.

use super::markdown::{median, spread};
use super::{promise, significant, verdict};
use crate::compare::{Comparison, Row, Side};
use std::fmt::Write;

const COLUMNS: [&str; 9] =
    ["", "C rsockets", "rsock", "verbs", "ratio", "of verbs", "at least", "aim", "result"];

/// For a terminal.
pub(super) fn text(out: &mut String, comparison: &Comparison) {
    let rows = rows(comparison);
    let Some(title) = title(comparison).filter(|_| !rows.is_empty()) else { return };
    let lines: Vec<_> =
        [COLUMNS.map(str::to_owned)].into_iter().chain(rows.iter().map(|r| cells(r))).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let _ = writeln!(out, "\n{title}: ratio = rsock : C rsockets");
    for cells in &lines {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let width = width(column).unwrap_or(0);
            let _ = if (1..8).contains(&column) {
                write!(line, "{cell:>width$}  ")
            } else {
                write!(line, "{cell:<width$}  ")
            };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// For a page.
pub(super) fn markdown(out: &mut String, comparison: &Comparison) {
    let rows = rows(comparison);
    let Some(title) = title(comparison).filter(|_| !rows.is_empty()) else { return };
    if !out.is_empty() {
        out.push('\n');
    }
    let head = COLUMNS.join(" | ");
    let _ = writeln!(out, "### {title}\n\n| {head} |\n|{}", " --- |".repeat(COLUMNS.len()));
    for row in rows {
        let mut cells = cells(row);
        cells[1] = spread(row, Side::C);
        cells[2] = spread(row, Side::Rsock);
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
}

fn rows(comparison: &Comparison) -> Vec<&Row> {
    comparison.rows.iter().filter(|row| row.is_on_device()).collect()
}

/// Names the device; `None` where there is no row about one.
fn title(comparison: &Comparison) -> Option<String> {
    let is_asked = comparison.rows.iter().any(Row::is_on_device);
    let device = comparison.environment.rdma_device.as_deref().unwrap_or("no RDMA device");
    is_asked.then(|| format!("On {device}"))
}

fn cells(row: &Row) -> [String; 9] {
    let quotient = |value: Option<f64>| value.map_or(String::new(), significant);
    let (least, aim) = promise(row.need);
    [
        row.label.clone(),
        median(row, Side::C),
        median(row, Side::Rsock),
        median(row, Side::Limit),
        quotient(row.judgement.ratio),
        quotient(row.judgement.of_limit),
        least,
        aim,
        verdict(row).to_owned(),
    ]
}
