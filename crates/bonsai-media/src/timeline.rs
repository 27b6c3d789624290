//! A clip as it is sent to one viewer: which sample is due when, and the numbers of its packets.
//!
//! ```text
//!   add, a track at a time ──> play ──> next: a sample, a report, the end ──> advance ──┐
//!                                ^  └── pause                ^────────────────────────┘
//! ```
//! # Definitions
//! A *line* is a track that is sent. The *origin* is the time of decoding, of all lines, that is due when
//! playing begins; a sample is due as long after that as it is decoded after the origin.
//!
//! A *quality* is another clip of the same film, whose pictures may be sent instead: 0 is the best.
//!
//! # Invariants
//! 1. Samples of a line are due in the order that they are decoded, and each once; of another quality,
//!    from a picture on that decoding can begin with, and what is shown then is shown once.
//! 2. Whoever is late catches up at twice the pace at most: two samples of a line are never sent at once.
//! 3. Numbers of packets go on over pauses and seeking, and so do their timestamps, as if what was left
//!    out had not been there (RFC 2326, appendix B).

mod turn;

use std::sync::Arc;

use self::turn::Turn;
use crate::clip::{self, Clip, Sample, Track};
use crate::rtcp::{self, Sent};
use crate::rtp::Header;

const SECOND: u64 = 1_000_000_000;

/// Between two reports of a sender (RFC 3550, 6.2: five seconds).
pub const REPORTS: u64 = 5 * SECOND;

/// From the end of the last sample to the farewell. It comes by another socket than the sample does, and
/// whoever reads it first ends without the rest.
const FAREWELL: u64 = SECOND / 5;

/// Pictures that are predicted from one that decoding can begin with: a minute of them.
const LONGEST_GROUP: usize = 3_600;

/// What is next, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A line's next sample.
    Sample(usize),
    /// A report of each line.
    Report,
    /// All has been sent: a last report of each line, with a farewell.
    End,
}

/// Where playing begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// In the clip, nanoseconds.
    pub from_ns: u64,
    /// Where it ends.
    pub until_ns: u64,
    /// Of each line, in order: track, number of its next packet, and the timestamp of that time.
    pub lines: Vec<(usize, u16, u32)>,
}

/// A clip that is sent.
#[derive(Clone, Debug)]
pub struct Timeline {
    clip: Arc<Clip>,
    lower: Arc<[Arc<Clip>]>,
    lines: Vec<Line>,
    run: Option<Run>,
    /// Where the next run begins that is not told where.
    position_ns: u64,
    /// Media time that has been sent so far, nanoseconds, over all runs.
    sent_ns: i64,
    report_at: u64,
    end_at: u64,
}

/// A track that is sent.
#[derive(Clone, Debug)]
struct Line {
    /// Of the best quality.
    track: usize,
    /// How many there are, that which is sent, and that which is to be.
    qualities: usize,
    quality: usize,
    wanted: usize,
    turn: Option<Turn>,
    /// The latest that a sample so far is shown at, and the earliest that one may be from now on,
    /// nanoseconds.
    shown: i64,
    not_before: i64,
    /// How much later than by the media's clock the next sample is due: a quality that is decoded earlier
    /// before it is shown catches up.
    eased: u64,
    ssrc: u32,
    sequence: u16,
    /// The timestamp of the time that the run began from, and of the very first.
    base: u32,
    first: u32,
    next: usize,
    end: usize,
    /// When the next sample is due by the media's clock, and when it is sent at the earliest.
    media_due: u64,
    due: u64,
    packets: u32,
    bytes: u32,
}

/// Playing without a break.
#[derive(Clone, Copy, Debug)]
struct Run {
    began: u64,
    origin_ns: i64,
    from_ns: i64,
    /// Samples that are decoded from here on are not sent; of the last, all are.
    until_ns: i64,
    /// The end of what is shown of all that was sent, in the clip.
    shown_ns: i64,
}

impl Timeline {
    /// Nothing of a clip so far, which has one quality.
    #[must_use]
    pub fn new(clip: Arc<Clip>) -> Self {
        Self::with_lower(clip, Arc::default())
    }

