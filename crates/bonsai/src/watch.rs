//! `bonsai watch`: what viewers of a stream see.

mod capture;
mod http;
mod most;
mod rows;
mod summary;

use std::io::{IsTerminal as _, Write as _};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Mutex;

use anyhow::Context as _;
use bonsai_media::meter::Thresholds;
use bonsai_media::rtsp::{Lower, Url};
use bonsai_services::observe::SCHEMA;
use bonsai_services::refusal::Refusal;
use bonsai_stream::watch::{Arrivals, Error, Plan, Progress, watch};
use serde_json::json;

use self::summary::{Summary, streams};
use crate::cli::{By, Watch};
use crate::output::{print, print_json};
use crate::reporter::Reporter;

/// Where RTSP servers listen (RFC 2326, 3.2).
const PORT: u16 = 554;

/// Whoever comes more often than that comes at once.
const MOST_A_SECOND: f64 = 1e6;

/// `bonsai watch`.
///
/// # Errors
/// What was asked for makes no sense, or there cannot be as many viewers here.
pub(crate) fn run(args: &Watch) -> anyhow::Result<u8> {
    if let Some(file) = &args.capture {
        return capture::run(file, args);
    }
    let address = args.url.as_deref().unwrap_or_default();
    if http::is_it(address) {
        return http::run(args, address);
    }
    for (option, is_given) in [
        ("--abr", args.abr.is_some()),
        ("--buffer", args.buffer.is_some()),
        ("--p1203", args.p1203.is_some()),
    ] {
        if is_given {
            return Err(Refusal::input(format!(
                "{option} is for addresses of http, and {address:?} is none"
            )));
        }
    }
    let mut plan = plan(args, address)?;
    if args.find_max {
        let how = json!({ "thresholds": plan.thresholds });
        return most::run(args, address, &how, &mut |viewers| {
            plan.viewers = viewers;
            let outcome = watch(&plan, &|_, _| {}).map_err(refused)?;
            let summary = Summary::of(&outcome);
            Ok(most::Try {
                viewers,
                honest: summary.quality.honest,
                paper: Some(summary.quality.paper),
                short_of: summary.short_of(),
                busiest: outcome.busiest,
                is_void: summary.is_void(),
                why_void: "packets were dropped here",
            })
        });
    }
    // Whoever cannot write hears of it before, and not after all of it.
    let csv = args.csv.as_deref().map(rows::create).transpose()?;
    let outcome = told(args, |progress| watch(&plan, progress))?;
    if let Some(csv) = csv {
        rows::write(csv, &outcome).context("--csv")?;
    }
    let summary = Summary::of(&outcome);
    if args.json {
        let document = json!({
            "schema": SCHEMA,
            "url": address,
            "clients": args.clients,
            "by": match plan.lower { Lower::Udp => "udp", Lower::Tcp => "tcp" },
            "seed": args.seed,
            "thresholds": plan.thresholds,
            "void": summary.is_void(),
            "quality": summary.quality,
            "outcome": outcome,
        });
        print_json(&document, false)?;
    } else {
        let mut text = summary.text(address, &plan.thresholds);
        if args.streams {
            text.push_str(&streams(&outcome));
        }
        print(&text)?;
    }
    Ok(u8::from(summary.is_void() || summary.watched == 0))
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

fn plan(args: &Watch, address: &str) -> anyhow::Result<Plan> {
    let scheme = (
        "rtsp",
        "write rtsp://HOST[:PORT]/PATH, or http://HOST[:PORT]/PATH",
    );
    let (url, server) = found(address, scheme, PORT)?;
    Ok(Plan {
        url,
        server,
        lower: match args.by {
            Some(By::Udp) | None => Lower::Udp,
            Some(By::Tcp) => Lower::Tcp,
        },
        viewers: args.clients,
        arrivals: arrivals(&args.arrivals).map_err(Refusal::input)?,
        length: args.length,
        step: args.patience,
        threads: args.threads,
        seed: args.seed,
        thresholds: Thresholds::default(),
    })
}

/// An address of that scheme, or what is said otherwise; and where its server is.
fn found(
    address: &str,
    (scheme, otherwise): (&str, &str),
    port: u16,
) -> anyhow::Result<(Url, SocketAddr)> {
    let wrong = |why: String| Refusal::input(format!("{address:?}: {why}"));
    let url = Url::parse(address).map_err(|error| wrong(format!("no address: {error}")))?;
    if url.scheme() != scheme {
        return Err(wrong(otherwise.to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("names and passwords are not sent".to_owned()));
    }
    let host = url.host_str().filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| wrong("it names no host".to_owned()))?;
    let found = (host.trim_matches(['[', ']']), url.port().unwrap_or(port)).to_socket_addrs();
    let server = found
        .map_err(|error| wrong(error.to_string()))?
        .next()
        .ok_or_else(|| wrong("the host has no address".to_owned()))?;
    Ok((url, server))
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
            "--arrivals {text:?}: write all, a rate such as 20/s, or random:20/s"
        )),
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
}
