//! The images of a server and their options, as the command line and files name them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use bonsai_nbd::protocol::MAX_NAME_BYTES;
use bonsai_services::refusal::Refusal;
use bonsai_services::wording::of_document;
use serde::Deserialize;

use crate::cli::{DriveServe, Format};

/// An image as it is to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImageArgs {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) read_only: bool,
    /// Whether it is raw, whatever it holds.
    pub(super) raw: bool,
    /// `None` for a group of its own.
    pub(super) group: Option<String>,
    /// Of this image alone.
    pub(super) limits: Vec<String>,
    pub(super) discard: bool,
    pub(super) scan: bool,
}

/// What is said of one image; the rest is as for all of them.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Given {
    name: Option<String>,
    #[serde(default)]
    path: PathBuf,
    read_only: Option<bool>,
    group: Option<String>,
    format: Option<FormatName>,
    #[serde(default)]
    limits: Vec<String>,
    discard: Option<bool>,
    scan: Option<bool>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum FormatName {
    Raw,
}

/// A file of exports.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exports {
    #[serde(default)]
    export: Vec<toml::Spanned<Given>>,
}

/// The longest file of exports, in bytes: some ten thousand of them.
const MOST_BYTES: u64 = 4 << 20;

/// The images of the command line, and those of its file.
///
/// # Errors
/// A [`Refusal`] of an image that makes no sense.
pub(super) fn images(args: &DriveServe) -> anyhow::Result<Vec<ImageArgs>> {
    let mut images = Vec::new();
    for text in &args.images {
        images.push(with_defaults(parse(text.as_os_str())?, args));
    }
    if let Some(path) = &args.exports {
        let given = read(path)?;
        images.extend(given.into_iter().map(|given| with_defaults(given, args)));
    }
    if args.plain {
        let sharing = images
            .iter()
            .find(|image| image.scan || image.group.is_some());
        if let Some(image) = sharing {
            return Err(Refusal::input(format!(
                "{}: is of a group or scanned, and --plain shares nothing: leave one of both out",
                image.path.display()
            )));
        }
    }
    Ok(images)
}

fn with_defaults(given: Given, args: &DriveServe) -> ImageArgs {
    ImageArgs {
        name: given.name.unwrap_or_else(|| name_of(&given.path)),
        read_only: given.read_only.unwrap_or(args.read_only),
        raw: given.format.is_some() || args.format == Some(Format::Raw),
        group: given.group.or_else(|| args.group.clone()),
        limits: given.limits,
        discard: given.discard.unwrap_or(args.discard.is_on()),
        scan: given.scan.unwrap_or(args.scan),
        path: given.path,
    }
}

/// Reads `[NAME=]PATH[,OPTION...]`. A name has no slash, so that a path with `=` needs one before it (`./a=b.raw`), and a
/// comma of a name, path or value is written twice, as in QEMU's options.
fn parse(text: &OsStr) -> anyhow::Result<Given> {
    let refuse = |why: String| {
        let text = text.to_string_lossy();
        Refusal::input(format!("{text}: {why}"))
    };
    let mut parts = split(text.as_bytes()).into_iter();
    let mut given = Given::default();
    let first = parts.next().unwrap_or_default();
    let name = first.iter().position(|byte| matches!(byte, b'=' | b'/'));
    let (name, path) = match name {
        Some(at) if first.get(at) == Some(&b'=') => first.split_at(at),
        _ => (&[][..], &first[..]),
    };
    if path.first() == Some(&b'=') {
        let name =
            std::str::from_utf8(name).map_err(|_| refuse("the name is not UTF-8".to_owned()))?;
        check_name(name).map_err(refuse)?;
        given.name = Some(name.to_owned());
    }
    given.path = PathBuf::from(OsStr::from_bytes(path.strip_prefix(b"=").unwrap_or(path)));
    if given.path.as_os_str().is_empty() {
        return Err(refuse(
            "there is no path: write NAME=PATH or PATH".to_owned(),
        ));
    }
    for part in parts {
        let part =
            String::from_utf8(part).map_err(|_| refuse("an option is not UTF-8".to_owned()))?;
        option(&mut given, &part).map_err(refuse)?;
    }
    Ok(given)
}

