//! The largest number of viewers that all have top quality.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::thread;
use std::time::Duration;

use bonsai_media::search::{Search, at_least};
use bonsai_services::observe::SCHEMA;
use serde::Serialize;
use serde_json::{Value, json};

use super::asked::Asked;
use super::summary::BUSY;
use crate::cli::Watch;
use crate::output::{count, finish, print, print_json, table};

/// Sessions of one try have ended before the next begins.
const PAUSE: Duration = Duration::from_millis(500);

/// So often in a row a try that says nothing is made again.
const AGAIN: usize = 2;

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
    /// Why it says nothing of the server, if that is so.
    pub(super) why_void: Option<String>,
}

/// `bonsai watch --find-max`: what viewers go by, and how so many of them are tried.
///
/// # Errors
/// There cannot be as many viewers here.
pub(super) fn run(
    args: &Watch,
    asked: &Asked,
    how: &Value,
    watch: &mut dyn FnMut(u32) -> anyhow::Result<Try>,
) -> anyhow::Result<u8> {
    let shows = std::io::stderr().is_terminal() && !args.json;
    let mut search = Search::new(asked.viewers, args.most.max(asked.viewers), args.runs);
    let tries = tried(&mut search, PAUSE, &mut |viewers| {
        if shows {
            let _ = write!(
                std::io::stderr(),
                "\r{} \u{1b}[K",
                count(viewers.into(), "viewer", "viewers")
            );
        }
        watch(viewers)
    })?;
    if shows {
        eprint!("\r\u{1b}[K");
    }
    let (found, too_many) = search.found();
    if args.json {
        let mut document = json!({
            "schema": SCHEMA,
            "url": asked.addresses.first(),
            "videos": asked.addresses,
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
        print(&text(&asked.title(), &search, &tries))?;
    }
    Ok(u8::from(found.is_none()))
}

/// All tries of a search.
fn tried(
    search: &mut Search,
    pause: Duration,
    watch: &mut dyn FnMut(u32) -> anyhow::Result<Try>,
) -> anyhow::Result<Vec<Try>> {
    let mut tries: Vec<Try> = Vec::new();
    let mut void = 0;
    while let Some(viewers) = search.next() {
        if !tries.is_empty() {
            thread::sleep(pause);
        }
        let one = watch(viewers)?;
        let all = usize::try_from(viewers).unwrap_or(usize::MAX);
        let (is_good, is_void) = (one.honest == all, one.is_void);
        tries.push(one);
        if !is_void {
            void = 0;
            search.told(is_good);
        } else if void == AGAIN {
            // More than this client can take says nothing of the server.
            break;
        } else {
            // It may have stood still by chance.
            void += 1;
        }
    }
    Ok(tries)
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
        if let Some(why) = &one.why_void {
            short.push(format!("VOID: {why}"));
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
    let is_over = search.next().is_none();
    text.push_str(&match found {
        None if is_over => format!("{address}: not even one viewer has top quality\n"),
        None => format!(
            "{address}: no number of viewers is known to have top quality{}\n",
            too_many.map_or_else(String::new, |many| format!("; {many} are too many")),
        ),
        Some((viewers, passed)) => format!(
            "{address}: {} with top quality, {passed} of {passed} times (with 95 % confidence at least {:.0} % of times){}\n",
            count(viewers.into(), "viewer", "viewers"),
            at_least(passed) * 100.0,
            too_many.map_or_else(|| ", and more were not tried".to_owned(), |many| format!("; {many} are too many")),
        ),
    });
    if let Some(viewers) = search.next() {
        text.push_str(&format!(
            "the search ended early: with {} this client cannot keep up, or was disturbed {} times in a row\n",
            count(viewers.into(), "viewer", "viewers"),
            AGAIN + 1,
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A search where tries are void whose place, from 0 on, is one of these, and all are good up to a number.
    fn search(void: &[usize], limit: u32) -> (Vec<u32>, String) {
        let mut search = Search::new(1, 8, 1);
        let mut place = 0;
        let tries = tried(&mut search, Duration::ZERO, &mut |viewers| {
            let is_void = void.contains(&place);
            place += 1;
            let is_good = viewers <= limit && !is_void;
            Ok(Try {
                viewers,
                honest: if is_good {
                    usize::try_from(viewers)?
                } else {
                    0
                },
                paper: None,
                short_of: BTreeMap::new(),
                busiest: 0.0,
                is_void,
                why_void: is_void.then(|| "it was late".to_owned()),
            })
        });
        let tries = tries.expect("tried");
        let numbers = tries.iter().map(|one| one.viewers).collect();
        (numbers, text("rtsp://a/b", &search, &tries))
    }

    #[test]
    fn a_try_that_is_void_by_chance_is_made_again() {
        let (tries, text) = search(&[0, 1, 3, 5], 4);
        assert_eq!(tries, [1, 1, 1, 2, 2, 4, 4, 8, 6, 5]);
        assert!(text.contains("4 viewers with top quality"), "{text}");
        assert!(!text.contains("ended early"), "{text}");
    }

    #[test]
    fn a_client_that_never_keeps_up_says_nothing_of_the_server() {
        let (tries, text) = search(&[0, 1, 2], 8);
        assert_eq!(tries, [1, 1, 1]);
        assert!(text.contains("no number of viewers is known"), "{text}");
        assert!(text.contains("with 1 viewer this client cannot"), "{text}");
        let (tries, text) = search(&[1, 2, 3], 8);
        assert_eq!(tries, [1, 2, 2, 2]);
        assert!(text.contains("1 viewer with top quality"), "{text}");
        let (tries, text) = search(&[], 0);
        assert_eq!(tries, [1]);
        assert!(text.contains("not even one"), "{text}");
    }
}
