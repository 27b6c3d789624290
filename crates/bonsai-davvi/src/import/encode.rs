//! ffmpeg: a source becomes segments, in one pass for all qualities, and a second one for the sound,
//! which is made exactly as long as the pictures.
//!
//! Pictures get a constant pace, and each segment the same number of them, so that boundaries are the
//! same in all qualities and there is nothing to round. Parameter sets are in the segments as well as
//! in the header (`avc3`, ISO/IEC 14496-15, 5.3): players that keep the first header of a playlist, as
//! ffmpeg's own does, can go on with a segment of another video.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use m3u8_rs::MediaPlaylist;

use super::{Stage, made_badly};
use crate::Error;
use crate::ladder::Rung;
use crate::probe::{Source, opened};
use crate::tool::{Step, Tool};
use crate::video::{Pace, SAMPLES, TICKS};

/// Where the sound is made.
pub(super) const SOUND_FOLDER: &str = "s";

/// The shortest last segment, s: several frames of sound.
const SHORTEST: f64 = 0.1;
/// Samples of a frame of sound (AAC-LC, ISO/IEC 14496-3), which is also the delay of the encoder.
const FRAME: u64 = 1024;

/// Where a quality is made.
pub(super) fn rung_folder(number: usize) -> String {
    format!("v{number}")
}

/// What there is to do.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) source: &'a Source,
    pub(super) rungs: &'a [Rung],
    /// Pictures per segment.
    pub(super) pictures: u32,
    /// Where.
    pub(super) folder: &'a Path,
    pub(super) patience: Duration,
}

/// What was made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) segments: u32,
    pub(super) last_pictures: u32,
    pictures: u32,
    /// Of each segment of the sound.
    pub(super) samples: Vec<u32>,
    pub(super) complaint: Option<String>,
}

impl Made {
    pub(super) fn length_ms(&self, pace: Pace) -> u64 {
        let pictures =
            u64::from(self.segments - 1) * u64::from(self.pictures) + u64::from(self.last_pictures);
        pictures * u64::from(pace.ticks()) * 1000 / u64::from(TICKS)
    }
}

