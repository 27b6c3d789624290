//! The figure: disk and wall time of each server, by memory.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{ARMS, Arm, CELLS, Cell, Of, Round, Turn, disk, wall};
use crate::plot::{self, Area, GREY, words};
use crate::record::Sample;
use crate::study::median_or_zero;

const SIZE: (u32, u32) = (1_200, 450);
const COLOURS: [RGBColor; 5] = [
    RGBColor(150, 150, 150),
    RGBColor(205, 205, 205),
    RGBColor(150, 185, 225),
    RGBColor(90, 160, 90),
    RGBColor(25, 80, 160),
];

/// Writes it.
pub(super) fn write(path: &Path, all: &[Sample<Round>]) -> anyhow::Result<()> {
    let is_there = |cell: &Cell| !Of::new(all, *cell).values(Arm::Nbdkit, wall).is_empty();
    let cells: Vec<Cell> = CELLS
        .iter()
        .map(|(cell, ..)| *cell)
        .filter(is_there)
        .collect();
    plot::write(path, SIZE, |area| {
        let (left, right) = area.split_horizontally(SIZE.0 / 2);
        panel(&left, "read from the disk, MB", all, (&cells, disk))?;
        panel(&right, "wall time, s", all, (&cells, wall))
    })
}

/// Medians as bars, and each turn as a dot.
fn panel(
    area: &Area<'_>,
    title: &str,
    all: &[Sample<Round>],
    (cells, value): (&[Cell], fn(&Turn) -> f64),
) -> anyhow::Result<()> {
    let mut bars = Vec::new();
    for (group, cell) in cells.iter().enumerate() {
        let of = Of::new(all, *cell);
        for (which, arm) in ARMS.into_iter().enumerate() {
            let values = of.values(arm, value);
            if !values.is_empty() {
                bars.push((group, which, values));
            }
        }
    }
    let highest = bars.iter().flat_map(|(_, _, values)| values);
    let top = highest.fold(1e-9, |top: f64, value| top.max(*value)) * 1.35;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(70)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..cells.len().max(1) as f64, 0.0..top)
        .map_err(words)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(words)?;
    let left = |group: usize, which: usize| group as f64 + 0.08 + 0.17 * which as f64;
    for (which, arm) in ARMS.into_iter().enumerate() {
        let colour = COLOURS[which];
        let mine = bars.iter().filter(|bar| bar.1 == which);
        chart
            .draw_series(mine.map(|(group, which, values)| {
                let from = left(*group, *which);
                let corner = (from + 0.16, median_or_zero(values));
                Rectangle::new([(from, 0.0), corner], colour.filled())
            }))
            .map_err(words)?
            .label(arm.name())
            .legend(move |at| plot::square(at, colour));
    }
    let dots = bars.iter().flat_map(|(group, which, values)| {
        let at = left(*group, *which) + 0.08;
        values
            .iter()
            .map(move |value| Circle::new((at, *value), 2, BLACK.filled()))
    });
    chart.draw_series(dots).map_err(words)?;
    let above = ("sans-serif", 12).into_font().color(&GREY);
    let above = above.pos(Pos::new(HPos::Center, VPos::Bottom));
    chart
        .draw_series(bars.iter().map(|(group, which, values)| {
            let highest = values.iter().copied().fold(0.0, f64::max);
            let at = (left(*group, *which) + 0.08, highest + top * 0.015);
            let value = median_or_zero(values);
            let digits = if value < 100.0 { 1 } else { 0 };
            Text::new(format!("{value:.digits$}"), at, above.clone())
        }))
        .map_err(words)?;
    let below = ("sans-serif", 12).into_font().color(&BLACK);
    let below = below.pos(Pos::new(HPos::Center, VPos::Top));
    for (group, cell) in cells.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(group as f64 + 0.5, 0.0));
        let (left, upper) = area.get_base_pixel();
        for (line, text) in cell.describe().split(", ").enumerate() {
            let at = (
                x - left,
                y - upper + 6 + 15 * i32::try_from(line).unwrap_or(0),
            );
            area.draw(&Text::new(text.to_owned(), at, below.clone()))
                .map_err(words)?;
        }
    }
    plot::legend(&mut chart, SeriesLabelPosition::UpperRight, 12)
}
