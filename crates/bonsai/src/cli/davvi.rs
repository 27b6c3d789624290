//! Libraries of annotated video.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bonsai_davvi::{Name, parse_position};
use bonsai_media::adapt::Rule;
use bonsai_units::parse_duration;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Subcommand};

/// Import videos with their annotations, find what happens in them, and make playlists of it.
///
/// A library is a folder. Each video in it is cut into segments of one length, in several qualities,
/// that any web server serves and any player plays (HLS and DASH); what is found in the annotations
/// becomes a playlist across videos, without anything being encoded anew.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum DavviCommand {
    Import(DavviImport),
    Ls(DavviLs),
    Search(DavviSearch),
    Watched(DavviWatched),
    Recommend(DavviRecommend),
    Nginx(DavviNginx),
    Play(DavviPlay),
}

const EXAMPLES: &str = "\
Examples:
  bonsai davvi import match.mp4 --events match.csv
  bonsai davvi ls
  bonsai davvi search 'sliding tackle' --player 8,14 --card yellow
  bonsai davvi search 'sliding tackle' --length 2min --playlist tackles.m3u8
  bonsai davvi watched match:17 && bonsai davvi recommend
  bonsai davvi play http://server:8080/match/master.m3u8 -- vlc
  bonsai davvi nginx > nginx.conf
  bonsai run --name davvi --limit send=80Mbit/s -- nginx -e stderr -c $PWD/nginx.conf";

/// Which library.
#[derive(Args, Debug)]
pub(crate) struct In {
    /// The library's folder.
    ///
    /// Without it: $BONSAI_LIBRARY, or else /var/lib/bonsai/davvi for root, and
    /// ~/.local/share/bonsai/davvi for others.
    #[arg(long, value_name = "DIR")]
    pub(crate) library: Option<PathBuf>,
}

/// Import a video, by ffmpeg; the library is made if there is none.
///
/// Annotations are CSV: a line of names of columns, and a line for each event. `time` has to be
/// there, as MM:SS, H:MM:SS or 754s; `type`, `players` (8;14) and `text` are known; any other column
/// (card, team, ...) is a field that can be searched by its name. An import is all or nothing: one
/// that is killed leaves nothing that the next does not remove.
#[derive(Args, Debug)]
pub(crate) struct DavviImport {
    /// The video, in any common format.
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) place: In,

    /// What happens in it, as CSV.
    #[arg(long, value_name = "FILE")]
    pub(crate) events: Option<PathBuf>,

    /// What it is called in the library; after the file, unless said.
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) name: Option<Name>,

    /// What it is called for people.
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,

    /// How long segments are, from 500ms to 1min.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    pub(crate) segment: Duration,

    /// Lines of the qualities, such as 720,360; its own and up to four lower ones, unless said.
    #[arg(long, value_name = "LINES", value_delimiter = ',')]
    pub(crate) qualities: Vec<u32>,

    /// Let everybody on this machine read it, as the workers of a web server have to.
    #[arg(long)]
    pub(crate) web_readable: bool,

    /// How long ffmpeg may make no progress before it is ended.
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = time)]
    pub(crate) patience: Duration,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the videos of a library.
#[derive(Args, Debug)]
pub(crate) struct DavviLs {
    #[command(flatten)]
    pub(crate) place: In,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Find events, and make a playlist of the best.
///
/// All words have to occur, in any of their English forms; "in quotes" they follow each other, tack*
/// is a beginning, and -corner must not occur. Of several values of a field any will do, and fields
/// are compared by whole words: 8 does not find 18. Ends with 1 if nothing was found.
#[derive(Args, Debug)]
pub(crate) struct DavviSearch {
    /// Words.
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) words: String,

    #[command(flatten)]
    pub(crate) place: In,

    /// Of these players, such as 8,14.
    #[arg(long, value_name = "WHO", value_delimiter = ',')]
    pub(crate) player: Vec<String>,

    /// With one of these cards.
    #[arg(long, value_name = "CARD", value_delimiter = ',')]
    pub(crate) card: Vec<String>,

    /// Events of these types.
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    pub(crate) kind: Vec<String>,

    /// With this in another column of the annotations; may be repeated.
    #[arg(long = "field", value_name = "NAME=VALUE", value_parser = field)]
    pub(crate) fields: Vec<(String, String)>,

    /// In these videos.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = name)]
    pub(crate) video: Vec<Name>,

    /// Not before this time of the video.
    #[arg(long, value_name = "TIME", value_parser = parse_position)]
    pub(crate) from: Option<u64>,

    /// Not after this time of the video.
    #[arg(long, value_name = "TIME", value_parser = parse_position)]
    pub(crate) to: Option<u64>,

    /// How many hits are shown.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) most: u32,

    /// A playlist of the best hits, of this length at most.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) length: Option<Duration>,

    /// How much of what comes before each event is in the playlist.
    #[arg(long, value_name = "TIME", default_value = "6s", value_parser = time)]
    pub(crate) before: Duration,

    /// How much of what comes after.
    #[arg(long, value_name = "TIME", default_value = "6s", value_parser = time)]
    pub(crate) after: Duration,

    /// Write the playlist, as OUT.m3u8 (HLS), with a file for each quality, and OUT.mpd (DASH), beside it.
    #[arg(long, value_name = "OUT.m3u8")]
    pub(crate) playlist: Option<PathBuf>,

