//! A show as files that any player opens: one for all tracks, one for each beside it, and an MPD.

use std::fs;
use std::io::Write as _;
use std::path::{Component, Path, PathBuf};

use super::Show;
use crate::{Error, Library, Name};

impl Show<'_> {
    /// Writes the show: `out` (a name that ends in `.m3u8`) has the tracks, which are beside it, as is a
    /// description for DASH. Segments are named by where they are from there, or below an address, which is
    /// where a web server has the library. Returns the files, `out` first. What is there is replaced.
    ///
    /// # Errors
    /// The name is none for a playlist, or the files cannot be written.
    pub fn write(
        &self,
        library: &Library,
        out: &Path,
        address: Option<&str>,
    ) -> Result<Vec<PathBuf>, Error> {
        let stem = stem(out)?;
        let parent = match out.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let folder = parent
            .canonicalize()
            .map_err(Error::file(parent, "cannot be found"))?;
        let root = match address {
            Some(address) => below(address)?,
            None => between(&folder, library.path())?,
        };
        let place = |name: &Name| format!("{root}{name}/");
        let track_file = |track: &str| format!("{stem}-{track}.m3u8");
        let mut files = vec![(format!("{stem}.m3u8"), self.master(&track_file)?)];
        for track in self.tracks() {
            files.extend(
                self.media(&track, &place)?
                    .map(|text| (track_file(&track), text)),
            );
        }
        files.push((format!("{stem}.mpd"), self.mpd(&place)?));
        // The first refers to the others.
        for (file, text) in files.iter().rev() {
            replace(&folder, file, text)?;
        }
        Ok(files
            .iter()
            .map(|(file, _)| out.with_file_name(file))
            .collect())
    }
}

/// The name without its end: it becomes part of addresses.
fn stem(out: &Path) -> Result<&str, Error> {
    let name = out
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let stem = name.strip_suffix(".m3u8").unwrap_or_default();
    let is_of_names = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !stem.is_empty() && !stem.starts_with('.') && stem.bytes().all(is_of_names) {
        Ok(stem)
    } else {
        Err(Error::input(format!(
            "{}: no name for a playlist: write letters, digits, -, _ and . before .m3u8",
            out.display()
        )))
    }
}

/// An address that everything is below.
fn below(address: &str) -> Result<String, Error> {
    let is_address = ["http://", "https://"].iter().any(|start| {
        address
            .strip_prefix(start)
            .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
    });
    let is_plain = |c: char| c.is_ascii_graphic() && !"\"<>\\^`{|}?#".contains(c);
    if is_address && address.len() <= 2000 && address.chars().all(is_plain) {
        Ok(format!("{}/", address.trim_end_matches('/')))
    } else {
        Err(Error::input(format!(
            "{address:?} is no address of a library: write http://HOST[:PORT][/PATH]"
        )))
    }
}

/// The way from a folder to another, both absolute and without symbolic links.
fn between(from: &Path, to: &Path) -> Result<String, Error> {
    let (mut from, mut to) = (from.components().peekable(), to.components().peekable());
    while from.peek().is_some() && from.peek() == to.peek() {
        from.next();
        to.next();
    }
    let mut way: String = from.map(|_| "../").collect();
    for component in to {
        let Component::Normal(name) = component else {
            continue;
        };
        let text = name
            .to_str()
            .filter(|text| !text.contains(|c: char| c.is_control() || "\"%#?:".contains(c)));
        let text = text.ok_or_else(|| {
            Error::input(format!(
                "{}: no playlist can name it: say where a web server has the library (--address)",
                name.display()
            ))
        })?;
        way.push_str(text);
        way.push('/');
    }
    Ok(way)
}

fn replace(folder: &Path, file: &str, text: &str) -> Result<(), Error> {
    let path = folder.join(file);
    let written = || -> std::io::Result<()> {
        // What stands there must be one that was written before: no device, and no link to elsewhere.
        if fs::symlink_metadata(&path).is_ok_and(|there| !there.is_file()) {
            return Err(std::io::Error::other("it is there already, and no file"));
        }
        let mut new = tempfile::Builder::new()
            .prefix(".playlist-")
            .tempfile_in(folder)?;
        new.write_all(text.as_bytes())?;
        // As any file that a user writes, less what the umask says.
        fs::set_permissions(new.path(), mode(folder)?)?;
        new.persist(&path).map_err(|error| error.error)?;
        Ok(())
    };
    written().map_err(Error::file(&path, "cannot be written"))
}

/// What was watched follows from a playlist: it is for whoever may look into its folder.
fn mode(folder: &Path) -> std::io::Result<fs::Permissions> {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = fs::metadata(folder)?.permissions().mode();
    Ok(fs::Permissions::from_mode(0o600 | (folder & 0o044)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_leads_from_the_playlist_to_the_library() {
        let way = |from: &str, to: &str| between(Path::new(from), Path::new(to));
        assert_eq!(way("/a/b", "/a/c/my lib").expect("a way"), "../c/my lib/");
        assert_eq!(way("/a", "/a").expect("a way"), "");
        assert_eq!(way("/a", "/a/b").expect("a way"), "b/");
        assert_eq!(way("/a/b", "/").expect("a way"), "../../");
        way("/a", "/b\n#EXT").expect_err("two lines");
        way("/a", "/50%").expect_err("an escape");
    }

    #[test]
    fn what_cannot_be_in_a_playlist_is_refused() {
        assert_eq!(
            stem(Path::new("x/my.best.m3u8")).expect("a name"),
            "my.best"
        );
        for name in ["x.mpd", ".m3u8", "a b.m3u8", "..m3u8", "x/", "a%.m3u8"] {
            stem(Path::new(name)).expect_err(name);
        }
        assert_eq!(
            below("http://a:80/films/").expect("an address"),
            "http://a:80/films/"
        );
        for address in [
            "",
            "a",
            "http://",
            "http:///x",
            "http://a b",
            "ftp://a",
            "http://a\"",
            "http://a?b",
        ] {
            below(address).expect_err(address);
        }
    }
}
