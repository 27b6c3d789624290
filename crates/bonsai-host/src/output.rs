//! Output files that users name.
//!
//! | what has the name | what is done |
//! |---|---|
//! | nothing | the file appears when it is whole |
//! | a regular file, also behind symbolic links | it is replaced when the new one is whole; links, mode and owner stay |
//! | one that a new file cannot stand for: another owner, hard links, an ACL, a folder without write permission | it is written in place |
//! | a character device, a FIFO, a terminal | it is opened and written |
//! | an open descriptor of this process: `/dev/stdout`, `/dev/fd/2` | what it is open on is written, from where it stands |
//! | a folder, a block device, a socket | it is refused |
//! | a file that this process reads ([`note_input`]) | it is refused: it would be gone before or after it was read |
//! | a regular file that this process has written | it is refused: what stands in it would be lost |
//!
//! So an output never takes the place of a device node or of a symbolic link, and a failed one leaves a regular file as it was.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read as _, Seek as _, Write};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::SeekFrom;
use tempfile::NamedTempFile;

/// Files that are no place for an output.
static TAKEN: Mutex<Taken> = Mutex::new(Taken {
    inputs: Vec::new(),
    outputs: Vec::new(),
    in_place: Vec::new(),
});

const INPUT: &str = "an input of this command";
const OUTPUT: &str = "another output of this command";

struct Taken {
    /// Devices and numbers of those that are read.
    inputs: Vec<(u64, u64)>,
    /// Names of those that were written, without links: numbers are given out again.
    outputs: Vec<PathBuf>,
    /// Those that were written in place, as they have more names: open, so that their numbers stay theirs.
    in_place: Vec<File>,
}

impl Taken {
    fn lock() -> MutexGuard<'static, Self> {
        TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a regular file is, if it is no place for an output.
    fn as_what(target: &Path) -> Option<&'static str> {
        let about = fs::metadata(target).ok().filter(Metadata::is_file)?;
        let taken = Self::lock();
        let name = || fs::canonicalize(target).ok();
        taken.by_number(&about).or_else(|| {
            let is_output = taken.outputs.contains(&name()?);
            is_output.then_some(OUTPUT)
        })
    }

    fn by_number(&self, about: &Metadata) -> Option<&'static str> {
        let number = (about.dev(), about.ino());
        let input = self.inputs.contains(&number).then_some(INPUT);
        let mut written = self.in_place.iter().filter_map(|file| file.metadata().ok());
        input.or_else(|| {
            let is_output = written.any(|of| (of.dev(), of.ino()) == number);
            is_output.then_some(OUTPUT)
        })
    }
}

/// Keeps a regular file from being an output of this process.
pub fn note_input(file: &File) {
    let Some(about) = file.metadata().ok().filter(Metadata::is_file) else {
        return;
    };
    let mut taken = Taken::lock();
    let number = (about.dev(), about.ino());
    if !taken.inputs.contains(&number) {
        taken.inputs.push(number);
    }
}

/// Symbolic links that are followed, as many as Linux follows (path_resolution(7)).
const LINKS: usize = 40;

