//! A live stream as HLS: pictures and sound are cut into segments and parts, of which the last are kept.
//!
//! ```text
//!   pictures, sound ──push──> parts of half a second ──> segments, each from a key picture on ──> window of the last
//!                                     └── a playlist that is asked for ahead waits for the next (RFC 8216bis, 6.2.5.2)
//! ```
//! Pictures and sound are in the same segments: a player has nothing to put together. Where pictures are sent out of order,
//! or fewer than 13 a second, a segment is one part: the times of decoding are known with the last picture only.
//!
//! # Invariants
//! 1. Times of decoding go forward over connections: a source that comes back begins behind the end of what was there.
//! 2. The window is bounded by time and by bytes, whatever a source sends.
//! 3. A segment or part that a playlist has named can be had for as long as it is in the window.

use core::fmt::Write as _;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::clip::Sample;
use crate::clip::samples::LARGEST;
use crate::clip::stored::{Media, Stored};

use super::boxes::{self, Run};
use super::codecs;

const SECOND: i64 = 1_000_000_000;

/// Least length of a segment, ns: it ends at the first key picture behind that.
const TARGET_NS: i64 = 2 * SECOND;

/// Greatest length of a part, ns.
const PART_NS: i64 = SECOND / 2;

/// Pictures that are further apart than this, ns, are in no parts: a part would be a picture or two.
const SLOWEST: i64 = SECOND / 13;

/// Greatest length of a segment without another key picture, ns, and its most bytes.
const LONGEST_NS: i64 = 30 * SECOND;
const LARGEST_BYTES: usize = 48 << 20;

/// The window: segments, and bytes of all of them.
const SEGMENTS: usize = 8;
const WINDOW_BYTES: usize = 160 << 20;

/// Last segments that are listed with their parts.
const WITH_PARTS: usize = 3;

/// The first time of a stream, ns: decoding may begin before that.
const BEGINS_NS: i64 = 10 * SECOND;

/// A track of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Pictures or sound.
    pub media: Media,
    /// Sample description as a box, as in an MP4 (ISO/IEC 14496-12, 8.5.2).
    pub entry: Vec<u8>,
    /// Ticks a second of its times.
    pub clock_rate: u32,
}

/// A picture, or a frame of sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The picture or frame, as in an MP4.
    pub bytes: Vec<u8>,
    /// When it is shown, ticks from the beginning of the connection.
    pub shown: i64,
    /// True if decoding can begin with it.
    pub is_key: bool,
}

/// A part of a segment.
#[derive(Clone, Debug)]
struct Part {
    bytes: Arc<[u8]>,
    lasts_ns: i64,
    is_independent: bool,
}

/// A segment.
#[derive(Clone, Debug)]
struct Segment {
    parts: Vec<Part>,
    /// The number of its header.
    header: usize,
    /// True if its times follow those of the segment before it.
    goes_on: bool,
}

impl Segment {
    fn lasts_ns(&self) -> i64 {
        self.parts.iter().map(|part| part.lasts_ns).sum()
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.len()).sum()
    }
}

/// A track of the present connection.
#[derive(Debug)]
struct Lane {
    stored: Stored,
    pending: Vec<Unit>,
    /// When the last unit was shown that came, and from one to the next.
    last: Option<i64>,
    step: i64,
    /// Ticks that decoding is ahead of showing, where pictures are out of order.
    delay: i64,
    is_out_of_order: bool,
    /// The last time of decoding.
    decoded: i64,
}

/// A live stream.
#[derive(Debug, Default)]
pub struct Live {
    lanes: Vec<Lane>,
    /// Segments in the window; the last is open while something is pushed.
    segments: VecDeque<Segment>,
    /// The number of the first of them, and how many breaks are behind.
    first: u64,
    breaks: u64,
    is_open: bool,
    headers: BTreeMap<usize, Arc<[u8]>>,
    /// The number of the last of them.
    header: usize,
    codecs: String,
    size: Option<(u16, u16)>,
    /// Begin of the open segment and of its open part, and the end of all before, ns.
    segment_ns: i64,
    part_ns: i64,
    end_ns: i64,
    /// Added to the times of the connection, ns.
    base_ns: i64,
    /// Bytes of units that are in no part yet.
    pending: usize,
    sequence: u32,
    peak: u64,
    has_parts: bool,
}

