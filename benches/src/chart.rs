//! A chart of ratios as SVG: one bar a row on a logarithmic scale, with a mark at what is wanted.

use std::fmt::Write;

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What was measured.
    pub name: String,
    /// How many times the baseline.
    pub ratio: f64,
    /// What the ratio should be at least; 0 for nothing.
    pub wanted: f64,
}

/// Pixels: of the names, of the scale, and of one row.
const NAMES: f64 = 400.0;
const SCALE: f64 = 380.0;
const ROW: f64 = 26.0;
/// Ratios at both ends of the scale.
const LEAST: f64 = 0.5;
const MOST: f64 = 100.0;

fn x(ratio: f64) -> f64 {
    let at = (ratio.clamp(LEAST, MOST) / LEAST).ln() / (MOST / LEAST).ln();
    NAMES + SCALE * at
}

/// The chart; ratios beyond the scale end at its edge.
#[must_use]
pub fn svg(title: &str, bars: &[Bar]) -> String {
    let height = ROW * (bars.len() as f64 + 2.5);
    let width = NAMES + SCALE + 60.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"18\" font-weight=\"bold\">{}</text>\n",
        escaped(title)
    );
    // Writing to a string never fails.
    for tick in [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0] {
        let (at, end) = (x(tick), height - ROW);
        let _ = writeln!(
            out,
            "<path d=\"M{at:.1} {ROW} V{end:.1}\" stroke=\"{}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>",
            if tick == 1.0 { "black" } else { "#ddd" },
            end + 16.0,
        );
    }
    for (i, bar) in bars.iter().enumerate() {
        let top = ROW * (i as f64 + 1.2);
        let (from, to) = (x(1.0).min(x(bar.ratio)), x(1.0).max(x(bar.ratio)));
        let good = bar.ratio >= bar.wanted;
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"18\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{:.2}</text>",
            NAMES - 30.0,
            top + 13.0,
            escaped(&bar.name),
            (to - from).max(1.0),
            if good { "#3a7" } else { "#c63" },
            to + 6.0,
            top + 13.0,
            bar.ratio,
        );
        if bar.wanted > 0.0 {
            let at = x(bar.wanted);
            let _ = writeln!(
                out,
                "<path d=\"M{at:.1} {:.1} v22\" stroke=\"black\" stroke-width=\"2\"/>",
                top - 2.0
            );
        }
    }
    out.push_str("</svg>\n");
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_lie_on_the_scale_in_the_order_of_their_ratios() {
        let places: Vec<_> = [0.1, 0.5, 1.0, 9.0, 100.0, 1e9].map(x).into();
        assert!(places.is_sorted());
        assert_eq!((places[0], places[5]), (NAMES, NAMES + SCALE));
        let bar = Bar { name: "a < b".to_owned(), ratio: 3.0, wanted: 2.0 };
        let chart = svg("ratios", &[bar]);
        assert!(chart.contains("a &lt; b") && chart.contains(">3.00<") && !chart.contains("a <"));
    }
}
