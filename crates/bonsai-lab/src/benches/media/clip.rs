//! Clips: pictures of 2 Mbit/s with sound, made by ffmpeg, once a run.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

use crate::child::{Running, is_installed};
use crate::context::Context;

/// Pictures a second. Where a server is held back and shares evenly what it has, they come as much later:
/// with 25 of them, 100 viewers of 10 MB/s would have gaps of 100 ms for that alone.
pub(super) const PICTURES: u32 = 30;
/// From one key frame to the next: viewers come within that time, so that theirs do not coincide.
pub(super) const KEY_FRAMES: Duration = Duration::from_secs(1);
/// Of the pictures and of the sound, bits a second: 1.92 million in all, as in 000.
const VIDEO: u32 = 1_790_000;
const AUDIO: u32 = 128_000;
/// Encoding takes a quarter of the clip's length where nothing disturbs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The name of the clip.
pub(super) const NAME: &str = "clip.mp4";

/// A folder with clips that anybody may read: VLC does not run as root.
#[derive(Debug)]
pub(super) struct Shelf {
    folder: TempDir,
}

impl Shelf {
    /// Makes a clip of so many seconds.
    ///
    /// # Errors
    /// ffmpeg is not installed, or refuses.
    pub(super) fn make(context: &Context, seconds: u64) -> anyhow::Result<Self> {
        anyhow::ensure!(is_installed("ffmpeg"), "ffmpeg is not installed");
        let folder = tempfile::Builder::new()
            .prefix("bonsai-bench-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .context("no temporary folder can be made")?;
        let shelf = Self { folder };
        let path = shelf.path().join(NAME);
        context.progress(&format!("a clip of {seconds} s"));
        let mut command = Command::new("ffmpeg");
        command.args(words(seconds)).arg(&path);
        command.stderr(Stdio::null());
        Running::start(&mut command)?
            .finish(PATIENCE)
            .context("ffmpeg makes no clip with H.264 and AAC")?;
        Ok(shelf)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// So many copies of the clip, each a file of its own; their names.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn copies(&self, count: u32) -> anyhow::Result<Vec<String>> {
        let names: Vec<String> = (0..count).map(|i| format!("clip-{i}.mp4")).collect();
        for name in &names {
            let path = self.path().join(name);
            if !path.exists() {
                fs::copy(self.path().join(NAME), &path)
                    .with_context(|| format!("{}: cannot be written", path.display()))?;
            }
        }
        Ok(names)
    }

    /// The names of all clips.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(super) fn names(&self) -> anyhow::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path())? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".mp4") {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// What was read of the clips, or written, is read from the disk again.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn forget(&self, names: &[String]) -> anyhow::Result<()> {
        for name in names {
            let file = File::open(self.path().join(name))?;
            // What is not on the disk yet stays in memory.
            file.sync_data()?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    }

    /// A folder in it.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn subfolder(&self, name: &str, mode: u32) -> anyhow::Result<PathBuf> {
        let path = self.path().join(name);
        fs::create_dir_all(&path)
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(mode)))
            .with_context(|| format!("{}: cannot be made", path.display()))?;
        Ok(path)
    }
}

/// What ffmpeg is told. Noise, so that the rate is used up; a buffer of a quarter of a second, so that it is
/// used evenly; no pictures that are sent before those that they are shown after, as their jitter by RFC
/// 3550 is 60 ms where nothing is wrong.
fn words(seconds: u64) -> Vec<String> {
    let video = VIDEO.to_string();
    let (buffer, distance) = ((VIDEO / 4).to_string(), PICTURES.to_string());
    let pictures = format!("testsrc2=size=640x360:rate={PICTURES}:duration={seconds}");
    let sound = format!("anoisesrc=color=pink:sample_rate=48000:amplitude=0.3:duration={seconds}");
    let audio = AUDIO.to_string();
    let words = [
        &["-v", "error", "-y"][..],
        &["-f", "lavfi", "-i", &pictures, "-f", "lavfi", "-i", &sound],
        &["-vf", "noise=alls=24:allf=t", "-pix_fmt", "yuv420p"],
        &["-c:v", "libx264", "-preset", "superfast"],
        &["-profile:v", "main", "-bf", "0", "-g", &distance],
        &["-keyint_min", &distance, "-sc_threshold", "0"],
        &["-b:v", &video, "-maxrate", &video, "-bufsize", &buffer],
        &["-c:a", "aac", "-b:a", &audio, "-ac", "2"],
        &["-movflags", "+faststart"],
    ];
    words.concat().into_iter().map(str::to_owned).collect()
}