/// Takes the text apart at single commas; of two, one stays.
fn split(text: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = text.iter().peekable();
    while let Some(&byte) = bytes.next() {
        if byte == b',' && bytes.next_if(|next| **next == b',').is_none() {
            parts.push(Vec::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(byte);
        }
    }
    parts
}

fn option(given: &mut Given, text: &str) -> Result<(), String> {
    const OPTIONS: &str =
        "ro, rw, group=NAME, format=raw, limit=NAME=RATE, discard=on|off, scan=on|off";
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (text, None),
    };
    let twice = || Err(format!("{key} is given twice"));
    let switch = |value: Option<&str>| match value {
        Some("on") | None => Ok(true),
        Some("off") => Ok(false),
        Some(other) => Err(format!("{key}={other}: is neither on nor off")),
    };
    match (key, value) {
        ("ro" | "rw", None) => {
            if given.read_only.replace(key == "ro").is_some() {
                return Err("ro and rw are given more than once".to_owned());
            }
        }
        ("group", Some(group)) if !group.is_empty() => {
            if given.group.replace(group.to_owned()).is_some() {
                return twice();
            }
        }
        ("format", Some("raw")) => given.format = Some(FormatName::Raw),
        ("format", Some(other)) => {
            return Err(format!("format={other}: only raw images are served"));
        }
        ("limit", Some(limit)) => given.limits.push(limit.to_owned()),
        ("discard", Some(_)) => {
            if given.discard.replace(switch(value)?).is_some() {
                return twice();
            }
        }
        ("scan", _) => {
            if given.scan.replace(switch(value)?).is_some() {
                return twice();
            }
        }
        _ => {
            return Err(format!(
                "{text:?} is no option of an image: they are {OPTIONS}; a comma of the path is written twice"
            ));
        }
    }
    Ok(())
}

/// Whether clients can ask for such a name, and people read it.
fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("the name is empty: write NAME=PATH".to_owned());
    }
    if name.len() > MAX_NAME_BYTES {
        let len = name.len();
        return Err(format!(
            "the name has {len} bytes: at most {MAX_NAME_BYTES} can be asked for"
        ));
    }
    if crate::output::escaped(name) != name {
        return Err(format!("the name {name:?} has control characters"));
    }
    Ok(())
}

/// Reads a file of exports. Relative paths are from its folder.
fn read(path: &Path) -> anyhow::Result<Vec<Given>> {
    let refuse = |why: String| Refusal::input(format!("{}: {why}", path.display()));
    let text = text_of(path).map_err(refuse)?;
    let at = |span: Option<std::ops::Range<usize>>, why: &str| {
        let before = span.and_then(|span| text.get(..span.start));
        let line = before.map_or(1, |before| before.matches('\n').count() + 1);
        Refusal::input(format!("{}:{line}: {why}", path.display()))
    };
    let exports: Exports = toml::from_str(&text).map_err(|error| {
        at(
            error.span(),
            &of_document(&error.message().replace('\n', ", ")),
        )
    })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut found = Vec::new();
    for export in exports.export {
        let span = export.span();
        let mut given = export.into_inner();
        if given.path.as_os_str().is_empty() {
            return Err(at(Some(span), "an export has no path"));
        }
        if let Some(name) = &given.name {
            check_name(name).map_err(|why| at(Some(span), &why))?;
        }
        given.path = folder.join(&given.path);
        found.push(given);
    }
    if found.is_empty() {
        return Err(refuse(
            "has no export: each begins with [[export]]".to_owned(),
        ));
    }
    Ok(found)
}

/// The text of a regular file; what else there may be is not waited for.
fn text_of(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot be read: {error}");
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err("is no regular file".to_owned());
    }
    // O_NONBLOCK: it may be a pipe by now.
    let file = File::options()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path);
    let file = file.map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() || meta.len() > MOST_BYTES {
        return Err("is no file of exports: it is no regular file, or too long".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("is not UTF-8 from byte {at} on")
    })
}

