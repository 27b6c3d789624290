//! Whether what somebody else undoes is done again: at once, or, where it goes on, once a second.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// So many repairs of the same
const MOST: usize = 10;

/// in this time are a fight,
const TIME: Duration = Duration::from_secs(10);

/// which is gone on with no faster than this.
const AGAIN: Duration = Duration::from_secs(1);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is put right.
    Mend,
    /// It is put right, and said that it goes on.
    MendAndSay,
    /// It is left for now.
    Wait,
}

/// Repairs of late, by namespace and what was not as it should be.
#[derive(Debug, Default)]
pub(crate) struct Fights(BTreeMap<(u64, String), Fight>);

#[derive(Debug, Default)]
struct Fight {
    /// When, the oldest first.
    repairs: VecDeque<Instant>,
    said: bool,
}

impl Fights {
    /// Somebody has undone that.
    pub(crate) fn judge(&mut self, namespace: u64, what: &str, now: Instant) -> Verdict {
        let lately = |then: &Instant| now.saturating_duration_since(*then) < TIME;
        self.0
            .retain(|_, fight| fight.repairs.back().is_some_and(lately));
        let fight = self.0.entry((namespace, what.to_owned())).or_default();
        let last = fight.repairs.back();
        if fight.said && last.is_some_and(|then| now.saturating_duration_since(*then) < AGAIN) {
            return Verdict::Wait;
        }
        fight.repairs.retain(lately);
        fight.repairs.push_back(now);
        if fight.said || fight.repairs.len() < MOST {
            return Verdict::Mend;
        }
        fight.said = true;
        Verdict::MendAndSay
    }

    /// Whether a fight goes on in a namespace.
    pub(crate) fn is_on(&self, namespace: u64) -> bool {
        let of_it = |((of, _), fight): (&(u64, String), &Fight)| *of == namespace && fight.said;
        self.0.iter().any(of_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fight_is_said_once_and_gone_on_with_once_a_second() {
        let mut fights = Fights::default();
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        for i in 0..9 {
            assert_eq!(fights.judge(1, "x", at(i * 50)), Verdict::Mend);
        }
        assert_eq!(fights.judge(2, "x", at(450)), Verdict::Mend, "elsewhere");
        assert!(!fights.is_on(1));
        assert_eq!(fights.judge(1, "x", at(500)), Verdict::MendAndSay);
        assert!(fights.is_on(1) && !fights.is_on(2));
        let mut repairs = 0;
        for ms in (550..60_550).step_by(50) {
            match fights.judge(1, "x", at(ms)) {
                Verdict::Mend => repairs += 1,
                Verdict::Wait => {}
                Verdict::MendAndSay => panic!("said again"),
            }
        }
        assert_eq!(repairs, 60);
        // Once it is over, it is over.
        assert_eq!(fights.judge(1, "x", at(80_000)), Verdict::Mend);
        assert!(!fights.is_on(1));
    }
}
