//! DASH descriptions (ISO/IEC 23009-1): films that end, with their segments by template.

mod model;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::sync::Arc;

use url::Url;

use self::model::{Mpd, Period, Representation, Set, Template, Timeline};
use super::film::{
    Family, Host, MOST_PIECES, MOST_QUALITIES, Offer, Piece, Quality, Segment, Sound, Source,
    Target, Track, Unreadable, ascending, family, join, short,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pictures,
    Sound,
    Other,
}

impl Set {
    fn kind(&self) -> Kind {
        let of_one = || {
            self.representations
                .first()
                .and_then(|one| one.mime.as_deref())
        };
        let said = self
            .content
            .as_deref()
            .or(self.mime.as_deref())
            .or_else(of_one);
        match said.map(|said| said.split('/').next().unwrap_or_default()) {
            Some("video") => Kind::Pictures,
            Some("audio") => Kind::Sound,
            _ => Kind::Other,
        }
    }
}

/// Reads a description.
pub(super) fn read(text: &str, base: &Url) -> Result<Offer, Unreadable> {
    let mpd: Mpd = quick_xml::de::from_str(text)
        .map_err(|error| Unreadable::new(format!("it is no DASH description: {error}")))?;
    if mpd.kind.as_deref() == Some("dynamic") {
        return Err(Unreadable::new(
            "it is live, and live streams are not played",
        ));
    }
    if mpd.periods.is_empty() {
        return Err(Unreadable::new("it has no period"));
    }
    let lengths = lengths(&mpd)?;
    let base = based(base, &mpd.bases)?;
    let mut builder = Builder::default();
    // Nobody goes from one codec to another while a film plays.
    let all = mpd.periods.iter().flat_map(pictures);
    let best = all.filter_map(|(set, of)| coded(set, of)).min();
    let pictures = |period| {
        let mut all = pictures(period);
        all.retain(|(set, of)| coded(set, of).is_none_or(|of| Some(of) == best));
        all
    };
    // The period with the most qualities says which there are.
    let most = mpd.periods.iter().map(pictures).max_by_key(Vec::len);
    let mut qualities: Vec<(Quality, Track)> = most
        .unwrap_or_default()
        .into_iter()
        .map(|(set, of)| (quality(set, of), Track::default()))
        .collect();
    ascending(&mut qualities);
    if qualities.is_empty() {
        return Err(Unreadable::new(
            "it has no pictures (contentType=\"video\")",
        ));
    }
    if qualities.iter().any(|(quality, _)| quality.kbps.is_none()) {
        return Err(Unreadable::new("a quality has no bandwidth"));
    }
    if qualities.len() > MOST_QUALITIES {
        return Err(Unreadable::new(format!(
            "it has more than {MOST_QUALITIES} qualities"
        )));
    }
    let mut sound: Option<(Sound, Track)> = None;
    for (period, seconds) in mpd.periods.iter().zip(lengths) {
        let base = based(&base, &period.bases)?;
        let all = pictures(period);
        for (quality, track) in &mut qualities {
            let chosen = all.iter().filter(|(_, of)| kbps(of) <= quality.kbps);
            let chosen = chosen.max_by_key(|(_, of)| of.bits);
            let chosen = chosen.or_else(|| all.iter().min_by_key(|(_, of)| of.bits));
            let Some((set, of)) = chosen else {
                return Err(Unreadable::new("a period has no pictures"));
            };
            builder.add(track, &base, set, of, seconds)?;
        }
        let sets = period.sets.iter();
        let set = sets
            .filter(|set| set.kind() == Kind::Sound)
            .min_by_key(|set| {
                set.representations
                    .first()
                    .is_some_and(|of| is_webm(set, of))
            });
        let of =
            set.and_then(|set| Some((set, set.representations.iter().max_by_key(|of| of.bits)?)));
        if let Some((set, of)) = of {
            let codecs = codecs(set, of).cloned();
            let (_, track) = sound.get_or_insert_with(|| (Sound { codecs }, Track::default()));
            builder.add(track, &base, set, of, seconds)?;
        }
    }
    let here = |track| Source::Here(Arc::new(track));
    Ok(Offer {
        qualities: qualities
            .into_iter()
            .map(|(quality, track)| (quality, here(track)))
            .collect(),
        sound: sound.map(|(sound, track)| (sound, here(track))),
    })
}

/// All qualities of a period, with the set that each is of.
fn pictures(period: &Period) -> Vec<(&Set, &Representation)> {
    let sets = period
        .sets
        .iter()
        .filter(|set| set.kind() == Kind::Pictures);
    sets.flat_map(|set| set.representations.iter().map(move |of| (set, of)))
        .collect()
}

fn codecs<'a>(set: &'a Set, of: &'a Representation) -> Option<&'a String> {
    of.codecs.as_ref().or(set.codecs.as_ref())
}

fn coded(set: &Set, of: &Representation) -> Option<Family> {
    family(codecs(set, of).map(String::as_str))
}

