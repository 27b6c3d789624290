//! One viewer, who knows how much time has passed.
//!
//! ```text
//!          ┌───────────────── buffer is full: wait
//!          v
//!   next ──┴──> rule chooses ──> wait, if the rule wants ──> fetch ──┬─ fetched ───> next
//!                    ^                                               ├─ abandoned ─> next, of a lower quality
//!                    └───────────────────────────────────────────────┴─ failed ────> next, the same segment
//! ```

use std::sync::Arc;

use super::{
    Accuracy, Adapt, AfterAbandon, Choice, Dry, Error, Estimate, Estimator, Fetched, Ladder,
    Observer, Phase, Player, Progress, Settings, Summary, View,
};

/// A wait that is no longer than this is none, milliseconds.
const MOMENT_MS: f64 = 1e-6;

/// What a viewer does next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// To wait so long, milliseconds, and to ask again.
    Wait(f64),
    /// To fetch a segment in a quality.
    Fetch {
        /// Which, from 0.
        segment: usize,
        /// In which quality.
        quality: usize,
    },
    /// Nothing: all segments are there.
    End,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Idle,
    /// The buffer is full.
    Full,
    Chosen(Choice),
    /// And how much of its time has passed.
    Fetching {
        quality: usize,
        passed_ms: f64,
    },
}

/// A viewer's session. Whoever holds it says how time passes ([`pass`](Self::pass)) and what became of
/// downloads, the time first.
#[derive(Debug)]
pub struct Session {
    ladder: Arc<Ladder>,
    settings: Settings,
    rule: Box<dyn Adapt>,
    estimator: Estimator,
    player: Player,
    step: Step,
    segment: usize,
    /// The quality that a download of this segment was given up for.
    advised: Option<usize>,
    no_more: bool,
    counts: Counts,
}

/// What is counted beside what the player shows.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    fetched: u64,
    abandoned: u64,
    failed: u64,
    skipped: u64,
    bits: f64,
    wasted_bits: f64,
    accuracy: Accuracy,
}

impl Session {
    /// One by the rule of the settings.
    ///
    /// # Errors
    /// If a setting cannot be with this ladder.
    pub fn new(ladder: Arc<Ladder>, settings: Settings) -> Result<Self, Error> {
        settings.check(&ladder)?;
        let rule = settings.rule.build(&ladder, &settings);
        Self::with_rule(ladder, settings, rule)
    }

    /// One by a rule of one's own.
    ///
    /// # Errors
    /// If a setting cannot be with this ladder.
    pub fn with_rule(
        ladder: Arc<Ladder>,
        settings: Settings,
        rule: Box<dyn Adapt>,
    ) -> Result<Self, Error> {
        settings.check(&ladder)?;
        Ok(Self {
            estimator: Estimator::new(settings.half_lives_ms, ladder.segment_ms()),
            player: Player::new(&settings, ladder.bitrates_kbps().len()),
            ladder,
            settings,
            rule,
            step: Step::Idle,
            segment: 0,
            advised: None,
            no_more: false,
            counts: Counts::default(),
        })
    }

    /// What there is to choose from.
    #[must_use]
    pub fn ladder(&self) -> &Ladder {
        &self.ladder
    }

    /// The segment that is under way, or next.
    #[must_use]
    pub const fn segment(&self) -> usize {
        self.segment
    }

    /// What the viewer sees.
    #[must_use]
    pub const fn player(&self) -> &Player {
        &self.player
    }

    /// What is known of the network.
    #[must_use]
    pub const fn estimate(&self) -> Option<Estimate> {
        self.estimator.now()
    }

    /// What to do next. Asked again before anything has happened, it says the same.
    pub fn next_step(&mut self) -> Next {
        if let Step::Fetching { quality, .. } = self.step {
            return self.fetch(quality);
        }
        let Some(room_ms) = self.room_ms() else {
            return Next::End;
        };
        let choice = match self.step {
            Step::Chosen(choice) => choice,
            _ if room_ms < -MOMENT_MS => {
                self.step = Step::Full;
                return Next::Wait(-room_ms);
            }
            _ => self.choose(),
        };
        if choice.wait_ms > MOMENT_MS {
            self.step = Step::Chosen(choice);
            return Next::Wait(choice.wait_ms);
        }
        self.step = Step::Fetching {
            quality: choice.quality,
            passed_ms: 0.0,
        };
        self.fetch(choice.quality)
    }

    const fn fetch(&self, quality: usize) -> Next {
        Next::Fetch {
            segment: self.segment,
            quality,
        }
    }

    /// The room for the next segment, below 0 if there is none yet. None if there is no next segment.
    fn room_ms(&self) -> Option<f64> {
        if self.no_more
            || self
                .ladder
                .segments()
                .is_some_and(|all| self.segment >= all)
        {
            return None;
        }
        let with_it = self.player.level_ms() + self.ladder.duration_ms(self.segment);
        Some(self.settings.buffer_ms - with_it)
    }

    fn choose(&mut self) -> Choice {
        if let Some(quality) = self.advised.take() {
            return Choice::now(quality);
        }
        let Some(estimate) = self.estimator.now() else {
            return Choice::now(0);
        };
        let view = View {
            ladder: &self.ladder,
            level_ms: self.player.level_ms(),
            estimate,
        };
        let choice = self.rule.choose(self.segment, &view);
        let level_ms = self.player.level_ms();
        Choice {
            quality: choice.quality.min(self.ladder.highest()),
            // Whoever waits longer than the buffer lasts, stalls by choice.
            wait_ms: choice.wait_ms.clamp(0.0, level_ms.max(0.0)),
        }
    }

