//! What a video of a library is: `video.json`.

use serde::{Deserialize, Serialize};

use crate::{Error, Name};

/// Ticks of the media clock per second, in all segments of all libraries, so that segments of
/// different videos can follow each other: every pace that is made has a whole number of them.
pub(crate) const TICKS: u32 = 360_000;

/// Samples of sound per second, in all segments.
pub(crate) const SAMPLES: u32 = 48_000;

/// The version of `video.json`.
pub(crate) const VERSION: u32 = 1;

/// The most segments of a video: their names have five digits.
pub(crate) const MOST_SEGMENTS: u32 = 100_000;

/// The latest start of a video, s: some thousand years.
pub(crate) const LATEST_S: u64 = 1 << 37;

/// Pictures per second, as a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pace {
    pub(crate) over: u32,
    pub(crate) under: u32,
}

impl Pace {
    pub(crate) fn per_second(self) -> f64 {
        f64::from(self.over) / f64::from(self.under)
    }

    /// Ticks that a picture lasts.
    pub(crate) const fn ticks(self) -> u32 {
        TICKS * self.under / self.over
    }
}

/// A video of a library.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Video {
    pub(crate) version: u32,
    /// What tells it from an earlier one of that name: 32 hexadecimal digits by chance.
    pub id: String,
    /// Its name: that of its folder.
    pub name: Name,
    /// What it is called for people.
    pub title: String,
    pub(crate) pace: Pace,
    /// What its segments call their time at its start, s. Videos of a library do not share any time, so that
    /// it goes on from clip to clip: ffmpeg's player leaves out what goes back.
    pub(crate) starts_s: u64,
    /// Pictures of each segment but the last.
    pub(crate) pictures: u32,
    /// Pictures of the last segment, 1 to as many.
    pub(crate) last_pictures: u32,
    /// How many segments there are.
    pub segments: u32,
    /// Best first.
    pub qualities: Vec<Quality>,
    /// The sound: silence where the source has none.
    pub sound: Sound,
    /// How many events are in `events.json`.
    pub events: usize,
}

/// One of the qualities of a video.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quality {
    /// Pixels.
    pub width: u32,
    /// Lines.
    pub height: u32,
    /// As in RFC 6381.
    pub codec: String,
    /// Bit/s, over all segments.
    pub mean_bits: u64,
    /// Bit/s, of the largest segment.
    pub peak_bits: u64,
}

impl Quality {
    /// Its name: that of its folder, such as `720p`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}p", self.height)
    }
}

/// The sound of a video.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sound {
    /// As in RFC 6381.
    pub codec: String,
    /// Bit/s, over all segments.
    pub mean_bits: u64,
    /// Bit/s, of the largest segment.
    pub peak_bits: u64,
    /// Samples per channel of each segment, 48,000 a second.
    pub(crate) samples: Vec<u32>,
}

/// The folder of the sound.
pub(crate) const SOUND: &str = "audio";

impl Video {
    /// How long a segment is, but the last, in ticks.
    pub(crate) const fn segment_ticks(&self) -> u32 {
        self.pictures * self.pace.ticks()
    }

    /// How long some segments are, in ticks.
    pub(crate) fn ticks(&self, first: u32, count: u32) -> u64 {
        let whole = u64::from(count) * u64::from(self.segment_ticks());
        if first + count < self.segments {
            return whole;
        }
        let missing = u64::from(self.pictures - self.last_pictures) * u64::from(self.pace.ticks());
        whole.saturating_sub(missing)
    }

    /// How long a segment is, s: all but the last.
    #[must_use]
    pub fn segment_seconds(&self) -> f64 {
        f64::from(self.segment_ticks()) / f64::from(TICKS)
    }

    /// How long some segments are, ms.
    #[must_use]
    pub fn milliseconds(&self, first: u32, count: u32) -> u64 {
        self.ticks(first, count) * 1000 / u64::from(TICKS)
    }

    /// How long it is, ms.
    #[must_use]
    pub fn length_ms(&self) -> u64 {
        self.milliseconds(0, self.segments)
    }

    /// The segment in which a position is; the last for what is later.
    pub(crate) fn segment_at(&self, ms: u64) -> u32 {
        let ticks = ms.saturating_mul(u64::from(TICKS)) / 1000;
        let segment = ticks / u64::from(self.segment_ticks());
        u32::try_from(segment)
            .unwrap_or(u32::MAX)
            .min(self.segments - 1)
    }

