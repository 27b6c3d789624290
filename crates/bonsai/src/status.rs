//! `bonsai status`: services, their limits and processes, and what is not covered.

use std::collections::BTreeMap;

use bonsai_services::observe::{
    LimitView, Observation, ProcessView, ServiceView, UncoveredView, WaitingView, Waits,
};
use bonsai_services::service::Enforced;
use bonsai_units::{Rate, Unit, format_duration_ns};

use crate::cli::Status;
use crate::daemon::samplers;
use crate::output::{Ink, Paint, count, finish, print, print_json, table};

/// Processes, and threads that wait, beyond these are summed up in one line.
const LISTED: usize = 20;

/// Shows services.
///
/// # Errors
/// There is no such service, or nothing can be read.
pub(crate) fn run(args: &Status) -> anyhow::Result<u8> {
    let (sampler, outside) = samplers(args.service.as_deref())?;
    let mut sampler = sampler.with_streams(args.streams);
    let paint = Paint::stdout();
    loop {
        let mut observation = sampler.measure(args.interval)?;
        outside.add(&mut observation);
        if args.json {
            print_json(&observation, args.watch)?;
        } else {
            print(&text(&observation, paint))?;
        }
        let gone = observation.services.is_empty();
        if !args.watch || (gone && args.service.is_some()) {
            return Ok(0);
        }
        if gone {
            // There was nothing to measure, so no time has passed yet.
            std::thread::sleep(args.interval);
        }
        if !args.json {
            print("\n")?;
        }
    }
}

/// The services as text.
pub(crate) fn text(observation: &Observation, paint: Paint) -> String {
    if observation.services.is_empty() {
        return "no service is running\n".to_owned();
    }
    let services = observation
        .services
        .iter()
        .map(|service| service_text(service, observation, paint));
    services.collect::<Vec<_>>().join("\n")
}

fn service_text(service: &ServiceView, observation: &Observation, paint: Paint) -> String {
    let mut text = paint.ink(Ink::Bold, &service.name);
    if let Some(error) = &service.error {
        return format!("{text}\n  {}\n", paint.ink(Ink::Yellow, error));
    }
    let age = observation
        .head
        .unix_ms
        .saturating_sub(service.created_unix_ms);
    let age = format_duration_ns(age.saturating_mul(1_000_000));
    if let Some(target) = &service.target {
        text.push_str(&format!("  {target}, for {age}\n"));
        text.push_str(&limits_text(&service.limits, paint));
        return text;
    }
    text.push_str(&format!(
        "  running for {age}, {}{}\n",
        count(service.processes.len() as u64, "process", "processes"),
        if service.keeper.is_none() {
            ", bonsai run has ended"
        } else {
            ""
        },
    ));
    text.push_str(&limits_text(&service.limits, paint));
    text.push_str(&streams_text(&service.limits, paint));
    text.push_str(&waiting_text(&service.waiting, paint));
    text.push_str(&processes_text(&service.processes, paint));
    if let Some(enforced) = &service.enforced {
        let line = enforced_text(enforced);
        text.push_str(&format!("  {}\n", paint.ink(Ink::Dim, &line)));
    }
    let mut warn = |line: String| {
        text.push_str(&format!("  {}\n", paint.ink(Ink::Yellow, &line)));
    };
    for line in uncovered_lines(&service.uncovered) {
        warn(line);
    }
    if let Some(enforced) = &service.enforced {
        if let Some(reach) = &enforced.reach {
            warn(reach.clone());
        }
        for (why, calls) in &enforced.refused {
            warn(format!("refused {}: {why}", count(*calls, "call", "calls")));
        }
    }
    for view in &service.unshaped {
        warn(format!(
            "{} without a decision: {}",
            count(view.calls, "call", "calls"),
            view.about
        ));
    }
    let lines = [
        service.mapped_files.line(),
        service.unseen_line.clone(),
        service.mapped.line(),
    ];
    lines.into_iter().flatten().for_each(&mut warn);
    if service.crowded {
        let text = "threads beyond the pages of the ledger: their waits are counted, but not shown";
        warn(text.to_owned());
    }
    if service.processes_lost > 0 {
        let lost = count(u64::from(service.processes_lost), "process", "processes");
        warn(format!(
            "{lost} beyond the table of the ledger: shaped, but not shown"
        ));
    }
    text
}

/// Who decides, about what, and what that costs.
fn enforced_text(enforced: &Enforced) -> String {
    let user = enforced.user.as_ref();
    format!(
        "enforced by process {} for {} system calls, +{} each{}",
        enforced.supervisor,
        enforced.asked.len(),
        format_duration_ns(enforced.price_ns),
        user.map_or_else(String::new, |user| format!(", as the user {user}")),
    )
}

