//! Where an image has data, and where holes.

use std::io;
use std::sync::atomic::Ordering;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::Image;
use crate::protocol::Extent;

impl Image {
    /// Where there is data from `offset` on, at most `most` extents, and at most `length` bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn extents(&self, offset: u64, length: u64, most: usize) -> io::Result<Vec<Extent>> {
        let end = offset + length;
        let mut extents = Vec::new();
        let mut at = offset;
        while at < end && extents.len() < most {
            let (next, hole) = match self.extent(at, end) {
                Ok(extent) => extent,
                // Who asks on is told then.
                Err(_) if !extents.is_empty() => break,
                Err(error) => return Err(error),
            };
            let piece = next.min(end) - at;
            extents.push(Extent {
                length: u32::try_from(piece).unwrap_or(u32::MAX),
                hole,
            });
            at += piece;
        }
        Ok(extents)
    }

    /// Where the extent ends that `at` is in, at most `end`, and whether it is a hole.
    ///
    /// # Errors
    /// The system's.
    pub fn extent(&self, at: u64, end: u64) -> io::Result<(u64, bool)> {
        if self.device || self.no_holes.load(Ordering::Relaxed) {
            return Ok((end, false));
        }
        match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
            Ok(data) if data > at => Ok((data.min(end), true)),
            Ok(_) => {
                let hole = rustix::fs::seek(&self.file, SeekFrom::Hole(at))?;
                // Written meanwhile: whatever it is, it is not before `at`.
                Ok((if hole > at { hole.min(end) } else { end }, false))
            }
            // No data behind. What a file that has shrunk had there is no hole: it has gone.
            Err(Errno::NXIO) => match self.file.metadata()?.len() {
                length if length <= at => {
                    self.shrunk.store(true, Ordering::Relaxed);
                    Err(io::ErrorKind::UnexpectedEof.into())
                }
                length => Ok((length.min(end), true)),
            },
            Err(Errno::INVAL) => {
                self.no_holes.store(true, Ordering::Relaxed);
                Ok((end, false))
            }
            Err(error) => Err(error.into()),
        }
    }
}
