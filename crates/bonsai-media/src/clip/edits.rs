//! Edit lists (ISO/IEC 14496-12, 8.6.6): from the times of a track's media to those of the film.
//!
//! ```text
//!   media   I p p p p I p p p p I p p          of an edit: from there ┐   to there ┐
//!                   └─ h h S S S S h ──────────> what is shown of it, and what is decoded for that
//! ```
//! Pictures that are decoded only for others to be shown are sent among those, and marked by their times:
//! one tick after the other right before the edit begins, or behind the end of the film. A receiver that
//! plays by its clock shows none of them for longer than a few milliseconds.

use mp4_atom::{Elst, Mvhd};

use super::LONGEST_S;
use super::boxes::child;
use super::samples::{Sample, Table, decode};

/// Edits of more parts than that are none.
const MOST: usize = 4096;

/// Frames of sound that are decoded before those which are heard: priming, and what a decoder needs to
/// settle (80 ms of Opus, RFC 7845, 4.6).
const PRIMING: usize = 4;

/// The film's ticks a second of a track some of whose pictures are only decoded: as RTP has them.
const FINE: i64 = 90_000;

/// A part of a track's media, and where it is in the film, ticks of the track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edit {
    at: i64,
    from: i64,
    /// `None` to the end of the media.
    length: Option<i64>,
    /// One picture is shown for all of it.
    is_still: bool,
}

/// A track's samples at the times of the film.
pub(super) struct Edited {
    pub(super) samples: Vec<Sample>,
    /// Ticks a second.
    pub(super) timescale: u32,
    /// The end of what is shown, ticks.
    pub(super) end: u64,
    /// Something of the edits that is not done, in words.
    pub(super) note: Option<String>,
}

/// Applies the edits of a track; those that make no sense are none. `most` samples may come of it.
///
/// # Errors
/// What is wrong, in words.
pub(super) fn apply(
    (trak, movie): (&[u8], &[u8]),
    (table, timescale): (Table, u32),
    is_video: bool,
    is_open: bool,
    most: usize,
) -> Result<Edited, String> {
    let (edits, note) = read(trak, movie, timescale, is_open);
    let mut film = Film {
        media: &table.samples,
        media_end: i64::try_from(table.ticks).unwrap_or(i64::MAX),
        scale: 1,
        samples: Vec::new(),
        hidden: Vec::new(),
        decoded: i64::MIN,
        end: 0,
        most,
    };
    if is_video && film.hides(&edits) {
        film.scale = (FINE + i64::from(timescale) - 1) / i64::from(timescale).max(1);
    }
    for (index, edit) in edits.iter().enumerate() {
        match is_video {
            true => film.pictures(edit)?,
            false => film.sound(edit, index == 0)?,
        }
    }
    let scaled = i64::from(timescale) * film.scale;
    let end = u64::try_from(film.end).unwrap_or(0);
    let mut samples = film.samples;
    samples.shrink_to_fit();
    Ok(Edited {
        samples,
        timescale: u32::try_from(scaled).map_err(|_| "its clock is too fine")?,
        end,
        note,
    })
}

