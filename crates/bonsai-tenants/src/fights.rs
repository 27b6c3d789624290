//! Conflicts: another program keeps reverting what is repaired. A repair is made at once; in a conflict, once a second.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Repairs of the same in a row that make a conflict.
const MOST: u32 = 10;

/// Longest time between two repairs in a row. Repairs on a slow disk or a busy machine are more than a second apart
/// however often another program reverts them, so that a count within a fixed time would never be reached there.
const GAP: Duration = Duration::from_secs(10);

/// Time between the first two repairs in a conflict. It doubles with each, up to [`LONGEST`].
const AGAIN: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is put right.
    Mend,
    /// It is put right, and said that it goes on.
    MendAndSay,
    /// It is left for so long.
    Wait(Duration),
}

/// Repairs in a row, by object: a conflict about one keeps no other from being repaired.
#[derive(Debug)]
pub(crate) struct Fights<K>(BTreeMap<K, Fight>);

impl<K> Default for Fights<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

#[derive(Debug)]
struct Fight {
    last: Instant,
    repairs: u32,
    /// Time until the next repair, in a conflict.
    wait: Duration,
}

impl Fight {
    fn is_said(&self) -> bool {
        self.repairs >= MOST
    }

    /// A conflict is over when the last repair has held for twice as long as was waited before it.
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= GAP.max(self.wait * 2)
    }
}

impl<K: Ord> Fights<K> {
    /// Decides on an object that another program has reverted.
    pub(crate) fn judge(&mut self, object: K, now: Instant) -> Verdict {
        self.0.retain(|_, fight| !fight.is_over(now));
        let fight = self.0.entry(object).or_insert(Fight {
            last: now,
            repairs: 0,
            wait: AGAIN,
        });
        let was_said = fight.is_said();
        let waited = now.saturating_duration_since(fight.last);
        if was_said && waited < fight.wait {
            return Verdict::Wait(fight.wait - waited);
        }
        if was_said {
            fight.wait = (fight.wait * 2).min(LONGEST);
        }
        fight.last = now;
        fight.repairs = fight.repairs.saturating_add(1);
        match fight.is_said() && !was_said {
            true => Verdict::MendAndSay,
            false => Verdict::Mend,
        }
    }

    /// True while a conflict goes on about an object.
    pub(crate) fn is_about(&self, object: &K, now: Instant) -> bool {
        let fight = self.0.get(object);
        fight.is_some_and(|fight| fight.is_said() && !fight.is_over(now))
    }

    /// True while a conflict goes on about one of some objects.
    pub(crate) fn is_on(&self, is_of_them: impl Fn(&K) -> bool, now: Instant) -> bool {
        let of_it =
            |(of, fight): (&K, &Fight)| is_of_them(of) && fight.is_said() && !fight.is_over(now);
        self.0.iter().any(of_it)
    }

    /// Forgets what was about some objects.
    pub(crate) fn forget(&mut self, is_of_them: impl Fn(&K) -> bool) {
        self.0.retain(|of, _| !is_of_them(of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fight_is_said_once_and_gone_on_with_less_and_less_often() {
        let mut fights = Fights::<(u64, u32)>::default();
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        for i in 0..9 {
            assert_eq!(fights.judge((1, 7), at(i * 50)), Verdict::Mend);
        }
        assert_eq!(fights.judge((2, 7), at(450)), Verdict::Mend, "elsewhere");
        assert_eq!(fights.judge((1, 8), at(450)), Verdict::Mend, "another one");
        assert!(!fights.is_on(|of| of.0 == 1, at(450)));
        assert_eq!(fights.judge((1, 7), at(500)), Verdict::MendAndSay);
        assert!(fights.is_on(|of| of.0 == 1, at(500)) && !fights.is_on(|of| of.0 == 2, at(500)));
        assert!(fights.is_about(&(1, 7), at(500)) && !fights.is_about(&(1, 8), at(500)));
        let mut repairs = Vec::new();
        for ms in (550..300_550).step_by(50) {
            match fights.judge((1, 7), at(ms)) {
                Verdict::Mend => repairs.push((ms - 500).div_ceil(1000)),
                Verdict::Wait(wait) => assert!(wait <= LONGEST),
                Verdict::MendAndSay => panic!("said again"),
            }
            // Others are put right all the time.
            if ms % 20_000 == 0 {
                assert_eq!(fights.judge((1, 8), at(ms)), Verdict::Mend);
            }
        }
        assert_eq!(repairs, [1, 3, 7, 15, 31, 63, 123, 183, 243]);
        // Once it is over, it is over.
        assert!(!fights.is_on(|of| of.0 == 1, at(400_000)));
        assert_eq!(fights.judge((1, 7), at(400_000)), Verdict::Mend);
        assert!(!fights.is_on(|of| of.0 == 1, at(400_000)));
    }

    #[test]
    fn a_fight_is_said_where_each_repair_takes_seconds() {
        let mut fights = Fights::<(u64, u32)>::default();
        let start = Instant::now();
        let at = |i: u64| start + Duration::from_millis(1500 * i);
        for i in 0..9 {
            assert_eq!(fights.judge((1, 7), at(i)), Verdict::Mend);
        }
        assert_eq!(fights.judge((1, 7), at(9)), Verdict::MendAndSay);
        // One change every quarter of a minute is none.
        for i in 0..20 {
            assert_eq!(fights.judge((2, 7), at(10 + 10 * i)), Verdict::Mend);
        }
    }
}