    /// Nothing so far of a clip that has these lower qualities, too, each lower than the one before it.
    #[must_use]
    pub const fn with_lower(clip: Arc<Clip>, lower: Arc<[Arc<Clip>]>) -> Self {
        Self {
            clip,
            lower,
            lines: Vec::new(),
            run: None,
            position_ns: 0,
            sent_ns: 0,
            report_at: u64::MAX,
            end_at: u64::MAX,
        }
    }

    /// The clip, in its best quality.
    #[must_use]
    pub const fn clip(&self) -> &Arc<Clip> {
        &self.clip
    }

    /// How many lines there are.
    #[must_use]
    pub const fn lines(&self) -> usize {
        self.lines.len()
    }

    /// Whether it plays.
    #[must_use]
    pub const fn is_playing(&self) -> bool {
        self.run.is_some()
    }

    /// Sends a track, too, with these random beginnings (RFC 3550, 5.1). Its line.
    pub fn add(&mut self, track: usize, ssrc: u32, sequence: u16, timestamp: u32) -> usize {
        self.lines.push(Line {
            track,
            qualities: self.qualities_of(track),
            quality: 0,
            wanted: 0,
            turn: None,
            shown: i64::MIN,
            not_before: i64::MIN,
            eased: 0,
            ssrc,
            sequence,
            base: timestamp,
            first: timestamp,
            next: 0,
            end: 0,
            media_due: u64::MAX,
            due: u64::MAX,
            packets: 0,
            bytes: 0,
        });
        self.lines.len() - 1
    }

    /// What is sent of it, in the quality that it is sent in.
    ///
    /// # Panics
    /// There is no such line, as for all that ask for one.
    #[must_use]
    pub fn track(&self, line: usize) -> &Track {
        self.track_in(line, self.lines[line].quality)
    }

    /// The number of its track in the clip.
    #[must_use]
    pub fn number(&self, line: usize) -> usize {
        self.lines[line].track
    }

    /// Its sender.
    #[must_use]
    pub fn ssrc(&self, line: usize) -> u32 {
        self.lines[line].ssrc
    }

    /// Begins to play, at a time of the clip or where it was, up to a time or the end.
    pub fn play(&mut self, from_ns: Option<u64>, until_ns: Option<u64>, now: u64) -> Started {
        self.pause(now);
        let until_ns = until_ns.unwrap_or(u64::MAX).min(self.clip.length_ns);
        // Whoever has seen the end sees the beginning again.
        let goes_on = self.lines.iter().any(|line| line.next < line.end);
        let from_ns = match from_ns {
            None if goes_on => self.position_ns,
            asked => {
                self.lines.iter_mut().for_each(Line::begin_anew);
                let lines = 0..self.lines.len();
                let tracks: Vec<&Track> = lines.map(|line| self.track(line)).collect();
                let (from, firsts) = clip::seek(&tracks, asked.unwrap_or(0));
                for (line, first) in self.lines.iter_mut().zip(firsts) {
                    line.next = first;
                }
                from
            }
        };
        let until = match until_ns >= self.clip.length_ns {
            true => i64::MAX,
            false => i64::try_from(until_ns).unwrap_or(i64::MAX),
        };
        let from = i64::try_from(from_ns).unwrap_or(i64::MAX);
        let mut origin = i64::MAX;
        for line in 0..self.lines.len() {
            let track = self.track(line);
            let end = turn::end_of(track, until);
            let sent = ticks(self.sent_ns, track.clock_rate);
            if let Some(sample) = track.samples()[..end].get(self.lines[line].next) {
                origin = origin.min(track.decoded_ns(sample));
            }
            let line = &mut self.lines[line];
            (line.end, line.eased) = (end, 0);
            line.base = line.first.wrapping_add(wrapped(sent));
        }
        self.run = Some(Run {
            began: now,
            origin_ns: if origin == i64::MAX { from } else { origin },
            from_ns: from,
            until_ns: until,
            shown_ns: from,
        });
        for line in 0..self.lines.len() {
            let due = self.clock_due(line);
            (self.lines[line].media_due, self.lines[line].due) = (due, due);
        }
        self.report_at = now;
        self.end_at = now + FAREWELL;
        Started {
            from_ns,
            until_ns,
            lines: self
                .lines
                .iter()
                .map(|of| (of.track, of.sequence, of.base))
                .collect(),
        }
    }

