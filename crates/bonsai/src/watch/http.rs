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
use super::{arrivals, found, most, refused, told};
use crate::cli::Watch;
use crate::output::{print, print_json};

/// Where web servers listen (RFC 9110, 4.2.1).
const PORT: u16 = 80;

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
pub(super) fn run(args: &Watch, address: &str) -> anyhow::Result<u8> {
    let mut plan = plan(args, address)?;
    if args.find_max {
        let how = json!({ "abr": plan.settings.rule, "buffer_ms": plan.settings.buffer_ms });
        return most::run(args, address, &how, &mut |viewers| {
            plan.viewers = viewers;
            let outcome = play(&plan, &|_, _| {}).map_err(refused)?;
            let summary = Summary::of(&outcome);
            Ok(most::Try {
                viewers,
                honest: summary.top,
                paper: None,
                short_of: summary.short_of(),
                busiest: outcome.busiest,
                is_void: summary.is_void(),
                why_void: "this client was too busy",
            })
        });
    }
    // Whoever cannot write hears of it before, and not after all of it.
    let csv = args.csv.as_deref().map(super::rows::create).transpose()?;
    let folder = args.p1203.as_deref().map(p1203::folder).transpose()?;
    let outcome = told(args, |progress| play(&plan, progress))?;
    if let Some(csv) = csv {
        rows::write(csv, &outcome).context("--csv")?;
    }
    let summary = Summary::of(&outcome);
    if args.json {
        let document = json!({
            "schema": SCHEMA,
            "url": address,
            "clients": args.clients,
            "abr": plan.settings.rule,
            "buffer_ms": plan.settings.buffer_ms,
            "seed": args.seed,
            "void": summary.is_void(),
            "quality": { "top": summary.top },
            "outcome": outcome,
        });
        print_json(&document, false)?;
    } else {
        let mut text = summary.text(address, &plan.settings);
        if args.streams {
            text.push_str(&streams(&outcome));
        }
        print(&text)?;
    }
    if let Some(folder) = folder {
        p1203::write(folder, &outcome)?;
    }
    Ok(u8::from(summary.is_void() || summary.watched == 0))
}

fn plan(args: &Watch, address: &str) -> anyhow::Result<Plan> {
    if args.by.is_some() {
        return Err(Refusal::input(format!(
            "--by is for addresses of rtsp, and {address:?} is none"
        )));
    }
    let scheme = (
        "http",
        "https is not supported: write http://HOST[:PORT]/PATH",
    );
    let (url, server) = found(address, scheme, PORT)?;
    let settings = Settings {
        rule: args.abr.unwrap_or(Rule::Dynamic),
        ..Settings::default()
    };
    let buffer_ms = args.buffer.map(|buffer| buffer.as_secs_f64() * 1e3);
    Ok(Plan {
        url,
        server,
        viewers: args.clients,
        arrivals: arrivals(&args.arrivals).map_err(Refusal::input)?,
        length: args.length,
        step: args.patience,
        threads: args.threads,
        seed: args.seed,
        settings: Settings {
            buffer_ms: buffer_ms.unwrap_or(settings.buffer_ms),
            ..settings
        },
        keeps_log: args.p1203.is_some(),
    })
}
