//! What the daemon tells.

use std::collections::BTreeMap;
use std::io;

use bonsai_api::{
    AdmitRequest, AuditEntry, Enforced, LimitOwner, QosReport, ServiceView, Status, Use,
};
use bonsai_client::Range;
use bonsai_services::observe::unix_ms;
use bonsai_services::refusal::Refusal;
use bonsai_units::{Rate, Resource};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{needed, said};
use crate::cli::{Admit, Log, Page, Past, Report, Shares};
use crate::output::{finish, print, print_json, say, table};
use crate::trace::{create_output, output_error};

/// A port that any user may take.
const TUNNEL: u16 = 8700;

/// A rate for people.
pub(super) fn rate(resource: Resource, per_s: f64) -> String {
    if per_s <= 0.0 {
        return "0".to_owned();
    }
    // Beyond the largest rate it is the largest.
    let milli = (per_s * 1000.0).round().min(Rate::MAX_MILLI as f64);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let rate = Rate::from_milli(milli as u64, resource.unit());
    resource.for_people(rate)
}

/// `bonsai shares`.
///
/// # Errors
/// No daemon, or no such service.
pub(crate) fn shares(args: &Shares) -> anyhow::Result<u8> {
    let client = needed()?;
    let services = match &args.service {
        Some(id) => vec![client.service(id).map_err(said)?],
        None => client.services().map_err(said)?.services,
    };
    if args.json {
        print_json(&services, false)?;
        return Ok(0);
    }
    print(&table_of(&services, Some(""), args.all))?;
    print(&not_configured(&client.status().map_err(said)?))?;
    print(&noted(&services))?;
    for service in &services {
        for problem in &service.problems {
            print(&format!("{}: {problem}\n", service.id))?;
        }
        for proposal in &service.proposals {
            let resource = proposal.resource.into();
            print(&format!(
                "{}: with policy.automatic = \"on\" {resource}.min would be {} instead of {}: {}\n",
                service.id,
                rate(resource, proposal.to),
                rate(resource, proposal.from),
                proposal.reason
            ))?;
        }
    }
    Ok(0)
}

/// Notes of services, each once, with the services that have it.
fn noted(services: &[ServiceView]) -> String {
    let mut by_note = BTreeMap::<&str, Vec<&str>>::new();
    for service in services {
        for note in &service.notes {
            by_note.entry(note).or_default().push(&service.id);
        }
    }
    let lines = by_note.iter().map(|(note, of)| match of[..] {
        [one] => format!("{one}: {note}\n"),
        [first, ..] => format!("{first} and {} more: {note}\n", of.len() - 1),
        [] => String::new(),
    });
    lines.collect()
}

/// The resources that nobody has said a capacity of, as one line; nothing if there are none.
fn not_configured(status: &Status) -> String {
    let resources = Resource::ALL.into_iter();
    let without: Vec<&str> = resources
        .filter(|resource| !status.capacity.contains_key(&(*resource).into()))
        .map(Resource::name)
        .collect();
    if without.is_empty() {
        return String::new();
    }
    format!(
        "{}: no capacity is configured, so only ceilings hold there (bonsai capacity probe measures a \
         disk or a link)\n",
        without.join(", ")
    )
}

/// What services get; with reasons where that is wanted.
pub(super) fn table_of(services: &[ServiceView], reasons: Option<&str>, all: bool) -> String {
    let mut header = vec![
        "service", "of", "min", "max", "weight", "share", "got", "waits",
    ];
    header.extend(reasons.map(|_| "why"));
    let mut table = table(&header, &[2, 3, 4, 5, 6]);
    for service in services {
        let uses = service.resources.iter();
        for of in uses.filter(|of| {
            all || of.decision.enforced != Enforced::None
                || of.decision.min > 0.0
                || of.limit.is_some()
        }) {
            table.add_row(row(service, of, reasons.is_some()));
        }
    }
    finish(&table)
}

