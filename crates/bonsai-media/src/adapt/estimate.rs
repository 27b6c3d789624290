//! How fast the network is, from what came.

use serde::{Deserialize, Serialize};

/// What a download takes at least: what comes from memory at once says nothing of a network.
const LEAST_MS: f64 = 0.001;

/// What is known of the network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Bits a millisecond from the first byte on, which is kbit/s.
    pub kbps: f64,
    /// From asking to the first byte, milliseconds.
    pub latency_ms: f64,
}

/// Moving averages with exponential weights (EWMA), one that is quick and one that is slow: of throughput by
/// the time that a download took, of latency by segments. The worse of the two counts.
#[derive(Clone, Debug)]
pub struct Estimator {
    averages: [Average; 2],
    passed_ms: f64,
    samples: f64,
    now: Option<Estimate>,
}

#[derive(Clone, Copy, Debug)]
struct Average {
    half_life_ms: f64,
    half_life_segments: f64,
    kbps: f64,
    latency_ms: f64,
}

impl Estimator {
    /// One with these half-lives, of segments that last so long.
    #[must_use]
    pub fn new(half_lives_ms: [f64; 2], segment_ms: f64) -> Self {
        Self {
            averages: half_lives_ms.map(|half_life_ms| Average {
                half_life_ms,
                half_life_segments: half_life_ms / segment_ms,
                kbps: 0.0,
                latency_ms: 0.0,
            }),
            passed_ms: 0.0,
            samples: 0.0,
            now: None,
        }
    }

    /// What is known now.
    #[must_use]
    pub const fn now(&self) -> Option<Estimate> {
        self.now
    }

    /// What one download says by itself.
    #[must_use]
    pub fn sample(bits: f64, time_ms: f64, first_byte_ms: f64) -> Estimate {
        Estimate {
            kbps: bits / transfer_ms(time_ms, first_byte_ms),
            latency_ms: first_byte_ms,
        }
    }

    /// So many bits came, so long after they were asked for, the first of them so long after.
    pub fn push(&mut self, bits: f64, time_ms: f64, first_byte_ms: f64) {
        let took_ms = transfer_ms(time_ms, first_byte_ms);
        let sample = Self::sample(bits, time_ms, first_byte_ms);
        self.passed_ms += took_ms;
        self.samples += 1.0;
        let mut worst: Option<Estimate> = None;
        for average in &mut self.averages {
            average.push(took_ms, sample);
            let now = average.now(self.passed_ms, self.samples);
            worst = Some(worst.map_or(now, |worst| Estimate {
                kbps: worst.kbps.min(now.kbps),
                latency_ms: worst.latency_ms.max(now.latency_ms),
            }));
        }
        self.now = worst;
    }
}

impl Average {
    fn push(&mut self, took_ms: f64, sample: Estimate) {
        let kept = kept(took_ms / self.half_life_ms);
        self.kbps = kept * self.kbps + (1.0 - kept) * sample.kbps;
        let kept = self::kept(1.0 / self.half_life_segments);
        self.latency_ms = kept * self.latency_ms + (1.0 - kept) * sample.latency_ms;
    }

    /// Both averages began at 0, which is taken out again.
    fn now(&self, passed_ms: f64, samples: f64) -> Estimate {
        Estimate {
            kbps: self.kbps / (1.0 - kept(passed_ms / self.half_life_ms)),
            latency_ms: self.latency_ms / (1.0 - kept(samples / self.half_life_segments)),
        }
    }
}

/// What is left after so many half-lives.
fn kept(half_lives: f64) -> f64 {
    0.5_f64.powf(half_lives)
}

fn transfer_ms(time_ms: f64, first_byte_ms: f64) -> f64 {
    (time_ms - first_byte_ms).max(LEAST_MS)
}

/// How right estimates were: each against what the next download then had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// How often less came,
    pub over: u64,
    /// and how much less in the mean, kbit/s.
    pub over_kbps: f64,
    /// How often as much came or more,
    pub under: u64,
    /// and how much more in the mean, kbit/s.
    pub under_kbps: f64,
    /// Estimate without what came, in the mean of all, kbit/s.
    pub mean_kbps: f64,
}

impl Accuracy {
    pub(super) fn push(&mut self, estimated_kbps: f64, came_kbps: f64) {
        if estimated_kbps > came_kbps {
            self.over += 1;
            self.over_kbps += (estimated_kbps - came_kbps - self.over_kbps) / self.over as f64;
        } else {
            self.under += 1;
            self.under_kbps += (came_kbps - estimated_kbps - self.under_kbps) / self.under as f64;
        }
        let all = (self.over + self.under) as f64;
        self.mean_kbps += (estimated_kbps - came_kbps - self.mean_kbps) / all;
    }
}
