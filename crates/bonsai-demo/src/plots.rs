//! The plots, as SVG to stand inside a page.
//!
//! Each colour is a name here: the page's style sheet gives it another value in
//! the dark. A canvas has twice the pixels that it is shown with, because the
//! library places things at whole pixels.

use std::fmt::Display;
use std::ops::Range;

use anyhow::anyhow;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::observed::{Bin, Stats};
use crate::record::{Bulk, Record, rates};
use crate::summary::{Summary, limit_text};

/// The victim.
pub(crate) const VIDEO: RGBColor = RGBColor(0x1f, 0x6f, 0xeb);
/// The noisy neighbour.
pub(crate) const BULK: RGBColor = RGBColor(0xd9, 0x73, 0x0d);
/// A picture that stands still.
pub(crate) const FROZEN: RGBColor = RGBColor(0xcf, 0x22, 0x2e);
/// Text and axes.
const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
/// Text of less importance.
const MUTED: RGBColor = RGBColor(0x65, 0x6d, 0x76);
/// Lines of the grid.
const GRID: RGBColor = RGBColor(0xd8, 0xde, 0xe4);
/// Every other phase.
const BAND: RGBColor = RGBColor(0xee, 0xf1, 0xf4);

const WIDTH: u32 = 2000;
const LEFT: u32 = 120;
const RIGHT: u32 = 30;
const FONT: f64 = 32.0;
const SMALL: f64 = 28.0;

/// What the link carries, Mbit/s, and the upper end of the axes.
const LINK: f64 = 100.0;
const TOP: f64 = 112.0;

/// Room above a plot for two lines of words, pixels.
const WORDS: u32 = 90;

/// Windows of the rates over the whole measurement, ns.
pub(crate) const COARSE_NS: u64 = 200_000_000;

/// A change is shown from before it to after it, s.
const AROUND: Range<f64> = -0.5..2.0;

/// Windows of the rates around a change, ns.
pub(crate) const FINE_NS: u64 = 50_000_000;

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws on a canvas of [`WIDTH`] by `height`; returns the SVG.
fn drawn(
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        draw(&area)?;
        area.present().map_err(failed)?;
    }
    // The page says how wide it is.
    let size = format!("width=\"{WIDTH}\" height=\"{height}\" ");
    Ok(svg.replacen(&size, "", 1))
}

/// The library's errors borrow what is drawn.
fn failed(error: impl Display) -> anyhow::Error {
    anyhow!("a plot cannot be drawn: {error}")
}

fn font(size: f64, color: RGBColor, h: HPos, v: VPos) -> TextStyle<'static> {
    ("sans-serif", size)
        .into_font()
        .color(&color)
        .pos(Pos::new(h, v))
}

fn seconds(record: &Record, ns: u64) -> f64 {
    (ns as f64 - record.phases[0].start_ns as f64) / 1e9
}

fn mbits(bytes_per_s: f64) -> f64 {
    bytes_per_s * 8.0 / 1e6
}

/// Both throughputs over time, the limits, and the phases.
///
/// # Errors
/// It cannot be drawn.
pub(crate) fn throughput(record: &Record) -> anyhow::Result<String> {
    drawn(760, |area| {
        let end = seconds(record, record.end_ns);
        let mut chart = ChartBuilder::on(area)
            .margin_right(RIGHT)
            .margin_top(WORDS)
            .x_label_area_size(90)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(0.0..end, 0.0..TOP)
            .map_err(failed)?;
        bands(record, &mut chart)?;
        titles(record, area, &chart)?;
        axes(&mut chart, "time, s", "received, Mbit/s", [13, 6])?;
        line(&mut chart, [(0.0, LINK), (end, LINK)], MUTED, 2)?;
        let words = font(SMALL, MUTED, HPos::Left, VPos::Bottom);
        let label = Text::new("the link carries 100", (0.3, LINK + 0.5), words);
        chart.draw_series([label]).map_err(failed)?;
        for (i, phase) in record.phases.iter().enumerate() {
            if let Some(limit) = phase.bulk.limit() {
                let (from, to) = record.span(i);
                let (y, from, to) = (
                    mbits(limit as f64),
                    seconds(record, from),
                    seconds(record, to),
                );
                dashed(&mut chart, [(from, y), (to, y)], INK)?;
            }
        }
        let bulk_starts = record
            .phases
            .iter()
            .find(|phase| phase.bulk != Bulk::Absent);
        let bulk_starts = bulk_starts.map_or(record.end_ns, |phase| phase.start_ns);
        let video_starts = record.phases[0].start_ns;
        for (bins, from, color) in [
            (&record.bulk, bulk_starts, BULK),
            (&record.video, video_starts, VIDEO),
        ] {
            let windows = rates(bins, from, record.end_ns, COARSE_NS);
            let middle = COARSE_NS / 2;
            let points = windows
                .into_iter()
                .map(|(at, rate)| (seconds(record, at + middle), mbits(rate)));
            line(&mut chart, points, color, 4)?;
        }
        Ok(())
    })
}

