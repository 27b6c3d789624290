//! The largest number of viewers that all have top quality.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::thread;
use std::time::Duration;

use bonsai_media::search::{Search, at_least};
use bonsai_services::observe::SCHEMA;
use serde::Serialize;
use serde_json::{Value, json};

use super::summary::BUSY;
use crate::cli::Watch;
use crate::output::{count, finish, print, print_json, table};

/// Sessions of one try have ended before the next begins.
const PAUSE: Duration = Duration::from_millis(500);

/// One number of viewers, tried once.
#[derive(Debug, Serialize)]
pub(super) struct Try {
    pub(super) viewers: u32,
    /// Those with top quality, by all criteria, and, of RTSP, by the paper's four.
    pub(super) honest: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) paper: Option<usize>,
    /// Of those that had less: what they fell short of, and how many.
    pub(super) short_of: BTreeMap<String, usize>,
    /// Of the busiest half second of this client.
    pub(super) busiest: f64,
    pub(super) is_void: bool,
    #[serde(skip)]
    pub(super) why_void: &'static str,
}

/// `bonsai watch --find-max`: what viewers go by, and how so many of them are tried.
///
/// # Errors
/// There cannot be as many viewers here.
pub(super) fn run(
    args: &Watch,
    address: &str,
    how: &Value,
    watch: &mut dyn FnMut(u32) -> anyhow::Result<Try>,
) -> anyhow::Result<u8> {
    let shows = std::io::stderr().is_terminal() && !args.json;
    let mut search = Search::new(args.clients, args.most.max(args.clients), args.runs);
    let mut tries: Vec<Try> = Vec::new();
    while let Some(viewers) = search.next() {
        if !tries.is_empty() {
            thread::sleep(PAUSE);
        }
        if shows {
            let _ = write!(
                std::io::stderr(),
                "\r{} \u{1b}[K",
                count(viewers.into(), "viewer", "viewers")
            );
        }
        let one = watch(viewers)?;
        let all = usize::try_from(viewers).unwrap_or(usize::MAX);
        let is_good = one.honest == all;
        let is_void = one.is_void;
        tries.push(one);
        if is_void {
            // More than this client can take says nothing of the server.
            break;
        }
        search.told(is_good);
    }
    if shows {
        eprint!("\r\u{1b}[K");
    }
    let (found, too_many) = search.found();
    if args.json {
        let mut document = json!({
            "schema": SCHEMA,
            "url": address,
            "found": found.map(|(viewers, passed)| json!({
                "viewers": viewers, "passed": passed, "at_least": at_least(passed),
            })),
            "too_many": too_many,
            "is_over": search.next().is_none(),
            "tries": tries,
        });
        for (name, value) in how.as_object().into_iter().flatten() {
            document[name] = value.clone();
        }
        print_json(&document, false)?;
    } else {
        print(&text(address, &search, &tries))?;
    }
    Ok(u8::from(found.is_none()))
}

fn text(address: &str, search: &Search, tries: &[Try]) -> String {
    let has_paper = tries.iter().any(|one| one.paper.is_some());
    let mut header = vec!["viewers", "top quality", "by four", "short of"];
    if !has_paper {
        header.remove(2);
    }
    let mut table = table(&header, if has_paper { &[0, 1, 2] } else { &[0, 1] });
    for one in tries {
        let short = one.short_of.iter();
        let mut short: Vec<String> = short.map(|(why, times)| format!("{why} {times}")).collect();
        if one.is_void {
            short.push(format!("VOID: {}", one.why_void));
        } else if one.busiest > BUSY {
            short.push(format!(
                "(this client was busy for {:.0} %)",
                one.busiest * 100.0
            ));
        }
        let mut row = vec![one.viewers.to_string(), one.honest.to_string()];
        row.extend(one.paper.map(|paper| paper.to_string()));
        row.push(short.join(", "));
        table.add_row(row);
    }
    let mut text = finish(&table);
    let (found, too_many) = search.found();
    text.push_str(&match found {
        None => format!("{address}: not even one viewer has top quality\n"),
        Some((viewers, passed)) => format!(
            "{address}: {} with top quality, {passed} of {passed} times (with 95 % confidence at least {:.0} % of times){}\n",
            count(viewers.into(), "viewer", "viewers"),
            at_least(passed) * 100.0,
            too_many.map_or_else(|| ", and more were not tried".to_owned(), |many| format!("; {many} are too many")),
        ),
    });
    if search.next().is_some() {
        text.push_str("the search ended early: this client cannot take more\n");
    }
    text
}
