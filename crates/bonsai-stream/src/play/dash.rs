//! DASH descriptions (ISO/IEC 23009-1): films that end, with their segments by template.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::Deserialize;
use url::Url;

use super::film::{
    Host, MOST_PIECES, MOST_QUALITIES, Offer, Piece, Quality, Segment, Sound, Source, Target,
    Track, Unreadable, ascending, join, short,
};

#[derive(Debug, Deserialize)]
struct Mpd {
    #[serde(rename = "@type")]
    kind: Option<String>,
    #[serde(rename = "@mediaPresentationDuration")]
    length: Option<String>,
    #[serde(rename = "BaseURL", default)]
    bases: Vec<String>,
    #[serde(rename = "Period", default)]
    periods: Vec<Period>,
}

#[derive(Debug, Deserialize)]
struct Period {
    #[serde(rename = "@start")]
    start: Option<String>,
    #[serde(rename = "@duration")]
    length: Option<String>,
    #[serde(rename = "BaseURL", default)]
    bases: Vec<String>,
    #[serde(rename = "AdaptationSet", default)]
    sets: Vec<Set>,
}

#[derive(Debug, Deserialize)]
struct Set {
    #[serde(rename = "@contentType")]
    content: Option<String>,
    #[serde(rename = "@mimeType")]
    mime: Option<String>,
    #[serde(rename = "@codecs")]
    codecs: Option<String>,
    #[serde(rename = "BaseURL", default)]
    bases: Vec<String>,
    #[serde(rename = "SegmentTemplate")]
    template: Option<Template>,
    #[serde(rename = "Representation", default)]
    representations: Vec<Representation>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Template {
    #[serde(rename = "@timescale")]
    timescale: Option<u64>,
    #[serde(rename = "@duration")]
    length: Option<u64>,
    #[serde(rename = "@startNumber")]
    first: Option<u64>,
    #[serde(rename = "@initialization")]
    header: Option<String>,
    #[serde(rename = "@media")]
    media: Option<String>,
    #[serde(rename = "SegmentTimeline")]
    timeline: Option<Timeline>,
}

#[derive(Clone, Debug, Deserialize)]
struct Timeline {
    #[serde(rename = "S", default)]
    runs: Vec<Run>,
}

#[derive(Clone, Debug, Deserialize)]
struct Run {
    #[serde(rename = "@t")]
    at: Option<u64>,
    #[serde(rename = "@d")]
    length: u64,
    #[serde(rename = "@r")]
    again: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct Representation {
    #[serde(rename = "@id")]
    id: Option<String>,
    #[serde(rename = "@mimeType")]
    mime: Option<String>,
    #[serde(rename = "@bandwidth")]
    bits: Option<u64>,
    #[serde(rename = "@codecs")]
    codecs: Option<String>,
    #[serde(rename = "@width")]
    width: Option<u64>,
    #[serde(rename = "@height")]
    height: Option<u64>,
    #[serde(rename = "@frameRate")]
    pace: Option<String>,
    #[serde(rename = "BaseURL", default)]
    bases: Vec<String>,
    #[serde(rename = "SegmentTemplate")]
    template: Option<Template>,
}

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
        let set = period.sets.iter().find(|set| set.kind() == Kind::Sound);
        let of =
            set.and_then(|set| Some((set, set.representations.iter().max_by_key(|of| of.bits)?)));
        if let Some((set, of)) = of {
            let codecs = of.codecs.as_ref().or(set.codecs.as_ref()).cloned();
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
        codecs: of.codecs.as_ref().or(set.codecs.as_ref()).cloned(),
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
        for (number, (at, ms)) in (first..).zip(times) {
            let piece = self.piece(&base, &named(media, of, number, at)?)?;
            track.segments.push(Segment { piece, header, ms });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::play::film::Document;

    fn offer(text: &str) -> Result<Arc<Offer>, Unreadable> {
        let base = Url::parse("http://host/films/a/manifest.mpd").expect("an address");
        match Document::read(text.as_bytes(), &base)? {
            Document::Offer(offer) => Ok(offer),
            Document::Track(_) => panic!("a track"),
        }
    }

    fn paths(source: &Source) -> Vec<String> {
        let Source::Here(track) = source else {
            panic!("{source:?}");
        };
        let all = track
            .headers
            .iter()
            .chain(track.segments.iter().map(|of| &of.piece));
        all.map(|piece| piece.target.path.to_string()).collect()
    }

    const TWO: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT7.000000S" minBufferTime="PT2S">
<Period id="0" start="PT0.000000S" duration="PT4.000000S"><BaseURL>../media/a/</BaseURL>
<AdaptationSet contentType="video" mimeType="video/mp4" segmentAlignment="true" startWithSAP="1">
<SegmentTemplate timescale="360000" duration="720000" startNumber="2" presentationTimeOffset="1440000"
 initialization="$RepresentationID$/init.mp4" media="$RepresentationID$/$Number%05d$.mp4"/>
<Representation id="720p" codecs="avc3.64001f" bandwidth="4000000" width="1280" height="720" frameRate="25"/>
<Representation id="360p" codecs="avc3.64001e" bandwidth="800000" width="640" height="360" frameRate="30000/1001"/>
</AdaptationSet>
<AdaptationSet contentType="audio" mimeType="audio/mp4">
<SegmentTemplate timescale="360000" duration="720000" startNumber="2"
 initialization="$RepresentationID$/init.mp4" media="$RepresentationID$/$Number%05d$.mp4"/>
<Representation id="audio" codecs="mp4a.40.2" bandwidth="96000" audioSamplingRate="48000"/></AdaptationSet></Period>
<Period id="1" start="PT4.000000S" duration="PT3.000000S"><BaseURL>../media/b/</BaseURL>
<AdaptationSet contentType="video" mimeType="video/mp4">
<SegmentTemplate timescale="360000" duration="720000" startNumber="8" initialization="$RepresentationID$/init.mp4"
 media="$RepresentationID$/$Number%05d$.mp4"/>
<Representation id="240p" codecs="avc3.64001e" bandwidth="400000" width="426" height="240" frameRate="25"/>
</AdaptationSet></Period></MPD>"#;

    #[test]
    fn periods_follow_each_other() {
        let offer = offer(TWO).expect("read");
        let rates: Vec<_> = offer.qualities.iter().map(|(of, _)| of.kbps).collect();
        assert_eq!(rates, [Some(800.0), Some(4000.0)]);
        assert!((offer.qualities[0].0.fps.expect("a pace") - 29.97).abs() < 0.01);
        assert_eq!(
            paths(&offer.qualities[1].1),
            [
                "/films/media/a/720p/init.mp4",
                "/films/media/b/240p/init.mp4",
                "/films/media/a/720p/00002.mp4",
                "/films/media/a/720p/00003.mp4",
                "/films/media/b/240p/00008.mp4",
                "/films/media/b/240p/00009.mp4",
            ]
        );
        let Source::Here(track) = &offer.qualities[1].1 else {
            panic!("elsewhere");
        };
        assert_eq!(track.durations_ms(), [2000.0, 2000.0, 2000.0, 1000.0]);
        assert_eq!(track.segments[3].header, Some(1));
        let (sound, source) = offer.sound.as_ref().expect("sound");
        assert_eq!(sound.codecs.as_deref(), Some("mp4a.40.2"));
        assert_eq!(paths(source).len(), 3);
    }

    #[test]
    fn segments_are_listed_as_ffmpeg_lists_them() {
        let text = r#"<MPD type="static" mediaPresentationDuration="PT0H0M5.5S"><Period>
<AdaptationSet contentType="video"><Representation id="0" mimeType="video/mp4" bandwidth="500000">
<SegmentTemplate timescale="1000" initialization="i-$RepresentationID$.m4s" media="c-$RepresentationID$-$Time$-$Number%03d$.m4s" startNumber="1">
<SegmentTimeline><S t="0" d="2000" r="1"/><S d="1500"/></SegmentTimeline></SegmentTemplate></Representation></AdaptationSet></Period></MPD>"#;
        let offer = offer(text).expect("read");
        assert_eq!(
            paths(&offer.qualities[0].1),
            [
                "/films/a/i-0.m4s",
                "/films/a/c-0-0-001.m4s",
                "/films/a/c-0-2000-002.m4s",
                "/films/a/c-0-4000-003.m4s"
            ]
        );
    }

    #[test]
    fn what_cannot_be_played_is_refused_in_words() {
        let one = |period: &str, template: &str, word: &str| {
            format!(
                "<MPD {word}><Period {period}><AdaptationSet contentType=\"video\">{template}\
                 <Representation id=\"v\" bandwidth=\"1000\"/></AdaptationSet></Period></MPD>"
            )
        };
        let long = "duration=\"PT10S\"";
        let good = "<SegmentTemplate media=\"$Number$\" duration=\"2\"/>";
        for (text, words) in [
            ("<MPD>".to_owned(), "no DASH"),
            ("<MPD/>".to_owned(), "no period"),
            (one(long, good, "type=\"dynamic\""), "live"),
            (one("", good, ""), "how long a period"),
            (one("duration=\"10\"", good, ""), "no duration"),
            (one("duration=\"PTNaNS\"", good, ""), "no duration"),
            (one(long, "", ""), "SegmentTemplate"),
            (
                one(long, "<SegmentTemplate media=\"$Number$\"/>", ""),
                "how long segments",
            ),
            (
                one(long, "<SegmentTemplate media=\"$No$\" duration=\"2\"/>", ""),
                "template of names",
            ),
            (
                one(
                    long,
                    "<SegmentTemplate media=\"$Number\" duration=\"2\"/>",
                    "",
                ),
                "template of names",
            ),
            (
                one(
                    long,
                    "<SegmentTemplate media=\"$Number$\" duration=\"1\" timescale=\"90000\"/>",
                    "",
                ),
                "shorter than 1 ms",
            ),
            (
                one(
                    "duration=\"PT999999S\"",
                    "<SegmentTemplate media=\"$Number$\" duration=\"1\" timescale=\"100\"/>",
                    "",
                ),
                "more segments",
            ),
            (
                one(
                    long,
                    "<SegmentTemplate media=\"$Number$\"><SegmentTimeline><S d=\"1\" r=\"9999999999\"/></SegmentTimeline></SegmentTemplate>",
                    "",
                ),
                "more segments",
            ),
            (
                format!("<MPD><Period {long}><AdaptationSet contentType=\"text\"/></Period></MPD>"),
                "no pictures",
            ),
        ] {
            let error = offer(&text).expect_err(&text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        offer(&one(long, good, "")).expect("read");
    }
}