/// When each player's picture moved, and when it stood still.
///
/// # Errors
/// It cannot be drawn.
pub(crate) fn pictures(record: &Record) -> anyhow::Result<String> {
    const ROW: u32 = 44;
    let rows = record.players.len();
    drawn(ROW * u32::try_from(rows)? + 110, |area| {
        let end = seconds(record, record.end_ns);
        let mut chart = ChartBuilder::on(area)
            .margin_right(RIGHT)
            .margin_top(10)
            .x_label_area_size(90)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(0.0..end, 0.0..rows as f64)
            .map_err(failed)?;
        bands(record, &mut chart)?;
        axes(&mut chart, "time, s", "player", [13, 0])?;
        for (row, player) in record.players.iter().rev().enumerate() {
            let (low, high) = (row as f64 + 0.18, row as f64 + 0.82);
            let bar = |from: f64, to: f64, color: RGBColor| {
                Rectangle::new(
                    [(from.clamp(0.0, end), low), (to.clamp(0.0, end), high)],
                    color.filled(),
                )
            };
            chart.draw_series([bar(0.0, end, VIDEO)]).map_err(failed)?;
            let frozen = player
                .freezes
                .iter()
                .map(|(from, to)| (seconds(record, *from), seconds(record, *to)));
            let shown = frozen
                .filter(|(_, to)| *to > 0.0)
                .map(|(from, to)| bar(from, to, FROZEN));
            chart.draw_series(shown).map_err(failed)?;
            let (x, y) = chart.backend_coord(&(0.0, row as f64 + 0.5));
            let words = font(SMALL, INK, HPos::Right, VPos::Center);
            let number = Text::new((rows - row).to_string(), (x - 14, y), words);
            area.draw(&number).map_err(failed)?;
        }
        Ok(())
    })
}

/// The bulk data around each change of its limit, finer.
///
/// # Errors
/// It cannot be drawn.
pub(crate) fn changes(record: &Record, summary: &Summary) -> anyhow::Result<String> {
    drawn(560, |area| {
        let panels = area.split_evenly((1, summary.changes.len().max(1)));
        for (i, (change, panel)) in summary.changes.iter().zip(&panels).enumerate() {
            let mut chart = ChartBuilder::on(panel)
                .margin_right(RIGHT)
                .margin_top(WORDS)
                .x_label_area_size(90)
                .y_label_area_size(if i == 0 { LEFT } else { 60 })
                .build_cartesian_2d(AROUND, 0.0..TOP)
                .map_err(failed)?;
            let name = if i == 0 { "received, Mbit/s" } else { "" };
            axes(&mut chart, "s after bonsai set", name, [6, 6])?;
            line(&mut chart, [(0.0, 0.0), (0.0, TOP)], MUTED, 2)?;
            for (bulk, from, to) in [
                (change.from, AROUND.start, 0.0),
                (change.to, 0.0, AROUND.end),
            ] {
                if let Some(limit) = bulk.limit() {
                    let y = mbits(limit as f64);
                    dashed(&mut chart, [(from, y), (to, y)], INK)?;
                }
            }
            let start = record.phases[change.phase].start_ns;
            let (before, after) = (500_000_000.min(start), 2_000_000_000);
            let windows = rates(&record.bulk, start - before, start + after, FINE_NS);
            let middle = FINE_NS / 2;
            let points = windows
                .into_iter()
                .map(|(at, rate)| (((at + middle) as f64 - start as f64) / 1e9, mbits(rate)));
            line(&mut chart, points, BULK, 3)?;
            let (x, _) = chart.backend_coord(&(AROUND.start, 0.0));
            let title = font(FONT, INK, HPos::Left, VPos::Top);
            let text = format!("{} to {}", held(change.from), held(change.to));
            area.draw(&Text::new(text, (x, 10), title))
                .map_err(failed)?;
            let seen = change.seen_within_ns.map_or_else(
                || "not seen in this phase".to_owned(),
                |ns| format!("seen within {}", bonsai_units::format_duration_ns(ns)),
            );
            let words = font(SMALL, MUTED, HPos::Left, VPos::Top);
            area.draw(&Text::new(seen, (x, 50), words))
                .map_err(failed)?;
        }
        Ok(())
    })
}

fn held(bulk: Bulk) -> String {
    match bulk {
        Bulk::Limit(_) => limit_text(bulk),
        Bulk::Unlimited | Bulk::Absent => "unlimited".to_owned(),
    }
}

