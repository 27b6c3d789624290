//! What a record says: each phase in numbers, and each change of a limit.

use bonsai_stats::{median, percentile_nearest};

use crate::findings::{self, Finding};
use crate::observed::Observed;
use crate::record::{BIN_NS, Bulk, Record, mean_rate, rates};

/// Throughput is taken over windows of this length, ns.
pub(crate) const WINDOW_NS: u64 = 100_000_000;

/// A limit that was lowered must be kept over this time, ns: a lull is no limit.
const LULL_NS: u64 = 1_000_000_000;

/// A limit that was raised must be exceeded over this time, ns.
const RAISED_NS: u64 = 20_000_000;

/// What is left out at the beginning of each phase, ns: what the programs had
/// handed to the kernel before goes out first, and buffers fill up.
pub(crate) const SETTLE_NS: u64 = 3_000_000_000;

/// A record in numbers.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    /// The phases.
    pub(crate) phases: Vec<PhaseSummary>,
    /// The limits that came, changed or went while the bulk copier ran.
    pub(crate) changes: Vec<Change>,
    /// What is to be shown.
    pub(crate) findings: Vec<Finding>,
}

/// One phase without its first [`SETTLE_NS`].
#[derive(Clone, Debug)]
pub(crate) struct PhaseSummary {
    /// A word.
    pub(crate) key: String,
    /// A few words.
    pub(crate) title: String,
    /// What held for the bulk copier.
    pub(crate) bulk: Bulk,
    /// The film as received by all players, median over windows, bytes/s.
    pub(crate) video: f64,
    /// The time from frame to frame that 99 % do not exceed, ns.
    pub(crate) gap_p99_ns: Option<f64>,
    /// Which part of the time pictures stood still, 0 to 1.
    pub(crate) frozen: f64,
    /// How many times a picture stood still.
    pub(crate) freezes: usize,
    /// The bulk data as received, mean, bytes/s.
    pub(crate) bulk_mean: f64,
    /// The same as `bonsai status` measured it, bytes/s.
    pub(crate) bulk_got: Option<f64>,
}

/// A limit that was set while the bulk copier ran.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// The phase that it began.
    pub(crate) phase: usize,
    /// Before.
    pub(crate) from: Bulk,
    /// After.
    pub(crate) to: Bulk,
    /// Within which time after the command was given the receiver saw it, ns;
    /// `None` if it never did.
    pub(crate) seen_within_ns: Option<u64>,
    /// What came until then over the new limit, bytes: it was on its way already.
    pub(crate) underway: u64,
}

impl Summary {
    /// Of a record and what `bonsai` said meanwhile.
    pub(crate) fn of(record: &Record, observed: &Observed) -> Self {
        let phases: Vec<_> = (0..record.phases.len())
            .map(|i| phase(record, observed, i))
            .collect();
        let changes = (1..record.phases.len())
            .filter_map(|i| change(record, i))
            .collect();
        let findings = findings::of(record, &phases);
        Self {
            phases,
            changes,
            findings,
        }
    }

    /// Whether all is shown that is to be shown.
    pub(crate) fn holds(&self) -> bool {
        self.findings.iter().all(|finding| finding.holds)
    }

    /// The phase of that key.
    pub(crate) fn phase(&self, key: &str) -> Option<&PhaseSummary> {
        self.phases.iter().find(|phase| phase.key == key)
    }
}

impl PhaseSummary {
    /// How far what was received is from the limit, as a part of it.
    pub(crate) fn off(&self) -> Option<f64> {
        let limit = self.bulk.limit()? as f64;
        Some(self.bulk_mean / limit - 1.0)
    }
}

