//! The folder with the clips: nothing outside it is opened, and what its files say is kept.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bonsai_media::clip::{Announced, Clip, Finder, Unreadable};
use bonsai_media::load::Need;
use bonsai_media::packets::{How, h264};
use bonsai_media::rtsp::server::{Found, Path, Refusal};
use rtsp_types::StatusCode;

use crate::folder::{Folder, Unfound};
pub(super) use crate::folder::{Opened, Stamp};

use super::stream::MOST;

/// Of a sample, what tells whether anything is predicted from it.
pub(super) const PEEK: usize = 128;

/// What is kept of files. The tables of an hour take 8 MB.
const KEPT: usize = 64;

#[derive(Debug)]
struct Kept {
    stamp: Stamp,
    found: Found,
    used: u64,
}

/// The folder.
#[derive(Debug)]
pub(super) struct Root {
    folder: Folder,
    kept: HashMap<(u64, u64), Kept>,
    uses: u64,
}

impl Root {
    /// Opens it.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn open(path: &std::path::Path) -> io::Result<Self> {
        Ok(Self {
            folder: Folder::open(path)?,
            kept: HashMap::new(),
            uses: 0,
        })
    }

    /// A clip, and its file.
    ///
    /// # Errors
    /// There is none, it leads out of the root, or it cannot be sent.
    pub(super) fn find(&mut self, path: &Path, local: IpAddr) -> Result<(Found, Opened), Refusal> {
        let opened = self.file(path)?;
        self.uses += 1;
        // Each asks by an address and a name of its own.
        let announced = Announced {
            name: path.clip().last().map_or("clip", String::as_str),
            version: u64::try_from(opened.stamp.changed.0).unwrap_or(0),
            address: local,
        };
        let kept = self.kept.get_mut(&opened.stamp.file);
        if let Some(kept) = kept.filter(|kept| kept.stamp == opened.stamp) {
            kept.used = self.uses;
            let mut found = kept.found.clone();
            found.description = found.clip.describe(&announced).into();
            return Ok((found, opened));
        }
        let clip = read(&opened).map_err(|error| match error {
            Bad::Clip(why) => {
                Refusal::new(StatusCode::UnsupportedMediaType, format!("{path}: {why}"))
            }
            Bad::Disk(error) => {
                Refusal::new(StatusCode::InternalServerError, format!("{path}: {error}"))
            }
        })?;
        let description = clip.describe(&announced);
        let needs = needs(&clip, &opened.file);
        let found = Found {
            clip: Arc::new(clip),
            description: description.into(),
            needs: needs.into(),
        };
        if self.kept.len() >= KEPT {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used);
            if let Some(oldest) = oldest.map(|(file, _)| *file) {
                self.kept.remove(&oldest);
            }
        }
        let kept = Kept {
            stamp: opened.stamp,
            found: found.clone(),
            used: self.uses,
        };
        self.kept.insert(opened.stamp.file, kept);
        Ok((found, opened))
    }

    fn file(&self, path: &Path) -> Result<Opened, Refusal> {
        self.folder.file(&path.to_string()).map_err(|why| {
            let status = match why {
                Unfound::Missing => StatusCode::NotFound,
                Unfound::Outside | Unfound::Denied | Unfound::NoFile => StatusCode::Forbidden,
                Unfound::Disk(_) => StatusCode::InternalServerError,
            };
            Refusal::new(status, format!("{path}: {why}"))
        })
    }
}

/// What its tracks need; some of its pictures are looked at for that.
fn needs(clip: &Clip, file: &File) -> Vec<Need> {
    clip.needs(MOST, |track, sample| {
        let How::H264 { length_size } = track.how() else {
            return None;
        };
        let mut bytes = [0; PEEK];
        let length = PEEK.min(usize::try_from(sample.size()).unwrap_or(PEEK));
        // What cannot be read is said when it is to be sent.
        file.read_exact_at(&mut bytes[..length], sample.offset)
            .ok()?;
        h264::is_disposable(&bytes[..length], length_size)
    })
}

enum Bad {
    Clip(Unreadable),
    Disk(io::Error),
}

fn read(opened: &Opened) -> Result<Clip, Bad> {
    let mut finder = Finder::new(opened.stamp.bytes);
    let mut header = [0; 16];
    loop {
        let (at, len) = finder.wants();
        opened
            .file
            .read_exact_at(&mut header[..len], at)
            .map_err(Bad::Disk)?;
        if let Some((at, len)) = finder.found(&header[..len]).map_err(Bad::Clip)? {
            let mut movie = vec![0; len];
            opened
                .file
                .read_exact_at(&mut movie, at)
                .map_err(Bad::Disk)?;
            return Clip::read(&movie, opened.stamp.bytes).map_err(Bad::Clip);
        }
    }
}