    /// Where a web server has the library, for players elsewhere; files here, unless said.
    #[arg(long, value_name = "URL", requires = "playlist")]
    pub(crate) address: Option<String>,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Note that events were watched, for recommendations.
///
/// Only the owner of the library can read what was watched.
#[derive(Args, Debug)]
pub(crate) struct DavviWatched {
    /// Events, as `bonsai davvi search` names them: VIDEO:NUMBER.
    #[arg(required = true, value_name = "EVENT", value_parser = event)]
    pub(crate) events: Vec<(Name, u32)>,

    #[command(flatten)]
    pub(crate) place: In,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show events that have most in common with those that were watched.
///
/// An event scores by the fields (type, players, card, ...) that it shares with what was watched: each
/// counts by the part of watched events that have it, and the more, the fewer events of the library do.
#[derive(Args, Debug)]
pub(crate) struct DavviRecommend {
    #[command(flatten)]
    pub(crate) place: In,

    /// How many are shown.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) most: u32,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print a configuration of nginx that serves a library, and nothing else.
///
/// Its workers have to be able to read the library: import with --web-readable, or let them run as its
/// owner (--user), which root may.
#[derive(Args, Debug)]
pub(crate) struct DavviNginx {
    #[command(flatten)]
    pub(crate) place: In,

    /// Where it listens.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,

    /// Whom its workers run as, where root starts it.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,

    /// Let pages of this origin read it, such as http://127.0.0.1:8000, or *.
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) allow_origin: Option<String>,
}

/// Play a film in a player of one's own: a proxy downloads it ahead and chooses the quality of each segment.
///
/// The player is given an address on this machine, of one film in one quality, and may go anywhere in it. What
/// it gets is fetched before it asks, in the quality that the level of the buffer and the speed of downloads allow
/// (--abr). Several URLs are the same film on several web servers: segments are asked of each in proportion to its
/// speed, one at a time, and one that fails or stalls is left for the others.
///
/// URLs are of HLS or DASH, of films that end, over http; https is not supported. One player plays at a time: the
/// last that opened the address. At the end it prints what was fetched: quality, bytes, time and
/// server of each segment, and what the viewer saw, as far as it can be known from what the player asked for.
#[derive(Args, Debug)]
#[command(after_help = PLAY_EXAMPLES)]
pub(crate) struct DavviPlay {
    /// The film's playlist, as http://HOST:8080/PATH (.m3u8, .mpd); further servers of the same film.
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<String>,

    /// How the quality of a segment is chosen: as DAVVI's proxy does (davvi), by what the network carries (throughput),
    /// by the buffer (bola, bolae), or by both (dynamic).
    #[arg(long, value_name = "RULE", default_value = "davvi", value_parser = PossibleValuesParser::new(Rule::ALL.map(Rule::name)).try_map(|name| name.parse::<Rule>()))]
    pub(crate) abr: Rule,

    /// How much film is kept ready at most, with what the player has and has not played yet; two segments at least.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub(crate) buffer: Duration,

    /// How much memory segments may take, MiB, and a segment more; one that is larger is not played.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) memory: u32,

    /// How long a server may take to connect, to the head of an answer, and between some of its bytes.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = step)]
    pub(crate) patience: Duration,

    /// Where the player finds it; without it, for this machine alone, at a free port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,

    /// Let pages of this origin play it, such as http://127.0.0.1:8080, or *.
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub(crate) allow_origin: Option<String>,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// A player to run, and its arguments, where {} is the address; without {}, the address is the last.
    /// It all ends with the player, and with its exit code.
    #[arg(last = true, value_name = "PLAYER")]
    pub(crate) player: Vec<OsString>,
}

const PLAY_EXAMPLES: &str = "\
Examples:
  bonsai davvi play http://server:8080/match/master.m3u8
  bonsai davvi play http://server:8080/match/master.m3u8 -- vlc {}
  bonsai davvi play http://one/match/master.m3u8 http://two/match/master.m3u8 --buffer 1min -- mpv {}
  bonsai davvi play http://server/match/manifest.mpd --abr bola --json -- ffmpeg -i {} -f null -";

fn step(text: &str) -> Result<Duration, String> {
    let step = time(text)?;
    match step >= Duration::from_millis(100) {
        true => Ok(step),
        false => Err("out of range: 100ms is the least".to_owned()),
    }
}

fn origin(text: &str) -> Result<String, String> {
    let host = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let is_host = |host: &str| {
        let of_hosts = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:[]".contains(&byte);
        !host.is_empty() && host.bytes().all(of_hosts)
    };
    match text == "*" || host.is_some_and(is_host) {
        true => Ok(text.to_owned()),
        false => Err("write http://HOST[:PORT], or *".to_owned()),
    }
}

fn name(text: &str) -> Result<Name, String> {
    Name::parse(text).map_err(|error| error.to_string())
}

fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    if time > Duration::from_secs(86_400) {
        return Err("out of range: a day is the most".to_owned());
    }
    Ok(time)
}

fn field(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("write NAME=VALUE, such as team=Brann".to_owned()),
    }
}

fn event(text: &str) -> Result<(Name, u32), String> {
    let wrong = || "write VIDEO:NUMBER, such as match-1:17".to_owned();
    let (video, number) = text.rsplit_once(':').ok_or_else(wrong)?;
    Ok((name(video)?, number.parse().map_err(|_| wrong())?))
}
