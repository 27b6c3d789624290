//! `bonsai serve`: clips of a folder, for players.

mod http;
mod listens;
mod own;
mod private;
mod users;

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bonsai_davvi::Library;
use bonsai_services::observe::SCHEMA;
use bonsai_services::refusal::Refusal;
use bonsai_stream::serve::{
    Engine, Error, Event, Limits, Lower, Parts, Pictures, Pipelines, Plan, Summary, WhenBehind,
    is_local, serve,
};
use bonsai_tls::{Files, Renewable};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::own::Own;
use self::users::Guards;
use crate::cli::{Behind, Sends, Serve};
use crate::output::{print, print_json, say};
use crate::reporter::Reporter;

/// Where it listens if nothing is said.
const RTSP: &str = ":8554";

/// The same with TLS (IANA: rtsps).
const RTSPS: &str = ":322";

/// The same of a library.
const HTTP: &str = ":8080";

/// Sessions of one address where others can ask, if nothing is said.
const PER_ADDRESS: u32 = 64;

/// Connections beside those with a session.
const FURTHER: u32 = 1000;

/// Lines a second that are said of what strangers do.
const LINES: u32 = 20;

/// `bonsai serve`.
///
/// # Errors
/// What was asked for makes no sense, or there is no listening.
pub(crate) fn run(args: &Serve) -> anyhow::Result<u8> {
    // Nothing of a library can be played over RTSP.
    let is_library = Library::open(&args.folder).is_ok();
    if is_library && args.rtsp.is_some() {
        let why = format!(
            "{} is a library, which is played over HTTP alone: write --http instead of --rtsp, or name a folder of clips and this one with --library",
            args.folder.display()
        );
        return Err(Refusal::input(why));
    }
    let http_at = args.http.as_deref().or(is_library.then_some(HTTP));
    let at = args.rtsp.as_deref();
    let usual = match args.tls_cert {
        None => RTSP,
        Some(_) => RTSPS,
    };
    let at = at.or_else(|| http_at.is_none().then_some(usual));
    let protection = Protection {
        guards: args.users.as_deref().map(Guards::open).transpose()?,
        tls: certificate(args)?,
    };
    let plan = at.map(|at| plan(args, at, &protection)).transpose()?;
    let log = Log::new(args.verbose, protection.tls.is_some());
    let log = Arc::new(Mutex::new(log));
    let beside = plan.as_ref().map(|plan| Arc::clone(&plan.allotted));
    let http = http::open(args, http_at, (beside, &protection), &log)?;
    if [at, http_at]
        .into_iter()
        .flatten()
        .all(|at| at.starts_with(':'))
    {
        say("for this machine alone: 0.0.0.0 before the port lets others in");
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let own = plan.as_ref().and_then(|_| Own::find());
    if let (Some(own), Some(plan)) = (&own, &plan) {
        own.follow(Arc::clone(&plan.allotted))?;
    }
    // Players over HTTP tell their server nothing of what they see.
    let service = args.report.clone().or(own.map(|own| own.name));
    let service = service.filter(|_| plan.is_some());
    let reporter = service.map(|service| Reporter::start(service, "rtcp", args.verbose));
    let reporter = reporter.transpose()?;
    let on_event = |event: &Event<'_>| match (event, &reporter) {
        (Event::Seen(seen), Some(reporter)) => reporter.tell(*seen),
        _ => lock(&log).tell(event),
    };
    let (rtsp, http) = http::beside(http, &stop, || {
        let serve = |plan| serve(plan, &stop, &mut |event| on_event(event));
        plan.as_ref().map(serve).transpose()
    })?;
    let summary = rtsp.map_err(|error| match error {
        Error::Root { .. } | Error::Listen { .. } => Refusal::input(error.to_string()),
        error => error.into(),
    })?;
    if args.json {
        let mut document = json!({ "schema": SCHEMA, "served": summary });
        if let Some(http) = &http {
            document["http"] = json!(http);
        }
        print_json(&document, false)?;
        return Ok(0);
    }
    let texts = [summary.map(|of| text(&of)), http.map(|of| http::text(&of))];
    print(&texts.into_iter().flatten().collect::<String>())?;
    Ok(0)
}

/// Guards of the users of both ways to the same files.
struct Protection {
    guards: Option<Guards>,
    tls: Option<Arc<Renewable>>,
}