impl Live {
    /// A source is there, or there again: at most one track of pictures and one of sound are shown, the first of each.
    /// The tracks that are, by their numbers in `inputs`; none if nothing of it can be.
    pub fn begin(&mut self, inputs: &[Input]) -> Vec<Option<usize>> {
        self.end();
        self.lanes.clear();
        self.pending = 0;
        let mut places = Vec::new();
        for input in inputs {
            let is_known = self
                .lanes
                .iter()
                .any(|lane| lane.stored.media == input.media);
            let entry = input
                .entry
                .get(4..8)
                .and_then(|kind| kind.first_chunk::<4>());
            places.push(match entry {
                Some(kind) if !is_known && input.clock_rate > 0 && input.media != Media::Text => {
                    self.lanes.push(Lane::new(input, *kind));
                    Some(self.lanes.len() - 1)
                }
                _ => None,
            });
        }
        let tracks: Vec<&Stored> = self.lanes.iter().map(|lane| &lane.stored).collect();
        if !tracks.is_empty() {
            let header: Arc<[u8]> = boxes::header(&tracks).into();
            let names = tracks.iter().map(|of| codecs::of(of));
            self.codecs = names
                .filter(|of| !of.is_empty())
                .collect::<Vec<_>>()
                .join(",");
            self.size = tracks.iter().find_map(|of| codecs::size(of));
            if self.headers.last_key_value().map(|(_, last)| last) != Some(&header) {
                self.headers.insert(self.header + 1, header);
                self.header += 1;
            }
        }
        self.base_ns = self.end_ns.max(BEGINS_NS);
        self.end_ns = self.base_ns;
        self.is_open = false;
        self.has_parts = true;
        places
    }

    /// The source is gone: pictures that have come of it are shown.
    pub fn end(&mut self) {
        if self.is_open {
            let until = self.lanes.iter().filter_map(Lane::until_ns).max();
            self.close_part(self.base_ns + until.unwrap_or(0));
            self.is_open = false;
        }
    }

    /// The track that segments are cut by: the pictures, or else the sound.
    fn main(&self) -> Option<usize> {
        let is_video = |lane: &Lane| lane.stored.media == Media::Video;
        let video = self.lanes.iter().position(is_video);
        video.or((!self.lanes.is_empty()).then_some(0))
    }

    /// Takes a picture or sound of that track; whether the playlist has changed.
    pub fn push(&mut self, lane: usize, unit: Unit) -> bool {
        let size = u32::try_from(unit.bytes.len()).unwrap_or(u32::MAX);
        let Some(main) = self.main().filter(|_| size <= LARGEST && size > 0) else {
            return false;
        };
        let Some(track) = self.lanes.get_mut(lane) else {
            return false;
        };
        // A stream begins with a picture that decoding can begin with.
        if !self.is_open && (lane != main || !unit.is_key) {
            return false;
        }
        // Sound whose pictures have stopped waits for these, and is left out from there on.
        if lane != main && self.pending > LARGEST_BYTES {
            return false;
        }
        let at = self.base_ns + track.stored.ns(unit.shown);
        let mut has_changed = false;
        if lane == main {
            if let Some(last) = track.last {
                track.is_out_of_order |= unit.shown < last;
                let step = unit.shown - last;
                if step > 0 && !track.is_out_of_order {
                    track.step = step;
                    self.has_parts &=
                        track.stored.ns(step) <= SLOWEST || track.stored.media != Media::Video;
                }
            }
            let next_ns = at + track.stored.ns(track.step);
            let has_parts = self.has_parts && !track.is_out_of_order;
            has_changed = self.cut(at, unit.is_key, has_parts.then_some(next_ns));
        }
        let track = &mut self.lanes[lane];
        track.last = Some(track.last.map_or(unit.shown, |last| last.max(unit.shown)));
        self.pending += unit.bytes.len();
        track.pending.push(unit);
        has_changed
    }

    /// Ends the part and the segment that end before a unit of the main track at that time; `next_ns` is the time behind it where there are parts.
    fn cut(&mut self, at: i64, is_key: bool, next_ns: Option<i64>) -> bool {
        let lasts = at - self.segment_ns;
        let bytes = self.segments.back().map_or(0, Segment::bytes) + self.pending;
        let is_over = is_key && lasts >= TARGET_NS || lasts >= LONGEST_NS || bytes > LARGEST_BYTES;
        if !self.is_open {
            self.open(at, false);
            self.is_open = true;
            return false;
        }
        if is_over {
            self.close_part(at);
            self.open(at, true);
            return true;
        }
        if next_ns.is_some_and(|next| next - self.part_ns > PART_NS && at > self.part_ns) {
            self.close_part(at);
            return true;
        }
        false
    }

