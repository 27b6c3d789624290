//! The figure: rates of streams and times of downloads, as the paper shows them, and both over
//! time beside 80 streams.

use std::path::Path;

use plotters::prelude::*;

use super::{Allocation, BIN_NS, CAPACITY, Cell, Measured, SHARED, STREAMS};
use crate::plot::{self, Area, GREY, line, stairs, words};
use crate::record::Sample;
use crate::study::median_or_zero;

const SIZE: (u32, u32) = (1_000, 900);
const MEDIA_COLOUR: RGBColor = RGBColor(25, 80, 160);
const BULK_COLOUR: RGBColor = RGBColor(90, 160, 90);
/// One for each number of streams.
const BARS: [RGBColor; 2] = [RGBColor(25, 80, 160), RGBColor(150, 185, 225)];
/// Windows of 100 ms.
const WINDOW: usize = 10;

/// Writes it.
pub(super) fn write(path: &Path, all: &[Sample<Measured>]) -> anyhow::Result<()> {
    plot::write(path, SIZE, |area| {
        let (upper, lower) = area.split_vertically(300);
        let (left, right) = upper.split_horizontally(SIZE.0 / 2);
        let per_stream = |m: &Measured| Some(m.media_rate()? / f64::from(m.streams?) * 8.0 / 1e6);
        bars(&left, ("rate of a stream, Mbit/s", all), true, per_stream)?;
        bars(&right, ("download, s", all), false, Measured::seconds)?;
        let end = SHARED
            .iter()
            .filter_map(|allocation| first(all, *allocation)?.seconds())
            .fold(1.0, f64::max);
        let parts = lower.split_evenly((SHARED.len(), 1));
        for (part, allocation) in parts.iter().zip(SHARED) {
            if let Some(measured) = first(all, allocation) {
                over_time(part, measured, end)?;
            }
        }
        Ok(())
    })
}

/// The first turn beside most streams.
fn first(all: &[Sample<Measured>], allocation: Allocation) -> Option<&Measured> {
    Cell::of(all, allocation, Some(STREAMS[0]))
        .0
        .first()
        .copied()
}

/// Medians, by allocation and number of streams.
fn bars(
    area: &Area<'_>,
    (title, all): (&str, &[Sample<Measured>]),
    with_alone: bool,
    value: impl Fn(&Measured) -> Option<f64>,
) -> anyhow::Result<()> {
    let alone = with_alone.then_some(Allocation::Alone);
    let allocations: Vec<Allocation> = alone.into_iter().chain(SHARED).collect();
    let mut found = Vec::new();
    for (group, allocation) in allocations.iter().enumerate() {
        for (which, streams) in STREAMS.into_iter().enumerate() {
            let values = Cell::of(all, *allocation, Some(streams)).values(&value);
            found.push((group, which, median_or_zero(&values)));
        }
    }
    let top = found.iter().map(|bar| bar.2).fold(1e-9, f64::max) * 1.55;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(26)
        .y_label_area_size(46)
        .build_cartesian_2d(0.0..allocations.len() as f64, 0.0..top)
        .map_err(words)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(words)?;
    for (which, colour) in BARS.into_iter().enumerate() {
        let mine = found.iter().filter(|bar| bar.1 == which);
        chart
            .draw_series(mine.map(|(group, which, value)| {
                let from = *group as f64 + 0.15 + 0.35 * *which as f64;
                Rectangle::new([(from, 0.0), (from + 0.35, *value)], colour.filled())
            }))
            .map_err(words)?
            .label(format!("{} streams", STREAMS[which]))
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    let centred = ("sans-serif", 13)
        .into_font()
        .color(&GREY)
        .pos(text_anchor(true));
    chart
        .draw_series(found.iter().map(|(group, which, value)| {
            let at = (*group as f64 + 0.325 + 0.35 * *which as f64, *value);
            Text::new(format!("{value:.2}"), at, centred.clone())
        }))
        .map_err(words)?;
    let below = ("sans-serif", 14)
        .into_font()
        .color(&BLACK)
        .pos(text_anchor(false));
    for (group, allocation) in allocations.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(group as f64 + 0.5, 0.0));
        let (left, upper) = area.get_base_pixel();
        let at = (x - left, y - upper + 6);
        area.draw(&Text::new(allocation.name(), at, below.clone()))
            .map_err(words)?;
    }
    plot::legend(&mut chart, SeriesLabelPosition::UpperRight, 12)
}

/// Centred, above or below a point.
fn text_anchor(above: bool) -> plotters::style::text_anchor::Pos {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    Pos::new(HPos::Center, if above { VPos::Bottom } else { VPos::Top })
}

fn over_time(area: &Area<'_>, measured: &Measured, end: f64) -> anyhow::Result<()> {
    let top = CAPACITY as f64 / 1e6;
    let name = measured.allocation.name();
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!("{} streams, {name}", STREAMS[0]),
            ("sans-serif", 16),
        )
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(46)
        .build_cartesian_2d(0.0..end, 0.0..top * 1.2)
        .map_err(words)?;
    chart
        .configure_mesh()
        .x_desc("time, s")
        .y_desc("MB/s")
        .light_line_style(TRANSPARENT)
        .y_labels(5)
        .draw()
        .map_err(words)?;
    let seconds = (WINDOW as u64 * BIN_NS) as f64 / 1e9;
    let media = measured.media.as_ref().map(|media| &media.bins);
    let bulk = measured.bulk.as_ref().map(|bulk| &bulk.bins);
    let flows = [
        ("streams", media, MEDIA_COLOUR),
        ("download", bulk, BULK_COLOUR),
    ];
    for (label, bins, colour) in flows {
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(
                stairs(bins.map_or(&[], Vec::as_slice), WINDOW, seconds),
                style,
            ))
            .map_err(words)?
            .label(label)
            .legend(move |at| line(at, style));
    }
    chart
        .draw_series(DashedLineSeries::new(
            vec![(0.0, top), (end, top)],
            6,
            4,
            GREY.stroke_width(1),
        ))
        .map_err(words)?;
    plot::legend(&mut chart, SeriesLabelPosition::UpperRight, 12)
}
