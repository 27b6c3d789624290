//! The tables of an MP4 file: its movie box, and the fragments behind it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use bonsai_media::clip::{Clip, Finder, Fragment, Fragments, Unreadable};

use crate::folder::Opened;

/// Why a file has no tables.
#[derive(Debug, thiserror::Error)]
pub enum TablesError {
    /// No film, or one with bad tables.
    #[error("{0}")]
    Clip(#[from] Unreadable),
    /// The file cannot be read.
    #[error("{0}")]
    Disk(#[from] io::Error),
}

/// The tables of a file.
#[derive(Debug)]
pub struct Tables {
    /// The body of its movie box.
    pub movie: Vec<u8>,
    /// The fragments behind that, where it announces any.
    pub fragments: Vec<Fragment>,
}

/// Reads the tables of a file, and nothing else of it.
///
/// # Errors
/// The file has none, or cannot be read.
pub fn read(opened: &Opened) -> Result<Tables, TablesError> {
    of(&opened.file, opened.stamp.bytes)
}

/// The same of a file with this length.
pub(crate) fn of(file: &File, bytes: u64) -> Result<Tables, TablesError> {
    let mut finder = Finder::new(bytes);
    let mut header = [0; 16];
    let (at, len) = loop {
        let (at, len) = finder.wants();
        file.read_exact_at(&mut header[..len], at)?;
        if let Some(found) = finder.found(&header[..len])? {
            break found;
        }
    };
    let mut movie = vec![0; len];
    file.read_exact_at(&mut movie, at)?;
    let end = at + u64::try_from(len).unwrap_or(0);
    let fragments = match Clip::has_fragments(&movie) {
        true => fragments(file, (end, bytes))?,
        false => Vec::new(),
    };
    Ok(Tables { movie, fragments })
}

fn fragments(file: &File, (from, to): (u64, u64)) -> Result<Vec<Fragment>, TablesError> {
    let mut walk = Fragments::new(from, to);
    let mut found = Vec::new();
    let mut header = [0; 16];
    while let Some((at, len)) = walk.wants() {
        let header = &mut header[..len];
        file.read_exact_at(header, at)?;
        let Some((at, body, len)) = walk.found(header)? else {
            continue;
        };
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, body)?;
        found.push(Fragment { at, body: bytes });
    }
    Ok(found)
}
