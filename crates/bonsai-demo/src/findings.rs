//! Whether the demonstration has shown what it is to show: each claim is computed,
//! and says so itself when it does not hold.

use crate::record::Record;
use crate::summary::{PhaseSummary, difference, limit_text, percent};
use crate::terminal::mbit;

/// How far a rate may be from its limit and still keep to it. Pieces of calls in
/// flight and what waits in a queue of the kernel are in it.
const TOLERANCE: f64 = 0.05;

/// Something that is to be shown.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// Whether it was.
    pub(crate) holds: bool,
    /// It, with its numbers.
    pub(crate) text: String,
}

/// What is to be shown by these phases of a record.
pub(crate) fn of(record: &Record, phases: &[PhaseSummary]) -> Vec<Finding> {
    let need = record.film_rate as f64 * record.players.len() as f64;
    let serves = |phase: &PhaseSummary| phase.video >= 0.98 * need && phase.frozen < 0.01;
    let disturbs = |phase: &PhaseSummary| phase.video < 0.9 * need && phase.frozen > 0.02;
    let find = |key: &str| phases.iter().find(|phase| phase.key == key);
    let mut findings = Vec::new();
    if let Some(alone) = find("alone") {
        findings.push(Finding {
            holds: serves(alone),
            text: format!(
                "Alone, the video gets the {} Mbit/s that it needs: {}.",
                mbit(need),
                told(alone)
            ),
        });
    }
    if let Some(disturbed) = find("disturbed") {
        findings.push(Finding {
            holds: disturbs(disturbed),
            text: format!("Beside the backup it does not: {}.", told(disturbed)),
        });
    }
    if let Some(protected) = find("protected") {
        findings.push(Finding {
            holds: serves(protected),
            text: format!(
                "With a limit of {} on the backup it does again: {}.",
                limit_text(protected.bulk),
                told(protected)
            ),
        });
    }
    if let (Some(lifted), Some(restored)) = (find("lifted"), find("restored")) {
        findings.push(Finding {
            holds: disturbs(lifted) && serves(restored),
            text: format!(
                "With the limit lifted it is disturbed again: {}; and with the limit back, no more: {}.",
                told(lifted),
                told(restored)
            ),
        });
    }
    let limited: Vec<_> = phases
        .iter()
        .filter_map(|phase| Some((phase, phase.off()?)))
        .collect();
    if !limited.is_empty() {
        let one = |(phase, off): &(&PhaseSummary, f64)| {
            format!(
                "{} of {} ({})",
                mbit(phase.bulk_mean),
                limit_text(phase.bulk),
                difference(*off)
            )
        };
        let list: Vec<String> = limited.iter().map(one).collect();
        findings.push(Finding {
            holds: limited.iter().all(|(_, off)| off.abs() <= TOLERANCE),
            text: format!("The backup gets what its limit says: {}.", list.join(", ")),
        });
    }
    findings
}

fn told(phase: &PhaseSummary) -> String {
    let frozen = match phase.freezes {
        0 => "no picture froze".to_owned(),
        _ => format!("pictures stood still {} of the time", percent(phase.frozen)),
    };
    format!("{} Mbit/s, {frozen}", mbit(phase.video))
}

#[cfg(test)]
mod tests {
    use crate::observed::Observed;
    use crate::record::Bulk;
    use crate::summary::Summary;
    use crate::summary::tests::{good, record};

    const MB: u64 = 1_000_000;

    #[test]
    fn what_was_not_shown_is_said() {
        let (absent, unlimited, limit) = (Bulk::Absent, Bulk::Unlimited, Bulk::Limit(5 * MB));
        let cases = [
            ("alone too slow", 0, ("alone", absent, 5 * MB, 0)),
            ("not disturbed", 1, ("disturbed", unlimited, 6 * MB, 9 * MB)),
            ("not protected", 2, ("protected", limit, 5 * MB, 5 * MB)),
            ("limit not kept", 3, ("protected", limit, 6 * MB, 6 * MB)),
        ];
        for (what, finding, changed) in cases {
            let good = good();
            let phases: Vec<_> = good
                .phases
                .iter()
                .map(|phase| match phase.key.as_str() {
                    key if key == changed.0 => changed,
                    "alone" => ("alone", absent, 6 * MB, 0),
                    "disturbed" => ("disturbed", unlimited, 3 * MB, 9 * MB),
                    "protected" => ("protected", limit, 6 * MB, 5 * MB),
                    _ => ("lifted", unlimited, 3 * MB, 9 * MB),
                })
                .collect();
            let summary = Summary::of(&record(&phases), &Observed::default());
            let holds: Vec<bool> = summary
                .findings
                .iter()
                .map(|finding| finding.holds)
                .collect();
            let expected: Vec<bool> = (0..4).map(|i| i != finding).collect();
            assert_eq!(holds, expected, "{what}");
            assert!(!summary.holds());
        }
    }
}
