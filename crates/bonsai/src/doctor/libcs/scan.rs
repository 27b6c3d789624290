//! `bonsai scan-libcs`: the C libraries of a root, as lines of JSON. A process of its own, as files of others may not answer.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bonsai_host::elf::LibcFlavour;
use bonsai_host::libcs::{RootLibc, libcs_in};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::cli::ScanLibcs;
use crate::output::print;

/// A C library that was found.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Scanned {
    pub(super) loader: PathBuf,
    pub(super) libc: PathBuf,
    pub(super) flavour: String,
    pub(super) version: Option<String>,
    /// Findings in its machine code, where it is not to be run.
    pub(super) code: Option<CodeView>,
    /// Why that cannot be told.
    pub(super) error: Option<String>,
}

/// See [`bonsai_host::libcs::LibcCode`].
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct CodeView {
    pub(super) replaced: usize,
    pub(super) left: Vec<u16>,
}

/// Processor time that a look may take, in seconds, and memory in bytes: the files may have been made to take more.
const SECONDS: u64 = 10;
const MEMORY: u64 = 1 << 30;

/// Prints the C libraries of a root.
///
/// # Errors
/// The root cannot be opened.
pub(crate) fn run(args: &ScanLibcs) -> anyhow::Result<u8> {
    for (resource, most) in [(Resource::Cpu, SECONDS), (Resource::As, MEMORY)] {
        let most = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        // A lower limit than this is kept.
        let _ = setrlimit(resource, most);
    }
    let mut text = String::new();
    for found in libcs_in(&args.root)? {
        let is_own = || args.own && is_hosts(&found.loader) && is_hosts(&found.libc);
        let is_run = args.named || is_own();
        text += &serde_json::to_string(&scanned(&found, is_run))?;
        text.push('\n');
    }
    print(&text)?;
    Ok(0)
}

fn scanned(found: &RootLibc, is_run: bool) -> Scanned {
    let code = (!is_run).then(|| found.code());
    let (code, error) = match code {
        None => (None, None),
        Some(Ok(code)) => {
            let code = CodeView {
                replaced: code.replaced,
                left: code.left,
            };
            (Some(code), None)
        }
        Some(Err(error)) => (None, Some(bonsai_host::sentence(&error))),
    };
    Scanned {
        loader: found.loader.clone(),
        libc: found.libc.clone(),
        flavour: if found.flavour == LibcFlavour::Musl {
            "musl"
        } else {
            "glibc"
        }
        .to_owned(),
        version: found.version.clone(),
        code,
        error,
    }
}

/// True for a file that only the owner of `/` and the caller can have put there: no other user may write it, or a folder above.
fn is_hosts(path: &Path) -> bool {
    let Ok(host) = std::fs::metadata("/") else {
        return false;
    };
    let own = rustix::process::geteuid().as_raw();
    path.ancestors()
        .filter(|path| !path.as_os_str().is_empty())
        .all(|path| {
            path.symlink_metadata().is_ok_and(|of| {
                const STICKY: u32 = 0o1000;
                const WRITABLE: u32 = 0o022;
                let is_owned = of.uid() == host.uid() || of.uid() == own;
                is_owned && (of.mode() & WRITABLE == 0 || of.is_dir() && of.mode() & STICKY != 0)
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn what_others_may_write_is_not_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("ld.so");
        std::fs::write(&file, "").expect("a file");
        let mode = |path: &Path, mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, mode).expect("a mode");
        };
        mode(&file, 0o755);
        assert!(is_hosts(&file.canonicalize().expect("a path")));
        mode(&file, 0o775);
        assert!(!is_hosts(&file));
        mode(&file, 0o755);
        mode(folder.path(), 0o777);
        assert!(!is_hosts(&file));
    }
}
