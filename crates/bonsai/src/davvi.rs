//! `bonsai davvi`: libraries of annotated video.

mod play;

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use bonsai_davvi::{
    Clip, Cut, Error, Hit, Import, Library, Nginx, Query, Show, Stage, Video, Wanted, cut,
    format_position, nginx, read_events,
};
use bonsai_services::observe::SCHEMA;
use bonsai_services::refusal::Refusal;
use serde_json::{Value, json};

use crate::cli::{
    DavviCommand, DavviImport, DavviLs, DavviNginx, DavviRecommend, DavviSearch, DavviWatched, In,
};
use crate::output::{count, finish, print, print_json, say, table};

/// A playlist that is asked for without a length has all hits.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Does what one of the subcommands says.
///
/// # Errors
/// A library, a video or a line of annotations that is not as it should be; what ffmpeg says.
pub(crate) fn run(command: &DavviCommand) -> anyhow::Result<u8> {
    match command {
        DavviCommand::Import(args) => import(args),
        DavviCommand::Ls(args) => ls(args),
        DavviCommand::Search(args) => search(args),
        DavviCommand::Watched(args) => watched(args),
        DavviCommand::Recommend(args) => recommend(args),
        DavviCommand::Nginx(args) => print_nginx(args),
        DavviCommand::Play(args) => play::run(args),
    }
}

/// With the exit code for bad input where that is what it is.
fn refused(error: Error) -> anyhow::Error {
    if error.is_input() {
        Refusal::input(error.to_string())
    } else {
        error.into()
    }
}

fn folder(place: &In) -> anyhow::Result<PathBuf> {
    if let Some(folder) = &place.library {
        return Ok(folder.clone());
    }
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(folder) = set("BONSAI_LIBRARY") {
        return Ok(folder);
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/bonsai/davvi"));
    }
    let data = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")));
    let data = data.filter(|data| data.is_absolute());
    let data = data.ok_or_else(|| {
        Refusal::input("neither HOME nor BONSAI_LIBRARY says where the library is: say --library")
    })?;
    Ok(data.join("bonsai/davvi"))
}

fn library(place: &In) -> anyhow::Result<Library> {
    Library::open(&folder(place)?).map_err(refused)
}

fn import(args: &DavviImport) -> anyhow::Result<u8> {
    let events = args
        .events
        .as_deref()
        .map(read_events)
        .transpose()
        .map_err(refused)?;
    let import = Import {
        file: args.file.clone(),
        name: args.name.clone(),
        title: args.title.clone(),
        events: events.unwrap_or_default(),
        segment: args.segment,
        heights: args.qualities.clone(),
        is_readable: args.web_readable,
        patience: args.patience,
    };
    let shows = std::io::stderr().is_terminal() && !args.json;
    let mut progress = |stage: Stage| {
        if shows {
            show(stage);
        }
    };
    let root = folder(&args.place)?;
    let done = Library::import(&root, &import, &mut progress);
    if shows {
        eprint!("\r\u{1b}[K");
    }
    let done = done.map_err(refused)?;
    if let Some(complaint) = &done.complaint {
        say!("bonsai: ffmpeg took it, and says: {complaint}");
    }
    let video = &done.video;
    if args.json {
        let document = json!({
            "schema": SCHEMA,
            "library": root,
            "video": described(video),
            "complaint": done.complaint,
        });
        print_json(&document, false)?;
        return Ok(0);
    }
    print(&format!(
        "{}: {}, {} of {:.3} s in {}, {}\n  play {}\n",
        video.name,
        format_position(video.length_ms()),
        count(video.segments.into(), "segment", "segments"),
        video.segment_seconds(),
        qualities(video),
        count(video.events as u64, "event", "events"),
        root.join(video.name.as_str()).join("master.m3u8").display()
    ))?;
    Ok(0)
}

