//! Import: a file becomes a video of a library, or nothing.

mod encode;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::encode::Made;
use crate::events::within;
use crate::ladder::{LOWEST, Rung, ladder};
use crate::library::{Incoming, Library, Readers, write_new};
use crate::probe::{Source, probe};
use crate::show::{Clip, Show};
use crate::video::{LATEST_S, MOST_SEGMENTS, Pace, SAMPLES, SOUND, Sound, TICKS, VERSION, Video};
use crate::{Error, Event, Name, Quality, boxes};

/// The most bytes of a segment.
const MOST_SEGMENT: u64 = 512 << 20;

/// What becomes of a file.
#[derive(Clone, Debug)]
pub struct Import {
    /// The file.
    pub file: PathBuf,
    /// What the video is called in the library; after the file if nobody says.
    pub name: Option<Name>,
    /// What it is called for people; as the file if nobody says.
    pub title: Option<String>,
    /// What happens in it.
    pub events: Vec<Event>,
    /// How long segments are: the nearest whole number of pictures is taken. 0.5 s to 60 s.
    pub segment: Duration,
    /// Lines of its qualities; a ladder from those of the source if there are none.
    pub heights: Vec<u32>,
    /// Whether others on the machine may read what is made, as a web server has to.
    pub is_readable: bool,
    /// How long ffmpeg may take for no progress at all.
    pub patience: Duration,
}

/// What was imported.
#[derive(Debug)]
pub struct Imported {
    /// The video.
    pub video: Video,
    /// What ffmpeg complained of, though it went on.
    pub complaint: Option<String>,
}

/// How far an import is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Pictures are encoded: ms of the video that are done, and that there are.
    Pictures(u64, u64),
    /// The sound is.
    Sound(u64, u64),
}

impl Library {
    /// Imports a file into the library in a folder, which is made if there is none.
    ///
    /// # Errors
    /// The file is no video, or is cut off; what was asked for makes no sense; ffmpeg is missing or
    /// fails; the disk is full. Nothing of it is in the library then.
    pub fn import(
        root: &Path,
        import: &Import,
        progress: &mut dyn FnMut(Stage),
    ) -> Result<Imported, Error> {
        let name = match &import.name {
            Some(name) => name.clone(),
            None => Name::of_file(&import.file)?,
        };
        let source = probe(&import.file)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is 0 to a day"
        )]
        let length_ms = (source.length * 1000.0) as u64;
        let late = |why: String| Error::input(format!("{}: {why}", import.file.display()));
        within(&import.events, length_ms).map_err(late)?;
        let rungs = rungs(import, &source)?;
        let pictures = pictures(import.segment, source.pace)?;
        let segments = source.length * source.pace.per_second() / f64::from(pictures);
        if segments + 1.0 > f64::from(MOST_SEGMENTS) {
            return Err(late(format!(
                "{segments:.0} segments are too many: {MOST_SEGMENTS} are taken, so make them longer (--segment)"
            )));
        }
        let readers = if import.is_readable {
            Readers::Everybody
        } else {
            Readers::Owner
        };
        let library = Self::make(root, readers)?;
        let taken = || {
            Error::input(format!(
                "{}: a video is called {name} already: say --name, or remove its folder",
                library.path().display()
            ))
        };
        if library.has(&name) {
            return Err(taken());
        }
        let incoming = library.incoming()?;
        let job = encode::Job {
            source: &source,
            rungs: &rungs,
            pictures,
            folder: incoming.path(),
            patience: import.patience,
        };
        let made = job.run(progress)?;
        not_cut_off(import, &source, &made)?;
        within(&import.events, made.length_ms(source.pace)).map_err(late)?;
        let video = finish(
            import,
            &name,
            source.pace,
            pictures,
            &rungs,
            &made,
            &incoming,
            readers,
            library.next_start()?,
        )?;
        if library.has(&name) {
            return Err(taken());
        }
        incoming.publish(&library.folder(&name), readers)?;
        Ok(Imported {
            video,
            complaint: made.complaint,
        })
    }

    /// The first time that no video has, s, and a minute more, which players take for a break.
    fn next_start(&self) -> Result<u64, Error> {
        let ends = self.list()?.videos;
        let ends = ends
            .iter()
            .map(|video| video.starts_s + video.length_ms() / 1000 + 60);
        Ok(ends.max().unwrap_or(0).min(LATEST_S))
    }
}

