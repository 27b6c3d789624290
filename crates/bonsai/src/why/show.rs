//! The sentence and the numbers it is judged by: as text and as JSON.

use bonsai_services::observe::Head;
use bonsai_units::{Bytes, format_duration_ns};
use serde::Serialize;

use super::collect::Evidence;
use super::judge::{Cause, Queues, Verdict};
use super::say::percent;
use crate::output::{Ink, Paint, count, finish, table};

/// What `bonsai why --json` prints.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Document {
    /// Version and time.
    #[serde(flatten)]
    head: Head,
    /// The service.
    service: String,
    /// The cause: `bonsai`, `disk`, `network`, `cpu`, `idle`, `itself` or `gone`.
    cause: Cause,
    /// The answer in one sentence.
    sentence: String,
    /// For how long it was watched, ns.
    window_ns: u64,
    /// How often it was looked meanwhile.
    looks: u32,
    /// Threads that were not idle throughout, whose time `rows` is about; all, if
    /// all were.
    threads: usize,
    /// Threads that were idle throughout.
    idle_threads: usize,
    /// Where the time went.
    rows: Vec<Row>,
    /// Pressure (PSI) in the window.
    pressure: Vec<PressureRow>,
    /// Queues of its TCP connections; `null` if they may not be known.
    queues: Option<Queues>,
    /// Sources that are missing here, in words.
    missing: Vec<String>,
}

/// What a part of the threads' time went to.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// What: `limit`, `lifted_limit`, `disk`, `network_send`, `network_answer`,
    /// `cpu_running`, `cpu_waiting`, `clients`, `inside` or `unknown`.
    what: &'static str,
    /// The limit, where it is one.
    limit: Option<String>,
    /// The time, ns; `null` where the source is missing or may not be read.
    ns: Option<u64>,
    /// Its share of the time of these threads, 0 to 1.
    share: Option<f64>,
    /// Where the number comes from.
    source: String,
}

/// The share of the window in which somebody had to wait for a resource.
#[derive(Clone, Debug, Serialize)]
struct PressureRow {
    /// `io` or `cpu`.
    resource: &'static str,
    /// On the machine; `null` where the kernel does not say.
    machine: Option<f64>,
    /// In the service's control group; `null` also where it has none of its own.
    group: Option<f64>,
}

/// The document of a judgement.
pub(super) fn document(evidence: &Evidence, verdict: &Verdict) -> Document {
    let seen = &evidence.seen;
    let pressure = evidence.pressure.iter().map(|p| PressureRow {
        resource: p.resource,
        machine: p.machine,
        group: p.group,
    });
    Document {
        head: Head::now(),
        service: seen.service.clone(),
        cause: verdict.cause,
        sentence: verdict.sentence.clone(),
        window_ns: seen.window_ns,
        looks: evidence.looks,
        threads: verdict.engaged,
        idle_threads: verdict.idle,
        rows: rows(evidence, verdict),
        pressure: pressure.collect(),
        queues: seen.queues,
        missing: missing(evidence),
    }
}

