//! The page of `bonsai trace stat --html`: one file, with its plots in it.

use anyhow::anyhow;
use bonsai_trace::stat::{Distribution, Stat};
use plotters::prelude::*;

use super::stat::{caches, size};

const SIZE: (u32, u32) = (680, 360);
/// Of lines and bars, in their order.
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 90, 30),
    RGBColor(44, 140, 60),
    RGBColor(130, 80, 160),
    RGBColor(120, 90, 60),
    RGBColor(90, 90, 90),
];

/// A line of a plot: its name, and its points.
pub(crate) type Line<'a> = (&'a str, Vec<(f64, f64)>);

/// Makes the page.
///
/// # Errors
/// A plot cannot be drawn.
pub(super) fn page(name: &str, stat: &Stat) -> anyhow::Result<String> {
    let accesses = stat.counts.accesses.iter().sum::<u64>().max(1) as f64;
    let curve = |of: &Distribution| {
        let steps = of.steps();
        steps
            .map(|(at, sum)| {
                (
                    (at + 1) as f64 * 4096.0 / f64::from(1 << 20),
                    sum as f64 / accesses * 100.0,
                )
            })
            .collect::<Vec<_>>()
    };
    let part = |of: &Distribution| {
        let all = of.count().max(1) as f64;
        of.steps()
            .map(|(at, sum)| ((at as f64).max(0.5), sum as f64 / all * 100.0))
            .collect::<Vec<_>>()
    };
    let footprint = |of: fn(&bonsai_trace::stat::Footprint) -> u64| {
        let points = stat.footprint.iter();
        points
            .map(|point| (point.time_ns as f64 / 1e9, of(point) as f64))
            .collect::<Vec<_>>()
    };
    let plots = [
        plot(
            "Hits of an LRU cache, % of all accesses, by its size in MiB",
            true,
            &[
                ("plain", curve(&stat.block_reuse)),
                ("DRIVE", curve(&stat.redirected_reuse)),
                ("ideal", curve(&stat.content_reuse)),
            ],
        )?,
        plot(
            "Reuse distance, % of all reuse, up to so many blocks",
            true,
            &[
                ("blocks", part(&stat.block_reuse)),
                ("contents", part(&stat.content_reuse)),
            ],
        )?,
        plot(
            "Sharing and occurrence, % of contents, up to so many",
            true,
            &[
                ("blocks with it", part(&stat.sharing())),
                ("accesses", part(&stat.occurrence())),
            ],
        )?,
        plot(
            "Runs and jumps, % of all, up to so many blocks",
            true,
            &[
                ("run length", part(&stat.run_length)),
                ("jump", part(&stat.jump)),
            ],
        )?,
        plot(
            "Footprint, blocks and contents, by time in s",
            false,
            &[
                ("blocks", footprint(|point| point.blocks)),
                ("contents", footprint(|point| point.contents)),
            ],
        )?,
    ];
    let rows: String = caches(stat)
        .into_iter()
        .map(|blocks| {
            let cells = stat
                .hit_ratios(blocks)
                .map(|part| format!("<td>{:.2}</td>", part * 100.0));
            format!("<tr><td>{}</td>{}</tr>\n", size(blocks), cells.concat())
        })
        .collect();
    let counts = &stat.counts;
    let [reads, writes, trims, flushes] = counts.by_op;
    let title = escaped(name);
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body{{font:15px/1.4 sans-serif;max-width:1400px;margin:1em auto;padding:0 1em}}\
         td,th{{text-align:right;padding:0 .8em}}svg{{max-width:100%;height:auto}}</style></head>\n<body>\n\
         <h1>{title}</h1>\n<p>{} requests: {reads} reads, {writes} writes, {trims} trims, {flushes} flushes; \
         {} blocks ({}) with {} contents ({}).</p>\n{}\n\
         <table><tr><th>cache</th><th>plain, %</th><th>DRIVE, %</th><th>ideal, %</th></tr>\n{rows}</table>\n\
         </body></html>\n",
        counts.requests,
        counts.blocks,
        size(counts.blocks),
        counts.contents,
        size(counts.contents),
        plots.concat(),
    ))
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Draws lines; with a logarithmic x axis where that is wanted.
pub(crate) fn plot(title: &str, is_log: bool, lines: &[Line<'_>]) -> anyhow::Result<String> {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let Some(right) = points().map(|(x, _)| *x).reduce(f64::max) else {
        return Ok(String::new());
    };
    let right = right.max(1e-3);
    let left = match is_log {
        true => points().map(|(x, _)| *x).fold(right, f64::min) * 0.99,
        false => 0.0,
    };
    let top = points().map(|(_, y)| *y).fold(1e-9, f64::max) * 1.05;
    // Lines that rise late leave room above, others below.
    let mean = points().map(|(_, y)| *y).sum::<f64>() / points().count().max(1) as f64;
    let corner = match mean < top / 2.0 {
        true => SeriesLabelPosition::UpperLeft,
        false => SeriesLabelPosition::LowerRight,
    };
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        let failed = |error| anyhow!("a plot cannot be drawn: {error}");
        area.fill(&WHITE).map_err(failed)?;
        let mut builder = ChartBuilder::on(&area);
        builder
            .caption(title, ("sans-serif", 16))
            .margin(8)
            .x_label_area_size(28)
            .y_label_area_size(64);
        // Two kinds of axes are two types.
        macro_rules! draw {
            ($x:expr) => {{
                let mut chart = builder.build_cartesian_2d($x, 0.0..top).map_err(failed)?;
                chart
                    .configure_mesh()
                    .light_line_style(WHITE)
                    .draw()
                    .map_err(failed)?;
                for ((name, points), colour) in lines.iter().zip(COLOURS) {
                    let style = colour.stroke_width(2);
                    chart
                        .draw_series(LineSeries::new(points.iter().copied(), style))
                        .map_err(failed)?
                        .label((*name).to_owned())
                        .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
                }
                chart
                    .configure_series_labels()
                    .position(corner)
                    .background_style(WHITE.mix(0.85))
                    .draw()
                    .map_err(failed)?;
            }};
        }
        if is_log {
            draw!((left..right * 1.01).log_scale());
        } else {
            draw!(left..right);
        }
        area.present().map_err(failed)?;
    }
    Ok(text)
}
