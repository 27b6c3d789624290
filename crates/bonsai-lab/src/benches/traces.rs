//! What a line of a trace costs to take in, beside cutting the same text at its lines; and what a twin's request costs.

use std::hint::black_box;

use bonsai_stats::SplitMix64;
use bonsai_trace::import::{Options, import};
use bonsai_trace::twin::{Knobs, Original, fill, twin};
use bonsai_trace::{Digest, Interning, Reader};
use serde::{Deserialize, Serialize};

use super::Benchmark;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::thread_cpu_ns;
use crate::study::{estimate, median_or_zero, with_interval};

/// The benchmark "trace-import".
#[derive(Debug)]
pub(crate) struct TraceImport;

/// Lines of a sample, of FIU's format; a third has a content that came before, and all are of 64 MB together.
const LINES: u64 = 1_000_000;
/// Blocks that are filled.
const BLOCKS: u64 = 100_000;
/// A line costs at most that, ns: 3 million of them a second on a core.
const MOST_LINE_NS: f64 = 1e9 / 3e6;
/// A twin's request: 5 million a second.
const MOST_TWIN_NS: f64 = 1e9 / 5e6;
/// A block of content: 2 GB/s.
const MOST_BLOCK_NS: f64 = 4096.0 / 2.0;

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum What {
    Bare,
    Import,
    Accesses,
    Twin,
    Content,
}

const ALL: [(What, &str, Option<f64>); 5] = [
    (What::Bare, "cut at its lines", None),
    (What::Import, "taken in, a line", Some(MOST_LINE_NS)),
    (What::Accesses, "read again, an access", None),
    (What::Twin, "twin, a request", Some(MOST_TWIN_NS)),
    (
        What::Content,
        "content, a block of 4096 B",
        Some(MOST_BLOCK_NS),
    ),
];

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    what: What,
    /// CPU time of one, ns.
    ns: f64,
}

impl Benchmark for TraceImport {
    fn name(&self) -> &'static str {
        "trace-import"
    }

    fn about(&self) -> &'static str {
        "CPU time of a line of a trace that is taken in, and of a twin's request"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let rounds = context.effort.of(3, 10, 30);
        let text = text(context.random.next_u64(), LINES);
        let file = taken_in(&text)?;
        for _ in 0..rounds {
            for (what, words, _) in ALL {
                if !context.is_wanted(words) {
                    continue;
                }
                context.progress(words);
                let before = Moment::now();
                let ns = measure(what, &text, &file)?;
                context.sample(before.until_now(), &Measured { what, ns })?;
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

fn text(seed: u64, lines: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let (mut text, mut time, mut lba) = (String::new(), 777_599_999_908_936_u64, 0);
    for n in 0..lines {
        time += random.below(100_000);
        lba = if random.below(8) == 0 {
            random.below(1 << 25) * 8
        } else {
            lba + 8
        };
        let content = if n % 3 == 0 { random.below(n + 1) } else { n };
        let digest =
            u128::from(content + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let op = if n % 5 == 0 { 'W' } else { 'R' };
        text += &format!("{time} 4253 nfsd {lba} 8 {op} 6 0 {digest:032x}\n");
    }
    text.into_bytes()
}

fn taken_in(text: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut sink = Interning::new(Vec::new())?;
    import(text, &Options::default(), &mut sink)?;
    Ok(sink.finish()?.0)
}

fn measure(what: What, text: &[u8], file: &[u8]) -> anyhow::Result<f64> {
    let lines = text.iter().filter(|byte| **byte == b'\n').count() as f64;
    if what == What::Twin {
        let mut reader = Reader::new(file)?;
        let mut original = Original::default();
        reader.for_each(|request| original.add(request))?;
        let (volumes, number) = (reader.volumes().to_vec(), original.len() * 2);
        let before = thread_cpu_ns();
        twin(
            &original,
            &volumes,
            &Knobs::default(),
            number,
            std::io::sink(),
            None,
        )?;
        return Ok((thread_cpu_ns() - before) as f64 / number as f64);
    }
    let before = thread_cpu_ns();
    let count = match what {
        What::Bare => text.split(|byte| *byte == b'\n').map(black_box).count() as f64,
        What::Import | What::Twin => {
            black_box(taken_in(text)?);
            lines
        }
        What::Accesses => Reader::new(file)?.accesses().map(black_box).count() as f64,
        What::Content => {
            let mut block = [0; 4096];
            for n in 0..BLOCKS {
                fill(Digest(u128::from(n).to_le_bytes()), &mut block);
                black_box(&block);
            }
            BLOCKS as f64
        }
    };
    Ok((thread_cpu_ns() - before) as f64 / count)
}

fn report(samples: &[Sample<Measured>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(
        "ns of CPU time, the median with its interval. Lines are of FIU's format with a digest each; in memory, before and \
         after, with the table of contents and compression counted in.",
    );
    let values = |what: What| -> Vec<f64> {
        let of = samples.iter().filter(|sample| sample.data.what == what);
        of.map(|sample| sample.data.ns).collect()
    };
    let bare = median_or_zero(&values(What::Bare));
    let mut table = Table::new(&["", "ns", "million a second", "of cutting lines", "doubt"]);
    for (what, words, most) in ALL {
        let of = values(what);
        let Some(median) = estimate(&of, seed) else {
            continue;
        };
        let which = samples.iter().filter(|sample| sample.data.what == what);
        let doubt = doubt_of(which.map(|sample| &sample.conditions));
        let middle = median_or_zero(&of);
        table.row(vec![
            words.to_owned(),
            with_interval(&median, 1),
            format!("{:.1}", 1e3 / middle),
            format!("{:.1}", middle / bare),
            doubt.clone().unwrap_or_default(),
        ]);
        if let Some(most) = most {
            section.promise(
                words.to_owned(),
                format!("{most:.0} ns"),
                format!("{} ns", with_interval(&median, 1)),
                Verdict::at_most(&median, most, doubt.as_ref()),
            );
        }
    }
    section.table(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_all_of_it() {
        let text = text(1, 2_000);
        let file = taken_in(&text).expect("taken in");
        let samples: Vec<_> = ALL
            .iter()
            .map(|(what, _, _)| Sample {
                conditions: crate::load::Conditions::default(),
                data: Measured {
                    what: *what,
                    ns: measure(*what, &text, &file).expect("measured"),
                },
            })
            // An interval is of two at least.
            .flat_map(|sample| [sample.clone(), sample])
            .collect();
        let text = report(&samples, 1).terminal();
        assert!(text.contains("taken in, a line"), "{text}");
    }
}