fn is_webm(set: &Set, of: &Representation) -> bool {
    let mime = of.mime.as_ref().or(set.mime.as_ref());
    mime.is_some_and(|mime| mime.ends_with("/webm"))
}

fn kbps(of: &Representation) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a bitrate")]
    let kbps = |bits: u64| bits as f64 / 1e3;
    of.bits.filter(|bits| *bits > 0).map(kbps)
}

fn quality(set: &Set, of: &Representation) -> Quality {
    let pace = of
        .pace
        .as_deref()
        .and_then(|pace| match pace.split_once('/') {
            Some((over, under)) => {
                let (over, under): (f64, f64) = (over.parse().ok()?, under.parse().ok()?);
                (under > 0.0).then_some(over / under)
            }
            None => pace.parse().ok(),
        });
    Quality {
        kbps: kbps(of),
        size: of.width.zip(of.height),
        fps: pace.filter(|pace: &f64| pace.is_finite()),
        codecs: codecs(set, of).cloned(),
    }
}

/// How long each period is, s: as it says, or until the next begins, or all ends.
fn lengths(mpd: &Mpd) -> Result<Vec<f64>, Unreadable> {
    let time = |text: &Option<String>| text.as_deref().map(seconds).transpose();
    let all = time(&mpd.length)?;
    let mut lengths = Vec::new();
    let mut begins = 0.0;
    for (i, period) in mpd.periods.iter().enumerate() {
        begins = time(&period.start)?.unwrap_or(begins);
        let next = match mpd.periods.get(i + 1) {
            Some(next) => time(&next.start)?,
            None => all,
        };
        let length = time(&period.length)?.or_else(|| next.map(|next| next - begins));
        let length = length.filter(|length| *length > 0.0);
        let length =
            length.ok_or_else(|| Unreadable::new("it does not say how long a period is"))?;
        lengths.push(length);
        begins += length;
    }
    Ok(lengths)
}

/// An xs:duration of days and less, s.
fn seconds(text: &str) -> Result<f64, Unreadable> {
    let wrong = || Unreadable::new(format!("{:?} is no duration", short(text)));
    let (days, times) = text
        .strip_prefix('P')
        .and_then(|rest| rest.split_once('T').or(Some((rest, ""))))
        .ok_or_else(wrong)?;
    let mut all = 0.0;
    for (part, units) in [
        (
            days,
            &[('Y', 31_536_000.0), ('M', 2_592_000.0), ('D', 86_400.0)],
        ),
        (times, &[('H', 3_600.0), ('M', 60.0), ('S', 1.0)]),
    ] {
        let mut rest = part;
        for (unit, seconds) in units {
            if let Some((number, after)) = rest.split_once(*unit) {
                let number: f64 = number.parse().map_err(|_| wrong())?;
                all += number * seconds;
                rest = after;
            }
        }
        if !rest.is_empty() {
            return Err(wrong());
        }
    }
    match (0.0..=1e9).contains(&all) {
        true => Ok(all),
        false => Err(wrong()),
    }
}

fn based(base: &Url, bases: &[String]) -> Result<Url, Unreadable> {
    match bases.first() {
        Some(uri) => join(base, uri.trim()),
        None => Ok(base.clone()),
    }
}

/// Tracks of all periods.
#[derive(Debug, Default)]
struct Builder {
    hosts: Vec<Arc<Host>>,
    pieces: usize,
}

impl Builder {
    /// Adds what a representation has of a period.
    fn add(
        &mut self,
        track: &mut Track,
        base: &Url,
        set: &Set,
        of: &Representation,
        period_s: f64,
    ) -> Result<(), Unreadable> {
        let base = based(&based(base, &set.bases)?, &of.bases)?;
        let templates = (of.template.as_ref(), set.template.as_ref());
        let template = |of: fn(&Template) -> Option<&String>| {
            templates
                .0
                .and_then(of)
                .or_else(|| templates.1.and_then(of))
        };
        let number = |of: fn(&Template) -> Option<u64>| {
            templates
                .0
                .and_then(of)
                .or_else(|| templates.1.and_then(of))
        };
        let media = template(|of| of.media.as_ref());
        let media = media.ok_or_else(|| {
            Unreadable::new("segments that are not named by a SegmentTemplate are not played")
        })?;
        let scale = number(|of| of.timescale).unwrap_or(1).max(1);
        let first = number(|of| of.first).unwrap_or(1);
        let timeline = templates.0.and_then(|of| of.timeline.as_ref());
        let timeline = timeline.or_else(|| templates.1.and_then(|of| of.timeline.as_ref()));
        let header = match template(|of| of.header.as_ref()) {
            Some(header) => {
                let piece = self.piece(&base, &named(header, of, 0, 0)?)?;
                Some(track.header(piece))
            }
            None => None,
        };
        let most = MOST_PIECES.saturating_sub(self.pieces);
        let times = match (timeline, number(|of| of.length)) {
            (Some(timeline), _) => runs(timeline, scale, period_s, most)?,
            (None, Some(length)) if length > 0 => even(length, scale, period_s, most)?,
            _ => return Err(Unreadable::new("it does not say how long segments are")),
        };
        self.pieces += times.len();
        let count = u64::try_from(times.len()).unwrap_or(u64::MAX);
        if first.checked_add(count).is_none() {
            return Err(Unreadable::new(format!(
                "its segments are counted from {first} on (startNumber)"
            )));
        }
        track.is_encrypted |= !set.protections.is_empty() || !of.protections.is_empty();
        track.is_webm |= is_webm(set, of);
        let mut begins = true;
        for (number, (at, ms)) in (first..).zip(times) {
            let piece = self.piece(&base, &named(media, of, number, at)?)?;
            let breaks = begins && !track.segments.is_empty();
            begins = false;
            track.segments.push(Segment {
                piece,
                header,
                ms,
                breaks,
            });
        }
        Ok(())
    }

