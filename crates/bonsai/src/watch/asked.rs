//! What is watched, and how viewers come: the words of the command line, and of a trace.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use bonsai_host::tenants::plain;
use bonsai_media::rtsp::Url;
use bonsai_services::refusal::Refusal;
use bonsai_stream::watch::{Arrival, Arrivals, Coming, Named, Video, read_trace};

use crate::cli::Watch;
use crate::output::{count, finish, table};

/// Whoever comes more often than that comes at once.
const MOST_A_SECOND: f64 = 1e6;

/// What addresses are of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) scheme: &'static str,
    /// What is said of an address of another scheme.
    pub(crate) otherwise: &'static str,
    /// Where its servers listen.
    pub(crate) port: u16,
}

/// What is asked for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) videos: Vec<Video>,
    /// Their addresses, as they were written.
    pub(super) addresses: Vec<String>,
    pub(super) arrivals: Arrivals,
    pub(super) viewers: u32,
}

impl Asked {
    /// Reads all of it.
    ///
    /// # Errors
    /// An address, an arrival or a line of a trace makes no sense.
    pub(super) fn read(args: &Watch, kind: Kind) -> anyhow::Result<Self> {
        let mut known = Known::default();
        for address in &args.urls {
            known.add(address, kind)?;
        }
        let (arrivals, viewers) = match args.arrivals.strip_prefix("trace:") {
            Some(path) => known.trace(path, args, kind)?,
            None => (
                arrivals(&args.arrivals).map_err(Refusal::input)?,
                args.clients.unwrap_or(1),
            ),
        };
        Ok(Self {
            videos: known.videos,
            addresses: known.addresses,
            arrivals,
            viewers,
        })
    }

    /// All of it in a word or some.
    pub(super) fn title(&self) -> String {
        let first = self.addresses.first().map_or("", String::as_str);
        match self.addresses.len() {
            0 | 1 => first.to_owned(),
            all => format!("{first} and {} more", all - 1),
        }
    }
}

/// Videos that are known so far.
#[derive(Default)]
struct Known {
    videos: Vec<Video>,
    addresses: Vec<String>,
    /// Which of them an address is.
    places: HashMap<String, usize>,
    /// Where a server is, by its name and port.
    servers: HashMap<(String, u16), SocketAddr>,
}

impl Known {
    /// One of the command line, which may stand there twice.
    fn add(&mut self, address: &str, kind: Kind) -> anyhow::Result<()> {
        let video = self.found(address, kind)?;
        self.places
            .entry(address.to_owned())
            .or_insert(self.videos.len());
        self.videos.push(video);
        self.addresses.push(address.to_owned());
        Ok(())
    }

    /// Which video an address is; one that is new is another.
    fn place(&mut self, address: &str, kind: Kind) -> anyhow::Result<usize> {
        if let Some(place) = self.places.get(address) {
            return Ok(*place);
        }
        self.add(address, kind)?;
        Ok(self.videos.len() - 1)
    }

    /// What viewers of a file do.
    fn trace(&mut self, path: &str, args: &Watch, kind: Kind) -> anyhow::Result<(Arrivals, u32)> {
        if args.find_max {
            return Err(Refusal::input(
                "--find-max: a trace has its own number of viewers; with this write --arrivals all, 20/s or \
                 random:20/s"
                    .to_owned(),
            ));
        }
        let wrong = |why: String| Refusal::input(format!("--arrivals trace:{path}: {why}"));
        let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
        let lines = read_trace(file).map_err(|error| wrong(error.to_string()))?;
        let named = args.urls.len();
        let mut coming = Vec::with_capacity(lines.len());
        for line in &lines {
            let video = self.video(line, named, kind);
            let video = video.map_err(|why| wrong(format!("line {}: {why}", line.line)))?;
            coming.push(Coming {
                at_ns: line.at_ns,
                // Those without a word of it watch what the command line names.
                video: Some(video.unwrap_or(coming.len() % named.max(1))),
                length_ns: line.length_ns,
            });
        }
        let all = u32::try_from(coming.len()).unwrap_or(u32::MAX);
        let viewers = args.clients.unwrap_or(all);
        if viewers > all {
            return Err(wrong(format!(
                "it has {}, and --clients says {viewers}: without it, all of them come",
                count(all.into(), "viewer", "viewers")
            )));
        }
        Ok((Arrivals::Trace(Arc::from(coming)), viewers))
    }

    /// What a viewer of a file watches, if that is said; so many videos are named at the command line.
    fn video(&mut self, line: &Arrival, named: usize, kind: Kind) -> Result<Option<usize>, String> {
        match &line.video {
            None => Ok(None),
            Some(Named::Number(number)) => {
                let place = usize::try_from(*number).unwrap_or(usize::MAX) - 1;
                (place < named).then_some(Some(place)).ok_or_else(|| {
                    let videos = count(named as u64, "video", "videos");
                    format!("there is no video {number}: the command line names {videos}")
                })
            }
            Some(Named::Address(address)) => {
                let place = self.place(address, kind);
                place.map(Some).map_err(|error| error.to_string())
            }
        }
    }

    /// What an address says, and where its server is.
    fn found(&mut self, address: &str, kind: Kind) -> anyhow::Result<Video> {
        let (url, place) = named(address, kind)?;
        let server = match self.servers.get(&place) {
            Some(server) => *server,
            None => {
                let server = at(address, &place)?;
                self.servers.insert(place, server);
                server
            }
        };
        Ok(Video { url, server })
    }
}

