//! The largest number that is good, of something that cannot be told twice the same.
//!
//! Doubled until one is bad, halved between the two until they are as near as a fiftieth, and then tried again
//! until it was good so many times; whoever is bad once is bad.

/// A search; each step is one try.
#[derive(Clone, Debug)]
pub struct Search {
    most: u32,
    runs: u32,
    /// Those that were good, the largest at the end.
    goods: Vec<u32>,
    bad: Option<u32>,
    now: Option<u32>,
    /// How often the largest was good.
    passed: u32,
}

impl Search {
    /// From one number on, up to another; what is found is to be good so many times.
    #[must_use]
    pub fn new(first: u32, most: u32, runs: u32) -> Self {
        Self {
            most: most.max(1),
            runs: runs.max(1),
            goods: Vec::new(),
            bad: None,
            now: Some(first.clamp(1, most.max(1))),
            passed: 0,
        }
    }

    /// The next number to be tried; `None` at the end.
    #[must_use]
    pub const fn next(&self) -> Option<u32> {
        self.now
    }

    /// It was tried.
    pub fn told(&mut self, is_good: bool) {
        let Some(number) = self.now else {
            return;
        };
        if !is_good {
            self.bad = Some(number);
            if self.goods.pop_if(|good| *good == number).is_some() {
                // The one below it was good once.
                self.passed = 1;
            }
        } else if self.goods.last() == Some(&number) {
            self.passed += 1;
        } else {
            self.goods.push(number);
            self.passed = 1;
        }
        self.now = self.decide();
    }

    /// The largest number that was good, and how many times; and the smallest that was not.
    #[must_use]
    pub fn found(&self) -> (Option<(u32, u32)>, Option<u32>) {
        let good = self.goods.last().map(|good| (*good, self.passed));
        (good, self.bad)
    }

    fn decide(&self) -> Option<u32> {
        let good = self.goods.last().copied().unwrap_or(0);
        let (next, is_near) = match self.bad {
            None => (good.saturating_mul(2).min(self.most), good == self.most),
            Some(bad) => (good + (bad - good) / 2, bad - good <= (good / 50).max(1)),
        };
        match is_near {
            false => Some(next.max(1)),
            true if good == 0 || self.passed >= self.runs => None,
            true => Some(good),
        }
    }
}

/// What was good so many times in a row is good at least that often, 0 to 1, with 95 % confidence
/// (Clopper and Pearson, 1934).
#[must_use]
pub fn at_least(passed: u32) -> f64 {
    match passed {
        0 => 0.0,
        passed => 0.05_f64.powf(1.0 / f64::from(passed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Searches where all up to a number are good; what was tried.
    fn searched(first: u32, most: u32, limit: u32) -> (Search, Vec<u32>) {
        let mut search = Search::new(first, most, 5);
        let mut tried = Vec::new();
        while let Some(number) = search.next() {
            tried.push(number);
            assert!(tried.len() < 100, "{tried:?}");
            search.told(number <= limit);
        }
        (search, tried)
    }

    #[test]
    fn it_doubles_halves_and_tries_again() {
        let (search, tried) = searched(10, 1_000, 45);
        assert_eq!(tried, [10, 20, 40, 80, 60, 50, 45, 47, 46, 45, 45, 45, 45]);
        assert_eq!(search.found(), (Some((45, 5)), Some(46)));
        assert!((at_least(5) - 0.549).abs() < 0.001);
    }

    #[test]
    fn whoever_is_bad_once_is_bad() {
        let mut search = Search::new(4, 100, 3);
        let mut times = 0;
        while let Some(number) = search.next() {
            // 8 is good the first time only.
            times += u32::from(number == 8);
            search.told(number < 8 || number == 8 && times < 2);
        }
        assert_eq!(search.found(), (Some((7, 3)), Some(8)));
    }

    proptest! {
        #[test]
        fn what_is_found_is_the_limit_within_a_fiftieth(
            first in 1_u32..200, most in 1_u32..5_000, limit in 0_u32..6_000,
        ) {
            let (search, tried) = searched(first, most, limit);
            prop_assert!(tried.iter().all(|number| (1..=most).contains(number)));
            match search.found() {
                (None, bad) => prop_assert_eq!((limit, bad), (0, Some(1))),
                (Some((good, passed)), None) => prop_assert_eq!((good, passed), (most, 5)),
                (Some((good, passed)), Some(bad)) => {
                    prop_assert!(good <= limit && limit < bad && bad - good <= (good / 50).max(1));
                    prop_assert_eq!(passed, 5);
                }
            }
        }
    }
}
