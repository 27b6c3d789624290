//! What the plots have in common: panels beside each other, with lines, marks and bars.

use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;

use crate::plot::{self, Area, GREY, line, square, words};

/// Of what was measured, in this order.
pub(super) const COLOURS: [RGBColor; 9] = [
    RGBColor(25, 80, 160),
    RGBColor(200, 90, 30),
    RGBColor(90, 160, 90),
    RGBColor(130, 90, 170),
    RGBColor(60, 160, 170),
    RGBColor(170, 60, 110),
    RGBColor(160, 135, 40),
    RGBColor(110, 110, 110),
    RGBColor(225, 140, 165),
];
/// Of what a paper has.
pub(super) const PAPER: RGBColor = RGBColor(20, 20, 20);
/// Of limits.
pub(super) const LIMIT: RGBColor = RGBColor(200, 60, 40);

/// How a line is drawn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Style {
    Line,
    Dashed,
    /// A dot for each point, and a line between.
    Dots,
    /// A cross for each point.
    Crosses,
    /// A bar from the bottom up to each point.
    Bars,
}

/// Something that is drawn.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// In the legend; empty for none.
    pub(super) name: String,
    pub(super) colour: RGBColor,
    pub(super) style: Style,
    pub(super) points: Vec<(f64, f64)>,
}

/// A panel.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    /// What the axes are, and how far they go.
    pub(super) x: (&'static str, Range<f64>),
    pub(super) y: (&'static str, Range<f64>),
    pub(super) lines: Vec<Line>,
    /// Words, and where they begin.
    pub(super) words: Vec<(f64, f64, String)>,
    /// Where the legend is; `None` for no legend.
    pub(super) legend: Option<SeriesLabelPosition>,
}

/// Half of a bar, in units of its axis.
pub(super) const HALF_BAR: f64 = 0.17;

/// Writes a figure of panels, so many beside each other, each of a size.
///
/// # Errors
/// There is none, or the file cannot be written.
pub(super) fn write(
    path: &Path,
    panels: &[Panel],
    columns: usize,
    size: (u32, u32),
) -> anyhow::Result<()> {
    anyhow::ensure!(
        !panels.is_empty(),
        "nothing was measured that could be drawn"
    );
    let rows = panels.len().div_ceil(columns);
    let whole = (
        size.0 * u32::try_from(columns)?,
        size.1 * u32::try_from(rows)?,
    );
    plot::write(path, whole, |area| {
        let parts = area.split_evenly((rows, columns));
        parts
            .iter()
            .zip(panels)
            .try_for_each(|(part, panel)| panel.draw(part))
    })
}

impl Panel {
    fn draw(&self, area: &Area<'_>) -> anyhow::Result<()> {
        let ((x_name, x), (y_name, y)) = (&self.x, &self.y);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 16))
            .margin(10)
            .x_label_area_size(if x_name.is_empty() { 8 } else { 34 })
            .y_label_area_size(54)
            .build_cartesian_2d(x.clone(), y.clone())
            .map_err(words)?;
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT)
            .x_desc(*x_name)
            .y_desc(*y_name);
        if x_name.is_empty() {
            mesh.x_labels(0).disable_x_mesh();
        }
        mesh.draw().map_err(words)?;
        for of in &self.lines {
            let (colour, points) = (of.colour, of.points.clone());
            let (thin, thick) = (colour.stroke_width(1), colour.stroke_width(2));
            let drawn = match of.style {
                Style::Line => chart.draw_series(LineSeries::new(points, thick)),
                Style::Dashed => chart.draw_series(DashedLineSeries::new(points, 6, 4, thin)),
                Style::Dots => {
                    let dots = points.iter().map(|at| Circle::new(*at, 3, colour.filled()));
                    chart.draw_series(dots).map_err(words)?;
                    chart.draw_series(LineSeries::new(points, thin))
                }
                Style::Crosses => {
                    chart.draw_series(points.iter().map(|at| Cross::new(*at, 5, thick)))
                }
                Style::Bars => {
                    let bars = points.iter().map(|(x, top)| {
                        Rectangle::new(
                            [(x - HALF_BAR, y.start), (x + HALF_BAR, *top)],
                            colour.filled(),
                        )
                    });
                    chart.draw_series(bars)
                }
            };
            let drawn = drawn.map_err(words)?;
            if of.name.is_empty() {
                continue;
            }
            let style = of.style;
            drawn.label(&of.name).legend(move |(x, y)| match style {
                Style::Bars => square((x, y), colour).into_dyn(),
                Style::Crosses => Cross::new((x + 9, y), 5, thick).into_dyn(),
                _ => line((x, y), if style == Style::Line { thick } else { thin }).into_dyn(),
            });
        }
        let texts = self.words.iter().map(|(x, y, text)| {
            Text::new(
                text.clone(),
                (*x, *y),
                ("sans-serif", 12).into_font().color(&GREY),
            )
        });
        chart.draw_series(texts).map_err(words)?;
        match &self.legend {
            Some(position) => plot::legend(&mut chart, position.clone(), 12),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_drawn_with_all_that_is_in_them() {
        let styles = [
            Style::Line,
            Style::Dashed,
            Style::Dots,
            Style::Crosses,
            Style::Bars,
        ];
        let lines = styles.iter().zip(COLOURS).map(|(style, colour)| Line {
            name: format!("{style:?}"),
            colour,
            style: *style,
            points: vec![(1.0, 2.0), (2.0, 3.0)],
        });
        let panel = Panel {
            title: "what is seen".to_owned(),
            x: ("viewers", 0.0..4.0),
            y: ("kbit/s", 0.0..4.0),
            lines: lines.collect(),
            words: vec![(1.0, 1.0, "a word".to_owned())],
            legend: Some(SeriesLabelPosition::UpperRight),
        };
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.svg");
        write(&path, &[panel.clone(), panel], 2, (400, 300)).expect("a plot");
        let text = std::fs::read_to_string(&path).expect("read");
        for word in [
            "what is seen",
            "viewers",
            "kbit/s",
            "Crosses",
            "Bars",
            "a word",
        ] {
            assert!(text.matches(word).count() >= 2, "{word}");
        }
        write(&path, &[], 1, (400, 300)).expect_err("nothing to draw");
    }
}