/// A video of a kind, by its address.
///
/// # Errors
/// It is none, or there is no such host.
pub(crate) fn found(address: &str, kind: Kind) -> anyhow::Result<Video> {
    let (url, place) = named(address, kind)?;
    let server = at(address, &place)?;
    Ok(Video { url, server })
}

/// What an address of a kind says, and its host and port.
fn named(address: &str, kind: Kind) -> anyhow::Result<(Url, (String, u16))> {
    let wrong = |why: String| wrong(address, &why);
    let url = Url::parse(address).map_err(|error| wrong(format!("no address: {error}")))?;
    if url.scheme() != kind.scheme {
        return Err(wrong(kind.otherwise.to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("names and passwords are not sent".to_owned()));
    }
    let host = url.host_str().filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| wrong("it names no host".to_owned()))?;
    let place = (
        host.trim_matches(['[', ']']).to_owned(),
        url.port().unwrap_or(kind.port),
    );
    Ok((url, place))
}

fn at(address: &str, (host, port): &(String, u16)) -> anyhow::Result<SocketAddr> {
    let found = (host.as_str(), *port).to_socket_addrs();
    let mut found = found.map_err(|error| wrong(address, &error.to_string()))?;
    found
        .next()
        .ok_or_else(|| wrong(address, "the host has no address"))
}

fn wrong(address: &str, why: &str) -> anyhow::Error {
    Refusal::input(format!("{address:?}: {why}"))
}

/// `all`, `20/s`, or `random:20/s`.
fn arrivals(text: &str) -> Result<Arrivals, String> {
    if text == "all" {
        return Ok(Arrivals::Crowd);
    }
    let (is_random, rate) = match text.strip_prefix("random:") {
        Some(rate) => (true, rate),
        None => (false, text),
    };
    let number = rate
        .strip_suffix("/s")
        .and_then(|number| number.parse::<f64>().ok());
    let number = number.filter(|number| *number > 0.0 && *number <= MOST_A_SECOND);
    match (number, is_random) {
        (Some(number), false) => Ok(Arrivals::Even(number)),
        (Some(number), true) => Ok(Arrivals::Poisson(number)),
        (None, _) => Err(format!(
            "--arrivals {text:?}: write all, a rate such as 20/s, random:20/s, or trace:FILE"
        )),
    }
}

/// What a viewer saw of its video.
#[derive(Clone, Debug)]
pub(super) struct Saw {
    /// Which, from 1 on.
    pub(super) video: usize,
    pub(super) has_watched: bool,
    pub(super) is_top: bool,
    pub(super) bits_per_sec: Option<f64>,
    pub(super) short_of: Vec<&'static str>,
}

/// A line for each video, where there are several.
pub(super) fn by_video(addresses: &[String], saw: &[Saw]) -> String {
    if addresses.len() < 2 {
        return String::new();
    }
    let header = [
        "",
        "video",
        "viewers",
        "watched",
        "top quality",
        "Mbit/s",
        "short of",
    ];
    let mut table = table(&header, &[0, 2, 3, 4, 5]);
    let mut of_each: Vec<Vec<&Saw>> = vec![Vec::new(); addresses.len()];
    for one in saw {
        let place = one.video.checked_sub(1);
        if let Some(of) = place.and_then(|place| of_each.get_mut(place)) {
            of.push(one);
        }
    }
    for ((number, address), of) in (1..).zip(addresses).zip(of_each) {
        let many = |is_it: fn(&Saw) -> bool| of.iter().filter(|one| is_it(one)).count().to_string();
        let rates: Vec<f64> = of.iter().filter_map(|one| one.bits_per_sec).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64 / 1e6;
        let short: BTreeSet<&str> = of.iter().flat_map(|one| &one.short_of).copied().collect();
        table.add_row(vec![
            number.to_string(),
            plain(address),
            of.len().to_string(),
            many(|one| one.has_watched),
            many(|one| one.is_top),
            match rates.is_empty() {
                true => "-".to_owned(),
                false => format!("{mean:.3}"),
            },
            short.into_iter().collect::<Vec<_>>().join(", "),
        ]);
    }
    finish(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_read() {
        for (text, expected) in [
            ("all", Some(Arrivals::Crowd)),
            ("20/s", Some(Arrivals::Even(20.0))),
            ("random:0.5/s", Some(Arrivals::Poisson(0.5))),
            ("20", None),
            ("0/s", None),
            ("-1/s", None),
            ("inf/s", None),
            ("NaN/s", None),
        ] {
            assert_eq!(arrivals(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn each_video_has_a_line_where_there_are_several() {
        let saw = |video, is_top| Saw {
            video,
            has_watched: true,
            is_top,
            bits_per_sec: Some(2e6),
            short_of: if is_top { vec![] } else { vec!["loss"] },
        };
        let addresses = ["rtsp://h/a", "rtsp://h/b"].map(str::to_owned);
        assert_eq!(by_video(&addresses[..1], &[saw(1, true)]), "");
        let text = by_video(&addresses, &[saw(1, true), saw(2, false), saw(1, true)]);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1], ["1", "rtsp://h/a", "2", "2", "2", "2.000"]);
        assert_eq!(
            lines[2],
            ["2", "rtsp://h/b", "1", "1", "0", "2.000", "loss"]
        );
    }
}
