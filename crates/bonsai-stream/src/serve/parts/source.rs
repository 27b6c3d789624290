//! Where the bytes of samples come from.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, PoisonError};

use bonsai_units::Bytes;

use super::super::ahead::Ahead;
use super::super::film::ClipFile;
use super::Parts;
use crate::folder::Stamp;

/// Bytes of a sample that are wanted.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The clip, below the root,
    pub clip: &'a str,
    /// and in which quality it is sent, 0 for the best.
    pub quality: usize,
    /// The file of that, which is open,
    pub file: &'a File,
    /// and what it was when it was opened.
    pub stamp: &'a Stamp,
    /// Where in the file the sample is,
    pub offset: u64,
    /// and its bytes.
    pub size: u32,
    /// Where in the sample what is wanted begins.
    pub at: u32,
    pub(in super::super) ahead: Option<RefCell<(&'a mut Ahead, &'a ClipFile)>>,
}

impl Wanted<'_> {
    /// Fills `bytes` with those of the file from there on, without waiting for a disk: where they are not in memory,
    /// other threads read them.
    ///
    /// # Errors
    /// `WouldBlock` while they are being read: a source that returns it is asked for the sample again when they are
    /// there. Any other: they cannot be had.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.ahead {
            Some(ahead) => {
                let (ahead, of) = &mut *ahead.borrow_mut();
                ahead.read(of, bytes, offset)
            }
            None => self.file.read_exact_at(bytes, offset),
        }
    }
}

/// Gives the bytes of samples: by default, those of the clip's file are read.
///
/// What there is in a clip, and where, is read in its file in any case; a source gives samples of as many
/// bytes as that says. It is asked for a sample at a time, or for parts of it in order, as the engine
/// is. Whether a picture may be left out is judged by the file's bytes, not by its.
///
/// All streams wait while a source reads: one that reads the file does so by [`Wanted::read_at`], which waits for no
/// disk.
///
/// ```
/// use std::sync::Arc;
///
/// use bonsai_stream::serve::{Engine, Parts, Pipelines, Source, Wanted};
///
/// /// Clips whose samples were written with a key.
/// #[derive(Debug)]
/// struct Keyed(u8);
///
/// impl Source for Keyed {
///     fn read(&mut self, wanted: &Wanted<'_>, bytes: &mut [u8]) -> std::io::Result<()> {
///         let at = wanted.offset + u64::from(wanted.at);
///         wanted.read_at(bytes, at)?;
///         bytes.iter_mut().for_each(|byte| *byte ^= self.0);
///         Ok(())
///     }
/// }
///
/// let mut parts = Parts::builtin();
/// parts.register_source("keyed", |value| {
///     let key: u8 = value.parse().map_err(|_| format!("keyed={value}: write a key"))?;
///     Ok(Arc::new(move |_stream| Ok(Box::new(Keyed(key)))))
/// });
/// let file = "[[pipeline]]\nclips = [\"**\"]\nsource = [\"sample\", \"keyed=7\"]\n";
/// assert!(Pipelines::read(file, Engine::Classic, &parts).is_ok());
/// ```
pub trait Source: fmt::Debug {
    /// Fills `bytes` with those of a sample from `wanted.at` on; never more than it has from there.
    ///
    /// # Errors
    /// `WouldBlock` of [`Wanted::read_at`]: the same is asked for again later. Any other: they cannot be had, and the
    /// stream ends.
    fn read(&mut self, wanted: &Wanted<'_>, bytes: &mut [u8]) -> io::Result<()>;
}

pub(super) fn register(parts: &mut Parts) {
    parts.register_source("memory", |value| {
        const WRITE: &str = "write how much, from 1MiB on, as memory=256MiB";
        let most: Bytes = value
            .parse()
            .map_err(|error| format!("memory={value}: {error}; {WRITE}"))?;
        if most.0 < 1 << 20 {
            return Err(format!("memory={value}: {WRITE}"));
        }
        let kept = Arc::new(Mutex::new(Kept::new(most.0)));
        Ok(Arc::new(move |_| Ok(Box::new(Memory(Arc::clone(&kept))))))
    });
}

/// Which sample it is: of which file, as of when, where in it, and its bytes: one without any may be where
/// another begins.
type Place = ((u64, u64), (i64, i64), u64, u32);

/// What a sample takes besides its bytes: its places in both tables.
const BESIDE: u64 = 200;

/// Samples that were read, those that were sent last.
#[derive(Debug)]
struct Kept {
    most: u64,
    bytes: u64,
    uses: u64,
    samples: HashMap<Place, (Box<[u8]>, u64)>,
    /// By when they were used last.
    order: BTreeMap<u64, Place>,
}

impl Kept {
    fn new(most: u64) -> Self {
        Self {
            most,
            bytes: 0,
            uses: 0,
            samples: HashMap::new(),
            order: BTreeMap::new(),
        }
    }

