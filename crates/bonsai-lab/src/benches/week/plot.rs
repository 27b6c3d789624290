//! The figure: what media services wanted, were guaranteed, and lent, over the week.

use std::path::Path;

use plotters::prelude::*;

use super::load::DAY_S;
use super::simulate::{BIN_S, Bin, CAPACITY};
use crate::plot::{self, Area, line, square, words};

const SIZE: (u32, u32) = (1_000, 420);
const MEDIA_COLOUR: RGBColor = RGBColor(110, 145, 190);
const OTHERS_COLOUR: RGBColor = RGBColor(190, 215, 190);
const GUARANTEE_COLOUR: RGBColor = RGBColor(200, 60, 40);
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// Writes the figure of a week.
pub(super) fn write(path: &Path, bins: &[Bin]) -> anyhow::Result<()> {
    plot::write(path, SIZE, |area| draw(area, bins))
}

fn draw(area: &Area<'_>, bins: &[Bin]) -> anyhow::Result<()> {
    let days = |i: usize| i as f64 * (BIN_S as f64 / DAY_S as f64);
    let end = days(bins.len());
    let mut chart = ChartBuilder::on(area)
        .caption(
            "a week, left alone: mode adaptive, 100 Mbit/s",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..end, 0.0..CAPACITY * 1.02)
        .map_err(words)?;
    let day = |at: &f64| {
        let found = DAYS
            .iter()
            .enumerate()
            .find(|(i, _)| (at - *i as f64).abs() < 1e-6);
        found.map_or(String::new(), |(_, day)| (*day).to_owned())
    };
    chart
        .configure_mesh()
        .x_labels(8)
        .x_desc("days, from midnight on")
        .y_desc("sent, Mbit/s")
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&day)
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()
        .map_err(words)?;
    let series = |of: fn(&Bin) -> f64| {
        let points = bins.iter().enumerate();
        points
            .map(move |(i, bin)| (days(i), of(bin)))
            .collect::<Vec<_>>()
    };
    chart
        .draw_series(AreaSeries::new(
            series(|bin| bin.media + bin.others),
            0.0,
            OTHERS_COLOUR,
        ))
        .map_err(words)?
        .label("what the others got: all that media left")
        .legend(move |at| square(at, OTHERS_COLOUR));
    chart
        .draw_series(AreaSeries::new(series(|bin| bin.media), 0.0, MEDIA_COLOUR))
        .map_err(words)?
        .label("what media got")
        .legend(move |at| square(at, MEDIA_COLOUR));
    let demand = BLACK.stroke_width(1);
    chart
        .draw_series(LineSeries::new(series(|bin| bin.demand), demand))
        .map_err(words)?
        .label("what media wanted")
        .legend(move |at| line(at, demand));
    let guarantee = GUARANTEE_COLOUR.stroke_width(2);
    chart
        .draw_series(LineSeries::new(series(|bin| bin.guarantee), guarantee))
        .map_err(words)?
        .label("what media was guaranteed, as learned")
        .legend(move |at| line(at, guarantee));
    plot::legend(&mut chart, SeriesLabelPosition::UpperLeft, 13)
}
