//! The plot of the table: reads saved, ours beside what was published.

use anyhow::anyhow;
use plotters::prelude::*;

use super::table::{Cell, SCHEMES, Source};
use crate::trace::COLOURS;

const SIZE: (u32, u32) = (900, 380);
/// Of bars without a scheme, in the legend.
const GREY: RGBColor = RGBColor(110, 110, 110);
/// How much of the colour a bar has.
const SOURCES: [(Source, f64, &str); 3] = [
    (Source::Run, 1.0, "this run"),
    (Source::Counters, 0.5, "published, counters"),
    (Source::Slides, 0.22, "published, slides"),
];
/// Of the place that a trace has, what its bars take together.
const FILLED: f64 = 0.86;

/// Draws a group of bars for each trace.
///
/// # Errors
/// It cannot be drawn.
pub(super) fn bars(title: &str, traces: &[String], cells: &[Cell<'_>]) -> anyhow::Result<String> {
    let failed = |error| anyhow!("a plot cannot be drawn: {error}");
    let top = cells
        .iter()
        .map(|cell| cell.reads_saved)
        .fold(1e-9, f64::max)
        * 1.08;
    let right = traces.len() as f64 - 0.5;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 16))
            .margin(8)
            .x_label_area_size(28)
            .y_label_area_size(48)
            .build_cartesian_2d(-0.5..right, 0.0..top)
            .map_err(failed)?;
        let name = |x: &f64| {
            let mut named = traces.iter().zip(0_u32..);
            let own = named.find(|(_, at)| (x - f64::from(*at)).abs() < 1e-6);
            own.map(|(name, _)| name.clone()).unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(traces.len() + 2)
            .x_label_formatter(&name)
            .light_line_style(WHITE)
            .draw()
            .map_err(failed)?;
        let width = FILLED / (SCHEMES.len() * SOURCES.len()) as f64;
        let mut places = 0_u32..;
        for (scheme, colour) in SCHEMES.iter().zip(COLOURS) {
            for ((source, part, _), place) in SOURCES.iter().zip(&mut places) {
                let style = colour.mix(*part).filled();
                let own = cells
                    .iter()
                    .filter(|cell| cell.scheme == *scheme && cell.source == *source);
                let left = |at: usize| at as f64 - FILLED / 2.0 + f64::from(place) * width;
                let bars = own.filter_map(|cell| {
                    let at = traces.iter().position(|name| name == cell.trace)?;
                    let from = left(at);
                    Some(Rectangle::new(
                        [(from, 0.0), (from + width * 0.9, cell.reads_saved)],
                        style,
                    ))
                });
                let drawn = chart.draw_series(bars).map_err(failed)?;
                if *source == Source::Run {
                    drawn.label(*scheme).legend(mark(colour, 1.0));
                }
            }
        }
        for (_, part, words) in SOURCES {
            let none = std::iter::empty::<Rectangle<(f64, f64)>>();
            let drawn = chart.draw_series(none).map_err(failed)?;
            drawn.label(words).legend(mark(GREY, part));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.85))
            .draw()
            .map_err(failed)?;
        area.present().map_err(failed)?;
    }
    Ok(text)
}

fn mark(colour: RGBColor, part: f64) -> impl Fn((i32, i32)) -> Rectangle<(i32, i32)> {
    let style = colour.mix(part).filled();
    move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], style)
}
