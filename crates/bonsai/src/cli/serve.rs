//! Options of `bonsai serve`.

use std::path::PathBuf;
use std::time::Duration;

use bonsai_units::parse_duration;
use clap::{Args, ValueEnum};

/// Serve the clips of a folder, or a library of annotated video, to players (RTSP, HTTP).
///
/// MP4 files with H.264, H.265, AAC, Opus or MP3 are sent as they are, by datagrams or in the connection, at the pace that
/// they are played with. ffmpeg, mpv, GStreamer and `bonsai watch` play rtsp://HOST:PORT/FILE. With --http
/// the same files are there at http://HOST:PORT/FILE, as fast as they are asked for, and of a library that
/// `bonsai davvi import` has made HLS and DASH, a search, and a page to search and play. Nothing
/// outside the folder is sent. It is a program like any other: `bonsai run --limit send=80Mbit/s -- bonsai
/// serve ...` puts it under limits, and it knows what these leave it: pictures are left out, or viewers not let
/// in, before anything is late. Ends on SIGINT and SIGTERM, with what it has served.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// The folder with the clips, or a library.
    pub(crate) folder: PathBuf,

    /// Where to listen for RTSP, ADDRESS:PORT; without an address, for this machine alone. At :8554, with
    /// TLS :322, where neither this nor --http is said. A library has no RTSP.
    #[arg(long, value_name = "AT")]
    pub(crate) rtsp: Option<String>,

    /// Where to listen for HTTP, likewise. At :8080 for a library.
    #[arg(long, value_name = "AT")]
    pub(crate) http: Option<String>,

    /// A library that is served over HTTP beside the clips of the folder.
    #[arg(long, value_name = "DIR", requires = "http")]
    pub(crate) library: Option<PathBuf>,

    /// Give a live stream of another server or a camera to all viewers as low-latency HLS, as cam=rtsp://USER:PASSWORD@HOST/PATH
    /// (rtspu:// for datagrams), or cam=@FILE where FILE has the address. It is asked for once; may be repeated.
    #[arg(long, value_name = "NAME=URL", requires = "http")]
    pub(crate) live: Vec<String>,

    /// Let pages of this origin (scheme, host and port) read what is served over HTTP (CORS); * is all.
    #[arg(long, value_name = "ORIGIN", requires = "http")]
    pub(crate) allow_origin: Option<String>,

    /// Answer the users of this file alone, over RTSP and HTTP: lines name:realm:MD5, as `htdigest FILE bonsai NAME` writes
    /// them. The password itself is not sent (Digest). It is read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub(crate) users: Option<PathBuf>,

    /// Speak TLS: rtsps:// and https://, and nothing without it. The certificate and those of its
    /// authorities, in PEM; read again when it is renewed.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// How packets are read and sent: classic, one call that reads and one that sends for each; or fast,
    /// one for each picture.
    #[arg(long, value_enum, default_value_t = Sends::Classic)]
    pub(crate) engine: Sends,

    /// What to do when it falls behind: drop to lower qualities for all viewers, and then pictures, those
    /// that others do not need first; refuse further viewers; or wait, and send all of it later and later.
    #[arg(long, value_enum, default_value_t = Behind::Drop)]
    pub(crate) behind: Behind,

    /// Files that are lower qualities of the clips, for when its rate does not suffice: a path below the
    /// folder, in which {} is the clip's own without its extension, as {}-500k.mp4. Up to five, the best
    /// first; a clip that has no such file has no such quality.
    #[arg(long = "lower", value_name = "PATTERN")]
    pub(crate) lower: Vec<String>,

    /// How late a picture is sent by a server that has fallen behind.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = short)]
    pub(crate) late: Duration,

    /// Sessions at a time; over HTTP, connections.
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) sessions: u32,

    /// Sessions, or connections, at a time of one address; 64, and for this machine alone as many as there
    /// may be.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) per_address: Option<u32>,

    /// A session that nothing is heard of ends after so long.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = long)]
    pub(crate) timeout: Duration,

    /// The ports that datagrams are sent from, two for each address of the machine.
    #[arg(long, value_name = "FIRST-LAST", default_value = "6970-7169")]
    pub(crate) ports: String,

    /// Let each stream go through a handler, in this order: tee=FOLDER writes its packets to a file
    /// there, statistics=FILE adds a line of JSON for each stream that is over, keys leaves all pictures
    /// out but those that decoding can begin with.
    #[arg(long = "handler", value_name = "NAME[=VALUE]")]
    pub(crate) handlers: Vec<String>,

    /// Other ways for some clips: a TOML file with tables `pipeline` of clips = ["sport/**"], source =
    /// "sample" or "packet", or ["sample", "memory=256MiB"], handlers = ["keys"], packetiser = 1200 (bytes of
    /// payload), "together" or "single", pacer = "media" or "spread=0.8", sink = ["udp", "tcp",
    /// "udp-to=239.1.2.3:5004"], lower = ["{}-500k.mp4"], selector = "server" or "fixed=0".
    #[arg(long, value_name = "FILE")]
    pub(crate) pipeline: Option<PathBuf>,

    /// Tell the daemon what viewers see of this service, for its policy qos: loss, delay and jitter, once a
    /// second. Without it, the service that the server runs in, if it does.
    #[arg(long, value_name = "SERVICE")]
    pub(crate) report: Option<String>,

    /// Say who comes and goes, too, and not only who is refused.
    #[arg(long)]
    pub(crate) verbose: bool,

    /// What was served as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How packets are read and sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sends {
    /// A call that reads and one that sends for each packet.
    Classic,
    /// A call of each kind for each picture.
    Fast,
}

/// What to do when it falls behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Behind {
    /// Send lower qualities, and then fewer pictures, to all viewers.
    Drop,
    /// Let nobody in.
    Refuse,
    /// Nothing: send all of it later and later.
    Wait,
}

const EXAMPLES: &str = "\
Examples:
  bonsai serve /srv/video
  bonsai serve /srv/video --rtsp :8554 --http :8080
  bonsai serve ~/.local/share/bonsai/davvi
  bonsai serve /srv/video --rtsp 0.0.0.0:8554 --per-address 8
  bonsai serve /srv/video --rtsp 0.0.0.0:8554 --users /etc/bonsai/viewers
  bonsai serve /srv/video --rtsp 0.0.0.0:322 --http 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem
  bonsai serve /srv/video --engine fast --behind refuse
  bonsai serve /srv/video --lower {}-500k.mp4 --lower {}-200k.mp4
  bonsai serve /srv/video --pipeline ways.toml
  bonsai run --name vod --limit send=80Mbit/s -- bonsai serve /srv/video";

fn short(text: &str) -> Result<Duration, String> {
    within(
        text,
        Duration::from_millis(1),
        Duration::from_secs(60),
        "1ms to 60s",
    )
}

fn long(text: &str) -> Result<Duration, String> {
    within(
        text,
        Duration::from_secs(1),
        Duration::from_secs(86_400),
        "1s to 24h",
    )
}

fn within(text: &str, least: Duration, most: Duration, words: &str) -> Result<Duration, String> {
    let length = parse_duration(text).map_err(|error| error.to_string())?;
    match length < least || length > most {
        true => Err(format!("out of range: {words}")),
        false => Ok(length),
    }
}
