//! One turn: servers, their clients, and a daemon above them where it is to allocate.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use super::super::network::Network;
use super::super::web::{self, Kind, Web, Wrap};
use super::{
    Allocation, BIN_NS, Bulk, CAPACITY, FRAME, FRAMES_PER_SECOND, MARGIN, Media, SETTLING_NS,
    STREAM,
};
use crate::child::Running;
use crate::context::Context;
use crate::daemon::Daemon;
use crate::service::monotonic_ns;

/// The names of the services.
const MEDIA: &str = "vod";
const BULK: &str = "bulk";

/// From the start of the programs to that of the streams: a busy machine takes its time.
const HEAD_START_NS: u64 = 1_500_000_000;
const SECOND_NS: u64 = 1_000_000_000;
const PATIENCE: Duration = Duration::from_secs(20);

/// What is to be measured.
pub(super) struct Turn<'a> {
    pub(super) allocation: Allocation,
    pub(super) streams: Option<u32>,
    /// How long streams last.
    pub(super) seconds: u64,
    /// Where the file is.
    pub(super) folder: &'a Path,
}

/// The configuration: the guarantee of the streams, which is their ceiling as well, so that a
/// static allocation leaves the rest to the download.
fn config(allocation: Allocation, streams: u32) -> Option<String> {
    let mode = match allocation {
        Allocation::Alone | Allocation::None => return None,
        Allocation::Static => "static",
        Allocation::Dynamic => "dynamic",
    };
    let theirs = u64::from(streams) * STREAM * (1000 + MARGIN) / 1000;
    Some(format!(
        "[capacity]\nsend = \"{CAPACITY}B/s\"\n[policy]\nmode = \"{mode}\"\n\
         [services.{MEDIA}.send]\nmin = \"{theirs}B/s\"\nmax = \"{theirs}B/s\"\n"
    ))
}

/// How a server is started: in the network, and as a service of the daemon.
fn wrap(network: &Network, daemon: Option<&Daemon>, name: &str) -> Wrap {
    Wrap {
        place: network.place(),
        tool: daemon.map_or_else(Vec::new, |daemon| daemon.service(name)),
        environment: daemon.map_or_else(Vec::new, Daemon::environment),
        ..Wrap::default()
    }
}

/// A server of streams, and its viewers.
struct Streaming {
    server: Running,
    viewers: Running,
    until_ns: u64,
}

impl Streaming {
    fn start(
        context: &mut Context,
        wrap: &Wrap,
        streams: u32,
        (start_ns, seconds): (u64, u64),
    ) -> anyhow::Result<Self> {
        let length = seconds * SECOND_NS;
        let film = context.file(64 << 20)?.to_string_lossy().into_owned();
        let words = |program: &Path, args: &[String]| -> Vec<String> {
            let program = program.to_string_lossy().into_owned();
            std::iter::once(program).chain(args.to_vec()).collect()
        };
        let (streams, start, length_text) = (
            streams.to_string(),
            start_ns.to_string(),
            length.to_string(),
        );
        let program = context.program_path("audience")?;
        let settling = SETTLING_NS.to_string();
        let args = [&streams, &start, &length_text, &settling].map(String::clone);
        let place = Wrap {
            place: wrap.place.clone(),
            ..Wrap::default()
        };
        let mut viewers =
            Running::start(&mut place.command(context, None, &words(&program, &args))?)?;
        let port = viewers.line(PATIENCE)?;
        let program = context.program_path("streams")?;
        let (frame, rate) = (FRAME.to_string(), FRAMES_PER_SECOND.to_string());
        let args = [streams, frame, rate, start, length_text, film, port];
        let server = Running::start(&mut wrap.command(context, None, &words(&program, &args))?)?;
        Ok(Self {
            server,
            viewers,
            until_ns: start_ns + length,
        })
    }

    /// What the viewers got. The server stays, without work, until the value is dropped.
    fn got(&mut self) -> anyhow::Result<Media> {
        let left = self.until_ns.saturating_sub(monotonic_ns());
        let patience = Duration::from_nanos(left) + PATIENCE;
        let media = self.viewers.line(patience)?;
        self.server.line(patience)?;
        Ok(serde_json::from_str(&media)?)
    }
}

/// Fetches the file, from an instant on.
fn download(
    context: &mut Context,
    network: &Network,
    server: &Web,
    start_ns: u64,
) -> anyhow::Result<Bulk> {
    let url = format!("http://127.0.0.1:{}/bulk", server.port);
    let client = Wrap {
        place: network.place(),
        ..Wrap::default()
    };
    let words = ["curl", "-sS", "-o", "-", &url].map(str::to_owned);
    let mut command = client.command(context, None, &words)?;
    std::thread::sleep(Duration::from_nanos(
        start_ns.saturating_sub(monotonic_ns()),
    ));
    let mut running = Running::start(&mut command)?;
    let mut output = running.take_output()?;
    let mut bins: Vec<u64> = Vec::new();
    // What starting a client takes is nobody's share.
    let mut from_ns = None;
    let mut to_ns = 0;
    let mut buffer = vec![0; 65_536];
    loop {
        let n = output.read(&mut buffer).context("curl cannot be read")?;
        if n == 0 {
            break;
        }
        context.check()?;
        to_ns = monotonic_ns().saturating_sub(start_ns);
        from_ns.get_or_insert(to_ns);
        let at = usize::try_from(to_ns / BIN_NS)?;
        if bins.len() <= at {
            bins.resize(at + 1, 0);
        }
        bins[at] += n as u64;
    }
    running.wait_for(PATIENCE)?;
    Ok(Bulk {
        from_ns: from_ns.unwrap_or(to_ns),
        to_ns,
        bins,
    })
}

/// Measures.
pub(super) fn turn(
    context: &mut Context,
    network: &Network,
    turn: &Turn<'_>,
) -> anyhow::Result<(Option<Media>, Option<Bulk>)> {
    let config = turn
        .streams
        .and_then(|streams| config(turn.allocation, streams));
    let daemon = config
        .map(|config| Daemon::start(context, &config))
        .transpose()?;
    let has_bulk = turn.allocation != Allocation::Alone || turn.streams.is_none();
    let server = has_bulk
        .then(|| {
            let wrap = wrap(network, daemon.as_ref(), BULK);
            web::serve(context, Kind::Nginx, turn.folder, &wrap)
        })
        .transpose()?;
    let start_ns = monotonic_ns() + HEAD_START_NS;
    let mut streaming = turn
        .streams
        .map(|streams| {
            let wrap = wrap(network, daemon.as_ref(), MEDIA);
            Streaming::start(context, &wrap, streams, (start_ns, turn.seconds))
        })
        .transpose()?;
    if let Some(daemon) = &daemon {
        daemon.settled(&[MEDIA, BULK], "send", "pool")?;
    }
    anyhow::ensure!(
        monotonic_ns() < start_ns,
        "the machine is too busy: the servers took more than {} ms to start",
        HEAD_START_NS / 1_000_000
    );
    let bulk = server
        .as_ref()
        .map(|server| download(context, network, server, start_ns))
        .transpose()?;
    if let Some(bulk) = &bulk {
        let expected = std::fs::metadata(turn.folder.join("bulk"))?.len();
        let got: u64 = bulk.bins.iter().sum();
        anyhow::ensure!(got == expected, "{got} of {expected} bytes came");
    }
    let media = streaming.as_mut().map(Streaming::got).transpose()?;
    Ok((media, bulk))
}
