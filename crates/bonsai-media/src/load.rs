//! What a server does when what it may send does not suffice: fewer pictures for all, or no more viewers.
//!
//! ```text
//!   level 0: all, in the best quality      one for each lower quality that clips have
//!   then, of the lowest quality: no pictures that nothing is predicted from
//!                                of the others, those behind a picture that decoding can begin with,
//!                                as many as there is a rate for; sound always
//!   a rate that is told ──> the lowest level that all streams fit in, at once; a lower one when that
//!                           has fitted for a while
//!   late in two windows ──> one level up          in time for a while ──> one level down
//! ```
//! A server is late by the least lateness of a window: a hiccup makes some samples late and ends before others,
//! and a lack lasts (the standing delay of RFC 8289, 3.2). Lateness that becomes less by itself is left to do so.
//! The rate that a server is allotted, where somebody tells it, is looked at first: it is known before
//! anything is late. How late it is tells all else that it lacks, processor, disk, a socket that takes no
//! more, and the rate where nobody tells it; where somebody does, only what is later than a second. The
//! higher of both levels is in force, for all streams.
//! A level that would save nothing of what plays is passed over: where no clip has a lower quality, there
//! are only the best and the two with fewer pictures.

mod level;
mod need;

pub use self::level::{LEVELS, Level, Pictures, QUALITIES};
pub use self::need::Need;

const SECOND: u64 = 1_000_000_000;

/// How long lateness is looked at before it is judged.
const WINDOW: u64 = SECOND / 2;

/// Time in which all was in time before a level is left: the least, and the most, where each that was left had to be
/// taken again.
const CALM: u64 = SECOND;
const LONGEST_CALM: u64 = 16 * SECOND;

/// How long streams have to go over to a lower quality before they are still late: that waits for a picture
/// that decoding can begin with.
const TURNED: u64 = 2 * SECOND;

/// Where the rate is told, so much of lateness is no sign of anything else: streams that are in step are
/// ahead of it for parts of a second, and wait.
const IN_STEP: u64 = SECOND;

/// Of what there is a rate for, a quarter less is used after a window in which it was late, and so much
/// more after others: parts of a clip need more than its mean.
const WHOLE: u64 = 64;
const MORE: u64 = 2;

/// How long streams have fitted in a lower level before it is gone to, and what is free then, of 20.
const SETTLED: u64 = SECOND;
const FREE: u64 = 1;

/// What is left of a rate for answers, reports, and pictures that are larger than others, of 20.
const ROOM: u64 = 1;

/// What is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenBehind {
    /// Lower qualities are sent, and then pictures are left out, of all streams equally; where only the
    /// most necessary are left, nobody is let in.
    DropPictures,
    /// Whoever watches sees all of it; nobody is let in.
    Refuse,
    /// Nothing: whoever asks is let in, and all of it is sent to all, later and later, as servers do that
    /// know nothing of their rate.
    Wait,
}

/// Why nobody is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// It is late.
    #[error("the server is behind")]
    Behind,
    /// It would be.
    #[error(
        "with one more, {needed} bytes/s would be sent, of {allotted} that the server is allotted"
    )]
    Rate {
        /// What all would need, at the least that is sent.
        needed: u64,
        /// What there is, without what is kept free of it.
        allotted: u64,
    },
}

/// How a server fares.
#[derive(Clone, Debug)]
pub struct Load {
    when_behind: WhenBehind,
    late: Late,
    rated: Rated,
    /// What was told last.
    told: (usize, Pictures),
}

/// By how late it is.
#[derive(Clone, Debug)]
struct Late {
    most_ns: u64,
    level: Level,
    is_behind: bool,
    /// The least lateness of this window, and of the one before it.
    least: Option<u64>,
    before: u64,
    window: u64,
    calm: u64,
    /// Time of calm before a level is left.
    calm_for: u64,
    /// When one was left last.
    left: Option<u64>,
    /// Part of the bytes behind a key picture that is sent on the highest level, of [`WHOLE`].
    share: u64,
    /// Until when a lower quality is waited for.
    turned: u64,
}

/// By the rate that it is allotted.
#[derive(Clone, Debug)]
struct Rated {
    /// Bytes a second, without what is kept free of it; `None` where nobody says.
    room: Option<u64>,
    playing: Need,
    promised: Need,
    level: Level,
    /// Since when a lower level would do.
    roomy: Option<u64>,
    /// What of that is used which is not needed at the least, of [`WHOLE`].
    trim: u64,
}