/// An output cannot be opened, or not be written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// It is no place for an output.
    #[error("{}: it is {what}; name a file", path.display())]
    Refused {
        /// The name.
        path: PathBuf,
        /// What has it.
        what: &'static str,
    },
    /// What the system says.
    #[error("{}: cannot be written", path.display())]
    Io {
        /// The name.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl OutputError {
    /// Whether another name has to be given.
    pub const fn is_refused(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}

/// An output that is being written.
#[derive(Debug)]
pub struct Output {
    to: To,
    path: PathBuf,
}

#[derive(Debug)]
enum To {
    /// A new file, which takes its name when it is whole.
    New(NamedTempFile, PathBuf),
    /// A new file, which is copied into one that keeps its place.
    Copied(NamedTempFile, File),
    /// It is written as it is.
    Direct(File),
}

impl Output {
    /// Opens an output by its name.
    ///
    /// # Errors
    /// It is no place for an output, or the system refuses it.
    pub fn create(path: &Path) -> Result<Self, OutputError> {
        let refused = |what| OutputError::Refused {
            path: path.to_owned(),
            what,
        };
        let failed = |source| OutputError::Io {
            path: path.to_owned(),
            source,
        };
        if path.file_name().is_none() || path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(refused("a folder"));
        }
        if let Some(file) = inherited(path).map_err(failed)? {
            if let Some(what) = file
                .metadata()
                .ok()
                .and_then(|of| Taken::lock().by_number(&of))
            {
                return Err(refused(what));
            }
            return Ok(Self::direct(path, file));
        }
        let target = resolved(path).map_err(failed)?;
        let there = match fs::metadata(&target) {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = draft(&target, 0o666).map_err(failed)?;
                return Ok(Self {
                    to: To::New(file, target),
                    path: path.to_owned(),
                });
            }
            Err(error) => return Err(failed(error)),
        };
        let kind = there.file_type();
        for (is_it, what) in [
            (kind.is_dir(), "a folder"),
            (kind.is_block_device(), "a block device"),
            (kind.is_socket(), "a socket"),
        ] {
            if is_it {
                return Err(refused(what));
            }
        }
        if let Some(what) = Taken::as_what(&target) {
            return Err(refused(what));
        }
        let file = open(&target).map_err(failed)?;
        let opened = file.metadata().map_err(failed)?;
        if opened.file_type() != kind {
            return Err(failed(io::Error::other("it was replaced meanwhile")));
        }
        if !kind.is_file() {
            return Ok(Self::direct(path, file));
        }
        let to = match draft(&target, 0o600) {
            Ok(new) if keep_owner(&new, &opened, &target) => To::New(new, target),
            Ok(new) => To::Copied(new, file),
            // The folder takes no file, as in /proc; the file can be written all the same.
            Err(_) => {
                file.set_len(0).map_err(failed)?;
                To::Direct(file)
            }
        };
        Ok(Self {
            to,
            path: path.to_owned(),
        })
    }

    fn direct(path: &Path, file: File) -> Self {
        Self {
            to: To::Direct(file),
            path: path.to_owned(),
        }
    }

    /// The file that is written.
    pub fn file(&mut self) -> &mut File {
        match &mut self.to {
            To::New(file, _) | To::Copied(file, _) => file.as_file_mut(),
            To::Direct(file) => file,
        }
    }

    /// Whether it is a regular file, which can be sparse and written at any place.
    pub fn is_regular(&mut self) -> bool {
        self.file().metadata().is_ok_and(|of| of.is_file())
    }

    /// Ends it: the file has its name.
    ///
    /// # Errors
    /// What the system says; a file that was there is as it was then, unless it was written in place.
    pub fn commit(self) -> Result<(), OutputError> {
        // An input may have been opened since, and another output been written.
        let is_direct = matches!(self.to, To::Direct(_));
        if let Some(what) = Taken::as_what(&self.path).filter(|_| !is_direct) {
            return Err(OutputError::Refused {
                path: self.path,
                what,
            });
        }
        let done = match self.to {
            To::New(file, target) => file
                .persist(target)
                .map(|_| ())
                .map_err(|error| error.error),
            To::Copied(file, to) => {
                let copied = copy(file.as_file(), &to);
                Taken::lock().in_place.push(to);
                copied
            }
            To::Direct(mut file) => file.flush(),
        };
        let is_named = done.is_ok() && !is_direct;
        let name = fs::canonicalize(&self.path).ok().filter(|_| is_named);
        Taken::lock().outputs.extend(name);
        done.map_err(|source| OutputError::Io {
            path: self.path,
            source,
        })
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

/// Writes an output that is in memory.
///
/// # Errors
/// It is no place for an output, or cannot be written.
pub fn write_output(path: &Path, bytes: &[u8]) -> Result<(), OutputError> {
    let mut output = Output::create(path)?;
    output.write_all(bytes).map_err(|source| OutputError::Io {
        path: path.to_owned(),
        source,
    })?;
    output.commit()
}

/// Copies a file into another; holes stay holes.
fn copy(mut from: &File, mut to: &File) -> io::Result<()> {
    let length = from.metadata()?.len();
    to.set_len(0)?;
    to.set_len(length)?;
    let mut at = 0;
    while at < length {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole is left.
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))?;
        from.seek(io::SeekFrom::Start(start))?;
        to.seek(io::SeekFrom::Start(start))?;
        io::copy(&mut from.take(end - start), &mut to)?;
        at = end;
    }
    Ok(())
}

