//! Files that traces come from and go to.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read, Write};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use bonsai_host::{Output, OutputError};
use bonsai_services::refusal::Refusal;
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::escaped;

const STANDARD: &str = "-";
const BUFFER: usize = 1 << 18;

/// An input, unpacked.
pub(crate) type Input = Box<dyn Read>;

/// Opens an input: what is packed by zstd or gzip is unpacked, by its first bytes.
///
/// # Errors
/// It cannot be read.
pub(crate) fn open(path: &Path) -> anyhow::Result<(Input, Progress)> {
    let (file, bytes): (Input, Option<u64>) = if path == Path::new(STANDARD) {
        if let Ok(own) = io::stdin().as_fd().try_clone_to_owned() {
            bonsai_host::note_input(&own.into());
        }
        (Box::new(io::stdin()), None)
    } else {
        let file = File::open(path)
            .map_err(|error| Refusal::input(format!("{}: {error}", shown(path))))?;
        bonsai_host::note_input(&file);
        let about = file.metadata()?;
        if about.is_dir() {
            return Err(Refusal::input(format!(
                "{}: it is a folder, not a trace",
                shown(path)
            )));
        }
        (Box::new(file), about.is_file().then_some(about.len()))
    };
    let progress = Progress::new(bytes);
    let counted = Counted {
        file,
        seen: Arc::clone(&progress.seen),
        bar: progress.bar.clone(),
    };
    let input = unpacked(counted).with_context(|| shown(path))?;
    Ok((input, progress))
}

/// A path as it is printed: control characters are escaped.
pub(crate) fn shown(path: &Path) -> String {
    escaped(&path.display().to_string())
}

/// Opens a file that was read before, without saying how far it is read.
///
/// # Errors
/// It cannot be read.
pub(crate) fn open_quietly(path: &Path) -> io::Result<Input> {
    let file = File::open(path)?;
    bonsai_host::note_input(&file);
    unpacked(file)
}

fn unpacked(from: impl Read + 'static) -> io::Result<Input> {
    let mut from = BufReader::with_capacity(BUFFER, from);
    let mut first = [0; 4];
    let mut got = 0;
    while got < first.len() {
        match from.read(&mut first[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let whole = io::Cursor::new(first[..got].to_vec()).chain(from);
    Ok(match first[..got] {
        // A frame, or one that is skipped (pzstd).
        [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => {
            Box::new(Unpacked(zstd::Decoder::new(whole)?))
        }
        [0x1f, 0x8b, ..] => Box::new(Unpacked(flate2::read::MultiGzDecoder::new(whole))),
        _ => Box::new(whole),
    })
}

/// A decoder whose errors tell damaged data from a disk that fails.
struct Unpacked<R>(R);

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.read(to).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => error,
            _ if error.raw_os_error().is_some() => error,
            _ => io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "the compressed data is damaged, cut off, or followed by other data: {error}"
                ),
            ),
        })
    }
}

/// How far an input is read, on a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    seen: Arc<AtomicU64>,
}

impl Progress {
    fn new(bytes: Option<u64>) -> Self {
        let bar = match bytes {
            _ if !io::stderr().is_terminal() => ProgressBar::hidden(),
            Some(bytes) => {
                let bar = ProgressBar::new(bytes);
                let style = "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
                if let Ok(style) = ProgressStyle::with_template(style) {
                    bar.set_style(style);
                }
                bar
            }
            None => ProgressBar::new_spinner(),
        };
        Self {
            bar,
            seen: Arc::default(),
        }
    }

    /// Of an input that was read before: none.
    pub(crate) fn hidden() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            seen: Arc::default(),
        }
    }

    /// Takes the bar away.
    pub(crate) fn done(&self) {
        self.bar.finish_and_clear();
    }
}

struct Counted {
    file: Input,
    seen: Arc<AtomicU64>,
    bar: ProgressBar,
}

impl Read for Counted {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read(to)?;
        let seen = self.seen.fetch_add(got as u64, Ordering::Relaxed) + got as u64;
        self.bar.set_position(seen);
        Ok(got)
    }
}

/// Opens an output file, by the rules of [`Output`].
///
/// # Errors
/// It is no place for an output, which is bad input, or cannot be made.
pub(crate) fn create_output(path: &Path) -> anyhow::Result<Output> {
    let created = Output::create(path);
    // Nothing was done yet, and another name may be right.
    created.map_err(|error| Refusal::input(bonsai_host::sentence(&error)))
}

/// Writes an output that is in memory.
///
/// # Errors
/// As [`create_output`], or it cannot be written.
pub(crate) fn write_output(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    bonsai_host::write_output(path, bytes).map_err(output_error)
}

/// An error of an output, with its exit code.
pub(crate) fn output_error(error: OutputError) -> anyhow::Error {
    match error.is_refused() {
        true => Refusal::input(error.to_string()),
        false => anyhow::Error::new(error),
    }
}

/// Writes an output: a regular file appears under its name when `write` is done, or not at all. `-` is standard output.
///
/// # Errors
/// It cannot be written, or what `write` says.
pub(crate) fn save<T>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let failed = || format!("{}: cannot be written", path.display());
    if path == Path::new(STANDARD) {
        let mut out = io::BufWriter::with_capacity(BUFFER, io::stdout().lock());
        let done = write(&mut out)?;
        out.flush()?;
        return Ok(done);
    }
    let mut out = io::BufWriter::with_capacity(BUFFER, create_output(path)?);
    let done = write(&mut out)?;
    let output = out
        .into_inner()
        .map_err(io::IntoInnerError::into_error)
        .with_context(failed)?;
    output.commit().map_err(output_error)?;
    Ok(done)
}
