//! A player without pictures: what is in the buffer, and what the viewer sees of it.
//!
//! ```text
//!   Starting ──enough──> Playing ──nothing left──> Stalled ──enough──> Playing
//!      ^                   │  └──nothing left, and the last segment was there──> Ended
//!      └──────seek─────────┴── (from anywhere)
//! ```

use std::collections::VecDeque;

use super::{Settings, Summary};

/// A switch back within so much media is an oscillation, milliseconds.
const OSCILLATION_MS: f64 = 30_000.0;

/// What a player does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It waits for its first segments, of all or after a seek.
    Starting,
    /// It plays.
    Playing,
    /// It ran out of segments in mid-play.
    Stalled,
    /// It has played the last one.
    Ended,
}

/// Who wants to know what is shown, and when. Times are of the player: milliseconds since it was made.
pub trait Observer {
    /// The first picture of a segment.
    fn starts(&mut self, _quality: usize, _at_ms: f64) {}
    /// Segments ended or began, and now it is that late.
    fn settled(&mut self, _at_ms: f64) {}
}

impl Observer for () {}

/// Time in which there was nothing to play: of a stall, or after the end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Dry {
    /// How much, milliseconds.
    pub ms: f64,
    /// Whether it began now.
    pub began: bool,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    quality: usize,
    kbps: f64,
    ms: f64,
}

#[derive(Clone, Copy, Debug)]
struct Switch {
    up: bool,
    /// When, in media that was played.
    at_ms: f64,
}

/// A player: its buffer, and what it has shown.
#[derive(Clone, Debug)]
pub struct Player {
    start_ms: f64,
    resume_ms: f64,
    segments: VecDeque<Segment>,
    /// What was played of the first of them.
    played_of_first_ms: f64,
    phase: Phase,
    paused: bool,
    /// A real player stands still.
    stands: bool,
    complete: bool,
    sought: bool,
    clock_ms: f64,
    last: Option<Segment>,
    last_switch: Option<Switch>,
    kbit_ms: f64,
    summary: Summary,
}

impl Player {
    /// One that starts, and goes on after a stall, by these settings, with so many qualities.
    pub(super) fn new(settings: &Settings, qualities: usize) -> Self {
        Self {
            start_ms: settings.start_ms,
            resume_ms: settings.resume_ms,
            segments: VecDeque::new(),
            played_of_first_ms: 0.0,
            phase: Phase::Starting,
            paused: false,
            stands: false,
            complete: false,
            sought: false,
            clock_ms: 0.0,
            last: None,
            last_switch: None,
            kbit_ms: 0.0,
            summary: Summary {
                in_quality_ms: vec![0.0; qualities],
                ..Summary::default()
            },
        }
    }

    /// What is in the buffer, milliseconds of media.
    #[must_use]
    pub fn level_ms(&self) -> f64 {
        // A sum of nothing is -0.
        let all = self
            .segments
            .iter()
            .fold(0.0, |all, segment| all + segment.ms);
        all - self.played_of_first_ms
    }

    /// What will be in it in so many milliseconds, if nothing comes.
    #[must_use]
    pub fn level_after_ms(&self, ms: f64) -> f64 {
        if self.plays() {
            (self.level_ms() - ms).max(0.0)
        } else {
            self.level_ms()
        }
    }

