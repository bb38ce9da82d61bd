//! What a sweep has measured: medians, as a table or as JSON.

use super::Waiting;
use crate::result::median;
use serde::Serialize;
use std::fmt;

/// All samples.
#[derive(Debug)]
pub(super) struct Report {
    read: usize,
    sizes: Vec<usize>,
    columns: Vec<Column>,
}

/// The samples of one way to wait: for each size, of kernel TCP and of rsock.
#[derive(Debug)]
struct Column {
    wait: Waiting,
    samples: Vec<[Vec<f64>; 2]>,
}

/// A size and a way to wait.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    size: usize,
    read: usize,
    wait: Waiting,
    kernel_gbit_per_second: f64,
    rsock_gbit_per_second: f64,
    ratio: f64,
}

/// rsock is to be so many times as fast as kernel TCP at least.
const LEAST: f64 = 1.1;

impl Report {
    pub(super) fn new(read: usize, sizes: Vec<usize>, wait: &[Waiting]) -> Self {
        let column = |wait: &Waiting| Column {
            wait: *wait,
            samples: vec![[Vec::new(), Vec::new()]; sizes.len()],
        };
        Self { read, columns: wait.iter().map(column).collect(), sizes }
    }

    pub(super) fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Adds a sample of all sizes, in bytes per second.
    pub(super) fn add(&mut self, column: usize, is_rsock: bool, rates: &[f64]) {
        for (samples, rate) in self.columns[column].samples.iter_mut().zip(rates) {
            samples[usize::from(is_rsock)].push(*rate);
        }
    }

    pub(super) fn to_json(&self) -> Vec<Measured> {
        let of_column = |column| (0..self.sizes.len()).map(move |row| self.measured(column, row));
        self.columns.iter().flat_map(of_column).collect()
    }

    fn measured(&self, column: &Column, row: usize) -> Measured {
        let [kernel, rsock] = column.samples[row].each_ref().map(|rates| {
            // Every sample has all sizes.
            8e-9 * median(rates.clone()).unwrap_or(f64::NAN)
        });
        Measured {
            size: self.sizes[row],
            read: self.read,
            wait: column.wait,
            kernel_gbit_per_second: kernel,
            rsock_gbit_per_second: rsock,
            ratio: rsock / kernel,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_runs = self.columns.first().and_then(|column| column.samples.first());
        let n_runs = n_runs.map_or(0, |[kernel, _]| kernel.len());
        writeln!(f, "Gbit/s of kernel TCP and of rsock, and their ratio: medians of {n_runs}")?;
        writeln!(f, "Reads of at most {} B\n", self.read)?;
        write!(f, "{:>8}", "")?;
        for column in &self.columns {
            write!(f, "  {:>22}", column.wait.name())?;
        }
        writeln!(f)?;
        for (row, size) in self.sizes.iter().enumerate() {
            write!(f, "{size:>8}")?;
            for column in &self.columns {
                let of = self.measured(column, row);
                let (kernel, rsock) = (of.kernel_gbit_per_second, of.rsock_gbit_per_second);
                write!(f, "  {:>7} {:>7} {:>6.2}", short(kernel), short(rsock), of.ratio)?;
            }
            writeln!(f)?;
        }
        let mut all = self.to_json();
        all.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
        let n_low = all.iter().filter(|of| of.ratio < LEAST).count();
        writeln!(f, "\n{n_low} of {} below {LEAST}", all.len())?;
        match all.first() {
            Some(of) => {
                writeln!(f, "lowest: {:.2} with {} B, {}", of.ratio, of.size, of.wait.name())
            }
            None => Ok(()),
        }
    }
}

/// Three digits.
fn short(gbits: f64) -> String {
    let digits = match gbits {
        ..0.0995 => 4,
        ..9.95 => 2,
        ..99.5 => 1,
        _ => 0,
    };
    format!("{gbits:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_shows_medians_and_the_lowest_ratio() {
        let mut report = Report::new(10_000, vec![1, 4096], &[Waiting::Blocking, Waiting::Poll]);
        for kernel in [1e9, 3e9, 2e9] {
            report.add(0, false, &[kernel, kernel]);
            report.add(0, true, &[4e9, 2e9]);
            report.add(1, false, &[1e9, 1e9]);
            report.add(1, true, &[2e9, 3e9]);
        }
        let said = report.to_string();
        assert!(said.contains("medians of 3"), "{said}");
        assert!(said.contains("   16.0    32.0   2.00"), "{said}");
        assert!(said.ends_with("1 of 4 below 1.1\nlowest: 1.00 with 4096 B, blocking\n"), "{said}");
        let ratios: Vec<_> = report.to_json().iter().map(|of| of.ratio).collect();
        assert_eq!(ratios, [2.0, 1.0, 2.0, 3.0]);
    }
}
