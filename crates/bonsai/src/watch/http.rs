//! Players over HTTP.

mod p1203;
mod rows;
mod summary;

use anyhow::Context as _;
use bonsai_media::adapt::{Rule, Settings};
use bonsai_services::observe::SCHEMA;
use bonsai_services::refusal::Refusal;
use bonsai_stream::play::{Plan, play};
use serde_json::json;

use self::summary::{Summary, streams};
use super::asked::{Asked, Kind};
use super::{most, refused, told};
use crate::cli::Watch;
use crate::output::{print, print_json};

/// HTTP; where its servers listen: RFC 9110, 4.2.1.
pub(crate) const HTTP: Kind = Kind {
    scheme: "http",
    otherwise: "https is not supported: write http://HOST[:PORT]/PATH",
    port: 80,
};

/// Whether an address is of a web server.
pub(super) fn is_it(address: &str) -> bool {
    let scheme = address.split_once(':').map_or("", |(scheme, _)| scheme);
    ["http", "https"]
        .iter()
        .any(|http| scheme.eq_ignore_ascii_case(http))
}

/// `bonsai watch http://...`.
///
/// # Errors
/// What was asked for makes no sense, or there cannot be as many viewers here.
pub(super) fn run(args: &Watch) -> anyhow::Result<u8> {
    if args.by.is_some() {
        let address = args.urls.first().map_or("", String::as_str);
        return Err(Refusal::input(format!(
            "--by is for addresses of rtsp, and {address:?} is none"
        )));
    }
    let asked = Asked::read(args, HTTP)?;
    let mut plan = plan(args, &asked);
    if args.find_max {
        let how = json!({ "abr": plan.settings.rule, "buffer_ms": plan.settings.buffer_ms });
        return most::run(args, &asked, &how, &mut |viewers| {
            plan.viewers = viewers;
            let outcome = play(&plan, &|_, _| {}).map_err(refused)?;
            let summary = Summary::of(&outcome);
            Ok(most::Try {
                viewers,
                honest: summary.top,
                paper: None,
                short_of: summary.short_of(),
                busiest: outcome.busiest,
                is_void: summary.why_void().is_some(),
                why_void: summary.why_void(),
            })
        });
    }
    // Whoever cannot write hears of it before, and not after all of it.
    let csv = args.csv.as_deref().map(super::rows::create).transpose()?;
    let folder = args.p1203.as_deref().map(p1203::folder).transpose()?;
    let outcome = told(args, |progress| play(&plan, progress))?;
    if let Some(csv) = csv {
        rows::write(csv, &outcome, &asked.addresses).context("--csv")?;
    }
    let summary = Summary::of(&outcome);
    let why_void = summary.why_void();
    if args.json {
        let document = json!({
            "schema": SCHEMA,
            "url": asked.addresses.first(),
            "videos": asked.addresses,
            "clients": asked.viewers,
            "abr": plan.settings.rule,
            "buffer_ms": plan.settings.buffer_ms,
            "seed": args.seed,
            "void": why_void.is_some(),
            "void_because": why_void,
            "quality": { "top": summary.top },
            "outcome": outcome,
        });
        print_json(&document, false)?;
    } else {
        let mut text = summary.text(&asked, &plan.settings);
        if args.streams {
            text.push_str(&streams(&outcome));
        }
        print(&text)?;
    }
    if let Some(folder) = folder {
        p1203::write(folder, &outcome)?;
    }
    Ok(u8::from(why_void.is_some() || summary.watched == 0))
}

fn plan(args: &Watch, asked: &Asked) -> Plan {
    let settings = Settings {
        rule: args.abr.unwrap_or(Rule::Dynamic),
        ..Settings::default()
    };
    let buffer_ms = args.buffer.map(|buffer| buffer.as_secs_f64() * 1e3);
    Plan {
        videos: asked.videos.clone(),
        viewers: asked.viewers,
        arrivals: asked.arrivals.clone(),
        length: args.length,
        step: args.patience,
        threads: args.threads,
        seed: args.seed,
        settings: Settings {
            buffer_ms: buffer_ms.unwrap_or(settings.buffer_ms),
            ..settings
        },
        keeps_log: args.p1203.is_some(),
    }
}
