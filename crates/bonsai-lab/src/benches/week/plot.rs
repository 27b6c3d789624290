//! The figure: what media services wanted, were guaranteed, and lent, over the week.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use plotters::prelude::*;

use super::load::DAY_S;
use super::simulate::{BIN_S, Bin, CAPACITY};

const SIZE: (u32, u32) = (1_000, 420);
const MEDIA_COLOUR: RGBColor = RGBColor(110, 145, 190);
const OTHERS_COLOUR: RGBColor = RGBColor(190, 215, 190);
const GUARANTEE_COLOUR: RGBColor = RGBColor(200, 60, 40);
const GREY: RGBColor = RGBColor(110, 110, 110);
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// Writes the figure of a week.
pub(super) fn write(path: &Path, bins: &[Bin]) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("{}: cannot be made", folder.display()))?;
    }
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
        draw(&area, bins)?;
        area.present().map_err(|error| anyhow!("{error}"))?;
    }
    std::fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

fn draw(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    bins: &[Bin],
) -> anyhow::Result<()> {
    let error = |error: DrawingAreaErrorKind<_>| anyhow!("{error}");
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
        .map_err(error)?;
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
        .map_err(error)?;
    let series = |of: fn(&Bin) -> f64| {
        let points = bins.iter().enumerate();
        points
            .map(move |(i, bin)| (days(i), of(bin)))
            .collect::<Vec<_>>()
    };
    let square = |(x, y): (i32, i32), colour: RGBColor| {
        Rectangle::new([(x, y - 5), (x + 18, y + 5)], colour.filled())
    };
    let line =
        |(x, y): (i32, i32), style: ShapeStyle| PathElement::new(vec![(x, y), (x + 18, y)], style);
    chart
        .draw_series(AreaSeries::new(
            series(|bin| bin.media + bin.others),
            0.0,
            OTHERS_COLOUR,
        ))
        .map_err(error)?
        .label("what the others got: all that media left")
        .legend(move |at| square(at, OTHERS_COLOUR));
    chart
        .draw_series(AreaSeries::new(series(|bin| bin.media), 0.0, MEDIA_COLOUR))
        .map_err(error)?
        .label("what media got")
        .legend(move |at| square(at, MEDIA_COLOUR));
    let demand = BLACK.stroke_width(1);
    chart
        .draw_series(LineSeries::new(series(|bin| bin.demand), demand))
        .map_err(error)?
        .label("what media wanted")
        .legend(move |at| line(at, demand));
    let guarantee = GUARANTEE_COLOUR.stroke_width(2);
    chart
        .draw_series(LineSeries::new(series(|bin| bin.guarantee), guarantee))
        .map_err(error)?
        .label("what media was guaranteed, as learned")
        .legend(move |at| line(at, guarantee));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(GREY)
        .label_font(("sans-serif", 13))
        .draw()
        .map_err(error)
}
