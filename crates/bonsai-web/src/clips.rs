//! Clips of a folder: each file as it is, and what there is.
//!
//! Only media is sent, by its name; nothing that is hidden, or in a folder that is; and no link out of the
//! folder is followed, as for RTSP ([`bonsai_stream::folder`]).

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Json, Path, Request, State};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bonsai_stream::folder::{Folder, Kind};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::answer::Refused;
use crate::file::{self, Reading};
use crate::films;
use crate::house::{House, Peer};
use crate::page;

/// What is sent, by the end of its name: clips, and streams that somebody has cut already.
const KINDS: [(&str, &str); 26] = [
    ("mp4", "video/mp4"),
    ("m4v", "video/mp4"),
    ("mov", "video/quicktime"),
    ("webm", "video/webm"),
    ("mkv", "video/x-matroska"),
    ("ts", "video/mp2t"),
    ("m4s", "video/iso.segment"),
    ("m4a", "audio/mp4"),
    ("aac", "audio/aac"),
    ("mp3", "audio/mpeg"),
    ("ogg", "audio/ogg"),
    ("avi", "video/x-msvideo"),
    ("flv", "video/x-flv"),
    ("mpg", "video/mpeg"),
    ("mpeg", "video/mpeg"),
    ("3gp", "video/3gpp"),
    ("wmv", "video/x-ms-wmv"),
    ("ogv", "video/ogg"),
    ("oga", "audio/ogg"),
    ("opus", "audio/ogg"),
    ("flac", "audio/flac"),
    ("wav", "audio/wav"),
    ("srt", "application/x-subrip"),
    ("vtt", "text/vtt; charset=utf-8"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("mpd", "application/dash+xml"),
];

/// The most bytes of a path.
const MOST_PATH: usize = 1024;
/// The most clips that are listed, what is looked at for that, and how deep.
const MOST_LISTED: usize = 5000;
const MOST_ENTRIES: usize = 50_000;
const DEEPEST: usize = 8;
/// How many lists are made at a time.
const AT_A_TIME: usize = 2;

struct Clips {
    folder: Arc<Folder>,
    house: Arc<House>,
    places: Arc<Semaphore>,
}

type App = State<Arc<Clips>>;

/// What serves a folder of clips; `is_first` if their list is what is seen first.
pub(crate) fn router(folder: Arc<Folder>, house: &Arc<House>, is_first: bool) -> Router {
    let clips = Clips {
        folder,
        house: Arc::clone(house),
        places: Arc::new(Semaphore::new(AT_A_TIME)),
    };
    let router = Router::new()
        .route("/clips", get(as_json))
        .route("/clips.html", get(as_page))
        .route("/{*path}", get(clip));
    let router = match is_first {
        true => router.route("/", get(as_page)),
        false => router,
    };
    router.with_state(Arc::new(clips))
}

/// What kind of media is at a path; `None` for what is none, or not sent.
pub(crate) fn kind(path: &str) -> Option<&'static str> {
    let is_plain = |part: &str| !part.is_empty() && !part.starts_with('.');
    if path.len() > MOST_PATH || path.contains('\0') || !path.split('/').all(is_plain) {
        return None;
    }
    let end = path.rsplit_once('.')?.1.to_ascii_lowercase();
    let kind = KINDS.iter().find(|(of, _)| *of == end)?;
    Some(kind.1)
}