/// How far an import is, on one line.
fn show(stage: Stage) {
    let (what, done, all) = match stage {
        Stage::Pictures(done, all) => ("pictures", done, all),
        Stage::Sound(done, all) => ("sound", done, all),
    };
    let percent = (done * 100).checked_div(all).unwrap_or(0).min(100);
    let line = format!("\r{what}: {percent} % of {}\u{1b}[K", format_position(all));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn qualities(video: &Video) -> String {
    let names: Vec<String> = video
        .qualities
        .iter()
        .map(bonsai_davvi::Quality::name)
        .collect();
    names.join(" ")
}

fn described(video: &Video) -> Value {
    json!({
        "name": video.name,
        "title": video.title,
        "length_ms": video.length_ms(),
        "segments": video.segments,
        "segment_s": video.segment_seconds(),
        "qualities": video.qualities,
        "events": video.events,
    })
}

fn ls(args: &DavviLs) -> anyhow::Result<u8> {
    let library = library(&args.place)?;
    let listed = library.list().map_err(refused)?;
    if args.json {
        let document = json!({
            "schema": SCHEMA,
            "library": library.path(),
            "videos": listed.videos.iter().map(described).collect::<Vec<_>>(),
            "problems": listed.problems,
        });
        print_json(&document, false)?;
        return Ok(0);
    }
    say(&listed.problems);
    if listed.videos.is_empty() {
        print(&format!("{}: no videos\n", library.path().display()))?;
        return Ok(0);
    }
    let mut table = table(
        &[
            "video",
            "length",
            "segments",
            "events",
            "qualities",
            "title",
        ],
        &[1, 2, 3],
    );
    for video in &listed.videos {
        table.add_row([
            video.name.to_string(),
            format_position(video.length_ms()),
            video.segments.to_string(),
            video.events.to_string(),
            qualities(video),
            video.title.clone(),
        ]);
    }
    print(&finish(&table))?;
    Ok(0)
}

fn say(problems: &[String]) {
    for problem in problems {
        say!("bonsai: {problem}");
    }
}

fn query(args: &DavviSearch) -> Query {
    let of = |field: &str, any: &[String]| {
        (!any.is_empty()).then(|| Wanted {
            field: field.to_owned(),
            any: any.to_vec(),
        })
    };
    let known = [
        of("player", &args.player),
        of("card", &args.card),
        of("type", &args.kind),
    ];
    let others = args.fields.iter().map(|(name, value)| Wanted {
        field: name.clone(),
        any: vec![value.clone()],
    });
    Query {
        text: args.words.clone(),
        wanted: known.into_iter().flatten().chain(others).collect(),
        videos: args.video.clone(),
        from_ms: args.from,
        to_ms: args.to,
        most: usize::MAX,
    }
}

fn search(args: &DavviSearch) -> anyhow::Result<u8> {
    let library = library(&args.place)?;
    let found = library.search(&query(args)).map_err(refused)?;
    let videos = library.list().map_err(refused)?.videos;
    let wants_playlist = args.length.is_some() || args.playlist.is_some();
    let how = Cut {
        before: args.before,
        after: args.after,
        length: args.length.unwrap_or(LONGEST),
    };
    let (clips, fitted) = if wants_playlist {
        cut(&videos, &found.hits, how)
    } else {
        (Vec::new(), 0)
    };
    if wants_playlist && clips.is_empty() && !found.hits.is_empty() {
        let text = format!(
            "nothing fits in {}: the best hit alone is longer",
            format_position(ms(how.length))
        );
        return Err(Refusal::input(text));
    }
    let show = Show::new(clips.clone());
    let files = match &args.playlist {
        Some(out) if !clips.is_empty() => show
            .write(&library, out, args.address.as_deref())
            .map_err(refused)?,
        _ => Vec::new(),
    };
    let shown = &found.hits[..found.hits.len().min(args.most as usize)];
    let code = u8::from(found.hits.is_empty());
    if args.json {
        let playlist = wants_playlist.then(|| {
            json!({
                "length_ms": show.milliseconds(),
                "hits": fitted,
                "clips": clips.iter().map(clip).collect::<Vec<_>>(),
                "files": files,
            })
        });
        let document = json!({
            "schema": SCHEMA,
            "total": found.total,
            "hits": shown,
            "playlist": playlist,
            "problems": found.problems,
        });
        print_json(&document, false)?;
        return Ok(code);
    }
    say(&found.problems);
    if shown.is_empty() {
        print("nothing was found\n")?;
        return Ok(code);
    }
    let mut text = hits(shown.iter().map(|hit| (hit, None)));
    if shown.len() < usize::try_from(found.total).unwrap_or(usize::MAX) {
        text.push_str(&format!(
            "{} of {} hits (--most shows more)\n",
            shown.len(),
            found.total
        ));
    }
    if wants_playlist {
        text.push_str(&format!(
            "playlist: {}, {} with {}\n",
            format_position(show.milliseconds()),
            count(clips.len() as u64, "clip", "clips"),
            count(fitted as u64, "hit", "hits")
        ));
    }
    for file in [files.first(), files.last()].into_iter().flatten() {
        text.push_str(&format!("  {}\n", file.display()));
    }
    print(&text)?;
    Ok(code)
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn clip(clip: &Clip<'_>) -> Value {
    let from = clip.video.milliseconds(0, clip.first);
    json!({
        "video": clip.video.name,
        "from_ms": from,
        "to_ms": from + clip.milliseconds(),
        "first_segment": clip.first,
        "segments": clip.count,
    })
}

/// Hits as a table; with why, where that is known.
fn hits<'a>(all: impl Iterator<Item = (&'a Hit, Option<String>)>) -> String {
    let mut table = table(&["event", "at", "type", "players", "card", "what"], &[1]);
    for (hit, why) in all {
        let event = &hit.event;
        table.add_row([
            format!("{}:{}", hit.video, hit.number),
            format_position(event.at_ms),
            event.kind.clone(),
            event.players.join(" "),
            event.fields.get("card").cloned().unwrap_or_default(),
            shortened(&why.unwrap_or_else(|| event.text.clone())),
        ]);
    }
    finish(&table)
}