impl Load {
    /// One that has fallen behind if a sample is sent so much later than it is due.
    #[must_use]
    pub const fn new(when_behind: WhenBehind, late_ns: u64) -> Self {
        Self {
            when_behind,
            late: Late {
                most_ns: late_ns,
                level: Level::BEST,
                is_behind: false,
                least: None,
                before: 0,
                window: 0,
                calm: 0,
                calm_for: CALM,
                left: None,
                share: WHOLE,
                turned: 0,
            },
            rated: Rated {
                room: None,
                playing: Need([0; LEVELS]),
                promised: Need([0; LEVELS]),
                level: Level::BEST,
                roomy: None,
                trim: WHOLE,
            },
            told: (0, Pictures::All),
        }
    }

    /// A sample is sent that much later than it is due.
    pub fn note(&mut self, late_ns: u64) {
        let least = self.late.least.unwrap_or(late_ns);
        self.late.least = Some(least.min(late_ns));
    }

    /// So many bytes a second may be sent; `None` where nobody says.
    pub fn allot(&mut self, bytes_per_s: Option<u64>, now: u64) {
        self.rated.room = bytes_per_s.map(|rate| rate - part(rate, ROOM));
        self.weigh(now);
    }

    /// A stream plays that needs so much, instead of what it needed before.
    pub fn plays(&mut self, need: Need, before: Need, now: u64) {
        self.rated.playing = self.rated.playing - before + need;
        self.weigh(now);
    }

    /// A stream is let in that needs so much when it plays.
    pub fn promise(&mut self, need: Need) {
        self.rated.promised = self.rated.promised + need;
    }

    /// It is over.
    pub fn release(&mut self, need: Need) {
        self.rated.promised = self.rated.promised - need;
    }

    /// Judges, now and then; what is sent, where that has changed since it was told: which quality of
    /// those that are lower, 0 for the best, and which pictures of it.
    pub fn judge(&mut self, now: u64) -> Option<(usize, Pictures)> {
        self.weigh(now);
        if now >= self.late.window {
            let late_ns = self.late.least.unwrap_or(0);
            self.rated.trim(late_ns > self.late.most_ns);
            let least = self.rated.room.map_or(0, |_| IN_STEP);
            // A quality that is sent for want of rate is no answer to what is late in spite of it.
            let from = self.late.level.max(self.rated.level.min(Level::LOWEST));
            let next = self.rated.playing.above(from);
            let below = self.rated.playing.below(self.late.level);
            self.late.judge(now, least, self.when_behind, (next, below));
        }
        let level = self.level();
        // Of streams whose lowest quality is above that of the level, none is sent in that.
        let quality = level.min(Level::LOWEST);
        let quality = self.rated.playing.alike(quality).quality();
        let told = (quality, level.pictures());
        let changed = told != self.told;
        self.told = told;
        changed.then_some(told)
    }

    fn weigh(&mut self, now: u64) {
        self.rated.level = match (self.rated.room, self.when_behind) {
            (Some(room), WhenBehind::DropPictures) => self.rated.weigh(room, now),
            _ => Level::BEST,
        };
    }

    /// What the streams that play need of the rate, bytes a second: all, if they fit, and otherwise what
    /// they are sent on the level that they fit in. What it lacks besides leaves nothing of the rate free.
    #[must_use]
    pub fn claimed(&self) -> u64 {
        let playing = &self.rated.playing;
        match self.rated.level {
            // As many pictures as there is a rate for.
            Level::HIGHEST => playing.at(Level::LOWEST),
            level => playing.at(level),
        }
    }

    /// The level that is in force.
    #[must_use]
    pub fn level(&self) -> Level {
        self.late.level.max(self.rated.level)
    }

    /// Whether a picture that decoding cannot begin with is left out as nothing is predicted from it, as
    /// far as that is known.
    #[must_use]
    pub fn drops(&self, is_disposable: impl FnOnce() -> Option<bool>) -> bool {
        self.level().pictures() > Pictures::All && is_disposable() == Some(true)
    }

    /// Whether a sample that is sent so much later than it is due is late.
    #[must_use]
    pub const fn is_late(&self, late_ns: u64) -> bool {
        late_ns > self.late.most_ns
    }

    /// What is sent of so many bytes of pictures from one that decoding can begin with to the next.
    #[must_use]
    pub fn within(&self, bytes: u64) -> u64 {
        match self.level().pictures() {
            Pictures::All | Pictures::Needed => bytes,
            Pictures::Keys => {
                let rated = match self.rated.level {
                    Level::HIGHEST => self.rated.within(bytes),
                    _ => bytes,
                };
                rated.min(self.late.within(bytes))
            }
        }
    }