/// Certificate and key, where TLS is spoken.
fn certificate(args: &Serve) -> anyhow::Result<Option<Arc<Renewable>>> {
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else {
        return Ok(None);
    };
    let files = Files {
        certificate: certificate.clone(),
        key: key.clone(),
        client_authorities: None,
    };
    crate::tls::open(files, say).map(Some)
}

/// Sessions of one address that listens there.
fn per_address(args: &Serve, listen: SocketAddr) -> u32 {
    let own = match is_local(listen.ip()) {
        true => args.sessions,
        false => PER_ADDRESS,
    };
    args.per_address.unwrap_or(own)
}

fn plan(args: &Serve, at: &str, protection: &Protection) -> anyhow::Result<Plan> {
    let listen = address("--rtsp", at).map_err(Refusal::input)?;
    let mut parts = Parts::builtin();
    for handler in &args.handlers {
        let added = parts.append(handler);
        added.map_err(|why| Refusal::input(format!("--handler {why}")))?;
    }
    let engine = match args.engine {
        Sends::Classic => Engine::Classic,
        Sends::Fast => Engine::Fast,
    };
    let pipelines = match &args.pipeline {
        Some(path) => pipelines(path, engine, &parts).map_err(Refusal::input)?,
        None => Pipelines::default(),
    };
    let lower = Lower::list(&args.lower);
    let lower = lower.map_err(|why| Refusal::input(format!("--lower {why}")))?;
    Ok(Plan {
        root: args.folder.clone(),
        listen,
        ports: ports(&args.ports).map_err(Refusal::input)?,
        engine,
        when_behind: match args.behind {
            Behind::Drop => WhenBehind::DropPictures,
            Behind::Refuse => WhenBehind::Refuse,
            Behind::Wait => WhenBehind::Wait,
        },
        late: args.late,
        allotted: Arc::default(),
        limits: Limits {
            sessions: args.sessions,
            per_address: per_address(args, listen),
            connections: args.sessions.saturating_add(FURTHER),
            session: args.timeout,
            ..Limits::default()
        },
        parts,
        pipelines,
        lower,
        users: protection.guards.as_ref().map(|of| Arc::clone(&of.rtsp)),
        tls: protection.tls.clone(),
    })
}

/// More than that is no file that somebody has written.
const LONGEST: u64 = 1 << 20;

fn pipelines(path: &Path, engine: Engine, parts: &Parts) -> Result<Pipelines, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    let read = file.take(LONGEST + 1).read_to_string(&mut text);
    if u64::try_from(read.map_err(failed)?).unwrap_or(u64::MAX) > LONGEST {
        let most = LONGEST >> 20;
        return Err(format!("{}: it is larger than {most} MiB", path.display()));
    }
    let read = Pipelines::read(&text, engine, parts);
    read.map_err(|mistake| format!("{}:{mistake}", path.display()))
}

/// `:8554`, which is this machine alone, `0.0.0.0:8554`, or `[::]:8554`.
fn address(flag: &str, text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse().map_err(|_| {
        format!(
            "{flag} {text:?}: write :PORT for this machine alone, or ADDRESS:PORT, as 0.0.0.0:8554"
        )
    })
}

/// `6970-7169`.
fn ports(text: &str) -> Result<(u16, u16), String> {
    let pair = text.split_once('-');
    let pair = pair.and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    pair.filter(|(first, last): &(u16, u16)| *first >= 1024 && *last > *first)
        .ok_or_else(|| format!("--ports {text:?}: write FIRST-LAST, as 6970-7169, from 1024 on"))
}

/// What happens, on standard error, and no more of it than can be read.
struct Log {
    is_verbose: bool,
    /// True if addresses are those of TLS.
    is_secure: bool,
    since: Instant,
    lines: u32,
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    fn new(is_verbose: bool, is_secure: bool) -> Self {
        Self {
            is_verbose,
            is_secure,
            since: Instant::now(),
            lines: 0,
        }
    }