fn rows(evidence: &Evidence, verdict: &Verdict) -> Vec<Row> {
    let row = |what, limit: Option<String>, ns: Option<u64>, source: &str| Row {
        what,
        limit,
        ns,
        share: ns.map(|ns| verdict.share(ns)),
        source: source.to_owned(),
    };
    // What nobody could see is not zero.
    let by_calls = |what, ns| match (evidence.calls_hidden, ns) {
        (false, _) => row(what, None, Some(ns), "the calls that threads were in"),
        (true, 0) => row(what, None, None, "calls that may not be read"),
        (true, _) => row(what, None, Some(ns), "at least; some calls may not be read"),
    };
    let (seen, spent) = (&evidence.seen, &verdict.spent);
    let mut rows: Vec<Row> = Vec::new();
    for limit in &seen.limits {
        let name = format!("{}={}", limit.name, limit.rate);
        rows.push(row(
            "limit",
            Some(name),
            Some(limit.waited_ns),
            "the ledger",
        ));
    }
    if seen.lifted_ns > 0 {
        rows.push(row(
            "lifted_limit",
            None,
            Some(seen.lifted_ns),
            "the ledger",
        ));
    }
    let disk = match evidence.delay_accounting {
        Some(true) => "delay accounting, and calls on files",
        Some(false) => "state D and calls on files; delay accounting is off",
        None => "state D and calls on files; there is no delay accounting",
    };
    let ran = if evidence.scheduler_counts {
        "the scheduler (schedstat)"
    } else {
        "clock ticks"
    };
    rows.push(row("disk", None, Some(spent.any_disk_ns()), disk));
    for (what, ns) in [
        ("network_send", spent.peer_reads_ns),
        ("network_answer", spent.peer_answers_ns),
    ] {
        rows.push(by_calls(what, ns));
    }
    rows.push(row("cpu_running", None, Some(spent.ran_ns), ran));
    let queued = spent.queued_ns;
    let source = queued.map_or(
        "not counted by this kernel",
        |_| "the scheduler (schedstat)",
    );
    rows.push(row("cpu_waiting", None, queued, source));
    rows.push(by_calls("clients", spent.clients_ns));
    rows.push(by_calls("inside", spent.inside_ns));
    if spent.unknown_ns > 0 {
        rows.push(row(
            "unknown",
            None,
            Some(spent.unknown_ns),
            "never seen blocked, or hidden",
        ));
    }
    rows
}

/// Processes that are not covered, and sources that are missing here, each with what would change that.
fn missing(evidence: &Evidence) -> Vec<String> {
    let mut missing = evidence.uncovered.clone();
    let mut say = |text: &str| missing.push(text.to_owned());
    match evidence.delay_accounting {
        Some(true) => {}
        Some(false) => say(
            "delay accounting is off, so time on the disk is only sampled \
             (sysctl kernel.task_delayacct=1 counts it)",
        ),
        None => say("this kernel has no delay accounting: time on the disk is only sampled"),
    }
    if !evidence.scheduler_counts {
        say(
            "this kernel has no schedstat: CPU time is in steps of 10 ms, waiting for a CPU sampled",
        );
    }
    if evidence.calls_hidden {
        say(
            "the calls of some threads may not be read (another user, or \
             kernel.yama.ptrace_scope): what they sleep for is not known",
        );
    }
    if evidence.seen.queues.is_none() {
        say("the sockets of some processes may not be read: their queues are not known");
    }
    if evidence.crowded {
        say("there are threads beyond the pages of the ledger: who of them waits is not known");
    }
    if evidence.pressure.iter().all(|p| p.group.is_none()) {
        say("the service has no control group (version 2) of its own with pressure");
    }
    for pressure in &evidence.pressure {
        if pressure.machine.is_none() {
            let name = pressure.resource;
            missing.push(format!(
                "this kernel keeps no {name} pressure (psi=1 at its start)"
            ));
        }
    }
    missing
}

/// The document as text.
pub(super) fn text(document: &Document, paint: Paint) -> String {
    let mut text = format!("{}\n\n", paint.ink(Ink::Bold, &document.sentence));
    let mut rows = table(&["where the time went", "time", "share", "from"], &[1, 2]);
    for row in &document.rows {
        rows.add_row([
            label(row),
            row.ns.map_or_else(|| "-".to_owned(), format_duration_ns),
            row.share.map_or_else(|| "-".to_owned(), percent),
            row.source.clone(),
        ]);
    }
    text.push_str(&finish(&rows));
    let idle = match document.idle_threads {
        0 => String::new(),
        n => format!(
            "; {} idle throughout",
            count(n as u64, "more was", "more were")
        ),
    };
    let about = format!(
        "of {} in {}, looked at {} times{idle}",
        count(document.threads as u64, "thread", "threads"),
        format_duration_ns(document.window_ns),
        document.looks
    );
    text.push_str(&format!("  {}\n\n", paint.ink(Ink::Dim, &about)));
    text.push_str(&around(document));
    for line in &document.missing {
        text.push_str(&format!("  {}\n", paint.ink(Ink::Yellow, line)));
    }
    text
}