    /// Lets another stream in that needs so much, or says why not.
    ///
    /// # Errors
    /// It is late already, or its rate does not suffice.
    pub fn admit(&self, need: Need) -> Result<(), Full> {
        let (is_late, level) = match self.when_behind {
            WhenBehind::Wait => return Ok(()),
            WhenBehind::DropPictures => (self.late.level == Level::HIGHEST, Level::HIGHEST),
            WhenBehind::Refuse => (self.late.is_behind, Level::BEST),
        };
        if is_late {
            return Err(Full::Behind);
        }
        let needed = (self.rated.promised + need).at(level);
        match self.rated.room {
            Some(allotted) if needed > allotted => Err(Full::Rate { needed, allotted }),
            _ => Ok(()),
        }
    }
}

impl Late {
    /// Lateness below `least` is none. The levels that are gone to if it is late, and if not.
    fn judge(
        &mut self,
        now: u64,
        least: u64,
        when_behind: WhenBehind,
        (above, below): (Level, Level),
    ) {
        self.window = now + WINDOW;
        let most = self.most_ns.max(least);
        let late = self.least.take().unwrap_or(0);
        let before = core::mem::replace(&mut self.before, late);
        self.is_behind = late > most && before > most;
        if late > most {
            self.calm = now + self.calm_for;
            let is_less = late < before - before / 8;
            let acts = self.is_behind && !is_less && when_behind == WhenBehind::DropPictures;
            if acts && now >= self.turned {
                self.up(now, above);
            }
        } else if now >= self.calm {
            self.calm = now + self.calm_for;
            self.down(now, below);
        }
    }

    /// Less is sent.
    fn up(&mut self, now: u64, above: Level) {
        if let Some(left) = self.left.take() {
            self.calm_for = match now < left + 2 * self.calm_for {
                true => LONGEST_CALM.min(2 * self.calm_for),
                false => CALM,
            };
            self.calm = now + self.calm_for;
        }
        if self.level == Level::HIGHEST || above == Level::HIGHEST {
            let share = self.share * 3 / 4;
            self.share = if share < WHOLE / 8 { 0 } else { share };
        }
        self.level = above;
        if above.pictures() == Pictures::All {
            self.turned = now + TURNED;
        }
    }

    /// More is sent.
    fn down(&mut self, now: u64, below: Level) {
        if self.level == Level::BEST {
            return;
        }
        self.left = Some(now);
        if self.share < WHOLE {
            self.share = WHOLE.min(self.share + WHOLE / 4);
        } else {
            self.level = below;
        }
    }

    /// Part of the bytes behind a key picture that is sent.
    fn within(&self, bytes: u64) -> u64 {
        let within = u128::from(bytes) * u128::from(self.share) / u128::from(WHOLE);
        u64::try_from(within).unwrap_or(bytes)
    }
}

impl Rated {
    /// The level for that much.
    fn weigh(&mut self, room: u64, now: u64) -> Level {
        let fits = |room: u64| {
            let fits = |level: &Level| self.playing.at(*level) <= room;
            Level::all().find(fits).unwrap_or(Level::HIGHEST)
        };
        let (needed, roomy) = (fits(room), fits(room - part(room, FREE)));
        if needed >= self.level || roomy >= self.level {
            self.roomy = None;
            return needed.max(self.level.min(roomy));
        }
        let since = *self.roomy.get_or_insert(now);
        match now >= since + SETTLED {
            true => {
                self.roomy = None;
                roomy
            }
            false => self.level,
        }
    }

    /// A window is over in which something was late, or nothing.
    fn trim(&mut self, is_late: bool) {
        self.trim = match is_late {
            true => self.trim * 3 / 4,
            false => WHOLE.min(self.trim + MORE),
        };
    }

    /// What of so many bytes there is a rate for, beside what has to be sent.
    fn within(&self, bytes: u64) -> u64 {
        let least = self.playing.at(Level::HIGHEST);
        let all = self.playing.at(Level::LOWEST);
        let all = u128::from(all.saturating_sub(least));
        let free = self.room.map_or(0, |room| room.saturating_sub(least));
        let free = u128::from(free) * u128::from(self.trim) / u128::from(WHOLE);
        let within = (u128::from(bytes) * free).checked_div(all);
        u64::try_from(within.unwrap_or(0)).map_or(bytes, |within| within.min(bytes))
    }
}

/// So many twentieths of a rate.
const fn part(of: u64, twentieths: u64) -> u64 {
    of / 20 * twentieths
}

#[cfg(test)]
mod tests;
