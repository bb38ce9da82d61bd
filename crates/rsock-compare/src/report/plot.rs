//! The results as a picture: bandwidth by message size, and round trips, on one sheet.

use crate::case::{STREAM_SIZES, Side, size_name};
use crate::result::{Comparison, Row};
use plotters::coord::Shift;
use plotters::element::{Circle, DashedPathElement, Rectangle, Text};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use rsock_cli::error::Error;

/// Draws the sheet as SVG.
pub(super) fn svg(comparison: &Comparison) -> Result<String, Error> {
    let mut svg = String::new();
    draw(comparison, &mut svg)
        .map_err(|e| Error::Failed(format!("cannot draw the picture: {e}")))?;
    Ok(svg)
}

pub(super) type Sheet<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Outcome = Result<(), Box<dyn std::error::Error>>;

const SIZE: (u32, u32) = (1200, 520);
const TITLE_HEIGHT: u32 = 56;
const FONT: &str = "Helvetica, Arial, sans-serif";
pub(super) const INK: RGBColor = RGBColor(38, 42, 48);
pub(super) const FAINT: RGBColor = RGBColor(110, 117, 126);
pub(super) const GRID: RGBColor = RGBColor(228, 231, 235);
/// The colour of rsock.
pub(super) const RSOCK: RGBColor = RGBColor(0, 114, 178);

/// Returns the name and colour of a side, the same on all panels. Colour-blind readers can tell the
/// colours apart.
fn style(side: Side) -> (&'static str, RGBColor) {
    match side {
        Side::Kernel => ("kernel TCP", RGBColor(120, 128, 140)),
        Side::Unix => ("Unix socket", RGBColor(230, 159, 0)),
        Side::C => ("C rsockets", RGBColor(213, 94, 0)),
        Side::Rsock => ("rsock", RSOCK),
        Side::ClientAlone => ("client alone", RSOCK),
        Side::ServerAlone => ("server alone", RSOCK),
        Side::OnTcp => ("stays on TCP", RSOCK),
        Side::Limit => ("limit", RGBColor(0, 158, 115)),
    }
}

fn draw(comparison: &Comparison, svg: &mut String) -> Outcome {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(TITLE_HEIGHT);
    title(comparison, &head)?;
    let (bandwidth, round_trips) = body.split_horizontally(SIZE.0 * 3 / 4);
    let (unmodified, own) = bandwidth.split_horizontally(SIZE.0 * 3 / 8);
    bandwidth_panel(comparison, &unmodified, "Unmodified netperf, TCP_STREAM", "stream")?;
    bandwidth_panel(comparison, &own, "rsock perf stream", "perf.stream")?;
    round_trip_panel(comparison, &round_trips)?;
    root.present()?;
    Ok(())
}

fn title(comparison: &Comparison, area: &Sheet<'_>) -> Outcome {
    let env = &comparison.environment;
    let size = i32::try_from(SIZE.0 / 2).unwrap_or(0);
    area.draw(&Text::new(
        "rsock beside kernel TCP and Unix sockets, both ends on one host",
        (size, 12),
        text(20.0, INK, HPos::Center),
    ))?;
    let line = format!(
        "{}, Linux {}, two CPUs, medians of {} samples measured in turn",
        env.cpu, env.kernel, env.runs
    );
    area.draw(&Text::new(line, (size, 38), text(13.0, FAINT, HPos::Center)))?;
    Ok(())
}

