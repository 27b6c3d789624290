//! What streams need, by level.

use core::iter::Sum;
use core::ops::{Add, Sub};

use super::{LEVELS, Level};
use crate::clip::{Clip, Sample, Track};
use crate::rtp::HEADER;

/// What a packet has beside its part of a sample: its header, what its payload begins with (RFC 6184,
/// 5.8), and its frame among messages (RFC 2326, 10.12).
pub(super) const BESIDE: u64 = HEADER as u64 + 2 + 4;

/// Pictures that are looked at for whether anything is predicted from them: encoders repeat a pattern of
/// few.
const LOOKED_AT: usize = 64;

/// Bytes a second, by level: of all samples, in each quality; without pictures that nothing is predicted
/// from; of pictures that decoding can begin with, and sound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need(pub(super) [u64; LEVELS]);

impl Need {
    /// Of one quality: of all samples; without pictures that nothing is predicted from; of those that
    /// decoding can begin with.
    #[must_use]
    pub const fn new(all: u64, needed: u64, keys: u64) -> Self {
        let mut levels = [all; LEVELS];
        levels[LEVELS - 2] = needed;
        levels[LEVELS - 1] = keys;
        Self(levels)
    }

    /// Of several qualities, each of which needs less than the one before it. There are no more than
    /// [`super::QUALITIES`].
    #[must_use]
    pub fn of(qualities: impl IntoIterator<Item = Self>) -> Self {
        let mut qualities = qualities.into_iter();
        let mut sum = qualities.next().unwrap_or_default();
        for (index, lower) in (1..LEVELS - 2).zip(qualities) {
            sum.0[index..].copy_from_slice(&lower.0[index..]);
        }
        sum
    }

    /// On a level.
    #[must_use]
    pub fn at(&self, level: Level) -> u64 {
        self.0[level.index()]
    }

    /// The lowest level that needs no more than this one.
    pub(super) fn alike(&self, level: Level) -> Level {
        let mut all = Level::all();
        all.find(|other| self.at(*other) <= self.at(level))
            .unwrap_or(level)
    }

    /// The next level that needs less, or the highest.
    pub(super) fn above(&self, level: Level) -> Level {
        let mut all = Level::all();
        all.find(|other| *other > level && self.at(*other) < self.at(level))
            .unwrap_or(Level::HIGHEST)
    }

    /// The next level that needs more, or the best.
    pub(super) fn below(&self, level: Level) -> Level {
        let mut all = Level::all().rev();
        all.find(|other| *other < level && self.at(*other) > self.at(level))
            .map_or(Level::BEST, |more| self.alike(more))
    }

    fn both(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        let mut sum = self;
        for (one, other) in sum.0.iter_mut().zip(other.0) {
            *one = of(*one, other);
        }
        sum
    }
}

impl Add for Need {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.both(other, u64::saturating_add)
    }
}

impl<'a> Sum<&'a Self> for Need {
    fn sum<I: Iterator<Item = &'a Self>>(needs: I) -> Self {
        needs.fold(Self::default(), |sum, need| sum + *need)
    }
}

impl Sub for Need {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.both(other, u64::saturating_sub)
    }
}

impl Clip {
    /// What each of its tracks needs on average, in packets of so many bytes of payload, where it has no
    /// lower quality. Of a few pictures it is asked whether nothing is predicted from them.
    pub fn needs(
        &self,
        payload: usize,
        mut is_disposable: impl FnMut(&Track, &Sample) -> Option<bool>,
    ) -> Vec<Need> {
        let payload = u64::try_from(payload.max(1)).unwrap_or(u64::MAX);
        let need = |track: &Track| {
            let ms = (track.length_ns() / 1_000_000).max(1);
            let per_s = |bytes: u64| {
                let bytes = u128::from(bytes) * 1000 / u128::from(ms);
                u64::try_from(bytes).unwrap_or(u64::MAX)
            };
            let all = sent(track.samples(), payload);
            if !track.codec.is_video() {
                let all = per_s(all);
                return Need::new(all, all, all);
            }
            let keys = track.samples().iter().filter(|of| of.is_sync());
            let keys = sent(keys, payload);
            let others = track.samples().iter().filter(|of| !of.is_sync());
            let looked_at: Vec<&Sample> = others.take(LOOKED_AT).collect();
            let of_these = sent(looked_at.iter().copied(), payload);
            let disposable = looked_at
                .into_iter()
                .filter(|of| is_disposable(track, of) == Some(true));
            let disposable = sent(disposable, payload);
            let left_out = (u128::from(all - keys) * u128::from(disposable))
                .checked_div(u128::from(of_these))
                .map_or(0, |bytes| u64::try_from(bytes).unwrap_or(0));
            Need::new(per_s(all), per_s(all - left_out), per_s(keys))
        };
        self.tracks.iter().map(need).collect()
    }
}

/// Bytes of samples as they are sent.
fn sent<'a>(samples: impl IntoIterator<Item = &'a Sample>, payload: u64) -> u64 {
    let samples = samples.into_iter().map(|of| u64::from(of.size()));
    samples
        .map(|size| size + size.div_ceil(payload) * BESIDE)
        .sum()
}