impl Job<'_> {
    pub(super) fn run(&self, progress: &mut dyn FnMut(Stage)) -> Result<Made, Error> {
        let folders = (0..self.rungs.len())
            .map(rung_folder)
            .chain([SOUND_FOLDER.to_owned()]);
        for folder in folders {
            let path = self.folder.join(folder);
            fs::create_dir(&path).map_err(Error::file(&path, "cannot be made"))?;
        }
        let complaint = self.ffmpeg(self.pictures_arguments(), &mut |done, all| {
            progress(Stage::Pictures(done, all));
        })?;
        let (segments, last_pictures) = self.counted()?;
        let mut made = Made {
            segments,
            last_pictures,
            pictures: self.pictures,
            samples: Vec::new(),
            complaint,
        };
        let pace = self.source.pace;
        let ticks = u64::from(segments - 1) * u64::from(self.pictures) * u64::from(pace.ticks())
            + u64::from(last_pictures) * u64::from(pace.ticks());
        self.ffmpeg(self.sound_arguments(ticks), &mut |done, all| {
            progress(Stage::Sound(done, all));
        })?;
        made.samples = self.sampled(segments)?;
        Ok(made)
    }

    fn ffmpeg(
        &self,
        arguments: Vec<OsString>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<String>, Error> {
        let tool = Tool {
            program: "ffmpeg",
            arguments,
            folder: Some(self.folder),
            patience: self.patience,
            // A hundred times as long as it is to be watched, and a while for the start.
            most: Duration::from_secs(600) + Duration::from_secs_f64(self.source.length * 100.0),
        };
        let all = Duration::from_secs_f64(self.source.length).as_millis();
        let all = u64::try_from(all).unwrap_or(u64::MAX);
        let mut last = 0;
        tool.run(|line| {
            let Some(("out_time_us", time)) = line.split_once('=') else {
                return Step::None;
            };
            let time: u64 = time.trim().parse().unwrap_or(0);
            if time <= last {
                return Step::None;
            }
            last = time;
            progress(time / 1000, all);
            Step::Forward
        })
    }

    fn pictures_arguments(&self) -> Vec<OsString> {
        let mut arguments = common();
        arguments.extend(opened(&self.source.path));
        arguments.push("-filter_complex".into());
        arguments.push(self.filters().into());
        for (i, rung) in self.rungs.iter().enumerate() {
            let (kbits, gop) = (rung.most_bits / 1000, self.pictures.to_string());
            let (map, most, buffer) = (
                format!("[out{i}]"),
                format!("{kbits}k"),
                format!("{}k", kbits * 2),
            );
            // Constant quality up to the most that the rung may take. Every segment is one closed group
            // of pictures: no key frames but at its start, none that need another segment's.
            let words = [
                "-map",
                &map,
                "-c:v",
                "libx264",
                "-preset",
                "veryfast",
                "-profile:v",
                "high",
                "-crf",
                "23",
                "-maxrate",
                &most,
                "-bufsize",
                &buffer,
                "-g",
                &gop,
                "-keyint_min",
                &gop,
                "-sc_threshold",
                "0",
                "-flags",
                "+cgop",
                "-bsf:v",
                "dump_extra=freq=keyframe",
                "-tag:v",
                "avc3",
            ];
            arguments.extend(words.map(OsString::from));
            // Half of a segment: each key frame begins a new one.
            let half = f64::from(self.pictures) / self.source.pace.per_second() / 2.0;
            arguments.extend(cut_into(&rung_folder(i), half));
        }
        arguments
    }

    /// From the source to one stream of pictures for each quality: fields become pictures, the pace
    /// becomes constant from the start on, pixels become square.
    fn filters(&self) -> String {
        let Pace { over, under } = self.source.pace;
        let count = self.rungs.len();
        let mut graph = format!(
            "[0:{}]yadif=deint=interlaced,fps=fps={over}/{under}:start_time=0,split={count}",
            self.source.pictures
        );
        for i in 0..count {
            graph.push_str(&format!("[in{i}]"));
        }
        for (i, rung) in self.rungs.iter().enumerate() {
            let height = rung.height;
            graph.push_str(&format!(
                ";[in{i}]scale=w=2*trunc({height}*dar/2+0.5):h={height},setsar=1,format=yuv420p[out{i}]"
            ));
        }
        graph
    }

    fn sound_arguments(&self, ticks: u64) -> Vec<OsString> {
        let mut arguments = common();
        let samples = ticks * u64::from(SAMPLES) / u64::from(TICKS);
        // The encoder's delay comes on top, and must not begin a segment of its own.
        let samples = samples.saturating_sub(2 * FRAME).max(FRAME);
        let filters = match self.source.sound {
            Some(stream) => {
                arguments.extend(opened(&self.source.path));
                format!(
                    "[0:{stream}]aresample=48000:async=1:first_pts=0,aformat=channel_layouts=stereo,apad,atrim=end_sample={samples}[out]"
                )
            }
            // Silence, so that a playlist can go from a video with sound to one without.
            None => format!("anullsrc=r=48000:cl=stereo,atrim=end_sample={samples}[out]"),
        };
        let words = [
            "-filter_complex",
            &filters,
            "-map",
            "[out]",
            "-c:a",
            "aac",
            "-b:a",
            "128k",
            "-ac",
            "2",
        ];
        arguments.extend(words.map(OsString::from));
        let seconds = f64::from(self.pictures) / self.source.pace.per_second();
        arguments.extend(cut_into(SOUND_FOLDER, seconds));
        arguments
    }

    /// How many segments there are, and how many pictures the last has; the same in all qualities.
    fn counted(&self) -> Result<(u32, u32), Error> {
        let picture = 1.0 / self.source.pace.per_second();
        let mut same = None;
        for i in 0..self.rungs.len() {
            let lengths = self.lengths(&rung_folder(i))?;
            let (last, others) = lengths
                .split_last()
                .ok_or_else(|| made_badly("no segments"))?;
            let whole = f64::from(self.pictures) * picture;
            if others
                .iter()
                .any(|length| (length - whole).abs() > picture / 2.0)
            {
                return Err(made_badly("segments of different lengths"));
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is at most a segment"
            )]
            let pictures = (last / picture).round() as u32;
            let count = u32::try_from(lengths.len()).unwrap_or(u32::MAX);
            let mut found = (count, pictures.clamp(1, self.pictures));
            // A last segment of a blink has no sound of its own: it is left out.
            if count > 1 && *last < SHORTEST {
                found = (count - 1, self.pictures);
            }
            if *same.get_or_insert(found) != found {
                return Err(made_badly("qualities that are cut in different places"));
            }
        }
        same.ok_or_else(|| made_badly("no segments"))
    }

    /// How many samples each segment of the sound has.
    fn sampled(&self, segments: u32) -> Result<Vec<u32>, Error> {
        let lengths = self.lengths(SOUND_FOLDER)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is at most two segments"
        )]
        let samples = lengths
            .iter()
            .map(|length| (length * f64::from(SAMPLES)).round() as u32);
        let samples: Vec<u32> = samples.collect();
        if samples.len() == segments as usize {
            Ok(samples)
        } else {
            Err(made_badly("sound of another length than the pictures"))
        }
    }

    /// The lengths that ffmpeg's playlist gives, s.
    fn lengths(&self, folder: &str) -> Result<Vec<f64>, Error> {
        let path = self.folder.join(folder).join("list.m3u8");
        let bytes = fs::read(&path).map_err(Error::file(&path, "was not made by ffmpeg"))?;
        let list: Result<(_, MediaPlaylist), _> = m3u8_rs::parse_media_playlist(&bytes);
        let (_, list) = list.map_err(|_| made_badly("a playlist that is none"))?;
        if !list.end_list {
            return Err(made_badly("a playlist without an end"));
        }
        Ok(list
            .segments
            .iter()
            .map(|segment| f64::from(segment.duration))
            .collect())
    }
}

fn common() -> Vec<OsString> {
    let words = [
        "-nostdin",
        "-hide_banner",
        "-v",
        "error",
        "-progress",
        "pipe:1",
        "-stats_period",
        "0.5",
    ];
    words.into_iter().map(OsString::from).collect()
}

/// As fragmented MP4, with a header apart, a file for each segment.
fn cut_into(folder: &str, seconds: f64) -> Vec<OsString> {
    let (files, list, time) = (
        format!("{folder}/%05d.m4s"),
        format!("{folder}/list.m3u8"),
        format!("{seconds:.6}"),
    );
    let options = format!("video_track_timescale={TICKS}");
    // Pictures and sound begin at 0 each: what comes before, the delays of encoders, is left out by the
    // edit list of the header (14496-12, 8.6.6), and moves nothing.
    let words = [
        "-map_metadata",
        "-1",
        "-avoid_negative_ts",
        "disabled",
        "-f",
        "hls",
        "-hls_time",
        &time,
        "-hls_playlist_type",
        "vod",
        "-hls_segment_type",
        "fmp4",
        "-hls_fmp4_init_filename",
        "init.mp4",
        "-hls_segment_options",
        &options,
        "-hls_segment_filename",
        &files,
        &list,
    ];
    words.into_iter().map(OsString::from).collect()
}
