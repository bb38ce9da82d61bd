//! The sides on which connections stay on TCP, if they were asked for: their ratios to kernel TCP.

use super::{quantity, significant};
use crate::case::{AS_FAST, Side};
use crate::result::{Comparison, Row};
use rsock_cli::table::{line, widths};
use std::fmt::Write;

/// Those that were asked for, in the order of their columns.
pub(super) fn sides(comparison: &Comparison) -> Vec<Side> {
    let all = [Side::ClientAlone, Side::ServerAlone, Side::OnTcp];
    let is_asked = |side: &Side| comparison.rows.iter().any(|row| row.on_tcp.contains(side));
    all.into_iter().filter(is_asked).collect()
}

/// The title of a column.
pub(super) fn title(side: Side) -> &'static str {
    match side {
        Side::ClientAlone => "client alone",
        Side::ServerAlone => "server alone",
        _ => "RSOCK_DEVICE=tcp",
    }
}

/// The ratio, and the figure behind it.
pub(super) fn cell(row: &Row, side: Side) -> String {
    let ratio = row.ratio_on_tcp(side).map(significant);
    let figure = row.medians.get(&side).map(|value| quantity(*value, row.unit));
    match (ratio, figure) {
        (Some(ratio), Some(figure)) => format!("{ratio} ({figure})"),
        (_, figure) => figure.unwrap_or_default(),
    }
}

/// Appends the table for a terminal.
pub(super) fn text(out: &mut String, comparison: &Comparison) {
    let sides = sides(comparison);
    if sides.is_empty() {
        return;
    }
    let head = [String::new()].into_iter().chain(sides.iter().map(|side| title(*side).to_owned()));
    let rows = comparison.rows.iter().filter(|row| !row.on_tcp.is_empty());
    let cells = rows.map(|row| {
        let label = [row.label.clone()].into_iter();
        label.chain(sides.iter().map(|side| cell(row, *side))).collect::<Vec<_>>()
    });
    let lines: Vec<Vec<String>> = [head.collect()].into_iter().chain(cells).collect();
    let padded: Vec<[String; 4]> = lines.into_iter().map(padded).collect();
    let widths = widths(padded.iter().cloned());
    let least = significant(AS_FAST);
    let _ = writeln!(out, "\nWhere connections stay on TCP: rsock : kernel TCP, at least {least}");
    for cells in &padded {
        line(out, cells, &widths, |column| column > 0);
    }
}

/// A line with empty cells for sides that were not asked for.
fn padded(cells: Vec<String>) -> [String; 4] {
    let mut cells = cells.into_iter();
    std::array::from_fn(|_| cells.next().unwrap_or_default())
}