fn limits_text(limits: &[LimitView], paint: Paint) -> String {
    if limits.is_empty() {
        return format!("  {}\n", paint.ink(Ink::Dim, "no limits"));
    }
    let header = [
        "limit", "asked", "got", "", "burst", "waits", "waited", "p50", "p99",
    ];
    let mut rows = table(&header, &[1, 2, 3, 4, 5, 6, 7, 8]);
    for limit in limits {
        let waits = wait_cells(&limit.waits);
        let [asked, got] = rates(limit);
        // Of a limit per stream, what all of them get together is no share of it.
        let share = limit.got.filter(|_| !limit.per_stream);
        let share = share.map_or_else(String::new, |got| percent(got, limit.asked));
        let first = [limit.name.clone(), asked, got, share, burst(limit)];
        rows.add_row(first.into_iter().chain(waits));
        if limit.waiting_calls.len() > 1 {
            for call in &limit.waiting_calls {
                let name = format!("  {} ({})", call.call, call.kind);
                let empty = [
                    name,
                    String::new(),
                    String::new(),
                    String::new(),
                    String::new(),
                ];
                rows.add_row(empty.into_iter().chain(wait_cells(&call.waits)));
            }
        }
    }
    finish(&rows)
}

/// The rate asked for and the rate measured, for people.
pub(crate) fn rates(limit: &LimitView) -> [String; 2] {
    let shown = |per_s: f64| rate_text(limit, per_s);
    [
        shown(limit.asked),
        limit.got.map_or_else(|| "-".to_owned(), shown),
    ]
}

fn rate_text(limit: &LimitView, per_s: f64) -> String {
    let unit = if limit.unit == "bytes" {
        Unit::Bytes
    } else {
        Unit::Calls
    };
    if per_s < 0.001 {
        return match (unit, limit.network) {
            (Unit::Calls, _) => "0/s".to_owned(),
            (Unit::Bytes, true) => "0 bit/s".to_owned(),
            (Unit::Bytes, false) => "0 B/s".to_owned(),
        };
    }
    let rate = Rate::from_milli(milli(per_s), unit);
    if limit.network {
        rate.network()
    } else {
        rate.storage()
    }
}

/// Units per second in thousandths.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a measured rate is not negative, and beyond the range a cast saturates"
)]
fn milli(per_s: f64) -> u64 {
    (per_s * 1_000.0) as u64
}

fn burst(limit: &LimitView) -> String {
    amount(limit, limit.burst)
}

/// An amount in the unit of a limit.
fn amount(limit: &LimitView, units: u64) -> String {
    if limit.unit == "bytes" {
        bonsai_units::Bytes(units).human()
    } else {
        count(units, "call", "calls")
    }
}

/// How much of what was asked for was got.
fn percent(got: f64, asked: f64) -> String {
    if asked > 0.0 {
        format!("{:.1} %", got / asked * 100.0)
    } else {
        String::new()
    }
}

fn wait_cells(waits: &Waits) -> [String; 4] {
    let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), format_duration_ns);
    [
        waits.count.to_string(),
        time((waits.count > 0).then_some(waits.total_ns)),
        time(waits.p50_ns),
        time(waits.p99_ns),
    ]
}

/// The streams of limits that are per stream.
fn streams_text(limits: &[LimitView], paint: Paint) -> String {
    let mut text = String::new();
    for limit in limits {
        let Some(streams) = &limit.streams else {
            continue;
        };
        let header = [
            limit.name.as_str(),
            "pid",
            "fd",
            "got",
            "",
            "used",
            "waits",
            "waited",
        ];
        let mut rows = table(&header, &[1, 2, 3, 4, 5, 6, 7]);
        for stream in streams.iter().take(LISTED) {
            let got = stream.got.map(|got| rate_text(limit, got));
            let share = stream.got.map(|got| percent(got, limit.asked));
            rows.add_row([
                stream.to.clone(),
                stream.pid.to_string(),
                stream.fd.to_string(),
                got.unwrap_or_else(|| "-".to_owned()),
                share.unwrap_or_default(),
                amount(limit, stream.used),
                stream.waits.to_string(),
                format_duration_ns(stream.waited_ns),
            ]);
        }
        if streams.is_empty() {
            let none = format!("{}: no streams", limit.name);
            text.push_str(&format!("  {}\n", paint.ink(Ink::Dim, &none)));
        } else {
            text.push_str(&(finish(&rows) + &more(streams.len(), "streams", paint)));
        }
    }
    text
}

/// Who waits at this moment.
fn waiting_text(waiting: &[WaitingView], paint: Paint) -> String {
    if waiting.is_empty() {
        return String::new();
    }
    let header = [
        "waiting", "program", "thread", "limit", "call", "on", "so far", "due in",
    ];
    let mut rows = table(&header, &[0, 2, 6, 7]);
    for view in waiting.iter().take(LISTED) {
        rows.add_row([
            view.pid.to_string(),
            view.program.clone(),
            view.tid.to_string(),
            view.limit.clone().unwrap_or_else(|| "-".to_owned()),
            view.call.to_owned(),
            view.kind.to_owned(),
            format_duration_ns(view.waited_ns),
            format_duration_ns(view.due_in_ns),
        ]);
    }
    finish(&rows) + &more(waiting.len(), "threads that wait", paint)
}