    /// Begins a segment at that time.
    fn open(&mut self, at: i64, goes_on: bool) {
        // A connection that has given nothing leaves no segment.
        if self.segments.back().is_some_and(|of| of.parts.is_empty()) {
            self.segments.pop_back();
        }
        self.segments.push_back(Segment {
            parts: Vec::new(),
            header: self.header,
            goes_on: goes_on || self.segments.is_empty(),
        });
        (self.segment_ns, self.part_ns) = (at, at);
        let bytes = |of: &VecDeque<Segment>| of.iter().map(Segment::bytes).sum::<usize>();
        while self.segments.len() > SEGMENTS + 1
            || self.segments.len() > 2 && bytes(&self.segments) > WINDOW_BYTES
        {
            self.segments.pop_front();
            self.first += 1;
            if let Some(first) = self.segments.front_mut().filter(|of| !of.goes_on) {
                first.goes_on = true;
                self.breaks += 1;
            }
        }
        let oldest = self.segments.front().map_or(self.header, |of| of.header);
        self.headers.retain(|number, _| *number >= oldest);
    }

    /// Ends the open part at that time.
    fn close_part(&mut self, until_ns: i64) {
        let base_ns = self.base_ns;
        self.pending = 0;
        let mut all: Vec<(Vec<Sample>, i64)> = Vec::new();
        let mut data: Vec<Vec<u8>> = Vec::new();
        let main = self.main();
        let mut is_independent = false;
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let units = std::mem::take(&mut lane.pending);
            if Some(index) == main {
                is_independent = units.first().is_some_and(|unit| unit.is_key);
            }
            let until = (Some(index) == main).then(|| lane.stored.ticks(until_ns - base_ns));
            all.push(lane.samples(&units, until));
            data.extend(units.into_iter().map(|unit| unit.bytes));
        }
        let of = all.iter().zip(&self.lanes);
        let runs: Vec<Run<'_>> = of
            .map(|((samples, next), lane)| Run {
                samples,
                shift: lane.stored.ticks(base_ns),
                next: *next,
            })
            .collect();
        let lasts_ns = (until_ns - self.part_ns).max(0);
        self.part_ns = until_ns;
        self.end_ns = self.end_ns.max(until_ns);
        if data.is_empty() {
            return;
        }
        self.sequence = self.sequence.wrapping_add(1);
        let Some(mut bytes) = boxes::head(&runs, self.sequence) else {
            return;
        };
        data.iter().for_each(|of| bytes.extend_from_slice(of));
        let bits = (bytes.len() as u64 * 8).saturating_mul(1_000_000_000);
        let rate = bits.checked_div(u64::try_from(lasts_ns).unwrap_or(0));
        self.peak = self.peak.max(rate.unwrap_or(0));
        if let Some(segment) = self.segments.back_mut() {
            segment.parts.push(Part {
                bytes: bytes.into(),
                lasts_ns,
                is_independent,
            });
        }
    }

    /// The segments that are whole.
    fn whole(&self) -> usize {
        self.segments.len() - usize::from(self.is_open)
    }

    /// The next segment and part that a playlist will have: those before are in it.
    #[must_use]
    pub fn next(&self) -> (u64, usize) {
        let open = self.segments.get(self.whole());
        (
            self.first + self.whole() as u64,
            open.map_or(0, |of| of.parts.len()),
        )
    }

    /// True if there is a segment to be played.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.whole() > 0
    }

    /// The playlist of the one stream; `uri` is where its own is.
    #[must_use]
    pub fn master(&self, uri: &str) -> String {
        let mut text = "#EXTM3U\n#EXT-X-VERSION:9\n#EXT-X-STREAM-INF:".to_owned();
        // Writing to memory does not fail.
        let _ = write!(text, "BANDWIDTH={}", self.peak.max(1));
        if !self.codecs.is_empty() {
            let _ = write!(text, ",CODECS=\"{}\"", self.codecs);
        }
        if let Some((width, height)) = self.size {
            let _ = write!(text, ",RESOLUTION={width}x{height}");
        }
        let _ = write!(text, "\n{uri}\n");
        text
    }

    /// The playlist: `header-N.mp4`, `SEGMENT.m4s`, `SEGMENT.PART.m4s` are its addresses.
    #[must_use]
    pub fn playlist(&self) -> String {
        let seconds = |ns: i64| format!("{}.{:06}", ns / SECOND, ns % SECOND / 1000);
        let whole = self.whole();
        let segments = || self.segments.iter().take(whole);
        let longest = segments()
            .map(Segment::lasts_ns)
            .max()
            .unwrap_or(TARGET_NS)
            .max(TARGET_NS);
        let target = (longest + SECOND / 2) / SECOND;
        let mut text = "#EXTM3U\n#EXT-X-VERSION:9\n".to_owned();
        let _ = writeln!(text, "#EXT-X-TARGETDURATION:{target}");
        let has_parts = self.has_parts && self.lanes.iter().all(|lane| !lane.is_out_of_order);
        if has_parts {
            let _ = writeln!(
                text,
                "#EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES,PART-HOLD-BACK={}\n#EXT-X-PART-INF:PART-TARGET={}",
                seconds(3 * PART_NS),
                seconds(PART_NS)
            );
        } else {
            let _ = writeln!(text, "#EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES");
        }
        let _ = writeln!(text, "#EXT-X-MEDIA-SEQUENCE:{}", self.first);
        if self.breaks > 0 {
            let _ = writeln!(text, "#EXT-X-DISCONTINUITY-SEQUENCE:{}", self.breaks);
        }
        let mut header = None;
        for (number, segment) in (self.first..).zip(&self.segments) {
            let place = usize::try_from(number - self.first).unwrap_or(usize::MAX);
            if segment.parts.is_empty() && place >= whole {
                break;
            }
            if !segment.goes_on {
                text.push_str("#EXT-X-DISCONTINUITY\n");
            }
            if header != Some(segment.header) {
                let _ = writeln!(text, "#EXT-X-MAP:URI=\"header-{}.mp4\"", segment.header);
                header = Some(segment.header);
            }
            if has_parts && place + WITH_PARTS >= whole {
                for (at, part) in segment.parts.iter().enumerate() {
                    let lasts = seconds(part.lasts_ns);
                    let _ = write!(
                        text,
                        "#EXT-X-PART:DURATION={lasts},URI=\"{number}.{at}.m4s\""
                    );
                    text.push_str(if part.is_independent {
                        ",INDEPENDENT=YES\n"
                    } else {
                        "\n"
                    });
                }
            }
            if place < whole {
                let _ = writeln!(
                    text,
                    "#EXTINF:{},\n{number}.m4s",
                    seconds(segment.lasts_ns())
                );
            }
        }
        if has_parts && self.is_open {
            let (segment, part) = self.next();
            let _ = writeln!(
                text,
                "#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"{segment}.{part}.m4s\""
            );
        }
        text
    }

    /// A header that a playlist has named.
    #[must_use]
    pub fn header(&self, number: usize) -> Option<Arc<[u8]>> {
        self.headers.get(&number).cloned()
    }

    /// The bytes of a segment that is whole, in the window.
    #[must_use]
    pub fn segment(&self, number: u64) -> Option<Vec<Arc<[u8]>>> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let segment = self.segments.get(place).filter(|_| place < self.whole())?;
        Some(
            segment
                .parts
                .iter()
                .map(|part| Arc::clone(&part.bytes))
                .collect(),
        )
    }

    /// A part of a segment, in the window.
    #[must_use]
    pub fn part(&self, number: u64, part: usize) -> Option<Arc<[u8]>> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let part = self.segments.get(place)?.parts.get(part)?;
        Some(Arc::clone(&part.bytes))
    }
}

