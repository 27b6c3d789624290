//! `bonsai watch`: what viewers of a stream see.

pub(crate) mod asked;
mod capture;
pub(crate) mod http;
mod most;
mod rows;
mod summary;

use std::io::{IsTerminal as _, Write as _};
use std::sync::Mutex;

use anyhow::Context as _;
use bonsai_media::meter::Thresholds;
use bonsai_media::rtsp::Lower;
use bonsai_services::observe::SCHEMA;
use bonsai_services::refusal::Refusal;
use bonsai_stream::watch::{Error, Plan, Progress, watch};
use serde_json::json;

use self::asked::{Asked, Kind};
use self::summary::{Summary, streams};
use crate::cli::{By, Watch};
use crate::output::{print, print_json};
use crate::reporter::Reporter;

/// RTSP; where its servers listen: RFC 2326, 3.2.
const RTSP: Kind = Kind {
    scheme: "rtsp",
    otherwise: "write rtsp://HOST[:PORT]/PATH, or http://HOST[:PORT]/PATH",
    port: 554,
};

/// `bonsai watch`.
///
/// # Errors
/// What was asked for makes no sense, or there cannot be as many viewers here.
pub(crate) fn run(args: &Watch) -> anyhow::Result<u8> {
    if let Some(file) = &args.capture {
        return capture::run(file, args);
    }
    if let Some(address) = args.urls.iter().find(|url| http::is_it(url)) {
        if let Some(other) = args.urls.iter().find(|url| !http::is_it(url)) {
            return Err(Refusal::input(format!(
                "{address:?} and {other:?} are of two kinds: name clips (rtsp) or playlists (http), and not both"
            )));
        }
        return http::run(args);
    }
    for (option, is_given) in [
        ("--abr", args.abr.is_some()),
        ("--buffer", args.buffer.is_some()),
        ("--p1203", args.p1203.is_some()),
    ] {
        if is_given {
            let address = args.urls.first().map_or("", String::as_str);
            return Err(Refusal::input(format!(
                "{option} is for addresses of http, and {address:?} is none"
            )));
        }
    }
    let asked = Asked::read(args, RTSP)?;
    let mut plan = plan(args, &asked);
    if args.find_max {
        let how = json!({ "thresholds": plan.thresholds });
        return most::run(args, &asked, &how, &mut |viewers| {
            plan.viewers = viewers;
            let outcome = watch(&plan, &|_, _| {}).map_err(refused)?;
            let summary = Summary::of(&outcome, &plan);
            Ok(most::Try {
                viewers,
                honest: summary.quality.honest,
                paper: Some(summary.quality.paper),
                short_of: summary.short_of(),
                busiest: outcome.busiest,
                is_void: summary.why_void().is_some(),
                why_void: summary.why_void(),
            })
        });
    }
    // Whoever cannot write hears of it before, and not after all of it.
    let csv = args.csv.as_deref().map(rows::create).transpose()?;
    let outcome = told(args, |progress| watch(&plan, progress))?;
    if let Some(csv) = csv {
        rows::write(csv, &outcome, &asked.addresses).context("--csv")?;
    }
    let summary = Summary::of(&outcome, &plan);
    let why_void = summary.why_void();
    if args.json {
        let document = json!({
            "schema": SCHEMA,
            "url": asked.addresses.first(),
            "videos": asked.addresses,
            "clients": asked.viewers,
            "by": match plan.lower { Lower::Udp => "udp", Lower::Tcp => "tcp" },
            "seed": args.seed,
            "thresholds": plan.thresholds,
            "void": why_void.is_some(),
            "void_because": why_void,
            "quality": summary.quality,
            "outcome": outcome,
        });
        print_json(&document, false)?;
    } else {
        let mut text = summary.text(&asked);
        if args.streams {
            text.push_str(&streams(&outcome));
        }
        print(&text)?;
    }
    Ok(u8::from(why_void.is_some() || summary.watched == 0))
}

/// Lets viewers watch, shows how far they are, and tells the daemon what they see, where that is asked for.
fn told<T>(
    args: &Watch,
    watch: impl FnOnce(&(dyn Fn(usize, Progress) + Sync)) -> Result<T, Error>,
) -> anyhow::Result<T> {
    let shows = std::io::stderr().is_terminal() && !args.json;
    let told: Mutex<Vec<Progress>> = Mutex::default();
    let reporter = args.report.clone();
    let reporter = reporter.map(|service| Reporter::start(service, "watch", !args.json));
    let reporter = reporter.transpose()?;
    let progress = |thread: usize, progress: Progress| {
        if let Some(reporter) = &reporter {
            reporter.tell(progress.seen);
        }
        let mut all = told
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if all.len() <= thread {
            all.resize(thread + 1, Progress::default());
        }
        all[thread] = progress;
        if shows {
            show(&all);
        }
    };
    let outcome = watch(&progress);
    if let Some(reporter) = reporter {
        reporter.end();
    }
    if shows {
        eprint!("\r\u{1b}[K");
    }
    outcome.map_err(refused)
}

/// Too many viewers for this machine's limits are bad input.
fn refused(error: Error) -> anyhow::Error {
    match error {
        Error::Files { .. } => Refusal::input(error.to_string()),
        error => error.into(),
    }
}

fn plan(args: &Watch, asked: &Asked) -> Plan {
    Plan {
        videos: asked.videos.clone(),
        lower: match args.by {
            Some(By::Udp) | None => Lower::Udp,
            Some(By::Tcp) => Lower::Tcp,
        },
        viewers: asked.viewers,
        arrivals: asked.arrivals.clone(),
        length: args.length,
        step: args.patience,
        threads: args.threads,
        seed: args.seed,
        thresholds: Thresholds::default(),
    }
}

/// How far it is, on one line, in the words of StreamingLoadTool.
fn show(all: &[Progress]) {
    let sum = |of: fn(&Progress) -> u32| all.iter().map(of).sum::<u32>();
    let bytes: u64 = all.iter().map(|one| one.bytes).sum();
    let (came, playing, done) = (
        sum(|one| one.came),
        sum(|one| one.playing),
        sum(|one| one.done),
    );
    let failed = sum(|one| one.failed);
    let active = came - done - failed;
    let line = format!(
        "\rActive {active}  Playing {playing}  Attempts {came}  Success {done}  Failed {failed}  \
         {} MB\u{1b}[K",
        bytes / 1_000_000
    );
    let _ = std::io::stderr().write_all(line.as_bytes());
}