/// The waits of all calls together, by how long they were; `None` without any.
///
/// # Errors
/// It cannot be drawn.
pub(crate) fn waits(stats: &Stats) -> anyhow::Result<Option<String>> {
    let mut bins: Vec<Bin> = Vec::new();
    for bin in stats.calls.iter().flat_map(|call| &call.waits.histogram) {
        match bins.iter_mut().find(|known| known.from_ns == bin.from_ns) {
            Some(known) => known.count += bin.count,
            None => bins.push(*bin),
        }
    }
    let total: u64 = bins.iter().map(|bin| bin.count).sum();
    if total == 0 {
        return Ok(None);
    }
    let share = |bin: &Bin| bin.count as f64 / total as f64 * 100.0;
    // The first range begins at 0, which has no logarithm.
    let log = |ns: u64| (ns.max(500) as f64).log10();
    let to = |bin: &Bin| log(bin.to_ns.unwrap_or(bin.from_ns.saturating_mul(2)));
    let low = bins
        .iter()
        .map(|bin| log(bin.from_ns))
        .fold(f64::MAX, f64::min)
        .floor();
    let high = bins.iter().map(to).fold(f64::MIN, f64::max).ceil();
    let most = bins.iter().map(share).fold(0.0, f64::max);
    let svg = drawn(520, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_right(RIGHT + 30)
            .margin_top(20)
            .x_label_area_size(90)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(low..high, 0.0..most * 1.1)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID.stroke_width(2))
            .axis_style(MUTED.stroke_width(2))
            .label_style(font(SMALL, INK, HPos::Left, VPos::Top))
            .axis_desc_style(font(FONT, INK, HPos::Left, VPos::Top))
            .x_labels(0)
            .y_labels(5)
            .y_label_formatter(&|percent| format!("{percent:.0} %"))
            .x_desc("how long a call was made to wait")
            .y_desc("share of the waits")
            .draw()
            .map_err(failed)?;
        for (exponent, name) in (2..12).zip([
            "100 ns", "1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s",
        ]) {
            let x = f64::from(exponent);
            if (low..=high).contains(&x) {
                let (x, y) = chart.backend_coord(&(x, 0.0));
                area.draw(&PathElement::new(
                    vec![(x, y), (x, y + 10)],
                    MUTED.stroke_width(2),
                ))
                .map_err(failed)?;
                let words = font(SMALL, INK, HPos::Center, VPos::Top);
                area.draw(&Text::new(name, (x, y + 14), words))
                    .map_err(failed)?;
            }
        }
        let bars = bins.iter().map(|bin| {
            Rectangle::new(
                [(log(bin.from_ns), 0.0), (to(bin), share(bin))],
                BULK.filled(),
            )
        });
        chart.draw_series(bars).map_err(failed)?;
        Ok(())
    })?;
    Ok(Some(svg))
}

/// The phases as bands.
fn bands(record: &Record, chart: &mut Chart<'_, '_>) -> anyhow::Result<()> {
    let y = chart.y_range();
    for i in (1..record.phases.len()).step_by(2) {
        let (from, to) = record.span(i);
        let (from, to) = (seconds(record, from), seconds(record, to));
        let band = Rectangle::new([(from, y.start), (to, y.end)], BAND.filled());
        chart.draw_series([band]).map_err(failed)?;
    }
    Ok(())
}

/// The titles of the phases, above the plot.
fn titles(record: &Record, area: &Area<'_>, chart: &Chart<'_, '_>) -> anyhow::Result<()> {
    for (i, phase) in record.phases.iter().enumerate() {
        let (from, to) = record.span(i);
        let middle = seconds(record, from).midpoint(seconds(record, to));
        let (x, _) = chart.backend_coord(&(middle, 0.0));
        let second = match phase.bulk {
            Bulk::Absent => "no backup".to_owned(),
            Bulk::Unlimited => "no limit".to_owned(),
            Bulk::Limit(_) => limit_text(phase.bulk),
        };
        let title = font(FONT, INK, HPos::Center, VPos::Top);
        area.draw(&Text::new(phase.title.clone(), (x, 8), title))
            .map_err(failed)?;
        let words = font(SMALL, MUTED, HPos::Center, VPos::Top);
        area.draw(&Text::new(second, (x, 46), words))
            .map_err(failed)?;
    }
    Ok(())
}

/// Axes with a grid and about so many labels on x and y; with 0 on y, its labels
/// are left to the caller.
fn axes(chart: &mut Chart<'_, '_>, x: &str, y: &str, labels: [usize; 2]) -> anyhow::Result<()> {
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID.stroke_width(2))
        .axis_style(MUTED.stroke_width(2))
        .label_style(font(SMALL, INK, HPos::Left, VPos::Top))
        .axis_desc_style(font(FONT, INK, HPos::Left, VPos::Top))
        .x_labels(labels[0])
        .y_labels(labels[1])
        .x_label_formatter(&short)
        .y_label_formatter(&short)
        .x_desc(x)
        .y_desc(y);
    if labels[1] == 0 {
        mesh.disable_y_mesh();
    }
    mesh.draw().map_err(failed)
}

/// `40`, `0.5`.
fn short(value: &f64) -> String {
    // Not -0.
    let text = format!("{:.1}", value + 0.0);
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

fn line(
    chart: &mut Chart<'_, '_>,
    points: impl IntoIterator<Item = (f64, f64)>,
    color: RGBColor,
    width: u32,
) -> anyhow::Result<()> {
    chart
        .draw_series(LineSeries::new(points, color.stroke_width(width)))
        .map_err(failed)?;
    Ok(())
}

fn dashed(
    chart: &mut Chart<'_, '_>,
    points: [(f64, f64); 2],
    color: RGBColor,
) -> anyhow::Result<()> {
    let dashes = DashedLineSeries::new(points, 12, 8, color.stroke_width(3));
    chart.draw_series(dashes).map_err(failed)?;
    Ok(())
}