fn phase(record: &Record, observed: &Observed, i: usize) -> PhaseSummary {
    let this = &record.phases[i];
    let (start, end) = record.span(i);
    let from = (start + SETTLE_NS).min(end);
    let video: Vec<f64> = rates(&record.video, from, end, WINDOW_NS)
        .into_iter()
        .map(|(_, rate)| rate)
        .collect();
    let frames = record.players.iter().flat_map(|player| &player.frames);
    let gaps: Vec<f64> = frames
        .filter(|(at, _)| (from..end).contains(at))
        .map(|(_, gap)| *gap as f64)
        .collect();
    let freezes = record.players.iter().flat_map(|player| &player.freezes);
    let within: Vec<u64> = freezes
        .map(|freeze| overlap(*freeze, (from, end)))
        .filter(|ns| *ns > 0)
        .collect();
    let watched = (end - from) as f64 * record.players.len() as f64;
    let service = observed.service(i, "backup");
    PhaseSummary {
        key: this.key.clone(),
        title: this.title.clone(),
        bulk: this.bulk,
        video: median(&video).unwrap_or_default(),
        gap_p99_ns: percentile_nearest(&gaps, 99.0),
        frozen: if watched > 0.0 {
            within.iter().sum::<u64>() as f64 / watched
        } else {
            0.0
        },
        freezes: within.len(),
        bulk_mean: mean_rate(&record.bulk, from, end),
        bulk_got: service
            .and_then(|service| service.limits.first())
            .and_then(|limit| limit.got),
    }
}