/// The qualities that are made, best first.
fn rungs(import: &Import, source: &Source) -> Result<Vec<Rung>, Error> {
    let pictures = source.pace.per_second();
    if import.heights.is_empty() {
        return Ok(ladder(source.height, pictures));
    }
    let mut heights = import.heights.clone();
    heights.sort_unstable_by(|a, b| b.cmp(a));
    heights.dedup();
    if heights.len() > 8 {
        return Err(Error::input("more than 8 qualities are too many"));
    }
    let wrong = heights.iter().find(|height| {
        **height < LOWEST || **height % 2 != 0 || **height > source.height.max(LOWEST)
    });
    match wrong {
        Some(height) => Err(Error::input(format!(
            "{}: no quality can have {height} lines: write even numbers from {LOWEST} to its own {}",
            import.file.display(),
            source.height
        ))),
        None => Ok(heights
            .into_iter()
            .map(|height| Rung::new(height, pictures))
            .collect()),
    }
}

/// The whole number of pictures that is nearest to the length of a segment.
fn pictures(segment: Duration, pace: Pace) -> Result<u32, Error> {
    if segment < Duration::from_millis(500) || segment > Duration::from_secs(60) {
        return Err(Error::input(format!(
            "segments of {} s are none: write a time from 500ms to 60s",
            segment.as_secs_f64()
        )));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is 2 to 3600"
    )]
    let pictures = (segment.as_secs_f64() * pace.per_second()).round() as u32;
    Ok(pictures.max(1))
}

/// Refuses what ends long before it says: ffmpeg takes what there is of a file that is cut off.
fn not_cut_off(import: &Import, source: &Source, made: &Made) -> Result<(), Error> {
    #[expect(clippy::cast_precision_loss, reason = "it is at most a day")]
    let length = made.length_ms(source.pace) as f64 / 1000.0;
    // A container says how long the longest of its streams is.
    let least = if source.is_of_pictures {
        source.length * 0.98 - 1.0
    } else {
        source.length * 0.5 - 1.0
    };
    if length >= least {
        return Ok(());
    }
    Err(Error::input(format!(
        "{}: its pictures end after {length:.1} s of the {:.1} s that it says: it is cut off or damaged{}",
        import.file.display(),
        source.length,
        made.complaint
            .as_ref()
            .map_or_else(String::new, |said| format!(" ({said})"))
    )))
}

/// Makes the files of a video from what ffmpeg made.
#[expect(
    clippy::too_many_arguments,
    reason = "all that an import has found out"
)]
fn finish(
    import: &Import,
    name: &Name,
    pace: Pace,
    pictures: u32,
    rungs: &[Rung],
    made: &Made,
    incoming: &Incoming,
    readers: Readers,
    starts_s: u64,
) -> Result<Video, Error> {
    let folder = incoming.path();
    let mut qualities = Vec::new();
    let segment = pictures * pace.ticks();
    for (i, rung) in rungs.iter().enumerate() {
        let ticks = |number: u32| {
            let is_last = number + 1 == made.segments;
            let of_last = made.last_pictures * pace.ticks();
            f64::from(if is_last { of_last } else { segment }) / f64::from(TICKS)
        };
        let (from, to) = (
            folder.join(encode::rung_folder(i)),
            folder.join(format!("{}p", rung.height)),
        );
        let by = starts_s * u64::from(TICKS);
        let packed = pack(&from, &to, made.segments, &ticks, by, readers)?;
        let found = boxes::pictures(&packed.header)
            .ok_or_else(|| made_badly("a header without pictures"))?;
        qualities.push(Quality {
            width: found.width,
            height: rung.height,
            codec: found.codec,
            mean_bits: packed.mean_bits,
            peak_bits: packed.peak_bits,
        });
    }
    let seconds = |number: u32| f64::from(made.samples[number as usize]) / f64::from(SAMPLES);
    let from = folder.join(encode::SOUND_FOLDER);
    let to = folder.join(SOUND);
    let by = starts_s * u64::from(SAMPLES);
    let packed = pack(&from, &to, made.segments, &seconds, by, readers)?;
    let title = import.title.clone().unwrap_or_else(|| {
        let stem = import.file.file_stem().unwrap_or_default();
        stem.to_string_lossy().replace(char::is_control, " ")
    });
    let video = Video {
        version: VERSION,
        id: id()?,
        name: name.clone(),
        title,
        pace,
        starts_s,
        pictures,
        last_pictures: made.last_pictures,
        segments: made.segments,
        qualities,
        sound: Sound {
            // AAC-LC (ISO/IEC 14496-3, object type 2).
            codec: "mp4a.40.2".to_owned(),
            mean_bits: packed.mean_bits,
            peak_bits: packed.peak_bits,
            samples: made.samples.clone(),
        },
        events: import.events.len(),
    };
    describe(folder, &video, &import.events, readers)?;
    Ok(video)
}

