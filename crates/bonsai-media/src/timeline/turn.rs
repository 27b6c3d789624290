//! Going over from one quality of a line's pictures to another.
//!
//! ```text
//!   sent so far:   I P B P B P B ...              shown up to here ──┐
//!   another file:        I P B P B  I P B P B  I ...                 v
//!                                              └─ the first that is decoded no earlier than what is next
//!                                                 now, and shown behind all that has been sent
//! ```
//! What was sent so far goes on until its next picture would be shown with that one or behind it: what
//! is decoded after such a picture and shown before it may be predicted from it, and is left out, a few
//! pictures at most, where the files do not have pictures that decoding can begin with at the same times.
//! So nothing is predicted from what was not sent, and no time is shown twice.

use super::{Line, Timeline};
use core::mem::discriminant;

use crate::clip::{Clip, Track};

/// Times of two files are different by so much if they are meant to be, nanoseconds: each has a clock of
/// its own, to whose ticks they are rounded.
const APART: i64 = 1_000_000;

/// Samples that are looked through for a picture to go on with: half an hour of them.
const FARTHEST: usize = 1 << 16;

/// Where a line goes over to another quality.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// The sample of that quality, and when it is shown, nanoseconds.
    next: usize,
    shown: i64,
}

impl Line {
    /// Nothing is gone on with of what was sent before.
    pub(super) fn begin_anew(&mut self) {
        self.quality = self.wanted;
        (self.turn, self.shown, self.not_before) = (None, i64::MIN, i64::MIN);
    }
}

/// How many samples of a track are decoded before a time, which is the end of all for the last there is.
pub(super) fn end_of(track: &Track, until_ns: i64) -> usize {
    match until_ns {
        i64::MAX => track.samples().len(),
        _ => track
            .samples()
            .partition_point(|of| track.decoded_ns(of) < until_ns),
    }
}

impl Timeline {
    /// In how many qualities a line's samples can be sent: sound in one, as its decoder is told once how
    /// it is coded (RFC 3640, 4.1).
    ///
    /// # Panics
    /// There is no such line, as for all that ask for one.
    #[must_use]
    pub fn qualities(&self, line: usize) -> usize {
        self.lines[line].qualities
    }

    /// The quality of a line's next sample.
    #[must_use]
    pub fn quality(&self, line: usize) -> usize {
        self.lines[line].quality
    }

    /// Whether it is to be sent in another quality than it is so far.
    #[must_use]
    pub fn is_turning(&self, line: usize) -> bool {
        self.lines[line].wanted != self.lines[line].quality
    }

    /// How long a line's pictures still come in a better quality than the one that is wanted and will follow
    /// before playing ends, nanoseconds of the clip.
    #[must_use]
    pub fn until_lower(&self, line: usize) -> Option<u64> {
        let this = &self.lines[line];
        let turn = this.turn.filter(|_| this.wanted > this.quality)?;
        let until = self.run.map_or(i64::MAX, |run| run.until_ns);
        if turn.next >= end_of(self.track_in(line, this.wanted), until) {
            return None;
        }
        let next = self.track(line).shown_ns(self.sample(line)?);
        u64::try_from(turn.shown.saturating_sub(next)).ok()
    }

    /// Asks for another quality of a line, 0 for the best; beyond the lowest is the lowest. It is sent from
    /// its next picture on that decoding can begin with, or where playing begins elsewhere; until then,
    /// and where there is none, what is sent stays. Whether another sample is the line's next by that,
    /// now: nothing may have been sent of the one that was.
    pub fn switch(&mut self, line: usize, quality: usize) -> bool {
        let wanted = quality.min(self.lines[line].qualities - 1);
        if wanted == self.lines[line].wanted {
            return false;
        }
        self.lines[line].wanted = wanted;
        self.lines[line].turn = self.turn(line);
        let before = self.lines[line].media_due;
        if !self.turn_over(line) {
            return false;
        }
        let due = self.clock_due(line);
        let this = &mut self.lines[line];
        this.eased = before.saturating_sub(due);
        this.media_due = due.saturating_add(this.eased);
        this.due = match due {
            u64::MAX => u64::MAX,
            _ => this.due.max(this.media_due),
        };
        true
    }

    /// Goes over to the quality that is wanted, where it is time to; whether it has.
    pub(super) fn turn_over(&mut self, line: usize) -> bool {
        let Some(turn) = self.lines[line].turn else {
            return false;
        };
        let next = self.sample(line);
        if next.is_some_and(|next| self.track(line).shown_ns(next) < turn.shown - APART) {
            return false;
        }
        let this = &mut self.lines[line];
        (this.turn, this.quality, this.next) = (None, this.wanted, turn.next);
        this.not_before = turn.shown;
        let until = self.run.map_or(i64::MAX, |run| run.until_ns);
        self.lines[line].end = end_of(self.track(line), until);
        true
    }

    /// Passes over what is decoded behind the picture that a quality began with and shown before it: that
    /// is predicted from some that were not sent.
    pub(super) fn pass_over(&mut self, line: usize) {
        let not_before = self.lines[line].not_before;
        while let Some(next) = self.sample(line)
            && self.track(line).shown_ns(next) < not_before
        {
            self.lines[line].next += 1;
        }
    }

    /// The picture of the wanted quality that it goes on with.
    fn turn(&self, line: usize) -> Option<Turn> {
        let this = &self.lines[line];
        if this.wanted == this.quality {
            return None;
        }
        let due = self.track(line).decoded_ns(self.sample(line)?);
        let track = self.track_in(line, this.wanted);
        let samples = track.samples();
        let first = samples.partition_point(|of| track.decoded_ns(of) < due - APART);
        let mut from = (first..).zip(&samples[first..]).take(FARTHEST);
        from.find_map(|(next, of)| {
            let shown = track.shown_ns(of);
            let is_it = of.is_sync() && shown > this.shown.saturating_add(APART);
            is_it.then_some(Turn { next, shown })
        })
    }

    /// A line's track in a quality.
    pub(super) fn track_in(&self, line: usize, quality: usize) -> &Track {
        let lower = quality
            .checked_sub(1)
            .and_then(|index| self.lower.get(index)?.pictures());
        lower.unwrap_or_else(|| &self.clip.tracks[self.lines[line].track])
    }

    /// How many qualities there are of a track of the best.
    pub(super) fn qualities_of(&self, track: usize) -> usize {
        let best = &self.clip.tracks[track].codec;
        if !best.is_video() {
            return 1;
        }
        // A decoder is told once which codec there is.
        let is_alike = |clip: &Clip| {
            let pictures = clip.pictures();
            pictures.is_some_and(|of| discriminant(&of.codec) == discriminant(best))
        };
        let lower = self.lower.iter();
        1 + lower.take_while(|clip| is_alike(clip)).count()
    }
}

#[cfg(test)]
#[path = "turn_tests.rs"]
mod tests;
