//! What a server does when it falls behind: fewer pictures for all, or no more viewers.
//!
//! ```text
//!   level 0: all        level 1: no pictures that nothing is predicted from
//!                       level 2: only pictures that decoding can begin with; sound always
//!   late in a window ──> one level up          in time for a while ──> one level down
//! ```
//! How late it is tells all that it lacks: processor, disk, a socket that takes no more, or a rate that
//! it is held to. All streams are on one level.

const SECOND: u64 = 1_000_000_000;

/// How long lateness is looked at before it is judged.
const WINDOW: u64 = SECOND / 2;

/// How long all was in time before a level is left.
const CALM: u64 = 5 * SECOND;

/// The highest level.
const HIGHEST: u8 = 2;

/// What is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenBehind {
    /// Pictures are left out, of all streams equally; where only the most necessary are left, nobody is
    /// let in.
    DropPictures,
    /// Whoever watches sees all of it; nobody is let in.
    Refuse,
}

/// How a server fares.
#[derive(Clone, Debug)]
pub struct Load {
    when_behind: WhenBehind,
    late_ns: u64,
    level: u8,
    is_behind: bool,
    worst: u64,
    window: u64,
    calm: u64,
}

impl Load {
    /// One that has fallen behind if a sample is sent so much later than it is due.
    #[must_use]
    pub const fn new(when_behind: WhenBehind, late_ns: u64) -> Self {
        Self {
            when_behind,
            late_ns,
            level: 0,
            is_behind: false,
            worst: 0,
            window: 0,
            calm: 0,
        }
    }

    /// A sample is sent that much later than it is due.
    pub const fn note(&mut self, late_ns: u64) {
        if late_ns > self.worst {
            self.worst = late_ns;
        }
    }

    /// Judges, now and then; the level, where it has changed.
    pub fn judge(&mut self, now: u64) -> Option<u8> {
        if now < self.window {
            return None;
        }
        let before = self.level;
        self.window = now + WINDOW;
        self.is_behind = self.worst > self.late_ns;
        if self.is_behind {
            self.calm = now + CALM;
            if self.when_behind == WhenBehind::DropPictures {
                self.level = HIGHEST.min(self.level + 1);
            }
        } else if now >= self.calm {
            self.calm = now + CALM;
            self.level = self.level.saturating_sub(1);
        }
        self.worst = 0;
        (self.level != before).then_some(self.level)
    }

    /// The level, 0 to 2.
    #[must_use]
    pub const fn level(&self) -> u8 {
        self.level
    }

    /// Whether a picture is left out, by whether decoding can begin with it, and whether nothing is
    /// predicted from it, as far as that is known.
    #[must_use]
    pub fn drops(&self, is_sync: bool, is_disposable: impl FnOnce() -> Option<bool>) -> bool {
        match self.level {
            0 => false,
            1 => !is_sync && is_disposable() == Some(true),
            _ => !is_sync,
        }
    }

    /// Whether another viewer is let in.
    #[must_use]
    pub const fn admits(&self) -> bool {
        match self.when_behind {
            WhenBehind::DropPictures => self.level < HIGHEST,
            WhenBehind::Refuse => !self.is_behind,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_left_out_step_by_step_and_come_back() {
        let mut load = Load::new(WhenBehind::DropPictures, 50);
        let mut now = 0;
        let mut judge = |load: &mut Load, late: u64| {
            load.note(late);
            now += WINDOW;
            load.judge(now)
        };
        assert_eq!(judge(&mut load, 50), None);
        assert!(!load.drops(false, || Some(true)));
        assert_eq!(judge(&mut load, 51), Some(1));
        assert!(load.drops(false, || Some(true)) && load.admits());
        assert!(!load.drops(false, || Some(false)) && !load.drops(false, || None));
        assert_eq!(judge(&mut load, 51), Some(2));
        assert!(load.drops(false, || None) && !load.drops(true, || None));
        assert!(!load.admits());
        assert_eq!(judge(&mut load, 51), None);
        let steps: Vec<u8> = (0..40).filter_map(|_| judge(&mut load, 0)).collect();
        assert_eq!(steps, [1, 0]);
        assert!(load.admits());
    }

    #[test]
    fn whoever_refuses_drops_nothing() {
        let mut load = Load::new(WhenBehind::Refuse, 50);
        load.note(1000);
        assert_eq!(load.judge(WINDOW), None);
        assert!(!load.admits() && !load.drops(false, || Some(true)));
        load.judge(2 * WINDOW);
        assert!(load.admits());
    }
}