fn row(service: &ServiceView, of: &Use, with_reason: bool) -> Vec<String> {
    let resource: Resource = of.resource.into();
    let some = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| rate(resource, v));
    let decision = &of.decision;
    let mut row = vec![
        service.id.clone(),
        resource.to_string(),
        if decision.min > 0.0 {
            rate(resource, decision.min)
        } else {
            "-".to_owned()
        },
        some(of.limit.as_ref().map(|limit| limit.rate)),
        decision.weight.to_string(),
        some(decision.share),
        rate(resource, of.got),
        if of.waiting { "yes" } else { "no" }.to_owned(),
    ];
    if with_reason {
        let own = of
            .limit
            .as_ref()
            .filter(|limit| limit.by != LimitOwner::Daemon);
        let own = own.map(|limit| {
            let name = limit.name.as_deref().unwrap_or_default();
            format!("{name}, set by {}, holds; ", limit.by.words())
        });
        row.push(own.unwrap_or_default() + &decision.reason);
    }
    row
}

/// `bonsai log`.
///
/// # Errors
/// No daemon.
pub(crate) fn log(args: &Log) -> anyhow::Result<u8> {
    let page = needed()?
        .audit(args.service.as_deref(), None, args.number)
        .map_err(said)?;
    let text: String = page.entries.iter().map(deed).collect();
    match &*text {
        _ if args.json => print_json(&page.entries, false)?,
        "" if page.problems.is_empty() => print("nothing has been changed yet\n")?,
        text => print(text)?,
    }
    anyhow::ensure!(page.problems.is_empty(), "{}", page.problems.join("; "));
    Ok(0)
}

/// A time of the wall clock, ms since 1970, in the system's zone and with it: `2026-03-29 03:00:00 +02:00`.
pub(super) fn local(unix_ms: u64) -> String {
    in_zone(&TimeZone::system(), unix_ms)
}

fn in_zone(zone: &TimeZone, unix_ms: u64) -> String {
    let at = i64::try_from(unix_ms).ok();
    let at = at.and_then(|at| Timestamp::from_millisecond(at).ok());
    at.map_or_else(
        || format!("{unix_ms} ms since 1970"),
        |at| at.to_zoned(zone.clone()).strftime("%F %T %:z").to_string(),
    )
}

/// The age of a time of the wall clock; the clock may have been set since.
fn age(then: u64, now: u64) -> String {
    let length = |ms: u64| bonsai_units::format_duration_ns(ms.saturating_mul(1_000_000));
    match now.checked_sub(then) {
        Some(age) => format!("{} ago", length(age)),
        None => format!(
            "{} ahead of the clock, which was set back",
            length(then - now)
        ),
    }
}

fn deed(entry: &AuditEntry) -> String {
    let at = local(entry.unix_ms);
    let age = age(entry.unix_ms, unix_ms());
    let pid = entry
        .pid
        .map_or_else(String::new, |pid| format!(" (process {pid})"));
    let reason = if entry.reason.is_empty() {
        String::new()
    } else {
        format!(": {}", entry.reason)
    };
    let mut text = format!(
        "revision {}, {at} ({age}), {}{pid}, {}{reason}\n",
        entry.revision, entry.actor, entry.action
    );
    for difference in &entry.differences {
        let side = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        text.push_str(&format!(
            "  {} {} -> {}\n",
            difference.path,
            side(&difference.from),
            side(&difference.to)
        ));
    }
    if entry.left_out > 0 {
        text.push_str(&format!("  and {} more\n", entry.left_out));
    }
    if let Some(problem) = &entry.problem {
        text.push_str(&format!("  note: {problem}\n"));
    }
    text
}