impl Lane {
    fn new(input: &Input, codec: [u8; 4]) -> Self {
        Self {
            stored: Stored {
                media: input.media,
                codec,
                entry: input.entry[8..].to_vec(),
                header: Vec::new(),
                language: None,
                timescale: input.clock_rate,
                samples: Vec::new(),
                end: 0,
                bits_per_sec: 0,
            },
            pending: Vec::new(),
            last: None,
            step: i64::from(input.clock_rate) / 25,
            delay: 0,
            is_out_of_order: false,
            decoded: i64::MIN,
        }
    }

    /// The end of the last unit that came, ns of the connection.
    fn until_ns(&self) -> Option<i64> {
        self.last.map(|last| self.stored.ns(last + self.step))
    }

    /// Samples of units in the order that they came, and when the next is decoded: `until`, or a step after the last.
    fn samples(&mut self, units: &[Unit], until: Option<i64>) -> (Vec<Sample>, i64) {
        if let [.., before, last] = units
            && !self.is_out_of_order
            && last.shown > before.shown
        {
            self.step = last.shown - before.shown;
        }
        // The first that is decoded is decoded when the first is shown, or as much before that as others are late.
        let mut in_order: Vec<i64> = units.iter().map(|unit| unit.shown).collect();
        in_order.sort_unstable();
        let ahead = in_order
            .iter()
            .zip(units)
            .map(|(decoded, unit)| decoded - unit.shown);
        self.delay = self.delay.max(ahead.max().unwrap_or(0));
        let mut samples = Vec::new();
        for (decoded, unit) in in_order.iter().zip(units) {
            self.decoded = (decoded - self.delay).max(self.decoded.saturating_add(1));
            let after = i32::try_from(unit.shown - self.decoded).unwrap_or(0);
            let size = u32::try_from(unit.bytes.len()).unwrap_or(0);
            samples.push(Sample::new(0, size, unit.is_key, (self.decoded, after)));
        }
        let last = in_order.last().copied().unwrap_or(0);
        let next = until.unwrap_or(last + self.step) - self.delay;
        (samples, next.max(self.decoded.saturating_add(1)))
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
