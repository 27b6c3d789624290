//! A week of day and night: mode adaptive, left alone.
//!
//! # What is promised
//! 1. *The guarantee is kept at every moment*: in each step, a media service gets its demand or
//!    its guarantee, whichever is less; and from its second day on its guarantee alone covers
//!    its demand in 99.9 % of all seconds.
//! 2. *Viewers see nothing*: it gets its whole demand, the rest borrowed.
//! 3. *What is free is lent*: the others get at least 90 % of what media services leave, in
//!    each hour.
//!
//! Nothing is measured here but the policy: the enforcement is a model
//! ([`simulate`]), whose real counterpart is measured by `groups`.

mod load;
mod plot;
mod simulate;

use self::simulate::{Enforcement, Week, simulate};
use super::Benchmark;
use crate::context::Context;
use crate::load::Moment;
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};

/// The benchmark "policy-week".
#[derive(Debug)]
pub(crate) struct PolicyWeek;

/// The same week each time, so that the figure is the same.
const SEED: u64 = 4;

const MOST_UNCOVERED: f64 = 0.001;
const LEAST_LENT: f64 = 0.9;

impl Benchmark for PolicyWeek {
    fn name(&self) -> &'static str {
        "policy-week"
    }

    fn about(&self) -> &'static str {
        "a simulated week of day and night, guarantees learned"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let weeks = context.effort.of(1, 3, 20);
        for seed in SEED..SEED + weeks {
            for enforcement in [Enforcement::Pool, Enforcement::Limits] {
                context.progress(&format!("week {seed}, {enforcement:?}"));
                let before = Moment::now();
                let week = simulate(seed, enforcement, 1);
                context.sample(before.until_now(), &week)?;
                let first = seed == SEED && enforcement == Enforcement::Pool;
                if let (true, Some(figure)) = (first, context.figure.clone()) {
                    plot::write(&figure, &week.bins)?;
                    context.progress(&format!("figure: {}", figure.display()));
                }
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()))
    }
}

/// A part of a whole in percent.
fn percent(part: f64, digits: usize) -> String {
    format!("{:.digits$} %", part * 100.0)
}

impl Week {
    fn uncovered_part(&self) -> f64 {
        self.uncovered as f64 / self.known_steps.max(1) as f64
    }

    fn short_part(&self) -> f64 {
        self.short as f64 / self.steps.max(1) as f64
    }
}

fn report(samples: &[Sample<Week>]) -> Section {
    let mut section = Section::default();
    section.text(
        "Each row is a simulated week of seconds, 100 Mbit/s. Parts are of seconds of media services, where nothing \
         else is said. Unused is the part of their guarantees that they did not want; all of it was lent.",
    );
    let head = [
        "enforced by",
        "below guarantee",
        "below demand",
        "demand above guarantee",
        "bytes missed",
        "lent, of what is free",
        "in the worst hour",
        "unused",
        "most guaranteed",
        "changes",
    ];
    let mut table = Table::new(&head);
    for Sample { data: week, .. } in samples {
        let enforced = match week.enforcement {
            Enforcement::Pool => "a pool",
            Enforcement::Limits => "plain limits",
        };
        table.row(vec![
            enforced.to_owned(),
            week.broken.to_string(),
            percent(week.short_part(), 3),
            percent(week.uncovered_part(), 3),
            percent(week.lost, 4),
            percent(week.lent, 1),
            percent(week.lent_worst_hour, 1),
            percent(week.slack, 1),
            format!("{:.1} Mbit/s", week.most_guaranteed),
            week.changes.to_string(),
        ]);
        if week.enforcement == Enforcement::Pool {
            promises(&mut section, week);
        }
    }
    section.table(table);
    section
}

fn promises(section: &mut Section, week: &Week) {
    section.promise(
        "a guarantee is kept at every moment".to_owned(),
        "0 seconds below it".to_owned(),
        week.broken.to_string(),
        Verdict::of(week.broken == 0, None),
    );
    let uncovered = week.uncovered_part();
    section.promise(
        "a learned guarantee covers the demand".to_owned(),
        percent(1.0 - MOST_UNCOVERED, 1),
        percent(1.0 - uncovered, 3),
        Verdict::of(uncovered <= MOST_UNCOVERED, None),
    );
    section.promise(
        "what is free is lent, in each hour".to_owned(),
        percent(LEAST_LENT, 0),
        percent(week.lent_worst_hour, 1),
        Verdict::of(week.lent_worst_hour >= LEAST_LENT, None),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unoptimised code takes steps of ten seconds; the benchmark takes seconds.
    const STEP_S: u64 = if cfg!(debug_assertions) { 10 } else { 1 };

    #[test]
    fn a_week_left_alone_keeps_the_media_guarantee_and_lends_the_rest() {
        let week = simulate(SEED, Enforcement::Pool, STEP_S);
        assert_eq!(week.broken, 0, "a guarantee was not kept");
        assert!(week.steps > 100_000 / STEP_S);
        assert!(
            week.uncovered_part() <= MOST_UNCOVERED,
            "{}",
            week.uncovered_part()
        );
        assert!(week.short_part() <= 1e-4, "{}", week.short_part());
        assert!(
            week.lent_worst_hour >= LEAST_LENT,
            "{}",
            week.lent_worst_hour
        );
        // All guarantees leave the reserve of 5 %.
        assert!(
            week.most_guaranteed <= 95.0 + 1e-6,
            "{}",
            week.most_guaranteed
        );
    }

    #[test]
    fn plain_limits_miss_little_and_lend_less() {
        let week = simulate(SEED, Enforcement::Limits, STEP_S);
        assert!(week.lost <= 0.001, "{}", week.lost);
        assert!(week.lent >= 0.7, "{}", week.lent);
    }

    #[test]
    fn the_figure_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("figures/a.svg");
        plot::write(&path, &[simulate::Bin::default(); 1_008]).expect("a plot");
        let text = std::fs::read_to_string(path).expect("read");
        assert!(
            text.starts_with("<svg") && text.contains("guaranteed"),
            "{text}"
        );
    }
}