/// `bonsai history`.
///
/// # Errors
/// No daemon, nothing kept, or the file cannot be written.
pub(crate) fn past(args: &Past) -> anyhow::Result<u8> {
    let client = needed()?;
    let now = unix_ms();
    let since = u64::try_from(args.since.0.as_millis()).unwrap_or(u64::MAX);
    let mut range = Range {
        service: args.service.clone(),
        resource: Some(args.resource.into()),
        from: Some(now.saturating_sub(since)),
        to: Some(now),
        points: Some(60),
    };
    if let Some(format) = &args.export {
        range.resource = None;
        let written = match &args.output {
            None => client.export(format, &range, &mut io::stdout().lock()),
            Some(path) => {
                let mut file = create_output(path)?;
                let written = client.export(format, &range, &mut file);
                if written.is_ok() {
                    file.commit().map_err(output_error)?;
                }
                written
            }
        };
        written.map_err(said)?;
        return Ok(0);
    }
    let series = client.history(&range).map_err(said)?;
    if args.json {
        print_json(&series, false)?;
        return Ok(0);
    }
    let mut table = table(
        &["at", "got", "at most", "asked", "share", "min", "waited"],
        &[1, 2, 3, 4, 5, 6],
    );
    let of = |value: f64| rate(args.resource, value);
    for point in &series.points {
        table.add_row(vec![
            local(point.unix_ms),
            of(point.got),
            of(point.got_max),
            of(point.asked),
            point.limit.map_or_else(|| "-".to_owned(), of),
            of(point.guarantee),
            format!("{:.0} %", point.waited * 100.0),
        ]);
    }
    if series.damaged > 0 {
        eprintln!(
            "note: {} blocks of that time are damaged, and gaps",
            series.damaged
        );
    }
    if series.points.is_empty() {
        print("nothing is known of that time\n")?;
    } else {
        print(&finish(&table))?;
    }
    Ok(0)
}

/// `bonsai admit`.
///
/// # Errors
/// No daemon, or a question that has no answer.
pub(crate) fn admit(args: &Admit) -> anyhow::Result<u8> {
    let asked = AdmitRequest {
        service: args.service.clone(),
        resource: Some(args.resource.into()),
        streams: args.streams,
        rate: args
            .rate
            .parse()
            .map_err(|error| Refusal::input(format!("--rate: {error}")))?,
    };
    let answer = needed()?.admit(&asked).map_err(said)?;
    let code = u8::from(!answer.admitted);
    if args.json {
        print_json(&answer, false)?;
        return Ok(code);
    }
    let mut text = format!(
        "{}: {}\nall get what they need with a probability of {:.1} %; {} is free now\n",
        if answer.admitted { "yes" } else { "no" },
        answer.reason,
        answer.probability * 100.0,
        rate(args.resource, answer.free)
    );
    for give in &answer.give {
        let amount = rate(args.resource, give.amount);
        text.push_str(&format!(
            "{} would have to give {amount}: {}\n",
            give.service, give.reason
        ));
    }
    print(&text)?;
    Ok(code)
}

/// `bonsai report`.
///
/// # Errors
/// No daemon, or no such service.
pub(crate) fn report(args: &Report) -> anyhow::Result<u8> {
    let report = QosReport {
        service: args.service.clone(),
        source: Some("command line".to_owned()),
        loss: args.loss,
        delay_ms: args.delay,
        jitter_ms: args.jitter,
        stalls: args.stalls,
    };
    needed()?.report(&report).map_err(said)?;
    if args.json {
        print_json(&report, false)?;
    }
    Ok(0)
}

/// `bonsai page`.
///
/// # Errors
/// No daemon.
pub(crate) fn page(args: &Page) -> anyhow::Result<u8> {
    let page = needed()?.page().map_err(said)?;
    if args.json {
        print_json(&page, false)?;
    } else {
        print(&format!("{}\n", page.url))?;
        if std::env::var_os("SSH_CONNECTION").is_some() {
            hint_of_tunnel(&page.url);
        }
    }
    Ok(0)
}

/// Says how a browser at the other end of an ssh connection gets there: root's ports cannot be taken by users
/// there, so another one is named.
fn hint_of_tunnel(url: &str) {
    let Some((address, token)) = url
        .strip_prefix("http://")
        .and_then(|rest| rest.split_once('/'))
    else {
        return;
    };
    say!(
        "for a browser at the other end of this ssh connection: ssh -N -L {TUNNEL}:{address} HOST there, and \
         http://localhost:{TUNNEL}/{token}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_local_and_say_their_zone() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone");
        // The hour that comes twice is told apart by its zone.
        assert_eq!(
            in_zone(&zone, 1_792_886_400_000),
            "2026-10-25 02:00:00 +02:00"
        );
        assert_eq!(
            in_zone(&zone, 1_792_890_000_000),
            "2026-10-25 02:00:00 +01:00"
        );
        assert_eq!(
            in_zone(&zone, u64::MAX),
            format!("{} ms since 1970", u64::MAX)
        );
        assert_eq!(age(1_000, 61_000), "60 s ago");
        assert!(age(61_000, 1_000).contains("ahead of the clock"));
    }
}
