//! What is wrong with what was given.

/// Why there is no ladder, no trace, no session or no run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Segments do not last.
    #[error("a segment lasts {0} ms: it has to be from 1 ms to a day")]
    SegmentDuration(f64),
    /// One segment does not last.
    #[error("segment {segment} lasts {ms} ms: it has to be from 1 ms to a day")]
    Duration {
        /// Which, from 0.
        segment: usize,
        /// What it has, milliseconds.
        ms: f64,
    },
    /// Nothing to choose from.
    #[error("there is no quality: at least one bitrate is needed")]
    NoQualities,
    /// A bitrate that cannot be.
    #[error("quality {quality} has {kbps} kbit/s: it has to be from 0.001 to 1000000000")]
    Bitrate {
        /// Which, from 0.
        quality: usize,
        /// What it has, kbit/s.
        kbps: f64,
    },
    /// Bitrates that do not ascend.
    #[error(
        "quality {quality} has {kbps} kbit/s, and the one before {before}: bitrates have to ascend"
    )]
    Order {
        /// Which, from 0.
        quality: usize,
        /// What it has, kbit/s.
        kbps: f64,
        /// What the one before has, kbit/s.
        before: f64,
    },
    /// Nothing to play.
    #[error("there is no segment: at least one is needed")]
    NoSegments,
    /// A segment without a size for each quality.
    #[error(
        "segment {segment} has {sizes} sizes: it has to have one for each of {qualities} qualities"
    )]
    Ragged {
        /// Which, from 0.
        segment: usize,
        /// How many it has.
        sizes: usize,
        /// How many it should have.
        qualities: usize,
    },
    /// A size that cannot be.
    #[error(
        "segment {segment} has {bits} bits in quality {quality}: it has to have from 1 to 1000000000000"
    )]
    Size {
        /// Which, from 0.
        segment: usize,
        /// In which quality, from 0.
        quality: usize,
        /// What it has, bits.
        bits: f64,
    },
    /// A trace of nothing.
    #[error("the network's trace is empty: at least one period is needed")]
    NoPeriods,
    /// A period that cannot be.
    #[error(
        "period {period} of the network has a {what} of {value}: it has to be from {least} to {most}"
    )]
    Period {
        /// Which, from 0.
        period: usize,
        /// Which of its numbers, with its unit.
        what: &'static str,
        /// What it has.
        value: f64,
        /// What it may have at least,
        least: f64,
        /// and at most.
        most: f64,
    },
    /// A network without bandwidth.
    #[error(
        "the network never delivers anything: at least one period has to have a bandwidth above 0"
    )]
    NoBandwidth,
    /// A setting that cannot be.
    #[error("{name} is {value}: it has to be from {least} to {most}")]
    Setting {
        /// Which, with its unit.
        name: &'static str,
        /// What it is.
        value: f64,
        /// What it may be at least,
        least: f64,
        /// and at most.
        most: f64,
    },
    /// No such rule.
    #[error("there is no rule {0:?}: it has to be throughput, bola, bolae, dynamic or davvi")]
    Rule(String),
    /// Downloads of a run were given up again and again, as may be with [`AfterAbandon::Ask`](super::AfterAbandon::Ask).
    #[error(
        "{downloads} downloads of segment {segment} and those before it did not bring it: each was given up"
    )]
    GivenUp {
        /// The segment, from 0.
        segment: usize,
        /// All downloads of the run until then.
        downloads: usize,
    },
    /// A run without an end.
    #[error("the network is too slow for segment {segment}: {steps} steps did not bring it")]
    Endless {
        /// Which, from 0.
        segment: usize,
        /// After how many steps it was given up.
        steps: u64,
    },
}
