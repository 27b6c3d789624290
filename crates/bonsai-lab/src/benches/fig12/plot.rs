//! The figure: rate over time, without and with the limit.

use std::path::Path;

use plotters::prelude::*;

use super::{BIN_MS, LIMIT, OFFERED};
use crate::plot::{self, Area, GREY, line, stairs, words};

const SIZE: (u32, u32) = (900, 640);
const TOP_MB: f64 = 16.0;
const LIMIT_COLOUR: RGBColor = RGBColor(200, 60, 40);
const TENTH_COLOUR: RGBColor = RGBColor(150, 185, 225);
const SECOND_COLOUR: RGBColor = RGBColor(25, 80, 160);

/// Writes the figure of two runs, given as bytes in bins of 10 ms.
pub(super) fn write(path: &Path, bare: &[u64], limited: &[u64]) -> anyhow::Result<()> {
    plot::write(path, SIZE, |area| {
        let (upper, lower) = area.split_vertically(SIZE.1 / 2);
        panel(&upper, "(a) no limit", bare, false)?;
        panel(&lower, "(b) limit 10 MB/s", limited, true)
    })
}

fn panel(area: &Area<'_>, title: &str, bins: &[u64], limited: bool) -> anyhow::Result<()> {
    let end = (bins.len() * BIN_MS) as f64 / 1e3;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..end, 0.0..TOP_MB)
        .map_err(words)?;
    chart
        .configure_mesh()
        .x_desc("time, s")
        .y_desc("sent, MB/s")
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()
        .map_err(words)?;
    let tenth = TENTH_COLOUR.stroke_width(1);
    let second = SECOND_COLOUR.stroke_width(2);
    let offered = GREY.stroke_width(1);
    let limit = LIMIT_COLOUR.stroke_width(1);
    chart
        .draw_series(LineSeries::new(stairs(bins, 100 / BIN_MS, 0.1), tenth))
        .map_err(words)?
        .label("each 100 ms")
        .legend(move |at| line(at, tenth));
    chart
        .draw_series(LineSeries::new(stairs(bins, 1_000 / BIN_MS, 1.0), second))
        .map_err(words)?
        .label("each second")
        .legend(move |at| line(at, second));
    let level = |rate: f64| vec![(0.0, rate / 1e6), (end, rate / 1e6)];
    chart
        .draw_series(DashedLineSeries::new(level(OFFERED), 2, 4, offered))
        .map_err(words)?
        .label("offered 12.5 MB/s")
        .legend(move |at| line(at, offered));
    if limited {
        chart
            .draw_series(DashedLineSeries::new(level(LIMIT), 8, 4, limit))
            .map_err(words)?
            .label("limit 10 MB/s")
            .legend(move |at| line(at, limit));
    }
    plot::legend(&mut chart, SeriesLabelPosition::LowerRight, 13)
}
