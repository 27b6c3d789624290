//! How a session adapts.

use serde::{Deserialize, Serialize};

use super::{Error, Ladder, Rule};

/// How a session adapts. As it is made, it has the numbers of Sabre.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Which rule.
    pub rule: Rule,
    /// What the buffer holds at most, milliseconds of media.
    pub buffer_ms: f64,
    /// What it holds before the first picture is shown, milliseconds; one segment at least.
    pub start_ms: f64,
    /// What it holds before play goes on after a stall, milliseconds; one segment at least.
    pub resume_ms: f64,
    /// Half-lives of the estimate, milliseconds.
    pub half_lives_ms: [f64; 2],
    /// The part of the estimated throughput that the rules throughput, dynamic and davvi reckon with.
    pub safety: f64,
    /// What a stall costs against what quality is worth: gamma p of BOLA.
    pub gamma_p: f64,
    /// Whether a segment is only fetched if it should be there before the buffer is empty, with a margin. It
    /// is part of the rules throughput, bolae and dynamic.
    pub insufficient_buffer: bool,
    /// Whether a download may be given up for one of a lower quality.
    pub abandon: bool,
    /// What is fetched then.
    pub after_abandon: AfterAbandon,
}

/// What is fetched after a download was given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterAbandon {
    /// The quality that it was given up for.
    #[default]
    Take,
    /// What the rule says when it is asked anew, which may be the same again: Sabre as published in 2018
    /// and 2019 does so (it sets one variable and reads another).
    Ask,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rule: Rule::default(),
            buffer_ms: 25_000.0,
            start_ms: 0.0,
            resume_ms: 0.0,
            half_lives_ms: [3_000.0, 8_000.0],
            safety: 0.9,
            gamma_p: 5.0,
            insufficient_buffer: true,
            abandon: true,
            after_abandon: AfterAbandon::default(),
        }
    }
}

impl Settings {
    /// Whether one can adapt so.
    ///
    /// # Errors
    /// Says which setting cannot be with such a ladder, and what it has to be.
    pub fn check(&self, ladder: &Ladder) -> Result<(), Error> {
        let within = |name, value: f64, least: f64, most: f64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(Error::Setting {
                    name,
                    value,
                    least,
                    most,
                })
            }
        };
        let longest = ladder.longest_ms();
        within("buffer_ms", self.buffer_ms, 2.0 * longest, 1e12)?;
        within("start_ms", self.start_ms, 0.0, self.buffer_ms - longest)?;
        within("resume_ms", self.resume_ms, 0.0, self.buffer_ms - longest)?;
        for half_life in self.half_lives_ms {
            within("half_lives_ms", half_life, 1.0, 1e9)?;
        }
        within("safety", self.safety, 0.01, 1.0)?;
        // The utility of the lowest quality is 0: below 1, nothing would be paid for it.
        within("gamma_p", self.gamma_p, 1.0, 1e6)
    }
}