fn read(trak: &[u8], movie: &[u8], timescale: u32, is_open: bool) -> (Vec<Edit>, Option<String>) {
    let all = Edit {
        at: 0,
        from: 0,
        length: None,
        is_still: false,
    };
    let Some(list) = child(trak, *b"edts") else {
        return (vec![all], None);
    };
    let none = |why: &str| (vec![all], Some(format!("its edit list is ignored: {why}")));
    let list: Elst = match decode(list, *b"elst") {
        Ok(list) => list,
        Err(why) => return none(&why),
    };
    let header: Option<Mvhd> = decode(movie, *b"mvhd").ok();
    let movie_scale = header.map_or(0, |header| header.timescale);
    let longest = LONGEST_S * u64::from(timescale);
    let ticks = |of_movie: u64| {
        let ticks = u128::from(of_movie) * u128::from(timescale);
        let ticks = ticks.checked_div(u128::from(movie_scale)).unwrap_or(0);
        i64::try_from(ticks)
            .ok()
            .filter(|ticks| ticks.unsigned_abs() <= longest)
    };
    if list.entries.len() > MOST {
        return none(&format!("it has {} parts", list.entries.len()));
    }
    let (mut edits, mut at, mut note) = (Vec::new(), 0_u64, None);
    let last = list.entries.iter().rposition(|of| of.media_time.is_some());
    for (index, entry) in list.entries.iter().enumerate() {
        let begins = at;
        at = at.saturating_add(entry.segment_duration);
        let Some(from) = entry.media_time else {
            continue;
        };
        if from > longest {
            return none("it begins after the longest film");
        }
        let (Some(begins), Some(ends)) = (ticks(begins), ticks(at)) else {
            // What is longer than any film goes on to the end, if nothing follows.
            match ticks(begins).filter(|_| Some(index) == last) {
                Some(begins) => edits.push(Edit {
                    at: begins,
                    from: i64::try_from(from).unwrap_or(0),
                    length: None,
                    is_still: false,
                }),
                None => return none("it is longer than the longest film"),
            }
            continue;
        };
        let rate = (entry.media_rate.integer(), entry.media_rate.decimal());
        if !matches!(rate, (0 | 1, 0)) {
            note =
                Some("a part of its edit list has a rate of its own, and is sent at 1".to_owned());
        }
        // Of a film in fragments, the list was written before its end was known.
        let goes_on = Some(index) == last && (is_open || entry.segment_duration == 0);
        edits.push(Edit {
            at: begins,
            from: i64::try_from(from).unwrap_or(0),
            length: (!goes_on).then_some(ends - begins),
            is_still: rate == (0, 0) && !goes_on,
        });
    }
    match edits.is_empty() {
        true => (vec![all], note),
        false => (edits, note),
    }
}

struct Film<'a> {
    media: &'a [Sample],
    media_end: i64,
    /// Ticks of the film for each of the media.
    scale: i64,
    samples: Vec<Sample>,
    /// Of the samples, those that are only decoded and whose time is not known yet, and when they would
    /// have been shown: the last of an edit before those of the next.
    hidden: Vec<(usize, (bool, i64))>,
    decoded: i64,
    end: i64,
    most: usize,
}