/// On one line, at most 60 characters.
fn shortened(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= 60 {
        return line;
    }
    line.chars().take(57).chain("...".chars()).collect()
}

fn watched(args: &DavviWatched) -> anyhow::Result<u8> {
    library(&args.place)?
        .watched(&args.events)
        .map_err(refused)?;
    if args.json {
        let events = args
            .events
            .iter()
            .map(|(video, number)| format!("{video}:{number}"));
        let events: Vec<String> = events.collect();
        print_json(&json!({"schema": SCHEMA, "watched": events}), false)?;
    }
    Ok(0)
}

fn recommend(args: &DavviRecommend) -> anyhow::Result<u8> {
    let recommended = library(&args.place)?
        .recommend(args.most as usize)
        .map_err(refused)?;
    if args.json {
        print_json(&json!({"schema": SCHEMA, "hits": recommended}), false)?;
    } else if recommended.is_empty() {
        print("nothing has anything in common with what was watched\n")?;
    } else {
        let because = |words: &[String]| Some(words.join(", "));
        print(&hits(
            recommended
                .iter()
                .map(|one| (&one.hit, because(&one.because))),
        ))?;
    }
    Ok(u8::from(recommended.is_empty()))
}

fn print_nginx(args: &DavviNginx) -> anyhow::Result<u8> {
    let library = library(&args.place)?;
    let how = Nginx {
        listen: args.listen,
        user: args.user.clone(),
        origin: args.allow_origin.clone(),
    };
    print(&nginx(&library, &how).map_err(refused)?)?;
    if args.user.is_none()
        && !is_readable(library.path()).context("the library cannot be looked at")?
    {
        say!(
            "bonsai: {}: only its owner may read it: import with --web-readable, or name the owner (--user)",
            library.path().display()
        );
    }
    Ok(0)
}

fn is_readable(path: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o005 == 0o005)
}
