//! The figure: rate over time, without and with the limit.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::{BIN_MS, LIMIT, OFFERED};

const SIZE: (u32, u32) = (900, 640);
const TOP_MB: f64 = 16.0;
const OFFERED_COLOUR: RGBColor = RGBColor(110, 110, 110);
const LIMIT_COLOUR: RGBColor = RGBColor(200, 60, 40);
const TENTH_COLOUR: RGBColor = RGBColor(150, 185, 225);
const SECOND_COLOUR: RGBColor = RGBColor(25, 80, 160);

/// Writes the figure of two runs, given as bytes in bins of 10 ms.
pub(super) fn write(path: &Path, bare: &[u64], limited: &[u64]) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("{}: cannot be made", folder.display()))?;
    }
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
        let (upper, lower) = area.split_vertically(SIZE.1 / 2);
        panel(&upper, "(a) no limit", bare, false)?;
        panel(&lower, "(b) limit 10 MB/s", limited, true)?;
        area.present().map_err(|error| anyhow!("{error}"))?;
    }
    std::fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

/// Instants in s and MB/s, in windows of so many bins, as a staircase.
fn stairs(bins: &[u64], window_ms: usize) -> Vec<(f64, f64)> {
    let seconds = window_ms as f64 / 1e3;
    bins.chunks_exact(window_ms / BIN_MS)
        .enumerate()
        .flat_map(|(i, bins)| {
            let rate = bins.iter().sum::<u64>() as f64 / seconds / 1e6;
            let from = i as f64 * seconds;
            [(from, rate), (from + seconds, rate)]
        })
        .collect()
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    bins: &[u64],
    limited: bool,
) -> anyhow::Result<()> {
    let error = |error: DrawingAreaErrorKind<_>| anyhow!("{error}");
    let end = (bins.len() * BIN_MS) as f64 / 1e3;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..end, 0.0..TOP_MB)
        .map_err(error)?;
    chart
        .configure_mesh()
        .x_desc("time, s")
        .y_desc("sent, MB/s")
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()
        .map_err(error)?;
    let line =
        |(x, y): (i32, i32), style: ShapeStyle| PathElement::new(vec![(x, y), (x + 18, y)], style);
    let tenth = TENTH_COLOUR.stroke_width(1);
    let second = SECOND_COLOUR.stroke_width(2);
    let offered = OFFERED_COLOUR.stroke_width(1);
    let limit = LIMIT_COLOUR.stroke_width(1);
    chart
        .draw_series(LineSeries::new(stairs(bins, 100), tenth))
        .map_err(error)?
        .label("each 100 ms")
        .legend(move |at| line(at, tenth));
    chart
        .draw_series(LineSeries::new(stairs(bins, 1_000), second))
        .map_err(error)?
        .label("each second")
        .legend(move |at| line(at, second));
    let level = |rate: f64| vec![(0.0, rate / 1e6), (end, rate / 1e6)];
    chart
        .draw_series(DashedLineSeries::new(level(OFFERED), 2, 4, offered))
        .map_err(error)?
        .label("offered 12.5 MB/s")
        .legend(move |at| line(at, offered));
    if limited {
        chart
            .draw_series(DashedLineSeries::new(level(LIMIT), 8, 4, limit))
            .map_err(error)?
            .label("limit 10 MB/s")
            .legend(move |at| line(at, limit));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(OFFERED_COLOUR)
        .label_font(("sans-serif", 13))
        .draw()
        .map_err(error)
}
