//! The results of services as a picture: how many times as fast as over kernel TCP each is.

use super::plot::{FAINT, GRID, INK, Outcome, RSOCK, Sheet, text};
use super::{promise, quantity, significant};
use crate::case::{Need, Side};
use crate::judge::Verdict;
use crate::result::{Comparison, Row};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use rsock_cli::error::Error;

/// Draws a sheet with a line for each row.
pub(super) fn svg(comparison: &Comparison) -> Result<String, Error> {
    let mut svg = String::new();
    draw(comparison, &mut svg)
        .map_err(|e| Error::Failed(format!("cannot draw the picture: {e}")))?;
    Ok(svg)
}

const WIDTH: i32 = 1000;
const TITLE_HEIGHT: i32 = 92;
const LINE_HEIGHT: i32 = 24;
const FOOT_HEIGHT: i32 = 20;
/// Where the bars begin and end.
const LEFT: i32 = 270;
const RIGHT: i32 = 840;
/// What misses its promise.
const MISSED: RGBColor = RGBColor(213, 94, 0);

fn draw(comparison: &Comparison, svg: &mut String) -> Outcome {
    let rows: Vec<_> = comparison.rows.iter().filter(|row| row.is_service()).collect();
    let n = i32::try_from(rows.len())?;
    let bottom = TITLE_HEIGHT + n * LINE_HEIGHT;
    let size = (u32::try_from(WIDTH)?, u32::try_from(bottom + FOOT_HEIGHT)?);
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    title(comparison, &root)?;
    let scale = Scale::of(&rows);
    for ratio in scale.marks() {
        let x = scale.place(ratio);
        let colour = if ratio == 1.0 { FAINT } else { GRID };
        root.draw(&PathElement::new([(x, TITLE_HEIGHT - 4), (x, bottom)], colour))?;
        let label = format!("{} x", significant(ratio));
        root.draw(&Text::new(label, (x, TITLE_HEIGHT - 20), text(12.0, FAINT, HPos::Center)))?;
    }
    for (row, index) in rows.into_iter().zip(0..) {
        line(row, &scale, TITLE_HEIGHT + index * LINE_HEIGHT, &root)?;
    }
    root.present()?;
    Ok(())
}

fn title(comparison: &Comparison, area: &Sheet<'_>) -> Outcome {
    let env = &comparison.environment;
    let middle = WIDTH / 2;
    let head = "Unmodified services over rsock beside kernel TCP, both ends on one host";
    area.draw(&Text::new(head, (middle, 12), text(20.0, INK, HPos::Center)))?;
    let line = format!(
        "{}, Linux {}, two CPUs, medians of {} samples in turn; kernel TCP round trip {} us; \
         black mark: the promise, orange: missed",
        env.cpu,
        env.kernel,
        env.runs,
        significant(env.kernel_round_trip_us)
    );
    area.draw(&Text::new(line, (middle, 40), text(13.0, FAINT, HPos::Center)))?;
    Ok(())
}

fn line(row: &Row, scale: &Scale, top: i32, area: &Sheet<'_>) -> Outcome {
    const BAR: i32 = 14;
    let at = (LEFT - 12, top + 2);
    area.draw(&Text::new(row.label.trim().to_owned(), at, text(13.0, INK, HPos::Right)))?;
    let Some(ratio) = ratio(row) else {
        let value = row.medians.get(&Side::Rsock).map(|value| quantity(*value, row.unit));
        let what = match (value, row.samples.is_empty()) {
            (Some(value), _) => value,
            (None, true) => "not measured".to_owned(),
            (None, false) => "failed".to_owned(),
        };
        area.draw(&Text::new(what, (LEFT + 6, top + 2), text(13.0, FAINT, HPos::Left)))?;
        return Ok(());
    };
    let (one, x) = (scale.place(1.0), scale.place(ratio));
    let colour = if row.judgement.verdict == Verdict::Fail { MISSED } else { RSOCK };
    // A bar of no length would not be seen.
    let (left, right) = (one.min(x), one.max(x).max(one.min(x) + 2));
    area.draw(&Rectangle::new([(left, top + 3), (right, top + 3 + BAR)], colour.filled()))?;
    if let Some(promised) = promised(row.need) {
        let x = scale.place(promised);
        let mark = ShapeStyle::from(INK).stroke_width(2);
        area.draw(&PathElement::new([(x, top + 1), (x, top + 5 + BAR)], mark))?;
    }
    let (least, _) = promise(row.need);
    let figures = match least.as_str() {
        "" => significant(ratio),
        least => format!("{} (promise {least})", significant(ratio)),
    };
    area.draw(&Text::new(figures, (RIGHT + 12, top + 2), text(13.0, INK, HPos::Left)))?;
    Ok(())
}

/// rsock over kernel TCP, or the quotient that the row is.
fn ratio(row: &Row) -> Option<f64> {
    let own = matches!(row.need, Need::AtLeast { .. }).then(|| row.medians.get(&Side::Rsock));
    let ratio = own.flatten().copied().or(row.judgement.ratio);
    ratio.filter(|ratio| *ratio > 0.0)
}

fn promised(need: Need) -> Option<f64> {
    match need {
        Need::RatioAtLeast { least, .. } | Need::AtLeast { least, .. } => Some(least),
        Need::RatioAtMost { most, .. } => Some(most),
        _ => None,
    }
}

/// A logarithmic scale of ratios.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// Covers the ratios of the rows and their promises, by powers of two.
    fn of(rows: &[&Row]) -> Self {
        let ratios = rows.iter().filter_map(|row| ratio(row));
        let values = ratios.chain(rows.iter().filter_map(|row| promised(row.need)));
        let (low, high) = values
            .fold((0.7, 2.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
        Self { low: low.log2().floor().exp2(), high: high.log2().ceil().exp2() }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a place on the sheet")]
    fn place(&self, ratio: f64) -> i32 {
        let part = (ratio / self.low).log2() / (self.high / self.low).log2();
        LEFT + (part * f64::from(RIGHT - LEFT)).round() as i32
    }

    fn marks(&self) -> impl Iterator<Item = f64> {
        let (low, high) = (self.low, self.high);
        std::iter::successors(Some(low), |ratio| Some(ratio * 2.0)).take_while(move |x| *x <= high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_has_its_ends_at_powers_of_two() {
        let scale = Scale { low: 0.5, high: 16.0 };
        assert_eq!((scale.place(0.5), scale.place(16.0)), (LEFT, RIGHT));
        assert_eq!(scale.marks().collect::<Vec<_>>(), [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]);
    }

    #[test]
    fn no_rows_still_have_a_scale_that_shows_one() {
        let Scale { low, high } = Scale::of(&[]);
        assert!(low < 1.0 && high > 1.0);
    }
}