/// Opens what is there, without a change.
fn open(target: &Path) -> io::Result<File> {
    // What has the name is resolved: a link that is there now was put there meanwhile.
    let flags = libc::O_NOFOLLOW | libc::O_NOCTTY;
    OpenOptions::new()
        .write(true)
        .custom_flags(flags)
        .open(target)
}

/// A file without its name, in the folder where it will be.
fn draft(target: &Path, mode: u32) -> io::Result<NamedTempFile> {
    let folder = target
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    tempfile::Builder::new()
        .prefix(".bonsai-output-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder.unwrap_or(Path::new(".")))
}

/// Gives a new file the mode and owner of the one that it replaces; says whether nothing else is lost by that.
fn keep_owner(new: &NamedTempFile, old: &Metadata, path: &Path) -> bool {
    if old.nlink() > 1 || has_attributes(path) {
        return false;
    }
    let file = new.as_file();
    let Ok(own) = file.metadata() else {
        return false;
    };
    if (own.uid(), own.gid()) != (old.uid(), old.gid())
        && std::os::unix::fs::fchown(file, Some(old.uid()), Some(old.gid())).is_err()
    {
        return false;
    }
    file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))
        .is_ok()
}

/// Whether a file has an ACL, or attributes of a user.
fn has_attributes(path: &Path) -> bool {
    let mut names = [0_u8; 4096];
    match rustix::fs::listxattr(path, &mut names[..]) {
        Ok(length) => names[..length]
            .split(|byte| *byte == 0)
            .any(|name| name.starts_with(b"system.posix_acl") || name.starts_with(b"user.")),
        Err(rustix::io::Errno::RANGE) => true,
        Err(_) => false,
    }
}

/// Where a name leads, by symbolic links of its last component; there may be nothing there.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..LINKS {
        match fs::symlink_metadata(&target) {
            Ok(there) if there.is_symlink() => target = step(&target)?,
            _ => return Ok(target),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Target of a symbolic link. A link that another user has put where all may is not followed, as the kernel does not
/// (fs.protected_symlinks in proc_sys_fs(5)): it cannot know of links that are read here.
fn step(link: &Path) -> io::Result<PathBuf> {
    let folder = match link.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => Path::new("/"),
    };
    let (about, around) = (fs::symlink_metadata(link)?, fs::metadata(folder)?);
    let is_of_all = around.mode() & 0o1002 == 0o1002;
    let is_ours = about.uid() == rustix::process::geteuid().as_raw() || about.uid() == around.uid();
    if is_of_all && !is_ours {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} is a link of user {}", link.display(), about.uid()),
        ));
    }
    let to = fs::read_link(link)?;
    Ok(match link.parent() {
        Some(folder) => folder.join(to),
        None => to,
    })
}

/// What a descriptor of this process is open on, where the name is that of one.
fn inherited(path: &Path) -> io::Result<Option<File>> {
    let mut name = path.to_owned();
    for _ in 0..LINKS {
        if let Some(number) = descriptor(&name) {
            // Written from where it stands, so that what others wrote there stays.
            return match number {
                1 => Ok(Some(io::stdout().as_fd().try_clone_to_owned()?.into())),
                2 => Ok(Some(io::stderr().as_fd().try_clone_to_owned()?.into())),
                _ => OpenOptions::new().append(true).open(&name).map(Some),
            };
        }
        match fs::symlink_metadata(&name) {
            Ok(there) if there.is_symlink() => name = step(&name)?,
            _ => return Ok(None),
        }
    }
    Ok(None)
}

/// The number of a descriptor in `/proc/self/fd` (to which `/dev/fd` leads), or in the folder with our own number.
fn descriptor(path: &Path) -> Option<u32> {
    let folder = fs::canonicalize(path.parent()?).ok()?;
    let number = path.file_name().and_then(OsStr::to_str)?.parse().ok()?;
    let own = std::process::id().to_string();
    let mut parts = folder.components().filter_map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let is_own = parts.next() == Some("proc") && parts.next() == Some(own.as_str());
    let rest: Vec<&str> = parts.collect();
    let is_fd = matches!(rest[..], ["fd"] | ["task", _, "fd"]);
    (is_own && is_fd).then_some(number)
}

#[cfg(test)]
mod tests;