    /// So much time has passed, milliseconds.
    pub fn pass(&mut self, ms: f64, observer: &mut impl Observer) -> Dry {
        let dry = self.player.pass(ms, observer);
        if !(ms > 0.0 && ms.is_finite()) {
            return dry;
        }
        match &mut self.step {
            Step::Full if self.player.plays() => self.rule.waited(ms),
            Step::Chosen(choice) => choice.wait_ms -= ms,
            Step::Fetching { passed_ms, .. } => *passed_ms += ms,
            Step::Idle | Step::Full => {}
        }
        dry
    }

    /// How far the download is. Whoever is told a quality gives the download up, and says so with
    /// [`abandoned`](Self::abandoned).
    pub fn progress(&mut self, progress: &Progress) -> Option<usize> {
        let Step::Fetching { passed_ms, quality } = self.step else {
            return None;
        };
        if !self.settings.abandon || progress.came_bits >= progress.size_bits {
            return None;
        }
        let progress = &Progress {
            quality,
            ..*progress
        };
        let view = View {
            ladder: &self.ladder,
            level_ms: self.player.level_after_ms(progress.time_ms - passed_ms),
            estimate: self.estimator.now()?,
        };
        let lower = self.rule.abandon(progress, &view)?;
        (lower < quality).then_some(lower)
    }

    /// The download is there. What is told when none is under way does not count.
    pub fn fetched(&mut self, bits: f64, time_ms: f64, first_byte_ms: f64) {
        let Step::Fetching { quality, .. } = self.step else {
            return;
        };
        let duration_ms = self.ladder.duration_ms(self.segment);
        self.player
            .push(quality, self.ladder.kbps(quality), duration_ms);
        self.go_on();
        self.counts.fetched += 1;
        self.ended(None, bits, time_ms, first_byte_ms);
        if bits > 0.0 {
            self.estimator.push(bits, time_ms, first_byte_ms);
        }
    }

    /// The download was given up for that quality, when so much had come.
    pub fn abandoned(&mut self, lower: usize, bits: f64, time_ms: f64, first_byte_ms: f64) {
        if !matches!(self.step, Step::Fetching { .. }) {
            return;
        }
        if self.settings.after_abandon == AfterAbandon::Take {
            self.advised = Some(lower.min(self.ladder.highest()));
        }
        self.counts.abandoned += 1;
        self.counts.wasted_bits += bits;
        self.ended(Some(lower), bits, time_ms, first_byte_ms);
    }

    fn ended(&mut self, abandoned_to: Option<usize>, bits: f64, time_ms: f64, first_byte_ms: f64) {
        let Step::Fetching { quality, .. } = self.step else {
            return;
        };
        self.step = Step::Idle;
        self.counts.bits += bits;
        let Some(estimate) = self.estimator.now() else {
            return;
        };
        let fetched = Fetched {
            quality,
            time_ms,
            abandoned_to,
        };
        let view = View {
            ladder: &self.ladder,
            level_ms: self.player.level_ms(),
            estimate,
        };
        self.rule.fetched(&fetched, &view);
        let came = Estimator::sample(bits, time_ms, first_byte_ms);
        self.counts.accuracy.push(estimate.kbps, came.kbps);
    }

    /// The download has failed when so much had come: the segment is next again.
    pub fn failed(&mut self, bits: f64) {
        if matches!(self.step, Step::Fetching { .. }) {
            self.counts.failed += 1;
            self.cancelled(bits);
        }
    }

    /// The download was cancelled when so much had come, as before a seek.
    pub fn cancelled(&mut self, bits: f64) {
        if matches!(self.step, Step::Fetching { .. }) {
            self.step = Step::Idle;
            self.counts.bits += bits;
            self.counts.wasted_bits += bits;
        }
    }

    /// The next segment is left out, as one that is not to be had.
    pub fn skip(&mut self) {
        if self.room_ms().is_some() {
            self.counts.skipped += 1;
            self.step = Step::Idle;
            self.go_on();
        }
    }

    fn go_on(&mut self) {
        self.segment += 1;
        self.advised = None;
        if self.ladder.segments() == Some(self.segment) {
            self.player.complete();
        }
    }

    /// No segment follows, as at the end of a live stream.
    pub fn no_more(&mut self) {
        self.no_more = true;
        self.step = Step::Idle;
        self.player.complete();
    }

    /// The viewer goes on at that segment, or at the last. What was under way is over, and whoever holds the
    /// download ends it.
    pub fn seek(&mut self, segment: usize) {
        let last = self.ladder.segments().map(|all| all - 1);
        self.segment = last.map_or(segment, |last| segment.min(last));
        self.step = Step::Idle;
        self.advised = None;
        self.no_more = false;
        self.player.seek();
        self.rule.sought(self.segment);
    }

    /// The viewer pauses, or goes on.
    pub fn pause(&mut self, paused: bool) {
        self.player.pause(paused);
    }

    /// A real player that shows this stands still, or goes on: until then it is a stall. The buffer that is
    /// reckoned with here needs not to be told that it is empty.
    pub fn stand(&mut self, stands: bool) {
        self.player.stand(stands);
    }

    /// Whether all was played.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.player.phase() == Phase::Ended
    }

    /// What the viewer saw until now, and what it cost.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let counts = self.counts;
        Summary {
            fetched: counts.fetched,
            abandoned: counts.abandoned,
            failed: counts.failed,
            skipped: counts.skipped,
            bits: counts.bits,
            wasted_bits: counts.wasted_bits,
            accuracy: counts.accuracy,
            ..self.player.summary()
        }
    }
}