    fn piece(&mut self, base: &Url, uri: &str) -> Result<Piece, Unreadable> {
        Ok(Piece {
            target: Target::of(&join(base, uri)?, &mut self.hosts)?,
            range: None,
        })
    }
}

/// Segments are at least that long: shorter ones at the end of a period are of rounding.
const LEAST_MS: f64 = 1.0;

fn too_many() -> Unreadable {
    Unreadable::new("it has more segments than are played here")
}

/// Times of segments of one length: ticks, and ms. The last is shorter.
#[expect(clippy::cast_precision_loss, reason = "ticks of a film")]
fn even(
    length: u64,
    scale: u64,
    period_s: f64,
    most: usize,
) -> Result<Vec<(u64, f64)>, Unreadable> {
    let each_ms = length as f64 / scale as f64 * 1e3;
    let mut times = Vec::new();
    let mut left_ms = period_s * 1e3;
    let mut at: u64 = 0;
    while left_ms >= LEAST_MS {
        if times.len() >= most {
            return Err(too_many());
        }
        if each_ms < LEAST_MS {
            return Err(Unreadable::new("its segments are shorter than 1 ms"));
        }
        times.push((at, each_ms.min(left_ms)));
        left_ms -= each_ms;
        at = at.saturating_add(length);
    }
    Ok(times)
}

/// Times of segments as they are listed.
#[expect(clippy::cast_precision_loss, reason = "ticks of a film")]
fn runs(
    timeline: &Timeline,
    scale: u64,
    period_s: f64,
    most: usize,
) -> Result<Vec<(u64, f64)>, Unreadable> {
    let mut times = Vec::new();
    let mut at: u64 = 0;
    let begins = timeline.runs.first().and_then(|run| run.at).unwrap_or(0);
    for (i, run) in timeline.runs.iter().enumerate() {
        at = run.at.unwrap_or(at);
        let ms = run.length as f64 / scale as f64 * 1e3;
        if ms < LEAST_MS {
            return Err(Unreadable::new("its segments are shorter than 1 ms"));
        }
        // Below 0: until the next one, or the end.
        let next = timeline.runs.get(i + 1).and_then(|next| next.at);
        let again = match (u64::try_from(run.again.unwrap_or(0)), next) {
            (Ok(again), _) => again,
            (Err(_), Some(next)) => (next.saturating_sub(at) / run.length).saturating_sub(1),
            (Err(_), None) => {
                let passed_ms = at.saturating_sub(begins) as f64 / scale as f64 * 1e3;
                let left = ((period_s * 1e3 - passed_ms) / ms).ceil() - 1.0;
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "it is not negative, and a cast holds at both ends"
                )]
                let left = left.max(0.0) as u64;
                left
            }
        };
        for _ in 0..=again {
            if times.len() >= most {
                return Err(too_many());
            }
            times.push((at, ms));
            at = at.saturating_add(run.length);
        }
    }
    match times.is_empty() {
        true => Err(Unreadable::new("it names no segment")),
        false => Ok(times),
    }
}

/// A template with its words put in (5.3.9.4.4): `$RepresentationID$`, `$Bandwidth$`, `$Number%05d$`, `$Time$`.
fn named(
    template: &str,
    of: &Representation,
    number: u64,
    time: u64,
) -> Result<String, Unreadable> {
    let wrong = || Unreadable::new(format!("{:?} is no template of names", short(template)));
    let mut name = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        name.push_str(before);
        let (word, after) = after.split_once('$').ok_or_else(wrong)?;
        rest = after;
        let (word, width) = match word.split_once("%0") {
            Some((word, width)) => {
                let width = width.strip_suffix('d').and_then(|width| width.parse().ok());
                (word, width.filter(|width| *width <= 32).ok_or_else(wrong)?)
            }
            None => (word, 1_usize),
        };
        let value = match word {
            "" => {
                name.push('$');
                continue;
            }
            "RepresentationID" => {
                name.push_str(of.id.as_deref().ok_or_else(wrong)?);
                continue;
            }
            "Number" => number,
            "Time" => time,
            "Bandwidth" => of.bits.ok_or_else(wrong)?,
            _ => return Err(wrong()),
        };
        let _ = write!(name, "{value:0width$}");
    }
    name.push_str(rest);
    Ok(name)
}
