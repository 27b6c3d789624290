//! What the record says of gaps.

use bonsai_units::Burst;

use super::viewer::Transport;
use super::{LOADS, Load, Measured, VARIANTS, Variant, model};
use crate::load::doubt_of;
use crate::record::Sample;
use crate::report::{Section, Table, Verdict};
use crate::study::{median_or_zero, percent};

/// Less than this, ms.
const MOST_MS: f64 = 100.0;
/// From one frame to the next.
const FRAME_MS: f64 = 40.0;

pub(super) const fn name(variant: Variant) -> &'static str {
    match variant {
        Variant::Bare => "bare",
        Variant::Loose => "limit 1.20 x",
        Variant::Tight => "limit 1.05 x",
        Variant::Second => "limit 1.20 x, burst 1 s",
        Variant::Overload => "limit 0.80 x",
    }
}

fn viewers(load: Load) -> String {
    let transport = match load.transport {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
    };
    format!("{} on {transport}", load.viewers)
}

/// The turns of a variant on a transport.
#[derive(Debug)]
struct Turns<'a> {
    variant: Variant,
    all: Vec<&'a Sample<Measured>>,
    /// Of the same rounds.
    bare: Vec<&'a Sample<Measured>>,
}

impl<'a> Turns<'a> {
    fn of(samples: &'a [Sample<Measured>], variant: Variant, load: Load) -> Self {
        let of = |wanted: Variant| -> Vec<&'a Sample<Measured>> {
            let is = |s: &&Sample<Measured>| s.data.variant == wanted && s.data.load == load;
            samples.iter().filter(is).collect()
        };
        Self {
            variant,
            all: of(variant),
            bare: of(Variant::Bare),
        }
    }

    fn longest(&self) -> f64 {
        longest(&self.all)
    }

    fn percentile(&self) -> f64 {
        let gaps: Vec<f64> = self.all.iter().flat_map(|s| s.data.gaps()).collect();
        bonsai_stats::percentile_nearest(&gaps, 99.0).unwrap_or(0.0)
    }

    fn median_of(&self, value: impl Fn(&Measured) -> f64) -> f64 {
        let values: Vec<f64> = self.all.iter().map(|s| value(&s.data)).collect();
        median_or_zero(&values)
    }

    fn limit(&self) -> f64 {
        self.all.first().map_or(0.0, |s| s.data.limit as f64)
    }

    /// The longest gap that a model makes of the bare turns under this limit, ms.
    fn model(&self, longest: impl Fn(&Measured) -> f64) -> f64 {
        let all = self.bare.iter().map(|s| longest(&s.data));
        all.fold(0.0, f64::max)
    }

    fn ideal(&self) -> f64 {
        let burst_us = self.variant.burst_us().unwrap_or_else(default_burst_us) as f64;
        self.model(|m| model::ideal(&m.viewers, self.limit(), burst_us))
    }

    fn each_second(&self) -> f64 {
        self.model(|m| model::each_second(&m.viewers, self.limit()))
    }

    fn waits(&self) -> u64 {
        self.all.iter().map(|s| s.data.waits.count).sum()
    }

    /// Why the longest gap need not be the limiter's. What others used of the machine
    /// is a reason only as far as it was felt: by the control thread, or by the bare
    /// server, in the same rounds.
    fn doubt(&self) -> Option<String> {
        let ideal = self.ideal();
        if ideal >= MOST_MS {
            return Some(format!("{ideal:.0} ms under an ideal bucket, too"));
        }
        let late = self.all.iter().flat_map(|s| &s.conditions.gaps);
        let late = late.map(|(_, ns)| *ns as f64 / 1e6).fold(0.0, f64::max);
        let bare = longest(&self.bare);
        let disturbed = late.max(bare - FRAME_MS);
        (self.longest() - disturbed < MOST_MS).then(|| {
            format!("the control thread was {late:.0} ms late, the bare server's longest gap {bare:.0} ms")
        })
    }
}

fn longest(turns: &[&Sample<Measured>]) -> f64 {
    let gaps = turns.iter().flat_map(|s| s.data.gaps());
    gaps.fold(0.0, f64::max)
}

pub(super) fn report(samples: &[Sample<Measured>]) -> Section {
    let mut section = Section::default();
    section.text(
        "GStreamer's RTSP server; so many viewers of a film of 25 frames a second, a key frame each second. \
         Limits are multiples of what the bare server sends. Gaps: times between two packets of a viewer, \
         without a limit 40 ms from frame to frame. *Ideal* and *each second* are computed from the packets of \
         the bare server: the longest gap under a bucket of the same rate and burst that decides on each packet \
         and is never late, and under one that is filled with a second's worth once a second. *Behind*: how much \
         later than at its best moment the worst viewer's last packet came.",
    );
    let mut table = Table::new(&[
        "viewers",
        "variant",
        "sent, MB/s",
        "of the limit",
        "longest gap, ms",
        "p99",
        "ideal",
        "each second",
        "waits",
        "longest wait, ms",
        "behind, ms",
        "lost",
        "doubt",
    ]);
    for load in LOADS {
        for variant in VARIANTS {
            let turns = Turns::of(samples, variant, load);
            if turns.all.is_empty() {
                continue;
            }
            table.row(row(&turns, load));
            if variant == Variant::Loose {
                promise(&mut section, &turns, load);
            }
        }
    }
    section.table(table);
    section
}

