//! What all figures have in common.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// A figure, or a part of it.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Failed<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Of what is no measurement: frames, and lines to compare with.
pub(crate) const GREY: RGBColor = RGBColor(110, 110, 110);

/// What went wrong while drawing.
#[expect(clippy::needless_pass_by_value, reason = "map_err gives it away")]
pub(crate) fn words(error: Failed<'_>) -> anyhow::Error {
    anyhow!("{error}")
}

/// Writes a figure.
///
/// # Errors
/// It cannot be drawn, or the file not be written.
pub(crate) fn write(
    path: &Path,
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("{}: cannot be made", folder.display()))?;
    }
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE).map_err(words)?;
        draw(&area)?;
        area.present().map_err(words)?;
    }
    Ok(bonsai_host::write_output(path, text.as_bytes())?)
}

/// Bytes in bins as a staircase of instants in s and MB/s: a step is so many bins, of that time.
pub(crate) fn stairs(bins: &[u64], per_step: usize, seconds: f64) -> Vec<(f64, f64)> {
    bins.chunks_exact(per_step)
        .enumerate()
        .flat_map(|(i, bins)| {
            let rate = bins.iter().sum::<u64>() as f64 / seconds / 1e6;
            let from = i as f64 * seconds;
            [(from, rate), (from + seconds, rate)]
        })
        .collect()
}

/// The mark of a line in the legend.
pub(crate) fn line((x, y): (i32, i32), style: ShapeStyle) -> PathElement<(i32, i32)> {
    PathElement::new(vec![(x, y), (x + 18, y)], style)
}

/// The mark of an area in the legend.
pub(crate) fn square((x, y): (i32, i32), colour: RGBColor) -> Rectangle<(i32, i32)> {
    Rectangle::new([(x, y - 5), (x + 18, y + 5)], colour.filled())
}

/// Draws the legend, with letters of a size.
///
/// # Errors
/// It cannot be drawn.
pub(crate) fn legend<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
    position: SeriesLabelPosition,
    size: u32,
) -> anyhow::Result<()> {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.85))
        .border_style(GREY)
        .label_font(("sans-serif", size))
        .draw()
        .map_err(words)
}