    fn tell(&mut self, event: &Event<'_>) {
        match event {
            Event::Listening(at) => listens::tell(self.scheme("rtsp"), *at),
            Event::Level { quality, pictures } => say(&level(*quality, *pictures)),
            Event::Unfit { clip, file, why } => {
                self.line(&format!(
                    "{file}: left out as a lower quality of {clip}: {why}"
                ));
            }
            Event::LeftOut { clip, what } => {
                self.line(&format!("{clip}: not sent over RTSP: {what}"));
            }
            Event::Refused { peer, why } => self.line(&format!("{peer}: refused: {why}")),
            Event::Slow { peer, clip } => self.line(&format!(
                "{peer}: takes {clip} slower than it plays: pictures are left out for this viewer"
            )),
            Event::Began { peer, clip } if self.is_verbose => {
                self.line(&format!("{peer}: sees {clip}"));
            }
            Event::Ended {
                peer,
                clip,
                why,
                packets,
            } if self.is_verbose => {
                self.line(&format!(
                    "{peer}: has seen {clip} ({packets} packets): {why}"
                ));
            }
            Event::Began { .. } | Event::Ended { .. } | Event::Seen(_) => {}
        }
    }

    /// The scheme of an address, as players write it.
    fn scheme(&self, plain: &'static str) -> &'static str {
        match (plain, self.is_secure) {
            ("rtsp", true) => "rtsps",
            ("http", true) => "https",
            _ => plain,
        }
    }

    fn line(&mut self, text: &str) {
        if self.since.elapsed() >= Duration::from_secs(1) {
            if self.lines > LINES {
                say(&format!("and {} more like these", self.lines - LINES));
            }
            (self.since, self.lines) = (Instant::now(), 0);
        }
        self.lines += 1;
        if self.lines <= LINES {
            say(text);
        }
    }
}

/// Says something to whoever listens; where nobody does any more, the server goes on. What strangers have
/// written in it begins no line and moves no cursor.
fn say(text: &str) {
    say!("{text}");
}

/// What all viewers are sent now.
fn level(quality: usize, pictures: Pictures) -> String {
    let of = match quality {
        0 => String::new(),
        lower => format!(" of lower quality {lower}"),
    };
    match pictures {
        Pictures::All if quality == 0 => "all pictures are sent again".to_owned(),
        Pictures::All => format!("to fit: all viewers are sent lower quality {quality}"),
        Pictures::Needed => {
            format!("too much: pictures{of} that others do not need are left out, for all viewers")
        }
        Pictures::Keys => format!(
            "too much: behind each picture{of} that decoding can begin with, as many as there is a rate for \
             are sent, to all viewers"
        ),
    }
}

fn text(of: &Summary) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let rate = of.bytes as f64 * 8.0 / of.elapsed_s.max(1e-9) / 1e6;
    format!(
        "{} sessions, {} at a time at most, {} refused\n\
         {} packets, {:.1} MB, {rate:.1} Mbit/s over {:.1} s\n\
         {} pictures and frames of sound sent, {} left out, {} packets without a way, {} changes of \
         quality\n\
         late: median {:.3} ms, 99 % within {:.3} ms, at most {:.3} ms\n\
         processor: {:.2} s, {:.1} % of a core\n",
        of.sessions,
        of.most_sessions,
        of.refused,
        of.packets,
        of.bytes as f64 / 1e6,
        of.elapsed_s,
        of.samples,
        of.dropped,
        of.unsent,
        of.switched,
        ms(of.late_p50_ns),
        ms(of.late_p99_ns),
        ms(of.late_max_ns),
        of.cpu_s,
        of.cpu_s * 100.0 / of.elapsed_s.max(1e-9),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_listens_for_this_machine_alone_unless_it_is_told() {
        for (text, expected) in [
            (":8554", Some("127.0.0.1:8554")),
            ("0.0.0.0:8554", Some("0.0.0.0:8554")),
            ("[::1]:0", Some("[::1]:0")),
            ("8554", None),
            ("host:8554", None),
            (":99999", None),
            ("", None),
        ] {
            let read = address("--rtsp", text).ok().map(|at| at.to_string());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_sent_is_told_in_words() {
        let best = level(0, Pictures::All);
        assert_eq!(best, "all pictures are sent again");
        let lower = level(2, Pictures::All);
        assert_eq!(lower, "to fit: all viewers are sent lower quality 2");
        let fewer = level(2, Pictures::Needed);
        assert!(
            fewer.starts_with("too much: pictures of lower quality 2 that"),
            "{fewer}"
        );
        let fewest = level(0, Pictures::Keys);
        assert!(
            fewest.starts_with("too much: behind each picture that"),
            "{fewest}"
        );
    }

    #[test]
    fn ports_are_two_at_least() {
        assert_eq!(ports("6970-7169"), Ok((6970, 7169)));
        for text in ["6970", "6971-6970", "80-90", "1-x", "6970-99999"] {
            ports(text).expect_err(text);
        }
    }
}