fn row(turns: &Turns, load: Load) -> Vec<String> {
    let rate = turns.median_of(|m| m.rate() as f64);
    let limit = turns.limit();
    let limited = turns.variant != Variant::Bare;
    let only_limited = |text: String| if limited { text } else { String::new() };
    let waited = turns.all.iter().map(|s| s.data.waits.longest_ns).max();
    let behind = turns.all.iter().flat_map(|s| &s.data.viewers);
    let behind = behind.map(|v| v.lag_us).max().unwrap_or(0);
    let lost: u64 = turns
        .all
        .iter()
        .flat_map(|s| &s.data.viewers)
        .map(|v| v.lost)
        .sum();
    vec![
        viewers(load),
        name(turns.variant).to_owned(),
        format!("{:.3}", rate / 1e6),
        only_limited(percent(rate / limit.max(1.0) - 1.0, 1)),
        format!("{:.1}", turns.longest()),
        format!("{:.1}", turns.percentile()),
        only_limited(format!("{:.1}", turns.ideal())),
        only_limited(format!("{:.1}", turns.each_second())),
        only_limited(turns.waits().to_string()),
        only_limited(format!("{:.1}", waited.unwrap_or(0) as f64 / 1e6)),
        format!("{:.1}", behind as f64 / 1e3),
        lost.to_string(),
        doubt_of(turns.all.iter().map(|s| &s.conditions)).unwrap_or_default(),
    ]
}

fn promise(section: &mut Section, turns: &Turns, load: Load) {
    let longest = turns.longest();
    let unshaped: u64 = turns.all.iter().map(|s| s.data.unshaped).sum();
    let verdict = if turns.waits() == 0 || unshaped > 0 {
        Verdict::Doubtful(format!(
            "{} calls waited and {unshaped} were let through without a decision",
            turns.waits()
        ))
    } else {
        Verdict::of(longest < MOST_MS, turns.doubt().as_ref())
    };
    section.promise(
        format!("gaps of RTSP, {}, {}", viewers(load), name(turns.variant)),
        "< 100 ms",
        format!("{longest:.1} ms, bare {:.1} ms", self::longest(&turns.bare)),
        verdict,
    );
}

fn default_burst_us() -> u64 {
    match Burst::default() {
        Burst::Time(time) => u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::rtsp::viewer::Arrivals;
    use crate::load::Conditions;
    use crate::service::Waits;

    const LOAD: Load = LOADS[1];

    /// A second of frames with a hole of so many ms.
    fn turn(variant: Variant, hole_ms: u64, late_ms: u64) -> Sample<Measured> {
        let mut us = vec![40_000; 24];
        us[9] = hole_ms * 1_000;
        let viewer = Arrivals {
            bytes: vec![10_000; us.len()],
            us,
            ..Arrivals::default()
        };
        let limited = variant != Variant::Bare;
        Sample {
            conditions: Conditions {
                others: 1.5,
                wall_ms: 1_000,
                gaps: vec![(0, late_ms * 1_000_000)],
                ..Conditions::default()
            },
            data: Measured {
                round: 0,
                variant,
                load: LOAD,
                limit: if limited { 300_000 } else { 0 },
                length_ms: 1_000 + hole_ms,
                waits: Waits {
                    count: u64::from(limited),
                    ..Waits::default()
                },
                unshaped: 0,
                viewers: vec![viewer],
            },
        }
    }

    fn verdict(samples: &[Sample<Measured>]) -> Verdict {
        let section = report(samples);
        let [promise] = section.promises() else {
            panic!("{:?}", section.promises());
        };
        promise.verdict.clone()
    }

    #[test]
    fn a_hole_breaks_the_promise_unless_something_else_explains_it() {
        let judged = |bare_ms, limited_ms, late_ms| {
            verdict(&[
                turn(Variant::Bare, bare_ms, 1),
                turn(Variant::Loose, limited_ms, late_ms),
            ])
        };
        assert_eq!(judged(40, 90, 3), Verdict::Kept);
        assert_eq!(judged(40, 150, 3), Verdict::Broken, "whatever others used");
        assert!(matches!(judged(40, 150, 60), Verdict::Doubtful(_)));
        assert!(matches!(judged(120, 150, 3), Verdict::Doubtful(_)));
    }

    #[test]
    fn a_limit_that_held_nobody_back_proves_nothing() {
        let mut loose = turn(Variant::Loose, 40, 1);
        loose.data.waits.count = 0;
        let found = verdict(&[turn(Variant::Bare, 40, 1), loose]);
        assert!(matches!(found, Verdict::Doubtful(_)), "{found:?}");
    }

    #[test]
    fn silence_is_a_gap_at_both_ends() {
        let mut silent = turn(Variant::Loose, 40, 1);
        silent.data.viewers.push(Arrivals::default());
        let samples = [turn(Variant::Bare, 40, 1), silent];
        assert_eq!(verdict(&samples), Verdict::Broken);
        let text = report(&samples).markdown();
        assert!(
            text.contains("| 10 on UDP | limit 1.20 x | 0.231 | -23.1 % | 1040.0 |"),
            "{text}"
        );
    }

    #[test]
    fn an_ideal_bucket_may_be_no_better() {
        let mut bare = turn(Variant::Bare, 40, 1);
        bare.data.viewers[0].bytes[4] = 100_000;
        bare.data.viewers.push(bare.data.viewers[0].clone());
        let found = verdict(&[bare, turn(Variant::Loose, 300, 1)]);
        let Verdict::Doubtful(why) = found else {
            panic!("{found:?}");
        };
        assert!(why.contains("ideal"), "{why}");
    }
}