    /// Reads `video.json`.
    pub(crate) fn parse(bytes: &[u8], name: &Name) -> Result<Self, Error> {
        let wrong = |why: String| Error::input(format!("{name}/video.json: {why}"));
        let video: Self =
            serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        video.check(name).map_err(|why| wrong(why.to_owned()))?;
        Ok(video)
    }

    /// Whether everything in it can be worked with.
    fn check(&self, name: &Name) -> Result<(), &'static str> {
        if self.version != VERSION {
            return Err("it is of another version of Bonsai");
        }
        if self.name != *name {
            return Err("its folder has been renamed: it has to be that of its name");
        }
        let Pace { over, under } = self.pace;
        let is_pace = (1..=TICKS).contains(&over) && (1..=1001).contains(&under);
        if !is_pace || u64::from(TICKS) * u64::from(under) % u64::from(over) != 0 {
            return Err("its pace is none");
        }
        let is_count = (1..=MOST_SEGMENTS).contains(&self.segments);
        let ticks =
            u64::from(self.pictures) * u64::from(TICKS) * u64::from(under) / u64::from(over);
        let is_length = self.pictures > 0 && ticks <= 120 * u64::from(TICKS);
        if !is_count || !is_length || !(1..=self.pictures).contains(&self.last_pictures) {
            return Err("its segments are none");
        }
        if self.starts_s > LATEST_S {
            return Err("its time is none");
        }
        if !(1..=16).contains(&self.qualities.len()) {
            return Err("it has no qualities");
        }
        if self.sound.samples.len() != self.segments as usize {
            return Err("its sound has other segments");
        }
        let codecs = self.qualities.iter().map(|quality| &quality.codec);
        let is_codec = |codec: &String| {
            codec.len() <= 40
                && codec
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'.')
        };
        if !codecs.chain([&self.sound.codec]).all(is_codec) {
            return Err("its codecs are none");
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Ten segments of two seconds, but for the last, of one, in two qualities.
    pub(crate) fn video(name: &str) -> Video {
        let quality = |height: u32, bits: u64| Quality {
            width: height * 16 / 9,
            height,
            codec: "avc3.64001f".to_owned(),
            mean_bits: bits,
            peak_bits: bits * 2,
        };
        Video {
            version: VERSION,
            id: format!("{:0>32}", name.len()),
            name: Name::parse(name).expect("a name"),
            title: format!("The {name}"),
            pace: Pace { over: 25, under: 1 },
            starts_s: 0,
            pictures: 50,
            last_pictures: 25,
            segments: 10,
            qualities: vec![quality(720, 2_000_000), quality(360, 600_000)],
            sound: Sound {
                codec: "mp4a.40.2".to_owned(),
                mean_bits: 96_000,
                peak_bits: 100_000,
                samples: [vec![96_000; 9], vec![48_000]].concat(),
            },
            events: 0,
        }
    }

    #[test]
    fn lengths_are_whole_pictures() {
        let video = video("a");
        assert_eq!(video.length_ms(), 19_000);
        assert_eq!(video.milliseconds(0, 2), 4000);
        assert_eq!(video.milliseconds(8, 2), 3000);
        assert_eq!(video.segment_at(0), 0);
        assert_eq!(video.segment_at(1999), 0);
        assert_eq!(video.segment_at(2000), 1);
        assert_eq!(video.segment_at(u64::MAX), 9);
    }

    #[test]
    fn a_damaged_description_is_refused() {
        let good = video("a");
        let name = good.name.clone();
        let text = serde_json::to_vec(&good).expect("JSON");
        assert_eq!(Video::parse(&text, &name).expect("a video"), good);
        let edits: [fn(&mut Video); 8] = [
            |v| v.version = 2,
            |v| v.segments = 0,
            |v| v.segments = 11,
            |v| v.pictures = 0,
            |v| v.last_pictures = 51,
            |v| v.pace = Pace { over: 0, under: 1 },
            |v| v.qualities.clear(),
            |v| v.sound.codec = "a\"\n".to_owned(),
        ];
        for edit in edits {
            let mut bad = good.clone();
            edit(&mut bad);
            let text = serde_json::to_vec(&bad).expect("JSON");
            Video::parse(&text, &name).expect_err("it is damaged");
        }
        Video::parse(&text, &Name::parse("b").expect("a name")).expect_err("another folder");
        Video::parse(&text[..text.len() / 2], &name).expect_err("half of it");
    }
}
