//! `bonsai trace stat`.

use bonsai_trace::stat::{Distribution, Stat};
use bonsai_trace::{BLOCK, Error, Volume};
use serde_json::{Value, json};

use super::files::save;
use super::import::said;
use super::page;
use super::show::trace;
use crate::cli::TraceStat;
use crate::output::{finish, print, print_json, table};

pub(super) fn run(args: &TraceStat) -> anyhow::Result<()> {
    let (mut reader, progress) = trace(&args.trace)?;
    let name = args.trace.display().to_string();
    let mut stat = Stat::default();
    let read = reader.for_each(|request| {
        stat.add(request);
        Ok::<(), Error>(())
    });
    progress.done();
    let cut = match read {
        Err(error @ Error::Truncated { .. }) if args.cut_off => Some(error.to_string()),
        read => read.map(|()| None).map_err(|error| said(&name, error))?,
    };
    stat.finish();
    if let Some(path) = &args.html {
        let page = page::page(&name, &stat)?;
        save(path, |out| Ok(out.write_all(page.as_bytes())?))?;
    }
    if args.json {
        let mut document = document(&stat, reader.volumes());
        document["lost"] = json!(reader.lost());
        document["cut_off"] = json!(cut.is_some());
        return print_json(&document, false);
    }
    let mut text = text(&stat, reader.volumes());
    if reader.lost() > 0 {
        let lost = crate::output::count(reader.lost(), "request", "requests");
        text = format!("lost       {lost} while it was recorded: it has holes\n{text}");
    }
    print(&cut.map_or_else(|| text.clone(), |cut| format!("cut off    {cut}\n{text}")))
}

const PARTS: [f64; 6] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.99];

/// Cache sizes worth a row: powers of four from 4 MiB on, up to where nothing is gained any more.
pub(super) fn caches(stat: &Stat) -> Vec<u64> {
    let most = [
        &stat.block_reuse,
        &stat.redirected_reuse,
        &stat.content_reuse,
    ]
    .map(Distribution::max)
    .into_iter()
    .max()
    .unwrap_or(0);
    let mut caches: Vec<u64> = (5..20)
        .map(|n| 1_u64 << (2 * n))
        .take_while(|blocks| *blocks <= most)
        .collect();
    caches.push((most + 1).next_power_of_two());
    caches
}

fn document(stat: &Stat, volumes: &[Volume]) -> Value {
    let of = |distribution: &Distribution| {
        let steps: Vec<[u64; 2]> = distribution.steps().map(|(at, sum)| [at, sum]).collect();
        json!({"count": distribution.count(), "max": distribution.max(), "steps": steps})
    };
    let curves = caches(stat).into_iter().map(|blocks| {
        let [plain, redirected, contents] = stat.hit_ratios(blocks);
        json!({"blocks": blocks, "plain": plain, "drive": redirected, "ideal": contents})
    });
    json!({
        "schema": 1,
        "counts": stat.counts,
        "volumes": volumes,
        "sharing": of(&stat.sharing()),
        "occurrence": of(&stat.occurrence()),
        "block_reuse": of(&stat.block_reuse),
        "content_reuse": of(&stat.content_reuse),
        "drive_reuse": of(&stat.redirected_reuse),
        "run_length": of(&stat.run_length),
        "jump": of(&stat.jump),
        "lru_hit_ratio": curves.collect::<Vec<_>>(),
        "footprint": stat.footprint,
    })
}

/// Bytes of blocks, for people.
pub(crate) fn size(blocks: u64) -> String {
    let bytes = blocks.saturating_mul(BLOCK);
    for (unit, name) in [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")] {
        if bytes >= unit {
            let n = bytes as f64 / unit as f64;
            return if n < 10.0 && n.fract() > 0.0 {
                format!("{n:.1} {name}")
            } else {
                format!("{n:.0} {name}")
            };
        }
    }
    format!("{} KiB", bytes / 1024)
}

fn percent(part: u64, all: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / all.max(1) as f64)
}

fn text(stat: &Stat, volumes: &[Volume]) -> String {
    let counts = &stat.counts;
    let [reads, writes, trims, flushes] = counts.by_op;
    let mut text = format!(
        "requests   {}: {reads} reads, {writes} writes, {trims} trims, {flushes} flushes, in {:.3} s, on {}\n",
        counts.requests,
        counts.duration_ns as f64 / 1e9,
        crate::output::count(volumes.len() as u64, "volume", "volumes"),
    );
    let accesses: u64 = counts.accesses.iter().sum();
    text += &format!(
        "accesses   {accesses} of blocks: {} read, {} written; {} requests within blocks\n",
        counts.accesses[0], counts.accesses[1], counts.unaligned
    );
    text += &format!(
        "footprint  {} blocks ({}), {} contents ({})\n",
        counts.blocks,
        size(counts.blocks),
        counts.contents,
        size(counts.contents)
    );
    let sharing = stat.sharing();
    if sharing.count() > 0 {
        let all = sharing.count();
        let of = |from: u64, to: u64| percent(sharing.below(to) - sharing.below(from), all);
        text += &format!(
            "sharing    contents in 1 block {}, 2 {}, 3 {}, 4 and more {}; at most {}\n",
            of(1, 2),
            of(2, 3),
            of(3, 4),
            percent(all - sharing.below(4), all),
            sharing.max()
        );
    }
    let mut header = vec!["".to_owned()];
    header.extend(PARTS.map(|part| format!("{:.0} %", part * 100.0)));
    header.push("most".to_owned());
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut lines = table(&header, &[1, 2, 3, 4, 5, 6, 7]);
    let occurrence = stat.occurrence();
    for (name, of) in [
        ("block reuse distance", &stat.block_reuse),
        ("content reuse distance", &stat.content_reuse),
        ("content's accesses", &occurrence),
        ("run length", &stat.run_length),
        ("jump", &stat.jump),
    ] {
        if of.count() > 0 {
            let mut row = vec![name.to_owned()];
            row.extend(PARTS.map(|part| of.percentile(part).to_string()));
            row.push(of.max().to_string());
            lines.add_row(row);
        }
    }
    text += &format!(
        "\nUp to so many blocks, for a part of all:\n{}",
        finish(&lines)
    );
    let mut lines = table(&["cache", "plain", "DRIVE", "ideal"], &[0, 1, 2, 3]);
    for blocks in caches(stat) {
        let mut row = vec![size(blocks)];
        row.extend(
            stat.hit_ratios(blocks)
                .map(|ratio| format!("{:.1} %", ratio * 100.0)),
        );
        lines.add_row(row);
    }
    text + &format!(
        "\nHits of an LRU cache, reads and writes:\n{}",
        finish(&lines)
    )
}
