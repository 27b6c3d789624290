//! By the level of the buffer and the speed of downloads, as the proxy of DAVVI.

use super::super::{Adapt, Choice, Fetched, Progress, Settings, View};
use super::{lighter, pace};

/// Below this part of the buffer it is low,
const LOW: f64 = 0.25;
/// and from this on it is high.
const HIGH: f64 = 0.75;

/// "The download proxy monitors segment buffer level and download speed to determine video quality" (paper
/// 000, section 2.2) is all that is written of it. The rest is of this project:
///
/// | buffer | faster than the quality needs | slower |
/// |---|---|---|
/// | less than a segment | the lowest quality | the lowest quality |
/// | low, below a quarter | the same quality | what the speed carries |
/// | between | a step up | a step down |
/// | high, from three quarters on | a step up | the same: the buffer carries it |
///
/// A download is given up when the rest of it would take longer than the buffer lasts.
#[derive(Debug)]
pub(in super::super) struct Davvi {
    low_ms: f64,
    high_ms: f64,
    safety: f64,
    last_quality: usize,
}

impl Davvi {
    pub(in super::super) fn new(settings: &Settings) -> Self {
        Self {
            low_ms: settings.buffer_ms * LOW,
            high_ms: settings.buffer_ms * HIGH,
            safety: settings.safety,
            last_quality: 0,
        }
    }
}

impl Adapt for Davvi {
    fn choose(&mut self, _segment: usize, view: &View<'_>) -> Choice {
        let carried = view.affordable(view.estimate.kbps * self.safety);
        let last = self.last_quality;
        Choice::now(if view.level_ms < view.ladder.segment_ms() {
            0
        } else if view.level_ms < self.low_ms {
            carried.min(last)
        } else if carried > last {
            last + 1
        } else if carried < last && view.level_ms < self.high_ms {
            last - 1
        } else {
            last
        })
    }

    fn fetched(&mut self, fetched: &Fetched, _view: &View<'_>) {
        self.last_quality = fetched.abandoned_to.unwrap_or(fetched.quality);
    }

    fn abandon(&mut self, progress: &Progress, view: &View<'_>) -> Option<usize> {
        let (kbps, left_bits) = pace(progress)?;
        if left_bits / kbps <= view.level_ms {
            return None;
        }
        lighter(progress, left_bits, kbps * self.safety, view)
    }

    fn sought(&mut self, _segment: usize) {
        self.last_quality = 0;
    }
}