    /// Stops, and knows where it was.
    pub fn pause(&mut self, now: u64) {
        let Some(run) = self.run.take() else {
            return;
        };
        let elapsed = i64::try_from(now.saturating_sub(run.began)).unwrap_or(i64::MAX);
        let at = run
            .origin_ns
            .saturating_add(elapsed)
            .clamp(run.from_ns, run.shown_ns.max(run.from_ns));
        self.position_ns = u64::try_from(at).unwrap_or(0).min(self.clip.length_ns);
        self.sent_ns += run.shown_ns - run.from_ns;
        (self.report_at, self.end_at) = (u64::MAX, u64::MAX);
        for line in &mut self.lines {
            (line.media_due, line.due) = (u64::MAX, u64::MAX);
        }
    }

    /// What is next, and when; `None` while it does not play.
    #[must_use]
    pub fn next(&self) -> Option<(u64, Next)> {
        self.run?;
        let lines = self.lines.iter().enumerate();
        let sample = lines.map(|(index, line)| (line.due, index)).min();
        let (due, next) = match sample {
            Some((due, line)) if due < u64::MAX => (due, Next::Sample(line)),
            _ => (self.end_at, Next::End),
        };
        // What is shown goes before what is said of it.
        Some(match self.report_at < due {
            true => (self.report_at, Next::Report),
            false => (due, next),
        })
    }

    /// A line's next sample.
    #[must_use]
    pub fn sample(&self, line: usize) -> Option<&Sample> {
        let this = &self.lines[line];
        self.track(line).samples()[..this.end].get(this.next)
    }

    /// The samples from a line's next on that are decoded within so many nanoseconds of it.
    pub fn within(&self, line: usize, ns: i64) -> impl Iterator<Item = &Sample> {
        let (this, track) = (&self.lines[line], self.track(line));
        let samples = track.samples()[..this.end]
            .get(this.next..)
            .unwrap_or_default();
        let first = samples.first().map_or(0, |first| track.decoded_ns(first));
        samples
            .iter()
            .take_while(move |sample| track.decoded_ns(sample) - first < ns)
    }

    /// Bytes of pictures that come behind a line's next sample, up to the one that decoding can begin with
    /// again.
    #[must_use]
    pub fn behind(&self, line: usize) -> u64 {
        let this = &self.lines[line];
        let samples = &self.track(line).samples()[..this.end];
        let behind = samples.iter().skip(this.next + 1).take(LONGEST_GROUP);
        behind
            .take_while(|sample| !sample.is_sync())
            .map(|sample| u64::from(sample.size()))
            .sum()
    }

    /// How late that is, nanoseconds.
    #[must_use]
    pub fn late(&self, line: usize, now: u64) -> u64 {
        now.saturating_sub(self.lines[line].media_due)
    }

    /// The header of one of that sample's packets, the first after those that are sent, or one that comes
    /// so many behind it.
    #[must_use]
    pub fn header(&self, line: usize, behind: u16, marker: bool) -> Header {
        let (this, from) = (&self.lines[line], self.run.map_or(0, |run| run.from_ns));
        let track = self.track(line);
        let shown = self
            .sample(line)
            .map_or(0, |sample| track.shown_ticks(sample));
        let since = shown - ticks(from, track.clock_rate);
        Header {
            marker,
            payload_type: track.payload_type(this.track),
            sequence: this.sequence.wrapping_add(behind),
            timestamp: this.base.wrapping_add(wrapped(since)),
            ssrc: this.ssrc,
        }
    }