/// Pressure and connections.
fn around(document: &Document) -> String {
    let share = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), percent);
    let mut rows = table(&["pressure", "machine", "control group"], &[1, 2]);
    for row in &document.pressure {
        rows.add_row([
            row.resource.to_owned(),
            share(row.machine),
            share(row.group),
        ]);
    }
    let mut text = finish(&rows);
    if let Some(queues) = document.queues.filter(|queues| queues.connections > 0) {
        text.push_str(&format!(
            "  {}: {} in send queues, {} in receive queues\n",
            count(queues.connections, "TCP connection", "TCP connections"),
            Bytes(queues.unsent).human(),
            Bytes(queues.unread).human()
        ));
    }
    text
}

fn label(row: &Row) -> String {
    let words = match row.what {
        "limit" => return format!("limit {}", row.limit.as_deref().unwrap_or_default()),
        "lifted_limit" => "limits lifted meanwhile",
        "disk" => "disk",
        "network_send" => "network: peers that do not read",
        "network_answer" => "network: answers of peers",
        "cpu_running" => "CPU: working",
        "cpu_waiting" => "CPU: waiting for a free one",
        "clients" => "waiting for clients and input",
        "inside" => "timers, children, pipes, each other",
        _ => "not known",
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::collect::Pressure;
    use crate::why::judge::judge;
    use crate::why::judge::tests::{MS, S, limit, seen, thread};

    fn evidence() -> Evidence {
        let mut seen = seen(vec![thread(|t| {
            t.ran_ns = 100 * MS;
            t.unknown_ns = 900 * MS;
        })]);
        seen.limits = vec![limit("read", "1MB/s", 20 * MS)];
        seen.queues = Some(Queues::default());
        let pressure = |resource| Pressure {
            resource,
            machine: Some(0.5),
            group: Some(0.25),
        };
        Evidence {
            seen,
            looks: 9,
            calls_hidden: false,
            scheduler_counts: true,
            delay_accounting: Some(true),
            crowded: false,
            pressure: vec![pressure("io"), pressure("cpu")],
            uncovered: Vec::new(),
        }
    }

    #[test]
    fn what_has_no_source_is_no_zero() {
        let of = |evidence: &Evidence| document(evidence, &judge(&evidence.seen));
        let whole = of(&evidence());
        assert_eq!(whole.missing, Vec::<String>::new());
        assert!(whole.rows.iter().all(|row| row.ns.is_some()), "{whole:#?}");

        let mut bare = evidence();
        (bare.calls_hidden, bare.scheduler_counts, bare.crowded) = (true, false, true);
        bare.delay_accounting = None;
        bare.seen.queues = None;
        bare.seen.threads[0].queued_ns = None;
        for pressure in &mut bare.pressure {
            (pressure.machine, pressure.group) = (None, None);
        }
        let bare = of(&bare);
        let unknown: Vec<_> = bare.rows.iter().filter(|row| row.ns.is_none()).collect();
        let unknown: Vec<_> = unknown.iter().map(|row| row.what).collect();
        let wanted = [
            "network_send",
            "network_answer",
            "cpu_waiting",
            "clients",
            "inside",
        ];
        assert_eq!(unknown, wanted);
        // Delay accounting, schedstat, calls, sockets, crowd, the group, io and cpu.
        assert_eq!(bare.missing.len(), 8, "{:#?}", bare.missing);
        let text = text(&bare, Paint::stdout());
        assert!(
            bare.missing.iter().all(|line| text.contains(line)),
            "{text}"
        );
        assert_eq!(bare.rows[0].limit.as_deref(), Some("read=1MB/s"));
        assert_eq!((bare.window_ns, bare.looks), (S, 9));
    }
}
