//! Options of `bonsai watch`.

use std::path::PathBuf;
use std::time::Duration;

use bonsai_media::adapt::Rule;
use bonsai_units::parse_duration;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, ValueEnum};

/// Watch a stream as many viewers do, and measure what they see.
///
/// rtsp: each viewer asks for the clip by RTSP, as a player does, and has a meter for its pictures and one
/// for its sound: packets lost, doubled and out of order, gaps between packets, jitter (RFC 3550), and
/// how far it is behind the media's own clock, without which a server that plays in slow motion passes.
///
/// http: each viewer plays HLS or DASH with a connection of its own, chooses the quality of each segment by
/// --abr, and has a meter: start-up, stalls, bitrates, switches, buffer, times of segments, a score. Top
/// quality is the highest without a stall, from its first picture on, which has to come before a buffer's
/// worth of film was shown.
///
/// Nothing is decoded. Ends with 1 if nobody saw anything, or the rest says nothing of the server, as
/// packets were dropped in this machine, or it was this client that was too busy.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Watch {
    /// The clip, as rtsp://HOST:8554/PATH (port 554 where none is said), or its playlist, as
    /// http://HOST:8080/PATH (.m3u8, .mpd). Of several, all of one kind, viewers watch one after the other in turns:
    /// with as many as --clients each has its own.
    #[arg(value_name = "URL", required_unless_present = "capture")]
    pub(crate) urls: Vec<String>,

    /// Search the largest number of viewers that all have top quality, by all criteria, from --clients on: doubled
    /// until it is too many, then halved, then tried again. Ends with 1 if there is none.
    #[arg(long, conflicts_with_all = ["streams", "csv", "p1203"])]
    pub(crate) find_max: bool,

    /// Of that search, how often all have to have top quality for the answer to count.
    #[arg(long, value_name = "N", default_value_t = 5, requires = "find_max", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,

    /// Of that search, the most viewers that are tried.
    #[arg(long, value_name = "N", default_value_t = 4000, requires = "find_max", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) most: u32,

    /// Measure the streams of a capture file (pcap, pcapng) instead.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["urls", "clients", "length", "by", "arrivals", "patience", "threads", "seed", "find_max", "streams", "csv", "abr", "buffer", "p1203"])]
    pub(crate) capture: Option<PathBuf>,

    /// Of a capture, ticks a second of the streams of a payload type, as 97=48000; else they are guessed.
    #[arg(long, value_name = "TYPE=RATE", conflicts_with = "urls", value_parser = clock)]
    pub(crate) clock: Vec<(u8, u32)>,

    /// How many viewers there are [default: 1, and of a trace all that it has].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) clients: Option<u32>,

    /// How long each watches, from its first packet or picture on; it ends with the clip.
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = length)]
    pub(crate) length: Duration,

    /// How packets come, of rtsp [default: udp].
    #[arg(long, value_enum)]
    pub(crate) by: Option<By>,

    /// How the quality of a segment is chosen, of http [default: dynamic]: by what the network carries
    /// (throughput), by the buffer (bola, bolae), by both (dynamic), or as DAVVI's proxy does (davvi).
    #[arg(long, value_name = "RULE", value_parser = PossibleValuesParser::new(Rule::ALL.map(Rule::name)).try_map(|name| name.parse::<Rule>()))]
    pub(crate) abr: Option<Rule>,

    /// How much film a viewer keeps ready at most, of http [default: 25s]; two segments at least.
    #[arg(long, value_name = "TIME", value_parser = length)]
    pub(crate) buffer: Option<Duration>,

    /// How viewers come: all (at once), RATE (as 20/s, one after the other), random:RATE (by chance, so
    /// many a second on average), or trace:FILE. Of a trace each line is a viewer: at_s,for_s,video are when it
    /// comes and how long it stays, in seconds, and what it watches, as the number of a URL here, from 1 on, or as
    /// an address; the last two may be left out. Lines that begin with # are passed over.
    #[arg(long, value_name = "HOW", default_value = "20/s")]
    pub(crate) arrivals: String,

    /// How long each step of a viewer may take, from connecting to its first packet; of http, to the head of
    /// each answer and between some of its bytes.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = length)]
    pub(crate) patience: Duration,

    /// Threads that watch, each with a part of the viewers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: u32,

    /// What random arrivals follow from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Tell the daemon what viewers see of this service, for its policy qos: loss, delay behind the media's
    /// clock, and jitter, once a second.
    #[arg(long, value_name = "SERVICE", conflicts_with_all = ["capture", "find_max"])]
    pub(crate) report: Option<String>,

    /// Show each stream, too.
    #[arg(long)]
    pub(crate) streams: bool,

    /// As JSON, with each stream.
    #[arg(long)]
    pub(crate) json: bool,

    /// Write a line for each stream to a file.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// Write what each viewer saw to files in a folder, of http, as ITU-T P.1203 reads it (mode 0): player-1.json
    /// and so on. What reads them is not a part of Bonsai.
    #[arg(long, value_name = "DIR")]
    pub(crate) p1203: Option<PathBuf>,
}

/// How packets come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// As datagrams.
    Udp,
    /// In the connection.
    Tcp,
}

const EXAMPLES: &str = "\
Examples:
  bonsai watch rtsp://127.0.0.1:8554/clip.mp4
  bonsai watch rtsp://server/clip.mp4 --clients 200 --for 60s
  bonsai watch rtsp://server/clip.mp4 --clients 50 --arrivals all --by tcp
  bonsai watch rtsp://server/clip.mp4 --clients 500 --arrivals random:30/s --csv streams.csv
  bonsai watch rtsp://server/clip.mp4 --find-max --for 20s
  bonsai watch rtsp://server/{a,b,c}.mp4 --clients 3 --arrivals all
  bonsai watch rtsp://server/clip.mp4 --arrivals trace:evening.csv
  bonsai watch http://server/clip/master.m3u8 --clients 50 --for 60s --abr bola
  bonsai watch http://server/clip/master.m3u8 --find-max --for 60s --buffer 10s
  bonsai watch --capture evening.pcap --clock 96=90000 --clock 97=48000";

fn clock(text: &str) -> Result<(u8, u32), String> {
    let parts = text.split_once('=');
    let read = parts.and_then(|(kind, rate)| Some((kind.parse().ok()?, rate.parse().ok()?)));
    read.filter(|(kind, rate)| *kind < 128 && *rate > 0)
        .ok_or_else(|| "write a payload type below 128 and ticks a second, as 97=48000".to_owned())
}

fn length(text: &str) -> Result<Duration, String> {
    let length = parse_duration(text).map_err(|error| error.to_string())?;
    if length < Duration::from_millis(100) || length > Duration::from_secs(86_400) {
        return Err("out of range: 100ms to 24h".to_owned());
    }
    Ok(length)
}
