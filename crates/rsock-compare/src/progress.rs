//! The progress of a comparison on standard error: a bar on a terminal, else a line for each row.

use crate::result::Row;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, stderr};

/// A bar on standard error, if that is a terminal.
pub(super) fn bar(n_samples: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta:>4}  {msg}");
    ProgressBar::new(n_samples).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Counts samples and rows.
pub(super) struct Progress {
    bar: ProgressBar,
    n_rows: usize,
    n_done: usize,
    is_terminal: bool,
}

impl Progress {
    pub(super) fn new(n_samples: u64, n_rows: usize) -> Self {
        let bar = bar(n_samples);
        let is_terminal = stderr().is_terminal();
        if !is_terminal {
            eprintln!("{n_rows} rows, {n_samples} samples");
        }
        Self { bar, n_rows, n_done: 0, is_terminal }
    }

    /// Shows which sample begins.
    pub(super) fn begin(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Counts samples that were taken or skipped.
    pub(super) fn advance(&self, n_samples: u64) {
        self.bar.inc(n_samples);
    }

    /// Counts a row that was measured or skipped.
    pub(super) fn end_row(&mut self, row: &Row) {
        self.n_done += 1;
        if self.is_terminal {
            return;
        }
        let ratio = row.judgement.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
        let left = self.bar.eta().as_secs().div_ceil(60);
        let of = (self.n_done, self.n_rows);
        eprintln!("{:>3}/{} {:<24} {ratio:>8}  {left} min left", of.0, of.1, row.id);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
