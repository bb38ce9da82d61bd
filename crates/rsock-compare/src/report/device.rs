//! The table of rows on an RDMA device: C's rsockets, rsock, and bare verbs as the limit.

use super::{Shown, Table, median, promise, significant, spread, verdict};
use crate::case::Side;
use crate::result::{Comparison, Row};
use rsock_cli::table::{line, widths};
use std::fmt::Write;

const COLUMNS: [&str; 9] =
    ["", "C rsockets", "rsock", "verbs", "ratio", "of verbs", "at least", "aim", "result"];

const FIGURES: Table<6> = Table {
    head: ["", "C rsockets", "rsock", "verbs", "ratio", "of verbs"],
    numbers: 1..6,
    cells: figures,
};

const PROMISES: Table<9> = Table { head: COLUMNS, numbers: 1..8, cells };

/// Appends the table for a terminal.
pub(super) fn text(out: &mut String, comparison: &Comparison, shown: Shown) {
    match shown {
        Shown::Figures => table(out, comparison, &FIGURES),
        Shown::Promises => table(out, comparison, &PROMISES),
    }
}

fn table<const N: usize>(out: &mut String, comparison: &Comparison, table: &Table<N>) {
    let rows = rows(comparison);
    let Some(title) = title(comparison).filter(|_| !rows.is_empty()) else { return };
    let head = [table.head.map(str::to_owned)];
    let lines: Vec<_> = head.into_iter().chain(rows.iter().map(|r| (table.cells)(r))).collect();
    let widths = widths(lines.iter().cloned());
    let _ = writeln!(out, "\n{title}: ratio = rsock : C rsockets");
    for cells in &lines {
        line(out, cells, &widths, |column| table.numbers.contains(&column));
    }
}

/// Appends the table for a page.
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

/// Returns a title with the device's name; `None` if there is no row about a device.
fn title(comparison: &Comparison) -> Option<String> {
    let is_asked = comparison.rows.iter().any(Row::is_on_device);
    let device = comparison.environment.rdma_device.as_deref().unwrap_or("no RDMA device");
    is_asked.then(|| format!("On {device}"))
}

fn figures(row: &Row) -> [String; 6] {
    let quotient = |value: Option<f64>| value.map_or(String::new(), significant);
    [
        row.label.clone(),
        median(row, Side::C),
        median(row, Side::Rsock),
        median(row, Side::Limit),
        quotient(row.judgement.ratio),
        quotient(row.judgement.of_limit),
    ]
}

fn cells(row: &Row) -> [String; 9] {
    let [label, c, rsock, verbs, ratio, of_verbs] = figures(row);
    let (least, aim) = promise(row.need);
    [label, c, rsock, verbs, ratio, of_verbs, least, aim, verdict(row).to_owned()]
}