/// The name of a file without what all of them end in.
fn name_of(path: &Path) -> String {
    let name = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy();
    let short = name
        .strip_suffix(".raw")
        .or_else(|| name.strip_suffix(".img"));
    short
        .filter(|short| !short.is_empty())
        .unwrap_or(&name)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Given, String> {
        parse(OsStr::new(text)).map_err(|error| error.to_string())
    }

    #[test]
    fn images_have_names_and_options() {
        let given = |name: Option<&str>, path: &str| Given {
            name: name.map(str::to_owned),
            path: path.into(),
            ..Given::default()
        };
        for (text, wanted) in [
            ("web.raw", given(None, "web.raw")),
            ("web=vm1/disk.raw", given(Some("web"), "vm1/disk.raw")),
            ("web=/a=b.raw", given(Some("web"), "/a=b.raw")),
            ("./a=b.raw", given(None, "./a=b.raw")),
            ("a,,b=x,,y.raw", given(Some("a,b"), "x,y.raw")),
            (
                "a,,,ro",
                Given {
                    read_only: Some(true),
                    ..given(None, "a,")
                },
            ),
            (
                "w=a.raw,rw,group=lab,format=raw,discard=off,scan,limit=read=5MB/s,limit=write=9/s",
                Given {
                    read_only: Some(false),
                    group: Some("lab".to_owned()),
                    format: Some(FormatName::Raw),
                    discard: Some(false),
                    scan: Some(true),
                    limits: vec!["read=5MB/s".to_owned(), "write=9/s".to_owned()],
                    ..given(Some("w"), "a.raw")
                },
            ),
        ] {
            assert_eq!(parsed(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_no_image_has_its_sentence() {
        for (text, words) in [
            ("", "there is no path"),
            ("web=", "there is no path"),
            ("=a.raw", "the name is empty"),
            ("a\u{1b}=a.raw", "has control characters"),
            ("a.raw,r0", "\"r0\" is no option of an image"),
            ("a.raw,", "\"\" is no option"),
            ("my disk, 1.raw", "a comma of the path is written twice"),
            ("a.raw,format=qcow2", "only raw images are served"),
            ("a.raw,discard=maybe", "is neither on nor off"),
            ("a.raw,discard", "is no option"),
            ("a.raw,ro,rw", "given more than once"),
            ("a.raw,group=a,group=b", "group is given twice"),
            ("a.raw,group=", "is no option"),
        ] {
            let said = parsed(text).expect_err(text);
            assert!(said.contains(words), "{text}: {said}");
        }
    }

    #[test]
    fn a_file_of_exports_is_read_with_errors_that_say_where() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("exports.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).expect("written");
            read(&path).map_err(|error| error.to_string())
        };
        let two = read(
            "[[export]]\nname = \"web\"\npath = \"vm1/disk.raw\"\nread_only = true\nscan = true\n\n[[export]]\npath = \"/srv/b.raw\"\nformat = \"raw\"\nlimits = [\"read=5MB/s\"]\ndiscard = false\ngroup = \"lab\"\n",
        );
        let two = two.expect("two exports");
        assert_eq!(two[0].path, folder.path().join("vm1/disk.raw"));
        assert_eq!(
            (two[0].name.as_deref(), two[0].read_only),
            (Some("web"), Some(true))
        );
        assert_eq!(
            (two[1].path.as_path(), two[1].format),
            (Path::new("/srv/b.raw"), Some(FormatName::Raw))
        );
        for (text, words) in [
            ("", "has no export"),
            ("[[export]]\nname = \"a\"\n", ":1: an export has no path"),
            (
                "\n[[export]]\npath = \"a\"\nreadonly = true\n",
                ":4: there is no setting",
            ),
            (
                "[[export]]\npath = \"a\"\nformat = \"qcow2\"\n",
                ":3: there is no word",
            ),
            ("[[export]]\npath = 3\n", ":2: 3 is not what belongs here"),
            ("[[export]\n", ":1: "),
            (
                "[[export]]\npath = \"a\"\nname = \"\"\n",
                ":1: the name is empty",
            ),
        ] {
            let said = read(text).expect_err(text);
            assert!(
                said.contains(words) && !said.contains('\n'),
                "{text:?}: {said}"
            );
        }
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo").success());
        let said = super::read(&pipe).expect_err("a pipe").to_string();
        assert!(said.contains("is no regular file"), "{said}");
    }
}
