//! The qualities of a film, and its segments.

use super::Error;

/// A segment lasts a day at most.
const LONGEST_MS: f64 = 86_400_000.0;
/// Bitrates are up to 1 Tbit/s: far from where numbers get rough.
const BITRATES_KBPS: std::ops::RangeInclusive<f64> = 0.001..=1e9;

/// The qualities that a film is there in, from the lowest bitrate to the highest, and how its segments last.
#[derive(Clone, Debug, PartialEq)]
pub struct Ladder {
    segment_ms: f64,
    bitrates_kbps: Vec<f64>,
    segments: Option<usize>,
    durations_ms: Vec<f64>,
}

impl Ladder {
    /// That of a film whose segments last so long, in these bitrates. How many there are may be unknown.
    ///
    /// # Errors
    /// If bitrates do not ascend, or a number cannot be.
    pub fn new(
        segment_ms: f64,
        bitrates_kbps: Vec<f64>,
        segments: Option<usize>,
    ) -> Result<Self, Error> {
        if !lasts(segment_ms) {
            return Err(Error::SegmentDuration(segment_ms));
        }
        if bitrates_kbps.is_empty() {
            return Err(Error::NoQualities);
        }
        for (quality, &kbps) in bitrates_kbps.iter().enumerate() {
            if !BITRATES_KBPS.contains(&kbps) {
                return Err(Error::Bitrate { quality, kbps });
            }
        }
        for (at, pair) in bitrates_kbps.windows(2).enumerate() {
            if pair[1] <= pair[0] {
                return Err(Error::Order {
                    quality: at + 1,
                    kbps: pair[1],
                    before: pair[0],
                });
            }
        }
        if segments == Some(0) {
            return Err(Error::NoSegments);
        }
        Ok(Self {
            segment_ms,
            bitrates_kbps,
            segments,
            durations_ms: Vec::new(),
        })
    }

    /// The same, where each segment lasts as long as it does (the `EXTINF` of a playlist, the timeline of a
    /// manifest). Rules still reckon with what a segment is to last.
    ///
    /// # Errors
    /// If there are none, or one does not last.
    pub fn with_durations(mut self, durations_ms: Vec<f64>) -> Result<Self, Error> {
        if durations_ms.is_empty() {
            return Err(Error::NoSegments);
        }
        for (segment, &ms) in durations_ms.iter().enumerate() {
            if !lasts(ms) {
                return Err(Error::Duration { segment, ms });
            }
        }
        self.segments = Some(durations_ms.len());
        self.durations_ms = durations_ms;
        Ok(self)
    }

    /// What a segment is to last, milliseconds.
    #[must_use]
    pub const fn segment_ms(&self) -> f64 {
        self.segment_ms
    }

    /// What this segment lasts, milliseconds.
    #[must_use]
    pub fn duration_ms(&self, segment: usize) -> f64 {
        let own = self.durations_ms.get(segment);
        own.copied().unwrap_or(self.segment_ms)
    }

    /// What the longest segment lasts, milliseconds.
    #[must_use]
    pub fn longest_ms(&self) -> f64 {
        let durations = self.durations_ms.iter().copied();
        durations.fold(self.segment_ms, f64::max)
    }

    /// How many segments there are, if that is known.
    #[must_use]
    pub const fn segments(&self) -> Option<usize> {
        self.segments
    }

    /// All bitrates, kbit/s, ascending.
    #[must_use]
    pub fn bitrates_kbps(&self) -> &[f64] {
        &self.bitrates_kbps
    }

    /// That of a quality, kbit/s; of one that is too high, that of the highest.
    #[must_use]
    pub fn kbps(&self, quality: usize) -> f64 {
        self.bitrates_kbps[quality.min(self.highest())]
    }

    /// The highest quality. The lowest is 0.
    #[must_use]
    pub fn highest(&self) -> usize {
        self.bitrates_kbps.len() - 1
    }

    /// What each quality is worth to a viewer, as BOLA has it: the logarithm of its bitrate, where that of the
    /// lowest is as given.
    #[must_use]
    pub fn utilities(&self, lowest: f64) -> Vec<f64> {
        let offset = lowest - self.bitrates_kbps[0].ln();
        let bitrates = self.bitrates_kbps.iter();
        bitrates.map(|kbps| kbps.ln() + offset).collect()
    }
}

fn lasts(ms: f64) -> bool {
    (1.0..=LONGEST_MS).contains(&ms)
}
