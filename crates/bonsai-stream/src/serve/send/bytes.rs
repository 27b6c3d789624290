//! The bytes of a sample, from its file or a source.

use std::cell::RefCell;
use std::io;

use bonsai_media::clip::Sample;

use super::super::parts::Wanted;
use super::super::stream::Stream;
use super::Out;

/// Fills `bytes` with those of a line's sample from there on.
pub(super) fn read(
    stream: &mut Stream,
    line: usize,
    (sample, at): (&Sample, u32),
    bytes: &mut [u8],
) -> io::Result<()> {
    let quality = stream.timeline.quality(line);
    let (of, ahead) = (stream.film.file(quality), &mut stream.ahead);
    let Some(source) = &mut stream.parts.source else {
        return ahead.read(of, bytes, sample.offset + u64::from(at));
    };
    let wanted = Wanted {
        clip: &stream.clip,
        quality,
        file: &of.file,
        stamp: &of.stamp,
        offset: sample.offset,
        size: sample.size(),
        at,
        ahead: Some(RefCell::new((ahead, of))),
    };
    match source.read(&wanted, bytes) {
        // A source that waits for something else would never be asked again.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock && !ahead.is_waiting() => {
            Err(io::Error::other("its source has nothing to read it from"))
        }
        read => read,
    }
}

/// A sample's bytes are not there, now or ever.
pub(super) fn unread(error: &io::Error) -> Out {
    let why = match error.kind() {
        io::ErrorKind::WouldBlock => return Out::Reads,
        io::ErrorKind::UnexpectedEof => "its file has become shorter".to_owned(),
        _ => format!("its file: {error}"),
    };
    Out::Broken(why)
}
