//! The figure: what each tenant got over time, and all together; one panel for each allocation.

use std::path::Path;

use plotters::prelude::*;

use super::{Arm, Measured};
use crate::plot::{self, Area, GREY, line, words};
use crate::record::Sample;

const SIZE: (u32, u32) = (1_000, 1_000);
const COLOURS: [RGBColor; 4] = [
    RGBColor(25, 80, 160),
    RGBColor(200, 90, 30),
    RGBColor(90, 160, 90),
    RGBColor(130, 90, 170),
];
const TOP: f64 = 125.0;
/// Time, and room for the legend beside it.
const ROOM: f64 = 1.12;

/// Writes it: of the first shaper and traffic, the first round of each allocation.
pub(super) fn write(path: &Path, all: &[Sample<Measured>]) -> anyhow::Result<()> {
    let Some(first) = all.first().map(|sample| &sample.data) else {
        anyhow::bail!("nothing was measured that could be drawn");
    };
    let found = Arm::ALL.iter().filter_map(|arm| {
        let mut of_it = all.iter().map(|sample| &sample.data);
        of_it.find(|m| m.arm == *arm && m.shaper == first.shaper && m.traffic == first.traffic)
    });
    let found: Vec<&Measured> = found.collect();
    plot::write(path, SIZE, |area| {
        let parts = area.split_evenly((found.len(), 1));
        for (part, measured) in parts.iter().zip(found) {
            panel(part, measured)?;
        }
        Ok(())
    })
}

/// Seconds since the origin and Mbit/s.
fn over_time(bins: &[u64], bin_ns: u64, from_s: f64) -> Vec<(f64, f64)> {
    let seconds = bin_ns as f64 / 1e9;
    // The last bin is not full.
    let full = bins.get(..bins.len().saturating_sub(1)).unwrap_or_default();
    let points = full.iter().enumerate().flat_map(|(i, bytes)| {
        let rate = *bytes as f64 * 8.0 / 1e6 / seconds;
        let at = from_s + i as f64 * seconds;
        [(at, rate), (at + seconds, rate)]
    });
    points.collect()
}

fn panel(area: &Area<'_>, measured: &Measured) -> anyhow::Result<()> {
    let all = measured.outcomes.iter().map(|o| &o.received.series);
    let series: Vec<_> = all.collect();
    let origin = series.iter().map(|s| s.origin_ns).min().unwrap_or(0);
    let since = |ns: u64| ns.saturating_sub(origin) as f64 / 1e9;
    let lines: Vec<Vec<(f64, f64)>> = series
        .iter()
        .map(|s| over_time(&s.bins, s.bin_ns, since(s.origin_ns)))
        .collect();
    let length = series.iter().map(|s| s.bins.len()).max().unwrap_or(0);
    let mut sum = vec![0; length];
    for bins in series.iter().map(|s| &s.bins) {
        for (total, bytes) in sum.iter_mut().zip(bins) {
            *total += bytes;
        }
    }
    let bin_ns = series.first().map_or(1, |s| s.bin_ns);
    let together = over_time(&sum, bin_ns, 0.0);
    let end = together.last().map_or(1.0, |point| point.0);
    let title = format!(
        "{}: {}, {}",
        measured.arm.name(),
        measured.shaper,
        measured.traffic
    );
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 15))
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
    // Twenty a second would be a wall.
    if measured.reallocated.len() < 20 {
        for at in &measured.reallocated {
            let at = since(*at);
            chart
                .draw_series(LineSeries::new([(at, 0.0), (at, TOP)], GREY.mix(0.5)))
                .map_err(words)?;
        }
    }
    for (i, points) in lines.into_iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        chart
            .draw_series(LineSeries::new(points, colour))
            .map_err(words)?
            .label(format!("tenant {}", i + 1))
            .legend(move |at| line(at, colour.into()));
    }
    chart
        .draw_series(LineSeries::new(together, BLACK))
        .map_err(words)?
        .label("all")
        .legend(|at| line(at, BLACK.into()));
    plot::legend(&mut chart, SeriesLabelPosition::MiddleRight, 12)
}
