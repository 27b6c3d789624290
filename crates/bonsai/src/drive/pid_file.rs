//! A file with the number of the server's process, for programs that end it.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bonsai_services::refusal::Refusal;

/// The file; it goes with this, unless it is another server's by then.
#[derive(Debug)]
pub(super) struct PidFile {
    path: PathBuf,
    text: String,
}

impl PidFile {
    /// Writes it, in one piece: nobody reads half a number. What has the name and is no regular file stays.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub(super) fn create(path: &Path) -> anyhow::Result<Self> {
        let refuse = |why: String| Refusal::input(format!("--pid-file {}: {why}", path.display()));
        match fs::symlink_metadata(path) {
            Ok(there) if !there.is_file() => {
                return Err(refuse("is there, and no regular file".to_owned()));
            }
            Ok(_) => {
                let Some(pid) = number(path) else {
                    return Err(refuse(
                        "is there, and holds no number of a process; name another file".to_owned(),
                    ));
                };
                if is_running(pid) {
                    return Err(refuse(format!(
                        "is that of process {pid}, which is running; end it first, or name another file"
                    )));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(refuse(error.to_string())),
        }
        let text = format!("{}\n", std::process::id());
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let written = || -> io::Result<()> {
            let mut draft = tempfile::Builder::new()
                .permissions(fs::Permissions::from_mode(0o644))
                .tempfile_in(folder.unwrap_or(Path::new(".")))?;
            draft.write_all(text.as_bytes())?;
            draft.persist(path)?;
            Ok(())
        };
        written().map_err(|error| refuse(format!("cannot be written: {error}")))?;
        Ok(Self {
            path: path.to_owned(),
            text,
        })
    }
}

/// What a file that is there holds, if that is a number and nothing else.
fn number(path: &Path) -> Option<u32> {
    let mut text = String::new();
    let file = fs::File::open(path).ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let digits = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
    line.parse().ok().filter(|_| digits)
}

/// Whether a process is another one of this program.
fn is_running(pid: u32) -> bool {
    let name = |pid: u32| fs::read(format!("/proc/{pid}/comm")).ok();
    pid != std::process::id() && name(pid).is_some_and(|of| Some(of) == name(std::process::id()))
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let is_own = fs::symlink_metadata(&self.path).is_ok_and(|there| there.is_file())
            && fs::read_to_string(&self.path).is_ok_and(|text| text == self.text);
        if is_own {
            // What is left is a number of no process.
            let _ = fs::remove_file(&self.path);
        }
    }
}