async fn clip(
    State(clips): App,
    Extension(Peer(peer)): Extension<Peer>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, Refused> {
    let path = path?.0;
    let kind = kind(&path).ok_or_else(Refused::not_found)?;
    let reading = Reading {
        house: Arc::clone(&clips.house),
        peer,
    };
    let opened = tokio::task::spawn_blocking(move || clips.folder.file(&path)).await;
    let opened = opened.map_err(|error| Refused::broken("the file cannot be read", &error))??;
    Ok(file::send(opened, kind, "no-cache", reading, request).await)
}

/// A clip, as it is listed.
#[derive(Debug, Serialize)]
struct Listed {
    path: String,
    bytes: u64,
    modified_unix_s: u64,
    /// Address of what is told of a film: tracks that are not sent, by each way.
    #[serde(skip_serializing_if = "Option::is_none")]
    film: Option<String>,
}

#[derive(Debug, Default, Serialize)]
struct List {
    clips: Vec<Listed>,
    /// Whether there are no more.
    is_all: bool,
}

async fn listed(clips: Arc<Clips>) -> Result<List, Refused> {
    let broken = |error: &dyn std::error::Error| {
        Refused::broken("the folder cannot be read", &error.to_string())
    };
    let place = Arc::clone(&clips.places).acquire_owned().await;
    let place = place.map_err(|error| broken(&error))?;
    // Work goes on where nobody waits for it any more, and keeps its place until it is done.
    let work = move || {
        let list = list(&clips.folder, MOST_ENTRIES);
        drop(place);
        list
    };
    let list = tokio::task::spawn_blocking(work).await;
    list.map_err(|error| broken(&error))?
        .map_err(|error| broken(&error))
}

/// All clips, by path; a folder below that cannot be read is left out. No more than `most` entries are
/// looked at.
fn list(folder: &Folder, most: usize) -> Result<List, bonsai_stream::folder::Unfound> {
    // One more shows that there are more; `.` and `..` are read, and not given.
    let asked = |left: usize| left + 3;
    let mut list = List {
        clips: Vec::new(),
        is_all: true,
    };
    let mut left = most;
    let mut waiting = Vec::new();
    let mut at = Some((String::new(), 0, folder.entries(".", asked(left))?));
    while let Some((start, depth, mut entries)) = at {
        if entries.len() > left {
            list.is_all = false;
            entries.truncate(left);
        }
        left -= entries.len();
        for (name, kind_of) in entries {
            let path = format!("{start}{name}");
            match kind_of {
                Kind::Folder if depth < DEEPEST && !name.starts_with('.') => {
                    waiting.push((path, depth + 1));
                }
                Kind::File if kind(&path).is_some() => {
                    if list.clips.len() == MOST_LISTED {
                        list.is_all = false;
                        break;
                    }
                    // What a link leads to, if that may be sent.
                    let Ok(opened) = folder.file(&path) else {
                        continue;
                    };
                    let since = opened.stamp.modified();
                    let since = since.duration_since(SystemTime::UNIX_EPOCH);
                    let film = films::facts_address(&path);
                    list.clips.push(Listed {
                        film,
                        path,
                        bytes: opened.stamp.bytes,
                        modified_unix_s: since.map_or(0, |since| since.as_secs()),
                    });
                }
                Kind::Folder | Kind::File => {}
            }
        }
        at = None;
        while let Some((path, depth)) = waiting.pop() {
            if left == 0 {
                list.is_all = false;
                break;
            }
            if let Ok(entries) = folder.entries(&path, asked(left)) {
                at = Some((path + "/", depth, entries));
                break;
            }
        }
    }
    list.clips.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(list)
}

async fn as_json(State(clips): App) -> Result<Response, Refused> {
    let list = listed(clips).await?;
    Ok(([(header::CACHE_CONTROL, "no-cache")], Json(list)).into_response())
}

async fn as_page(State(clips): App) -> Result<Response, Refused> {
    let list = listed(clips).await?;
    let mut rows = String::new();
    for clip in &list.clips {
        let file = utf8_percent_encode(&clip.path, PLAIN).to_string();
        let (picture, address) = match &clip.film {
            Some(facts) => (
                format!(
                    "<video data-film=\"{file}\" data-facts=\"{facts}\" muted preload=\"none\"></video>"
                ),
                films::address(&clip.path),
            ),
            None => (String::new(), file),
        };
        // Writing to memory does not fail.
        let _ = writeln!(
            rows,
            "<tr><td class=\"picture\">{picture}</td><td><a href=\"{address}\">{}</a></td>\
             <td class=\"num\">{}</td></tr>",
            escaped(&clip.path),
            size(clip.bytes)
        );
    }
    let more = match (list.clips.is_empty(), list.is_all) {
        (true, _) => "<p>There are no clips in this folder.</p>",
        (false, true) => "",
        (false, false) => "<p>There are more than are listed here.</p>",
    };
    Ok(page::html(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Clips</title>\n\
         <link rel=\"icon\" href=\"-/icon.svg\" type=\"image/svg+xml\">\n\
         <link rel=\"stylesheet\" href=\"-/css/base.css\">\n\
         <link rel=\"stylesheet\" href=\"-/css/page.css\">\n\
         <script src=\"-/js/early.js\"></script>\n\
         <script type=\"module\" src=\"-/js/films.js\"></script>\n</head>\n<body>\n<main>\n<h1>Clips</h1>\n\
         <table class=\"clips\">\n<thead><tr><td></td><th scope=\"col\">Clip</th>\
         <th scope=\"col\" class=\"num\">Size</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n\
         {more}\n</main>\n</body>\n</html>\n"
    )))
}

/// What stays as it is in the path of an address (RFC 3986, 2.3).
pub(crate) const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// A text that is no markup.
fn escaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => plain.push_str("&amp;"),
            '<' => plain.push_str("&lt;"),
            '>' => plain.push_str("&gt;"),
            '"' => plain.push_str("&quot;"),
            '\'' => plain.push_str("&#39;"),
            c => plain.push(c),
        }
    }
    plain
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..1_000_000 => (1000, "kB"),
        1_000_000..1_000_000_000 => (1_000_000, "MB"),
        _ => (1_000_000_000, "GB"),
    };
    let tenths = bytes.saturating_mul(10).div_ceil(unit);
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_media_is_sent_and_nothing_that_is_hidden() {
        for path in ["a.mp4", "A.MP4", "deep/er/a.m3u8", "a b ø.mp4"] {
            assert!(kind(path).is_some(), "{path}");
        }
        let long = format!("{}.mp4", "a".repeat(MOST_PATH));
        for path in [
            "",
            "a",
            "a.txt",
            ".mp4",
            ".a.mp4",
            ".git/a.mp4",
            "../a.mp4",
            "a/../b.mp4",
            "a//b.mp4",
            "/a.mp4",
            "a.mp4/",
            "a\0.mp4",
            "./a.mp4",
            &long,
        ] {
            assert_eq!(kind(path), None, "{path}");
        }
    }

    #[test]
    fn a_list_that_is_cut_says_so() {
        let place = tempfile::tempdir().expect("a folder");
        for name in ["a.mp4", "b.mp4", "c.mp4", "d.mp4"] {
            std::fs::write(place.path().join(name), "film").expect("written");
        }
        let folder = Folder::open(place.path()).expect("a folder");
        for (most, listed, is_all) in [(3, 3, false), (4, 4, true), (5, 4, true)] {
            let list = list(&folder, most).expect("a list");
            assert_eq!((list.clips.len(), list.is_all), (listed, is_all), "{most}");
        }
    }

    #[test]
    fn a_name_is_no_markup_and_no_address() {
        assert_eq!(
            escaped("<a href='x'>\"&"),
            "&lt;a href=&#39;x&#39;&gt;&quot;&amp;"
        );
        let address = utf8_percent_encode("a b?#%/ø.mp4", PLAIN).to_string();
        assert_eq!(address, "a%20b%3F%23%25/%C3%B8.mp4");
        assert_eq!(
            (size(0), size(1_500_000)),
            ("0.0 kB".to_owned(), "1.5 MB".to_owned())
        );
    }
}