    /// A sample that is kept.
    fn get(&mut self, place: Place) -> Option<&[u8]> {
        let (bytes, used) = self.samples.get_mut(&place)?;
        self.uses += 1;
        self.order.remove(used);
        self.order.insert(self.uses, place);
        *used = self.uses;
        Some(bytes)
    }

    /// Keeps one; others go for it, those first that were not used for longest.
    fn keep(&mut self, place: Place, bytes: Box<[u8]>) {
        self.bytes += cost(&bytes);
        self.uses += 1;
        self.order.insert(self.uses, place);
        self.samples.insert(place, (bytes, self.uses));
        while self.bytes > self.most
            && let Some((_, oldest)) = self.order.pop_first()
        {
            if let Some((bytes, _)) = self.samples.remove(&oldest) {
                self.bytes -= cost(&bytes);
            }
        }
    }
}

fn cost(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX / 2) + BESIDE
}

/// Keeps samples for all viewers of the clips of a pipeline: each is read once as long as there is room.
#[derive(Debug)]
struct Memory(Arc<Mutex<Kept>>);

impl Source for Memory {
    fn read(&mut self, wanted: &Wanted<'_>, bytes: &mut [u8]) -> io::Result<()> {
        let Stamp { file, changed, .. } = *wanted.stamp;
        let place = (file, changed, wanted.offset, wanted.size);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sample) = kept.get(place) {
            return part(sample, wanted.at, bytes);
        }
        // One that would drive out most of the others is read as without this.
        if u64::from(wanted.size) > kept.most / 4 {
            let at = wanted.offset + u64::from(wanted.at);
            return wanted.read_at(bytes, at);
        }
        let mut sample = vec![0; usize::try_from(wanted.size).unwrap_or(0)];
        wanted.read_at(&mut sample, wanted.offset)?;
        part(&sample, wanted.at, bytes)?;
        kept.keep(place, sample.into());
        Ok(())
    }
}

/// Copies what is wanted of a sample.
fn part(sample: &[u8], at: u32, bytes: &mut [u8]) -> io::Result<()> {
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    let part = sample.get(at..).and_then(|rest| rest.get(..bytes.len()));
    let part = part.ok_or(io::ErrorKind::UnexpectedEof)?;
    bytes.copy_from_slice(part);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::StreamView;
    use super::*;

    #[test]
    fn a_sample_is_read_once_for_all_viewers() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("clip");
        std::fs::write(&path, b"0123456789").expect("written");
        let file = File::open(&path).expect("a file");
        let stamp = Stamp::of(&file).expect("a stamp");
        let maker = Parts::builtin().source("memory=1MiB").expect("right");
        let view = StreamView {
            peer: SocketAddr::from(([127, 0, 0, 1], 5000)),
            clip: "clip",
        };
        let mut sources = [0; 2].map(|_| maker(&view).expect("made"));
        let mut wanted = Wanted {
            clip: "clip",
            quality: 0,
            file: &file,
            stamp: &stamp,
            offset: 2,
            size: 6,
            at: 0,
            ahead: None,
        };
        let mut bytes = [0; 3];
        sources[0].read(&wanted, &mut bytes).expect("read");
        assert_eq!(&bytes, b"234");
        // What comes now does not come from the file.
        std::fs::write(&path, b"xxxxxxxxxx").expect("written");
        wanted.at = 3;
        sources[1].read(&wanted, &mut bytes).expect("kept");
        assert_eq!(&bytes, b"567");
        // Nor of another sample than what was asked for.
        wanted.at = 4;
        sources[1].read(&wanted, &mut bytes).expect_err("too much");
        wanted.offset = 3;
        wanted.at = 0;
        sources[1].read(&wanted, &mut bytes).expect("another");
        assert_eq!(&bytes, b"xxx");
        // One without bytes has the place of the next.
        (wanted.offset, wanted.size) = (0, 0);
        sources[0].read(&wanted, &mut []).expect("nothing");
        wanted.size = 3;
        sources[0].read(&wanted, &mut bytes).expect("the next");
        assert_eq!(&bytes, b"xxx");
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room() {
        let place = |offset: u64| ((1, 2), (3, 4), offset, 800);
        let sample = || vec![7; 800].into_boxed_slice();
        let mut kept = Kept::new(3000);
        for offset in 0..3 {
            kept.keep(place(offset), sample());
        }
        assert!(kept.get(place(0)).is_some());
        kept.keep(place(3), sample());
        let there = [0, 1, 2, 3].map(|offset| kept.get(place(offset)).is_some());
        assert_eq!(there, [true, false, true, true]);
        assert_eq!((kept.bytes, kept.order.len()), (3000, 3));
    }

    #[test]
    fn a_size_that_is_none_is_told() {
        for text in ["memory", "memory=256", "memory=10kB", "memory=-1MiB"] {
            let error = Parts::builtin().source(text).map(|_| ()).expect_err(text);
            assert!(error.contains("as memory=256MiB"), "{error}");
        }
    }
}
