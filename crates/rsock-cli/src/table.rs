//! Tables for a terminal: columns that line up, and byte counts that fit into them.

use std::fmt::Write;

/// Returns the width of the widest cell of each column.
#[must_use]
pub fn widths<const N: usize>(rows: impl IntoIterator<Item = [String; N]>) -> [usize; N] {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    widths
}

/// Appends one line to `out`. Numbers end where their column ends, text begins where it begins.
pub fn line<const N: usize>(
    out: &mut String,
    cells: &[String; N],
    widths: &[usize; N],
    is_number: impl Fn(usize) -> bool,
) {
    let mut line = String::new();
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        // Writing to a string cannot fail.
        let _ = if is_number(column) {
            write!(line, "{cell:>width$}  ")
        } else {
            write!(line, "{cell:<width$}  ")
        };
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

/// Returns the rows as lines, each column as wide as its widest cell.
pub(crate) fn aligned<const N: usize>(
    rows: &[[String; N]],
    is_number: impl Fn(usize) -> bool,
) -> String {
    let widths = widths(rows.iter().cloned());
    let mut out = String::new();
    for row in rows {
        line(&mut out, row, &widths, &is_number);
    }
    out
}

/// Returns a byte count with at most three digits and a binary unit.
#[must_use]
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => n.to_string(),
        _ if value < 10.0 => format!("{value:.1}{}", UNITS[unit]),
        _ => format!("{value:.0}{}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_have_at_most_three_digits() {
        let shown = [0, 999, 1000, 1536, 10 << 10, 999 << 10, 1 << 30, u64::MAX].map(bytes);
        assert_eq!(shown, ["0", "999", "1.0K", "1.5K", "10K", "999K", "1.0G", "16E"]);
    }

    #[test]
    fn numbers_end_and_words_begin_where_their_column_does() {
        let rows = [["NAME", "N"], ["a", "100"]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(&rows, |column| column == 1), "NAME    N\na     100\n");
    }
}
