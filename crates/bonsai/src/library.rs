//! Where the preload library is, and how a program is told to load it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use bonsai_services::refusal::Refusal;

/// The library's file name.
pub(crate) const FILE: &str = "libbonsai_preload.so";

/// The file name of the engine for programs without a loader, which stands beside the
/// library.
const ENGINE: &str = "libbonsai_engine.so";

/// The file name of the extension, which stands beside the library.
const EXTENSION: &str = "libbonsai_extension.so";

/// The extension that belongs to a library, if it is installed and is one.
pub(crate) fn extension_of(library: &Path) -> Option<PathBuf> {
    let path = library.with_file_name(EXTENSION);
    bonsai_supervisor::Engine::read(&path)
        .is_ok()
        .then_some(path)
}

/// The name of the link to it in a service's folder.
pub(crate) const ENGINE_LINK: &str = "engine.so";

/// The engine that belongs to a library, if it is installed.
pub(crate) fn engine_of(library: &Path) -> Option<PathBuf> {
    Some(library.with_file_name(ENGINE)).filter(|path| path.is_file())
}

/// The variable that names the library's file.
const VARIABLE: &str = "BONSAI_PRELOAD";

/// Finds the library: the file named by `BONSAI_PRELOAD`, else beside this
/// program, else in `../lib/bonsai` from there.
///
/// # Errors
/// One sentence that says where it was looked for.
pub(crate) fn find() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return named_file(Path::new(&named));
    }
    let exe = std::env::current_exe()
        .map_err(|error| anyhow::anyhow!("cannot tell where bonsai itself is: {error}"))?;
    let folder = exe.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(FILE), folder.join("../lib/bonsai").join(FILE)];
    for place in &places {
        if place.is_file() {
            return resolve(place);
        }
    }
    anyhow::bail!(
        "the library {FILE} is neither in {} nor in {}: install it there (make build, make \
         install), or name its file in {VARIABLE}",
        folder.display(),
        folder.join("../lib/bonsai").display()
    )
}

fn named_file(path: &Path) -> anyhow::Result<PathBuf> {
    if path.is_file() {
        return resolve(path);
    }
    let text = format!(
        "{VARIABLE} must name the file {FILE}, but {} is no file",
        path.display()
    );
    Err(Refusal::input(text))
}

fn resolve(path: &Path) -> anyhow::Result<PathBuf> {
    path.canonicalize()
        .map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))
}

/// The value of `LD_PRELOAD` that loads `library` after what is in `existing`.
pub(crate) fn appended(existing: Option<&OsStr>, library: &Path) -> OsString {
    let mut value = existing.unwrap_or_default().to_owned();
    if !value.is_empty() {
        value.push(":");
    }
    value.push(library);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_preloads_stay() {
        let library = Path::new("/a/b.so");
        let value = |existing: &str| appended(Some(OsStr::new(existing)), library);
        assert_eq!(value("/x.so"), "/x.so:/a/b.so");
        assert_eq!(value("/x.so /y.so"), "/x.so /y.so:/a/b.so");
        assert_eq!(value(""), "/a/b.so");
        assert_eq!(appended(None, library), "/a/b.so");
    }
}
