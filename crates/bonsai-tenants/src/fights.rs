//! Conflicts: another program keeps reverting what is repaired. A repair is made at once; in a conflict, once a second.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Repairs of the same in a row that make a conflict.
const MOST: u32 = 10;

/// Longest time between two repairs in a row. Repairs on a slow disk or a busy machine are more than a second apart
/// however often another program reverts them, so that a count within a fixed time would never be reached there.
const GAP: Duration = Duration::from_secs(10);

/// Time between two repairs in a conflict.
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

/// Repairs in a row, by namespace and what was not as it should be.
#[derive(Debug, Default)]
pub(crate) struct Fights(BTreeMap<(u64, String), Fight>);

#[derive(Debug)]
struct Fight {
    last: Instant,
    repairs: u32,
}

impl Fight {
    fn is_said(&self) -> bool {
        self.repairs >= MOST
    }
}

impl Fights {
    /// Decides on `what`, which another program has reverted.
    pub(crate) fn judge(&mut self, namespace: u64, what: &str, now: Instant) -> Verdict {
        self.0
            .retain(|_, fight| now.saturating_duration_since(fight.last) < GAP);
        let key = (namespace, what.to_owned());
        let fight = self.0.entry(key).or_insert(Fight {
            last: now,
            repairs: 0,
        });
        let was_said = fight.is_said();
        if was_said && now.saturating_duration_since(fight.last) < AGAIN {
            return Verdict::Wait;
        }
        fight.last = now;
        fight.repairs = fight.repairs.saturating_add(1);
        match fight.is_said() && !was_said {
            true => Verdict::MendAndSay,
            false => Verdict::Mend,
        }
    }

    /// True while a conflict goes on in a namespace.
    pub(crate) fn is_on(&self, namespace: u64) -> bool {
        let of_it =
            |((of, _), fight): (&(u64, String), &Fight)| *of == namespace && fight.is_said();
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

    #[test]
    fn a_fight_is_said_where_each_repair_takes_seconds() {
        let mut fights = Fights::default();
        let start = Instant::now();
        let at = |i: u64| start + Duration::from_millis(1500 * i);
        for i in 0..9 {
            assert_eq!(fights.judge(1, "x", at(i)), Verdict::Mend);
        }
        assert_eq!(fights.judge(1, "x", at(9)), Verdict::MendAndSay);
        // One change every quarter of a minute is none.
        for i in 0..20 {
            assert_eq!(fights.judge(2, "x", at(10 + 10 * i)), Verdict::Mend);
        }
    }
}