    /// Packets with so many bytes of payload have been sent.
    pub fn sent(&mut self, line: usize, packets: u16, bytes: usize) {
        let line = &mut self.lines[line];
        line.sequence = line.sequence.wrapping_add(packets);
        line.packets = line.packets.wrapping_add(packets.into());
        line.bytes = line
            .bytes
            .wrapping_add(wrapped(i64::try_from(bytes).unwrap_or(0)));
    }

    /// The rest of a line's sample is sent at that time, and not before.
    pub fn hold(&mut self, line: usize, until: u64) {
        self.lines[line].due = until;
    }

    /// A line's sample has been sent, or left out: the one after it is next.
    pub fn advance(&mut self, line: usize, now: u64) {
        let gone = self.sample(line).copied();
        let this = &mut self.lines[line];
        let before = this.media_due;
        let by_clock = before.saturating_sub(this.eased);
        this.next += 1;
        self.pass_over(line);
        let due = self.clock_due(line);
        let track = self.track(line);
        // The last is as long as the one before it.
        let gap = match due {
            u64::MAX => track.samples().len().checked_sub(2).map_or(0, |at| {
                let (one, other) = (&track.samples()[at], &track.samples()[at + 1]);
                u64::try_from(track.decoded_ns(other) - track.decoded_ns(one)).unwrap_or(0)
            }),
            due => due.saturating_sub(by_clock),
        };
        let shown = gone.map(|gone| track.shown_ns(&gone));
        if let (Some(run), Some(shown)) = (&mut self.run, shown) {
            let length = i64::try_from(gap).unwrap_or(0);
            run.shown_ns = run.shown_ns.max(shown + length);
            let this = &mut self.lines[line];
            this.shown = this.shown.max(shown);
        }
        self.end_at = self.end_at.max(now.saturating_add(gap + FAREWELL));
        let (due, eased) = match self.turn_over(line) {
            true => {
                let due = self.clock_due(line);
                let earliest = before.saturating_add(gap / 2);
                (due, earliest.saturating_sub(due))
            }
            false => (due, self.lines[line].eased.saturating_sub(gap / 2)),
        };
        let this = &mut self.lines[line];
        this.eased = eased;
        this.media_due = due.saturating_add(eased);
        this.due = this.media_due.max(now.saturating_add(gap / 2));
        if due == u64::MAX {
            this.due = u64::MAX;
        }
    }

    /// When a line's next sample is due by the media's clock.
    fn clock_due(&self, line: usize) -> u64 {
        let (Some(run), Some(sample)) = (self.run, self.sample(line)) else {
            return u64::MAX;
        };
        let after = self.track(line).decoded_ns(sample) - run.origin_ns;
        run.began.saturating_add(u64::try_from(after).unwrap_or(0))
    }

    /// A line's report, at a time that is also told since 1970; the next one is due in a while.
    pub fn report(&mut self, line: usize, now: u64, unix_ns: u64) -> Sent {
        let this = &self.lines[line];
        self.report_at = now + rtcp::apart(REPORTS, this.ssrc, now);
        let rate = self.track(line).clock_rate;
        // What is shown now, if a sample is shown as long after another as in the clip.
        let since = self.run.map_or(0, |run| {
            let elapsed = i64::try_from(now.saturating_sub(run.began)).unwrap_or(i64::MAX);
            run.origin_ns
                .saturating_add(elapsed)
                .saturating_sub(run.from_ns)
        });
        Sent {
            ssrc: this.ssrc,
            ntp: Sent::ntp(unix_ns),
            timestamp: this.base.wrapping_add(wrapped(ticks(since, rate))),
            packets: this.packets,
            bytes: this.bytes,
        }
    }
}

/// Nanoseconds as ticks of a clock.
fn ticks(ns: i64, rate: u32) -> i64 {
    let ticks = (i128::from(ns) * i128::from(rate)).div_euclid(i128::from(SECOND));
    i64::try_from(ticks).unwrap_or(i64::MAX)
}

/// The lowest 32 bits.
fn wrapped(of: i64) -> u32 {
    u32::try_from(of.rem_euclid(1 << 32)).unwrap_or(0)
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
