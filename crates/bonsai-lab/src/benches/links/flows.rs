//! Figures of what each tenant got over time, and all together; one panel for each allocation.

use std::path::Path;

use plotters::prelude::*;

use crate::net::series::Series;
use crate::plot::{self, Area, GREY, line, words};

const WIDTH: u32 = 1_000;
const HEIGHT: u32 = 200;
/// More marks than these would be a wall.
const MOST_MARKS: usize = 20;
const COLOURS: [RGBColor; 4] = [
    RGBColor(25, 80, 160),
    RGBColor(200, 90, 30),
    RGBColor(90, 160, 90),
    RGBColor(130, 90, 170),
];
const TOP: f64 = 125.0;
/// Time, and room for the legend beside it.
const ROOM: f64 = 1.12;

/// Finer than this, a line is the packets of a connection, and a page of ink.
const STEP_NS: u64 = 100_000_000;

/// Seconds since the origin and Mbit/s.
fn over_time(bins: &[u64], bin_ns: u64, from_s: f64) -> Vec<(f64, f64)> {
    let together = usize::try_from((STEP_NS / bin_ns.max(1)).max(1)).unwrap_or(1);
    let seconds = bin_ns as f64 * together as f64 / 1e9;
    // The last bin is not full.
    let full = bins.get(..bins.len().saturating_sub(1)).unwrap_or_default();
    let points = full
        .chunks_exact(together)
        .enumerate()
        .flat_map(|(i, bins)| {
            let bytes: u64 = bins.iter().sum();
            let rate = bytes as f64 * 8.0 / 1e6 / seconds;
            let at = from_s + i as f64 * seconds;
            [(at, rate), (at + seconds, rate)]
        });
    points.collect()
}

/// What is drawn beside each other.
pub(super) struct Panel<'a> {
    pub(super) title: String,
    /// Who, and what came of theirs.
    pub(super) flows: Vec<(String, &'a Series)>,
    /// Instants, ns.
    pub(super) marks: &'a [u64],
}

/// Writes a figure.
pub(super) fn write(path: &Path, panels: &[Panel<'_>]) -> anyhow::Result<()> {
    anyhow::ensure!(
        !panels.is_empty(),
        "nothing was measured that could be drawn"
    );
    let height = HEIGHT * u32::try_from(panels.len())?;
    plot::write(path, (WIDTH, height), |area| {
        let parts = area.split_evenly((panels.len(), 1));
        parts
            .iter()
            .zip(panels)
            .try_for_each(|(part, one)| panel(part, one))
    })
}

fn panel(area: &Area<'_>, of: &Panel<'_>) -> anyhow::Result<()> {
    let series = || of.flows.iter().map(|(_, series)| *series);
    let origin = series().map(|s| s.origin_ns).min().unwrap_or(0);
    let since = |ns: u64| ns.saturating_sub(origin) as f64 / 1e9;
    let lines = series().map(|s| over_time(&s.bins, s.bin_ns, since(s.origin_ns)));
    let lines: Vec<Vec<(f64, f64)>> = lines.collect();
    let bin_ns = series().next().map_or(1, |s| s.bin_ns);
    let mut sum = Vec::new();
    for of_one in series() {
        // Who began later, by whole bins.
        let late = usize::try_from(of_one.origin_ns.saturating_sub(origin) / bin_ns)?;
        sum.resize(sum.len().max(late + of_one.bins.len()), 0);
        for (total, bytes) in sum[late..].iter_mut().zip(&of_one.bins) {
            *total += bytes;
        }
    }
    let together = over_time(&sum, bin_ns, 0.0);
    let end = together.last().map_or(1.0, |point| point.0);
    let mut chart = ChartBuilder::on(area)
        .caption(&of.title, ("sans-serif", 15))
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(44)
        .build_cartesian_2d(0.0..end * ROOM, 0.0..TOP)
        .map_err(words)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("s")
        .y_desc("Mbit/s")
        .draw()
        .map_err(words)?;
    if of.marks.len() < MOST_MARKS {
        for at in of.marks {
            let at = since(*at);
            chart
                .draw_series(LineSeries::new([(at, 0.0), (at, TOP)], GREY.mix(0.5)))
                .map_err(words)?;
        }
    }
    for (i, (points, (name, _))) in lines.into_iter().zip(&of.flows).enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        chart
            .draw_series(LineSeries::new(points, colour))
            .map_err(words)?
            .label(name)
            .legend(move |at| line(at, colour.into()));
    }
    chart
        .draw_series(LineSeries::new(together, BLACK))
        .map_err(words)?
        .label("all")
        .legend(|at| line(at, BLACK.into()));
    plot::legend(&mut chart, SeriesLabelPosition::MiddleRight, 12)
}