/// Writes what is said of a video: description, events and playlists.
fn describe(folder: &Path, video: &Video, events: &[Event], readers: Readers) -> Result<(), Error> {
    let json = |error: serde_json::Error| made_badly(&error.to_string());
    let write = |file: &str, bytes: &[u8]| write_new(&folder.join(file), &[bytes], readers);
    write("video.json", &serde_json::to_vec(video).map_err(json)?)?;
    write("events.json", &serde_json::to_vec(events).map_err(json)?)?;
    let show = Show::new(vec![Clip::whole(video)]);
    let beside = |_: &Name| String::new();
    write(
        "master.m3u8",
        show.master(&|track| format!("{track}.m3u8"))?.as_bytes(),
    )?;
    for track in show.tracks() {
        if let Some(text) = show.media(&track, &beside)? {
            write(&format!("{track}.m3u8"), text.as_bytes())?;
        }
    }
    write("manifest.mpd", show.mpd(&beside)?.as_bytes())
}

struct Packed {
    header: Vec<u8>,
    mean_bits: u64,
    peak_bits: u64,
}

/// Puts the header in front of each segment, so that each can be played alone, gives it the time that the video
/// has in its library, and sees that all are whole.
fn pack(
    from: &Path,
    to: &Path,
    segments: u32,
    seconds: &dyn Fn(u32) -> f64,
    by: u64,
    readers: Readers,
) -> Result<Packed, Error> {
    let header = read(&from.join("init.mp4"))?;
    if !boxes::is_header(&header) {
        return Err(made_badly("a header that is none"));
    }
    fs::create_dir(to).map_err(Error::file(to, "cannot be made"))?;
    write_new(&to.join("init.mp4"), &[&header], readers)?;
    let (mut bytes, mut time, mut peak) = (0_u64, 0.0, 0.0_f64);
    for number in 0..segments {
        let path = from.join(format!("{number:05}.m4s"));
        let mut media = read(&path)?;
        if !boxes::is_media(&media) || !boxes::delay(&mut media, by) {
            return Err(made_badly("a segment that is cut off"));
        }
        write_new(
            &to.join(format!("{number:05}.mp4")),
            &[&header, &media],
            readers,
        )?;
        // There is room for all but a few segments only once.
        fs::remove_file(&path).map_err(Error::file(&path, "cannot be removed"))?;
        let size = header.len() + media.len();
        let length = seconds(number).max(0.001);
        bytes += size as u64;
        time += length;
        // RFC 8216, 4.3.4.2: over at least half of a segment.
        if length * 2.0 >= seconds(0) {
            #[expect(clippy::cast_precision_loss, reason = "sizes of segments are small")]
            let rate = size as f64 * 8.0 / length;
            peak = peak.max(rate);
        }
    }
    let set = fs::set_permissions(
        to,
        std::os::unix::fs::PermissionsExt::from_mode(readers.folder()),
    );
    set.map_err(Error::file(to, "cannot be changed"))?;
    fs::remove_dir_all(from).map_err(Error::file(from, "cannot be removed"))?;
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rates of videos are far below 2^53, and casts saturate"
    )]
    let (mean_bits, peak_bits) = (
        (bytes as f64 * 8.0 / time).ceil() as u64,
        peak.ceil() as u64,
    );
    Ok(Packed {
        header,
        mean_bits,
        peak_bits: peak_bits.max(mean_bits),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let size = fs::metadata(path)
        .map_err(Error::file(path, "was not made by ffmpeg"))?
        .len();
    if size > MOST_SEGMENT {
        return Err(made_badly("a segment that is too large"));
    }
    fs::read(path).map_err(Error::file(path, "cannot be read"))
}

pub(crate) fn made_badly(what: &str) -> Error {
    Error::Program {
        program: "ffmpeg",
        last_line: format!("it made {what}"),
    }
}

fn id() -> Result<String, Error> {
    let mut bytes = [0_u8; 16];
    let failed = |error| Error::Program {
        program: "getrandom",
        last_line: format!("{error}"),
    };
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_whole_pictures() {
        let paced = |over, under, ms| pictures(Duration::from_millis(ms), Pace { over, under });
        assert_eq!(paced(25, 1, 2000).expect("pictures"), 50);
        assert_eq!(paced(30_000, 1001, 2000).expect("pictures"), 60);
        assert_eq!(paced(25, 2, 2000).expect("pictures"), 25);
        assert_eq!(paced(5, 1, 500).expect("pictures"), 3);
        for ms in [0, 499, 60_001] {
            paced(25, 1, ms).expect_err("no length of a segment");
        }
    }
}