fn overlap(a: (u64, u64), b: (u64, u64)) -> u64 {
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

fn change(record: &Record, i: usize) -> Option<Change> {
    let (from, to) = (record.phases[i - 1].bulk, record.phases[i].bulk);
    if from == Bulk::Absent || from == to {
        return None;
    }
    let (start, end) = record.span(i);
    let mean = |at: u64, length: u64| mean_rate(&record.bulk, at, (at + length).min(end));
    let lowered = to
        .limit()
        .filter(|limit| from.limit().is_none_or(|old| *limit < old));
    let seen = |at: u64| match (lowered, from.limit()) {
        // At once, and for longer.
        (Some(limit), _) => {
            let most = limit as f64 * 1.05;
            mean(at, 200_000_000) <= most && mean(at, LULL_NS) <= most
        }
        (None, Some(old)) => {
            mean(at.saturating_sub(RAISED_NS).max(start), RAISED_NS) >= old as f64 * 1.5
        }
        (None, None) => false,
    };
    // At the borders of bins, so that what is between two of them counts as late.
    let first = start.div_ceil(BIN_NS)
        + if lowered.is_none() {
            RAISED_NS / BIN_NS
        } else {
            0
        };
    let last = end.saturating_sub(if lowered.is_some() { LULL_NS } else { 0 }) / BIN_NS;
    let at = (first..=last).map(|bin| bin * BIN_NS).find(|at| seen(*at));
    let underway = at.zip(to.limit()).map_or(0.0, |(at, limit)| {
        (mean_rate(&record.bulk, start, at) - limit as f64).max(0.0) * (at - start) as f64 / 1e9
    });
    Some(Change {
        phase: i,
        from,
        to,
        seen_within_ns: at.map(|at| at - start),
        underway: whole(underway),
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of bytes, not negative; a cast from float saturates"
)]
fn whole(bytes: f64) -> u64 {
    bytes as u64
}

/// A part of 1 as percent: `0 %`, `0.4 %`, `34 %`.
pub(crate) fn percent(part: f64) -> String {
    let percent = part * 100.0;
    if percent == 0.0 || percent >= 10.0 {
        format!("{percent:.0} %")
    } else {
        format!("{percent:.1} %")
    }
}

/// A part of 1 as a difference in percent: `+1.5 %`, `0.0 %`.
pub(crate) fn difference(part: f64) -> String {
    match format!("{:+.1} %", part * 100.0).as_str() {
        "+0.0 %" | "-0.0 %" => "0.0 %".to_owned(),
        text => text.to_owned(),
    }
}

/// What holds for the bulk copier, in a word or as a rate.
pub(crate) fn limit_text(bulk: Bulk) -> String {
    match bulk {
        Bulk::Absent => "-".to_owned(),
        Bulk::Unlimited => "none".to_owned(),
        Bulk::Limit(rate) => bonsai_units::Rate::bytes_per_sec(rate).network(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::{Phase, PlayerRecord, SCHEMA};

    const MB: u64 = 1_000_000;
    const S: u64 = 1_000_000_000;

    /// Phases of 5 s each with these rates, bytes/s, of video and bulk data.
    pub(crate) fn record(phases: &[(&str, Bulk, u64, u64)]) -> Record {
        let bins_per_phase = 5 * S / BIN_NS;
        let (mut starts, mut video, mut bulk) = (Vec::new(), Vec::new(), Vec::new());
        for (i, (key, limit, video_rate, bulk_rate)) in (0_u64..).zip(phases) {
            starts.push(Phase {
                key: (*key).to_owned(),
                title: format!("the {key} one"),
                bulk: *limit,
                command: "bonsai <set> & co".to_owned(),
                start_ns: i * 5 * S,
            });
            for _ in 0..bins_per_phase {
                video.push(video_rate / 100);
                bulk.push(bulk_rate / 100);
            }
        }
        let end_ns = starts.len() as u64 * 5 * S;
        let player = PlayerRecord {
            freezes: vec![(7 * S + S / 2, 8 * S + S / 2)],
            frames: (0..end_ns / (40 * MB))
                .map(|i| (i * 40 * MB, 40 * MB))
                .collect(),
        };
        Record {
            schema: SCHEMA,
            unix_ms: 0,
            bin_ns: BIN_NS,
            film_rate: 3 * MB,
            phases: starts,
            end_ns,
            video,
            bulk,
            players: vec![player, PlayerRecord::default()],
        }
    }

    /// A demonstration that went well.
    pub(crate) fn good() -> Record {
        record(&[
            ("alone", Bulk::Absent, 6 * MB, 0),
            ("disturbed", Bulk::Unlimited, 3 * MB, 9 * MB),
            ("protected", Bulk::Limit(5 * MB), 6 * MB, 5 * MB),
            ("lifted", Bulk::Unlimited, 3 * MB, 9 * MB),
        ])
    }

    #[test]
    fn phases_in_numbers() {
        let summary = Summary::of(&good(), &Observed::default());
        let disturbed = &summary.phases[1];
        assert_eq!((disturbed.video, disturbed.bulk_mean), (3e6, 9e6));
        // From 8 s to 10 s, two players, one of them frozen for half a second.
        assert_eq!(disturbed.frozen, 0.5 / 4.0);
        assert_eq!(disturbed.freezes, 1);
        assert_eq!(disturbed.gap_p99_ns, Some(40e6));
        assert_eq!(summary.phases[2].off(), Some(0.0));
        assert_eq!(disturbed.off(), None);
        assert!(summary.holds(), "{:?}", summary.findings);
    }

    #[test]
    fn changes_are_seen_by_the_receiver() {
        let mut record = good();
        // 0.3 s of what was on its way, at 9 MB/s.
        for bin in 1_000..1_030 {
            record.bulk[bin] = 90_000;
        }
        let summary = Summary::of(&record, &Observed::default());
        let [down, up] = &summary.changes[..] else {
            panic!("{:?}", summary.changes)
        };
        assert_eq!((down.from, down.to), (Bulk::Unlimited, Bulk::Limit(5 * MB)));
        let after = down.seen_within_ns.expect("seen");
        assert!((270 * MB..=300 * MB).contains(&after), "{after}");
        assert!(
            (1_000_000..=1_200_000).contains(&down.underway),
            "{}",
            down.underway
        );
        assert_eq!((up.seen_within_ns, up.underway), (Some(RAISED_NS), 0));
        // One that is never kept.
        record.bulk[1_000..1_500].fill(90_000);
        assert_eq!(
            Summary::of(&record, &Observed::default()).changes[0].seen_within_ns,
            None
        );
    }

    #[test]
    fn percents_for_people() {
        for (part, text) in [
            (0.0, "0 %"),
            (0.004, "0.4 %"),
            (0.0951, "9.5 %"),
            (0.34, "34 %"),
        ] {
            assert_eq!(percent(part), text);
        }
    }
}