    /// The qualities in the buffer, in order.
    pub fn qualities(&self) -> impl Iterator<Item = usize> + '_ {
        self.segments.iter().map(|segment| segment.quality)
    }

    /// What it does.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether somebody has paused it.
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        self.paused
    }

    /// Time until its end that was not paused, milliseconds.
    #[must_use]
    pub const fn clock_ms(&self) -> f64 {
        self.clock_ms
    }

    /// Whether the buffer gets emptier as time passes.
    pub(super) const fn plays(&self) -> bool {
        matches!(self.phase, Phase::Playing) && !self.paused && !self.stands
    }

    /// A segment of that quality is there, one of those that it was made for.
    pub(super) fn push(&mut self, quality: usize, kbps: f64, ms: f64) {
        self.segments.push_back(Segment { quality, kbps, ms });
        self.go_on();
    }

    /// No more segments come.
    pub(super) fn complete(&mut self) {
        self.complete = true;
        self.go_on();
    }

    /// The viewer pauses, or goes on.
    pub(super) fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// A real player that shows this stands still, though there is something in the buffer, or goes on.
    pub(super) fn stand(&mut self, stands: bool) {
        if stands && self.plays() {
            self.summary.stalls += 1;
        }
        self.stands = stands;
    }

    /// The viewer goes elsewhere: the buffer is empty, and the time until it plays again is no stall.
    pub(super) fn seek(&mut self) {
        self.segments.clear();
        self.played_of_first_ms = 0.0;
        self.phase = Phase::Starting;
        self.stands = false;
        self.sought = self.summary.startup_ms.is_some();
        self.complete = false;
        self.last_switch = None;
    }

    /// Enough may be there to play.
    fn go_on(&mut self) {
        let level_ms = self.level_ms();
        let enough = |ms: f64| !self.segments.is_empty() && (level_ms >= ms || self.complete);
        match self.phase {
            Phase::Starting if enough(self.start_ms) => {
                if self.summary.startup_ms.is_none() {
                    self.summary.startup_ms = Some(self.clock_ms);
                }
                self.phase = Phase::Playing;
            }
            Phase::Stalled if enough(self.resume_ms) => self.phase = Phase::Playing,
            Phase::Starting | Phase::Playing | Phase::Stalled
                if self.complete && level_ms <= 0.0 =>
            {
                self.phase = Phase::Ended;
            }
            _ => {}
        }
    }

    /// So much time passes.
    pub(super) fn pass(&mut self, ms: f64, observer: &mut impl Observer) -> Dry {
        if !(ms > 0.0 && ms.is_finite()) {
            return Dry::default();
        }
        if self.paused {
            self.summary.paused_ms += ms;
            return Dry::default();
        }
        match self.phase {
            Phase::Starting => {
                self.clock_ms += ms;
                if self.sought {
                    self.summary.seek_ms += ms;
                }
                Dry::default()
            }
            Phase::Playing if !self.stands => self.play(ms, observer),
            Phase::Playing | Phase::Stalled => {
                self.clock_ms += ms;
                self.summary.stall_ms += ms;
                Dry { ms, began: false }
            }
            Phase::Ended => Dry::default(),
        }
    }

    fn play(&mut self, mut ms: f64, observer: &mut impl Observer) -> Dry {
        let had_some = !self.segments.is_empty();
        if self.played_of_first_ms > 0.0 {
            let first_ms = self.segments.front().map_or(0.0, |first| first.ms);
            if ms + self.played_of_first_ms < first_ms {
                self.played_of_first_ms += ms;
                self.show(ms);
                self.see_level();
                return Dry::default();
            }
            let rest_ms = first_ms - self.played_of_first_ms;
            ms -= rest_ms;
            self.show(rest_ms);
            self.segments.pop_front();
            self.played_of_first_ms = 0.0;
        }
        while ms > 0.0
            && let Some(&first) = self.segments.front()
        {
            self.begin(first);
            observer.starts(first.quality, self.clock_ms);
            if ms >= first.ms {
                self.show(first.ms);
                ms -= first.ms;
                self.segments.pop_front();
            } else {
                self.show(ms);
                self.played_of_first_ms = ms;
                ms = 0.0;
            }
        }
        if self.segments.is_empty() && self.complete {
            self.phase = Phase::Ended;
        } else if ms > 0.0 {
            self.phase = Phase::Stalled;
            self.clock_ms += ms;
            self.summary.stalls += 1;
            self.summary.stall_ms += ms;
        }
        self.see_level();
        observer.settled(self.clock_ms);
        Dry {
            ms,
            began: ms > 0.0 && had_some,
        }
    }

    /// A segment begins.
    fn begin(&mut self, segment: Segment) {
        let summary = &mut self.summary;
        summary.segments += 1;
        summary.kbps_sum += segment.kbps;
        if let Some(last) = self.last
            && last.quality != segment.quality
        {
            let up = segment.quality > last.quality;
            summary.switches_up += u64::from(up);
            summary.switches_down += u64::from(!up);
            summary.switch_kbps_sum += (segment.kbps - last.kbps).abs();
            let this = Switch {
                up,
                at_ms: summary.played_ms,
            };
            let back = self
                .last_switch
                .is_some_and(|last| last.up != up && this.at_ms - last.at_ms <= OSCILLATION_MS);
            summary.oscillations += u64::from(back);
            self.last_switch = Some(this);
        }
        self.last = Some(segment);
    }

    /// The segment that began last is shown for so long.
    fn show(&mut self, ms: f64) {
        self.clock_ms += ms;
        self.summary.played_ms += ms;
        if let Some(last) = self.last {
            self.kbit_ms += last.kbps * ms;
            self.summary.in_quality_ms[last.quality] += ms;
        }
    }

    /// The end of the film empties every buffer: that says nothing.
    fn see_level(&mut self) {
        if !self.complete {
            let level_ms = self.level_ms();
            let least = self.summary.least_level_ms.get_or_insert(level_ms);
            *least = least.min(level_ms);
        }
    }

    /// What it has shown until now.
    pub(super) fn summary(&self) -> Summary {
        let mut summary = self.summary.clone();
        let watched_ms = summary.played_ms + summary.stall_ms;
        if watched_ms > 0.0 {
            summary.rebuffer_ratio = summary.stall_ms / watched_ms;
        }
        if summary.played_ms > 0.0 {
            summary.mean_kbps = self.kbit_ms / summary.played_ms;
        }
        summary
    }
}
