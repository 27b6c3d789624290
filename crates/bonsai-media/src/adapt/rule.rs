//! What a rule is told, and what it says.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::rules::{Bola, Bolae, Davvi, Dynamic, Throughput};
use super::{Error, Estimate, Ladder, Settings};

/// The rules there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// What the network carries, with a margin.
    Throughput,
    /// By the level of the buffer: BOLA, where it goes up no further than the network carries (BOLA-U).
    Bola,
    /// BOLA-E: a buffer that is reckoned larger than it is, so that its start is quick and it stays up.
    Bolae,
    /// Throughput while the buffer is low, BOLA above 10 s: what dash.js starts with. In a buffer that holds
    /// no more than that and a segment it is throughput alone.
    #[default]
    Dynamic,
    /// The proxy of DAVVI: by the level of the buffer and the speed of downloads, a step at a time.
    Davvi,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Throughput,
        Self::Bola,
        Self::Bolae,
        Self::Dynamic,
        Self::Davvi,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Bola => "bola",
            Self::Bolae => "bolae",
            Self::Dynamic => "dynamic",
            Self::Davvi => "davvi",
        }
    }

    /// One to choose by. Settings are to be of the kind that [`Settings::check`] lets pass.
    #[must_use]
    pub fn build(self, ladder: &Ladder, settings: &Settings) -> Box<dyn Adapt> {
        // BOLA weighs qualities against each other: of one alone it knows nothing.
        if ladder.highest() == 0 {
            return Box::new(Throughput::new(settings));
        }
        match self {
            Self::Throughput => Box::new(Throughput::new(settings)),
            Self::Bola => Box::new(Bola::new(ladder, settings)),
            Self::Bolae => Box::new(Bolae::new(ladder, settings)),
            Self::Dynamic => Box::new(Dynamic::new(ladder, settings)),
            Self::Davvi => Box::new(Davvi::new(settings)),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|rule| rule.name() == name);
        found.ok_or_else(|| Error::Rule(name.to_owned()))
    }
}

/// What a rule sees.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// What there is to choose from.
    pub ladder: &'a Ladder,
    /// What the buffer holds, milliseconds of media.
    pub level_ms: f64,
    /// What is known of the network.
    pub estimate: Estimate,
}

impl View<'_> {
    /// The highest quality of which a segment comes, latency and all, in the time that it lasts.
    #[must_use]
    pub fn affordable(&self, kbps: f64) -> usize {
        let lasts = self.ladder.segment_ms();
        let higher = self.ladder.bitrates_kbps().iter().skip(1);
        higher
            .take_while(|&&bitrate| self.estimate.latency_ms + lasts * bitrate / kbps <= lasts)
            .count()
    }
}

/// What to fetch, and how long to wait before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// In which quality.
    pub quality: usize,
    /// After how long, milliseconds.
    pub wait_ms: f64,
}

impl Choice {
    /// This one, at once.
    #[must_use]
    pub const fn now(quality: usize) -> Self {
        Self {
            quality,
            wait_ms: 0.0,
        }
    }
}

/// A download under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Of which quality.
    pub quality: usize,
    /// What there is of it, bits.
    pub size_bits: f64,
    /// What has come, bits.
    pub came_bits: f64,
    /// Since it was asked for, milliseconds.
    pub time_ms: f64,
    /// From asking to the first byte, milliseconds.
    pub first_byte_ms: f64,
}

/// A download that is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fetched {
    /// Of which quality.
    pub quality: usize,
    /// How long it took, milliseconds.
    pub time_ms: f64,
    /// The quality that it was given up for.
    pub abandoned_to: Option<usize>,
}

/// A rule. Whoever has one of their own gives it to [`Session::with_rule`](super::Session::with_rule).
pub trait Adapt: fmt::Debug + Send {
    /// In which quality this segment is to be fetched, and after which wait. It is asked once for a segment,
    /// and again if its download was given up or has failed; not before something was measured.
    fn choose(&mut self, segment: usize, view: &View<'_>) -> Choice;

    /// The buffer was full for so long, milliseconds, so that nothing was fetched.
    fn waited(&mut self, _ms: f64) {}

    /// A download is over. The buffer has it, if it was not given up; the estimate does not know of it.
    fn fetched(&mut self, _fetched: &Fetched, _view: &View<'_>) {}

    /// Whether a download is to be given up, and for which quality.
    fn abandon(&mut self, _progress: &Progress, _view: &View<'_>) -> Option<usize> {
        None
    }

    /// The viewer goes on at this segment.
    fn sought(&mut self, _segment: usize) {}
}