/// Draws Gbit/s by bytes per message, both logarithmic.
fn bandwidth_panel(
    comparison: &Comparison,
    area: &Sheet<'_>,
    caption: &str,
    rows: &str,
) -> Outcome {
    let suffix = suffix(comparison, rows);
    let lines: Vec<_> = [Side::Limit, Side::Kernel, Side::Unix, Side::Rsock]
        .into_iter()
        .map(|side| (side, points(comparison, rows, suffix, side)))
        .filter(|(_, points)| !points.is_empty())
        .collect();
    if lines.is_empty() {
        return nothing(area, caption);
    }
    let values = || lines.iter().flat_map(|(_, points)| points.iter().map(|(_, y)| *y));
    let (low, high) = decades(values());
    let sizes = (STREAM_SIZES[0] as f64, STREAM_SIZES[STREAM_SIZES.len() - 1] as f64);
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 15, &INK))
        .margin(14)
        .x_label_area_size(42)
        .y_label_area_size(52)
        .build_cartesian_2d(
            (sizes.0 * 0.75..sizes.1 * 1.35).log_scale().base(4.0),
            (low..high).log_scale(),
        )?;
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(FAINT)
        .label_style((FONT, 12, &FAINT))
        .axis_desc_style((FONT, 13, &INK))
        .x_desc("bytes per send")
        .y_desc("Gbit/s")
        .x_labels(1)
        .x_label_formatter(&|_| String::new())
        .y_label_formatter(&|y| short(*y))
        .draw()?;
    // The axis would not place its labels at the sizes that were measured.
    let plotting = chart.plotting_area();
    let (base_x, base_y) = area.get_base_pixel();
    for size in STREAM_SIZES {
        let (x, y) = plotting.map_coordinate(&(size as f64, low));
        let at = (x - base_x, y - base_y + 8);
        area.draw(&Text::new(size_name(size), at, text(12.0, FAINT, HPos::Center)))?;
    }
    for (side, points) in lines {
        let (name, colour) = style(side);
        let width = if side == Side::Rsock { 3 } else { 2 };
        let line = ShapeStyle::from(colour).stroke_width(width);
        if side == Side::Limit {
            chart
                .draw_series(DashedLineSeries::new(points, 6, 5, line))?
                .label(name)
                .legend(move |(x, y)| DashedPathElement::new([(x, y), (x + 18, y)], 6, 5, line));
            continue;
        }
        chart
            .draw_series(LineSeries::new(points.iter().copied(), line))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], line));
        chart.draw_series(points.iter().map(|p| Circle::new(*p, 4, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .margin(12)
        .background_style(WHITE.mix(0.9))
        .border_style(GRID)
        .label_font((FONT, 13, &INK))
        .draw()?;
    Ok(())
}

/// Draws median round trips as bars on a logarithmic scale.
fn round_trip_panel(comparison: &Comparison, area: &Sheet<'_>) -> Outcome {
    let caption = "Round trip of 1 byte, p50";
    let id = format!("perf.rr{}", suffix(comparison, "perf.rr"));
    let bars: Vec<_> = [Side::Kernel, Side::Unix, Side::Rsock, Side::Limit]
        .into_iter()
        .filter_map(|side| Some((side, comparison.median(&id, side)?)))
        .collect();
    if bars.is_empty() {
        return nothing(area, caption);
    }
    let (low, high) = decades(bars.iter().map(|(_, us)| *us));
    let n = bars.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 15, &INK))
        .margin(14)
        .x_label_area_size(42)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..n, (low..high).log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(FAINT)
        .label_style((FONT, 12, &FAINT))
        .axis_desc_style((FONT, 13, &INK))
        .x_labels(1)
        .x_label_formatter(&|_| String::new())
        .y_desc("microseconds")
        .y_label_formatter(&|y| short(*y))
        .draw()?;
    let (base_x, base_y) = area.get_base_pixel();
    for (index, (side, us)) in bars.into_iter().enumerate() {
        let (name, colour) = style(side);
        let (left, right) = (index as f64 + 0.18, index as f64 + 0.82);
        chart.draw_series([Rectangle::new([(left, low), (right, us)], colour.filled())])?;
        let middle = index as f64 + 0.5;
        let (x, top) = chart.plotting_area().map_coordinate(&(middle, us));
        let above = (x - base_x, top - base_y - 16);
        area.draw(&Text::new(format!("{} us", short(us)), above, text(12.0, INK, HPos::Center)))?;
        let (x, bottom) = chart.plotting_area().map_coordinate(&(middle, low));
        // Two words stand one above the other.
        for (row, word) in (0..).zip(name.split(' ')) {
            let below = (x - base_x, bottom - base_y + 8 + 14 * row);
            area.draw(&Text::new(word, below, text(12.0, FAINT, HPos::Center)))?;
        }
    }
    Ok(())
}

fn nothing(area: &Sheet<'_>, caption: &str) -> Outcome {
    let (width, height) = area.dim_in_pixel();
    let middle = (i32::try_from(width / 2).unwrap_or(0), i32::try_from(height / 2).unwrap_or(0));
    let line = format!("{caption}: not run");
    area.draw(&Text::new(line, middle, text(14.0, FAINT, HPos::Center)))?;
    Ok(())
}

/// Returns the end of the names of unpinned rows if there are any, else of pinned ones.
fn suffix(comparison: &Comparison, rows: &str) -> &'static str {
    let is_there = |row: &Row| {
        row.id.starts_with(rows) && !row.id.ends_with(PINNED) && !row.medians.is_empty()
    };
    if comparison.rows.iter().any(is_there) { "" } else { PINNED }
}

const PINNED: &str = ".pinned";

fn points(comparison: &Comparison, rows: &str, suffix: &str, side: Side) -> Vec<(f64, f64)> {
    let point = |size: usize| {
        let id = format!("{rows}.{}{suffix}", size_name(size));
        Some((size as f64, comparison.median(&id, side).filter(|y| *y > 0.0)?))
    };
    STREAM_SIZES.into_iter().filter_map(point).collect()
}

/// Returns a range around positive values whose ends are powers of ten, or of its square root.
fn decades(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(f64::MIN_POSITIVE, f64::max);
    let half = |x: f64, round: fn(f64) -> f64| 10_f64.powf(round(x.log10() * 2.0) / 2.0);
    (half(low / 1.2, f64::floor), half(high * 1.3, f64::ceil))
}

fn short(value: f64) -> String {
    match value {
        v if v >= 9.95 => format!("{v:.0}"),
        v if v >= 0.95 => format!("{:.1}", v).trim_end_matches(".0").to_owned(),
        v => format!("{:.2}", v).trim_end_matches('0').to_owned(),
    }
}

pub(super) fn text(size: f64, colour: RGBColor, align: HPos) -> TextStyle<'static> {
    (FONT, size).into_font().color(&colour).pos(Pos::new(align, VPos::Top))
}