/// A line for those that a list leaves out.
fn more(all: usize, what: &str, paint: Paint) -> String {
    match all.saturating_sub(LISTED) {
        0 => String::new(),
        n => format!(
            "  {}\n",
            paint.ink(Ink::Dim, &format!("and {n} more {what} (--json lists all)"))
        ),
    }
}

fn processes_text(processes: &[ProcessView], paint: Paint) -> String {
    if processes.is_empty() {
        return String::new();
    }
    let mut rows = table(
        &["pid", "program", "threads", "calls", "bytes", "covered"],
        &[0, 2, 3, 4],
    );
    for process in processes.iter().take(LISTED) {
        let reason = process
            .reason
            .map_or_else(String::new, |reason| format!(": {reason}"));
        let rings = match (process.polled, process.unpolled, process.rings) {
            (true, _, _) => ", a ring is polled by the kernel: unseen",
            (_, true, _) => ", rings charged as they enter, instead of polled",
            (_, _, true) => ", rings charged as they enter",
            _ => "",
        };
        let loops: String = process
            .loops
            .iter()
            .map(|reason| format!(", event loop not served: {reason}"))
            .collect();
        let guarded = if process.guarded {
            ", under seccomp"
        } else {
            ""
        };
        let missed = match (process.sites_missed, process.trapping) {
            (_, true) => format!(
                ", what cannot be patched is trapped: {} so far",
                count(process.trapped, "call", "calls")
            ),
            (0, _) => String::new(),
            (n, _) => format!(", {} of libraries unseen", count(n, "call", "calls")),
        };
        let holes = match process.holes.as_slice() {
            [] => String::new(),
            names => format!(", not limited in part: {}", names.join(", ")),
        };
        let untrapped = if process.untrapped {
            ", code that could not be trapped: unseen"
        } else {
            ""
        };
        rows.add_row([
            process.pid.to_string(),
            process.program.clone(),
            process.threads.to_string(),
            process.calls.to_string(),
            bonsai_units::Bytes(process.bytes).human(),
            format!(
                "{}{missed}{holes}{untrapped}{rings}{loops}{guarded}{reason}",
                process.covered.about()
            ),
        ]);
    }
    finish(&rows) + &more(processes.len(), "processes", paint)
}

/// What is not covered; the same program for the same reason is one line.
fn uncovered_lines(uncovered: &[UncoveredView]) -> Vec<String> {
    let mut groups: BTreeMap<(bool, &str, &str), Vec<u32>> = BTreeMap::new();
    for view in uncovered {
        groups
            .entry((view.ended, &view.program, &view.reason))
            .or_default()
            .push(view.pid);
    }
    let lines = groups.into_iter().map(|((ended, program, reason), pids)| {
        let shown: Vec<String> = pids.iter().take(5).map(ToString::to_string).collect();
        let more = if pids.len() > 5 { ", ..." } else { "" };
        let ended = if ended { ", ended" } else { "" };
        format!(
            "not covered: {program} ({}{more}{ended}): {reason}",
            shown.join(", ")
        )
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(unit: &'static str, network: bool, asked: f64, got: Option<f64>) -> LimitView {
        LimitView {
            name: "x".to_owned(),
            setting: String::new(),
            unit,
            asked,
            got,
            burst: 1,
            level: 0,
            waits: Waits::default(),
            recent: Waits::default(),
            waiting_calls: Vec::new(),
            per_stream: false,
            streams: None,
            network,
        }
    }

    #[test]
    fn rates_have_the_units_of_their_limit() {
        assert_eq!(
            rates(&limit("bytes", false, 1e7, Some(9.99e6))),
            ["10 MB/s", "9.99 MB/s"]
        );
        assert_eq!(
            rates(&limit("bytes", true, 1e7, Some(0.0))),
            ["80 Mbit/s", "0 bit/s"]
        );
        assert_eq!(
            rates(&limit("calls", false, 100.0, Some(12.5))),
            ["100/s", "12.5/s"]
        );
        assert_eq!(rates(&limit("calls", false, 100.0, None)), ["100/s", "-"]);
    }

    #[test]
    fn the_same_program_for_the_same_reason_is_one_line() {
        let view = |pid, reason: &str, ended| UncoveredView {
            pid,
            program: "ping".to_owned(),
            reason: reason.to_owned(),
            ended,
        };
        let all = [view(7, "a", false), view(8, "a", false), view(9, "b", true)];
        assert_eq!(
            uncovered_lines(&all),
            [
                "not covered: ping (7, 8): a",
                "not covered: ping (9, ended): b"
            ]
        );
        let many: Vec<_> = (1..=7).map(|pid| view(pid, "a", false)).collect();
        assert_eq!(
            uncovered_lines(&many),
            ["not covered: ping (1, 2, 3, 4, 5, ...): a"]
        );
    }
}