impl Film<'_> {
    /// Which pictures an edit shows: from the first media time to before the second, and of those the
    /// first and the last in the order that they are decoded.
    fn shows(&self, edit: &Edit) -> Option<(i64, i64, usize, usize)> {
        if edit.is_still {
            let shown = self
                .media
                .iter()
                .map(Sample::shown)
                .filter(|at| *at <= edit.from);
            let at = shown.max()?;
            let index = self.media.iter().position(|of| of.shown() == at)?;
            return Some((at, at + 1, index, index));
        }
        let until = edit.length.map_or(i64::MAX, |length| edit.from + length);
        let is_shown = |of: &Sample| (edit.from..until).contains(&of.shown());
        let first = self.media.iter().position(is_shown)?;
        let last = self.media.iter().rposition(is_shown)?;
        Some((edit.from, until, first, last))
    }

    /// Where decoding begins for what is shown from there on, of which that is decoded first.
    fn begins(&self, from: i64, first: usize) -> usize {
        let before = self.media[..=first].iter();
        let mut before = before.enumerate().rev();
        let key = before.find(|(_, of)| of.is_sync() && of.shown() <= from);
        // A film whose first picture is shown late has nothing before it.
        let begins = key.map_or(0, |(index, _)| index);
        match self.media[first].is_sync() && key.is_none() {
            true => first,
            false => begins,
        }
    }

    /// Whether an edit needs pictures that it does not show.
    fn hides(&self, edits: &[Edit]) -> bool {
        edits.iter().any(|edit| {
            let Some((from, until, first, last)) = self.shows(edit) else {
                return false;
            };
            let range = &self.media[self.begins(from, first)..=last];
            edit.is_still || range.iter().any(|of| !(from..until).contains(&of.shown()))
        })
    }

    fn push(&mut self, of: &Sample, decoded: i64, shown: i64) -> Result<(), String> {
        if self.samples.len() >= self.most {
            return Err("its edits show more samples than a clip may have".to_owned());
        }
        self.decoded = self.decoded.max(decoded);
        let sample = of.at(self.decoded, shown);
        let sample = sample.ok_or("a sample is shown days after it is decoded")?;
        self.samples.push(sample);
        Ok(())
    }

    fn pictures(&mut self, edit: &Edit) -> Result<(), String> {
        let Some((from, until, first, last)) = self.shows(edit) else {
            return Ok(());
        };
        let (scale, begins) = (self.scale, edit.at * self.scale);
        let start = self.samples.len();
        let decoded_first = self.media[first].decoded();
        for index in self.begins(from, first)..=last {
            let of = self.media[index];
            let (decoded, shown) = (of.decoded() - from, of.shown());
            // What comes before all that is shown is sent at four times the pace: nothing is seen meanwhile.
            let late = (decoded_first - of.decoded()).max(0);
            let decoded = begins + (decoded + late) * scale - late * scale / 4;
            if !(from..until).contains(&shown) {
                self.hidden
                    .push((self.samples.len(), (shown >= until, shown)));
            }
            self.push(&of, decoded, begins + (shown - from) * scale)?;
            if (from..until).contains(&shown) {
                let next = self.media.get(index + 1);
                let next = next.map_or(self.media_end, Sample::decoded);
                let ends = match edit.length {
                    Some(length) if edit.is_still => length,
                    Some(length) => (shown - from + next - of.decoded()).min(length),
                    None => shown - from + next - of.decoded(),
                };
                self.end = self.end.max(begins + ends * scale);
            }
        }
        self.hide(start, begins)
    }

    /// Gives pictures that are only decoded the last ticks before an edit: those behind the edit before it,
    /// then its own. What is behind this one stays, and is behind the film if nothing follows.
    fn hide(&mut self, start: usize, begins: i64) -> Result<(), String> {
        let is_before =
            |(index, (is_behind, _)): &(usize, (bool, i64))| *index < start || !is_behind;
        let hidden = std::mem::take(&mut self.hidden).into_iter();
        let (mut before, behind): (Vec<_>, Vec<_>) = hidden.partition(is_before);
        self.hidden = behind;
        before.sort_by_key(|(index, (_, shown))| (*index >= start, *shown));
        let count = i64::try_from(before.len()).unwrap_or(0);
        for (rank, (index, _)) in (0_i64..).zip(before) {
            let sample = self.samples[index];
            let at = sample.at(sample.decoded(), begins - count + rank);
            self.samples[index] = at.ok_or("a sample is shown days after it is decoded")?;
        }
        Ok(())
    }

    fn sound(&mut self, edit: &Edit, is_first: bool) -> Result<(), String> {
        if edit.is_still {
            return Ok(());
        }
        let (media, media_end) = (self.media, self.media_end);
        let ends = |index: usize| match media.get(index + 1) {
            Some(next) => next.decoded(),
            None => media_end,
        };
        let until = edit.length.map_or(i64::MAX, |length| edit.from + length);
        // Frames are not cut: a part begins and ends with the frame that is nearest.
        let middle = |index: usize| media[index].decoded().midpoint(ends(index));
        let all = 0..media.len();
        let (first, last) = match is_first {
            true => {
                let heard = all.clone().find(|index| ends(*index) > edit.from);
                let Some(heard) = heard else {
                    return Ok(());
                };
                let last = all.rev().find(|index| media[*index].decoded() < until);
                (heard.saturating_sub(PRIMING), last)
            }
            false => {
                let first = all.clone().find(|index| middle(*index) >= edit.from);
                let Some(first) = first else {
                    return Ok(());
                };
                (first, all.rev().find(|index| middle(*index) < until))
            }
        };
        let Some(last) = last.filter(|last| *last >= first) else {
            return Ok(());
        };
        for (index, of) in media.iter().enumerate().take(last + 1).skip(first) {
            let at = edit.at + of.decoded() - edit.from;
            let length = ends(index) - of.decoded();
            self.push(of, at, at)?;
            self.end = self.end.max(match edit.length {
                Some(whole) => (at + length).min(edit.at + whole),
                None => at + length,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::sketch::boxed;
    use super::*;

    /// Pictures of 10 ticks, each fifth of them a key; 100 ticks a second, as the movie.
    fn edited(parts: &[(u32, i32, u32)]) -> Edited {
        let samples = (0..20).map(|at| Sample::new(0, 1, at % 5 == 0, (i64::from(at) * 10, 0)));
        let table = Table {
            samples: samples.collect(),
            bytes: 20,
            ticks: 200,
        };
        let mut list = vec![0; 4];
        list.extend(u32::try_from(parts.len()).expect("few").to_be_bytes());
        for (length, from, rate) in parts {
            list.extend(length.to_be_bytes());
            list.extend(from.to_be_bytes());
            list.extend((rate << 16).to_be_bytes());
        }
        let trak = boxed(b"edts", &boxed(b"elst", &list));
        let mut header = vec![0; 100];
        header[12..16].copy_from_slice(&100_u32.to_be_bytes());
        let movie = boxed(b"mvhd", &header);
        apply((&trak, &movie), (table, 100), true, false, 1000).expect("edited")
    }

    /// Times that pictures are shown at in ticks of the media, where they are shown on its grid.
    fn shown(edited: &Edited) -> Vec<i64> {
        let scale = i64::from(edited.timescale) / 100;
        let on_grid = edited.samples.iter().map(Sample::shown);
        let on_grid = on_grid.filter(|at| at % (10 * scale) == 0);
        on_grid.map(|at| at / scale).collect()
    }

    #[test]
    fn several_edits_show_their_parts_and_hide_what_is_only_decoded() {
        // Pictures 7 to 9, then 12 and 13, for which 5 and 6, and 10 and 11 are decoded.
        let film = edited(&[(30, 70, 1), (20, 120, 1)]);
        assert_eq!(film.timescale, 90_000);
        assert_eq!(film.samples.len(), 3 + 2 + 2 + 2);
        assert_eq!(shown(&film), [0, 10, 20, 30, 40]);
        assert_eq!(film.end, 50 * 900);
        let times: Vec<i64> = film.samples.iter().map(Sample::shown).collect();
        assert_eq!(times[..2], [-2, -1]);
        assert_eq!(times[5..7], [27_000 - 2, 27_000 - 1]);
        let decoded: Vec<i64> = film.samples.iter().map(Sample::decoded).collect();
        assert!(decoded.is_sorted(), "{decoded:?}");
        // Parts that begin with keys need nothing else, and keep the clock.
        let film = edited(&[(50, 100, 1), (50, 0, 1)]);
        assert_eq!(
            (film.timescale, film.samples.len(), film.end),
            (100, 10, 100)
        );
        assert_eq!(shown(&film), [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]);
    }

    #[test]
    fn a_still_part_and_a_gap_take_their_time() {
        let film = edited(&[(40, -1, 1), (30, 0, 1), (60, 50, 0), (10, 100, 1)]);
        assert_eq!(shown(&film), [40, 50, 60, 70, 130]);
        assert_eq!(
            film.end,
            140 * i64::from(film.timescale / 100).unsigned_abs()
        );
        let film = edited(&[(30, 0, 2)]);
        assert!(film.note.expect("told").contains("rate"));
    }
}
