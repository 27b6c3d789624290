//! The page as HTML: one section, one function. It needs nothing but itself.

use bonsai_units::{Bytes, format_duration_ns};

use crate::observed::Observed;
use crate::page::Row;
use crate::plots;
use crate::record::Record;
use crate::summary::{SETTLE_NS, Summary, WINDOW_NS, limit_text, percent};
use crate::terminal::mbit;

/// The whole page.
///
/// # Errors
/// A plot cannot be drawn.
pub(crate) fn page(
    record: &Record,
    observed: &Observed,
    summary: &Summary,
    script: &str,
) -> anyhow::Result<String> {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Bonsai: a video server beside a backup</title>\n<style>\n{}</style>\n<body>\n",
        include_str!("page.css")
    );
    page.push_str(&opening(record, observed, summary));
    page.push_str(&throughput(record, observed)?);
    page.push_str(&numbers(summary));
    page.push_str(&changes(record, summary)?);
    page.push_str(&waits(record, observed)?);
    page.push_str(&commands(record, script));
    page.push_str(&coverage(record, observed));
    page.push_str(&method(record, observed));
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

fn opening(record: &Record, observed: &Observed, summary: &Summary) -> String {
    let need = record.film_rate as f64 * record.players.len() as f64;
    let mut text = format!(
        "<h1>Bonsai: a video server beside a backup</h1>\n\
         <p class=\"lead\">nginx sends a film to {} players, which need {} Mbit/s together. On the same link of \
         100&nbsp;Mbit/s, a backup of {} rsync processes takes what it can get. Neither program knows of Bonsai; \
         the limit on the backup is set, tightened, lifted and set again while both run.</p>\n",
        record.players.len(),
        mbit(need),
        copies(record, observed),
    );
    let tile = |key: &str, title: &str| {
        summary.phase(key).map_or_else(String::new, |phase| {
            let bad = if phase.frozen >= 0.01 || phase.video < 0.98 * need { " bad" } else { "" };
            format!(
                "<div class=\"tile{bad}\"><small>{title}</small><b>{} Mbit/s</b><small>pictures stood still {} \
                 of the time</small></div>\n",
                mbit(phase.video),
                percent(phase.frozen),
            )
        })
    };
    let limit = summary
        .phase("protected")
        .map_or_else(String::new, |phase| limit_text(phase.bulk));
    text.push_str(&format!(
        "<div class=\"tiles\">\n{}{}{}</div>\n",
        tile("alone", "The video alone"),
        tile("disturbed", "Disturbed: backup beside it"),
        tile(
            "protected",
            &format!("Protected: backup limited to {limit}")
        ),
    ));
    text.push_str("<ul class=\"findings\">\n");
    for finding in &summary.findings {
        let class = if finding.holds {
            ""
        } else {
            " class=\"missed\""
        };
        text.push_str(&format!("<li{class}>{}</li>\n", escaped(&finding.text)));
    }
    text.push_str("</ul>\n");
    if !summary.holds() {
        text.push_str(
            "<p class=\"bad\">This time the demonstration does not show all that it should.</p>\n",
        );
    }
    if let Some(link) = observed.fact("link") {
        text.push_str(&format!(
            "<p class=\"muted\">The link is {}.</p>\n",
            escaped(link)
        ));
    }
    text
}

fn throughput(record: &Record, observed: &Observed) -> anyhow::Result<String> {
    Ok(format!(
        "<h2>What arrived</h2>\n<div class=\"legend\">\
         <span style=\"--key:var(--video)\">video, all players together</span>\
         <span style=\"--key:var(--bulk)\">backup, all {} rsyncs together</span>\
         <span class=\"dash\" style=\"--key:var(--ink)\">limit on the backup</span></div>\n\
         <figure>{}<figcaption>Throughput in windows of {} ms, counted by the receivers as they \
         read. Whoever waits for a lost packet then gets what came behind it at once, so that a short window may show \
         more than the link carries.</figcaption></figure>\n\
         <h2>What the viewers saw</h2>\n<div class=\"legend\">\
         <span class=\"block\" style=\"--key:var(--video)\">the picture moves</span>\
         <span class=\"block\" style=\"--key:var(--frozen)\">it stands still: nothing left to play</span></div>\n\
         <figure>{}<figcaption>A player buffers at most 1 s of film, as for a live stream, and starts again with \
         half a second.</figcaption></figure>\n",
        copies(record, observed),
        plots::throughput(record)?,
        plots::COARSE_NS / 1_000_000,
        plots::pictures(record)?,
    ))
}

fn numbers(summary: &Summary) -> String {
    let header = [
        "phase",
        "limit on the<br>backup",
        "backup received,<br>Mbit/s, mean",
        "off by",
        "the same by<br>bonsai status",
        "video received,<br>Mbit/s, median",
        "frame gap,<br>p99",
        "pictures frozen",
    ];
    let mut table = String::from("<h2>In numbers</h2>\n<div class=\"scroll\"><table>\n<tr>");
    table.extend(header.map(|name| format!("<th>{name}</th>")));
    table.push_str("</tr>\n");
    for phase in &summary.phases {
        let [_, limit, bulk, off, video, gap, frozen] = Row::of(phase).cells;
        let got = phase.bulk_got.map_or_else(|| "-".to_owned(), mbit);
        let times = match phase.freezes {
            0 => String::new(),
            1 => " (once)".to_owned(),
            times => format!(" ({times} times)"),
        };
        let class = if phase.frozen >= 0.01 {
            " class=\"bad\""
        } else {
            ""
        };
        table.push_str(&format!(
            "<tr><td>{}</td><td>{limit}</td><td>{bulk}</td><td>{off}</td><td>{got}</td><td>{video}</td>\
             <td>{gap}</td><td{class}>{frozen}{times}</td></tr>\n",
            escaped(&phase.title),
        ));
    }
    table.push_str(&format!(
        "</table></div>\n<p class=\"muted\">Each phase without its first {} s; the median is over windows of {} ms. The film has 25 frames per second: one \
         every 40 ms. After a disturbance the players fill their buffers again, and get more than they play.</p>\n",
        SETTLE_NS / 1_000_000_000,
        WINDOW_NS / 1_000_000,
    ));
    table
}

fn changes(record: &Record, summary: &Summary) -> anyhow::Result<String> {
    if summary.changes.is_empty() {
        return Ok(String::new());
    }
    let mut text = format!(
        "<h2>Changed while it runs</h2>\n<figure>{}<figcaption>The backup as received, in windows of {} ms, around \
         each <code>bonsai set</code>.</figcaption></figure>\n<p>A new limit holds for the next byte that a program \
         sends. The receiver sees it once what was sent before has come through the queues of the kernel and of \
         the link:</p>\n<ul>\n",
        plots::changes(record, summary)?,
        plots::FINE_NS / 1_000_000,
    );
    for change in &summary.changes {
        let command = escaped(&record.phases[change.phase].command);
        let seen = match change.seen_within_ns {
            None => "not seen by the receiver until the next change".to_owned(),
            Some(ns) => format!("seen by the receiver within {}", format_duration_ns(ns)),
        };
        let underway = match change.underway {
            0..100_000 => String::new(),
            bytes => format!(
                "; {} beyond the new limit were on their way already",
                Bytes(bytes).human()
            ),
        };
        text.push_str(&format!(
            "<li><code>{command}</code>: {seen}{underway}</li>\n"
        ));
    }
    Ok(text + "</ul>\n")
}

fn waits(record: &Record, observed: &Observed) -> anyhow::Result<String> {
    let Some(plot) = plots::waits(&observed.stats)? else {
        return Ok(String::new());
    };
    let waiting = observed
        .stats
        .calls
        .iter()
        .filter(|call| call.waits.count > 0);
    let (mut count, mut total_ns, mut names) = (0, 0, Vec::new());
    for call in waiting {
        count += call.waits.count;
        total_ns += call.waits.total_ns;
        if !names.contains(&call.call.as_str()) {
            names.push(&call.call);
        }
    }
    Ok(format!(
        "<h2>How the backup was held back</h2>\n<p>Calls that came too early waited: {count} waits of {}, {} in all \
         processes together, the longest {}. Waiting is first come, first served over all processes of the service: \
         with {} of them in line, each waits for its turn.</p>\n<figure>{plot}<figcaption>Every wait that Bonsai \
         imposed on the backup, from <code>bonsai stats backup --json</code>.</figcaption></figure>\n",
        escaped(&names.join(", ")),
        format_duration_ns(total_ns),
        format_duration_ns(observed.stats.longest_wait_ns),
        copies(record, observed),
    ))
}

fn commands(record: &Record, script: &str) -> String {
    let mut text = String::from("<h2>The commands</h2>\n<pre>");
    let lengths = record.phases.iter().map(|phase| phase.command.len());
    let longest = lengths.max().unwrap_or_default();
    for phase in &record.phases {
        let at = (phase.start_ns - record.phases[0].start_ns) as f64 / 1e9;
        let pad = " ".repeat(longest - phase.command.len());
        let (command, title) = (escaped(&phase.command), escaped(&phase.title));
        text.push_str(&format!("$ {command}{pad}  # {at:.0} s: {title}\n"));
    }
    text + &format!(
        "</pre>\n<p><code>backup.sh</code>:</p>\n<pre>{}</pre>\n",
        escaped(script)
    )
}

fn coverage(record: &Record, observed: &Observed) -> String {
    let mut text = String::from("<h2>What was covered, and what was not</h2>\n<ul>\n");
    let mut said = false;
    for name in ["vod", "backup"] {
        let last = (0..record.phases.len())
            .rev()
            .find_map(|phase| observed.service(phase, name));
        let Some(service) = last else { continue };
        let patched = service
            .processes
            .iter()
            .filter(|process| process.covered == "patched")
            .count();
        text.push_str(&format!(
            "<li><b>{}</b>: Bonsai was in {} of {} processes; in {patched} of them also in the calls that libc makes \
             inside itself.</li>\n",
            escaped(name),
            service.processes.len(),
            service.processes.len() + service.uncovered.len(),
        ));
        let mut bad = |line: String| {
            said = true;
            text.push_str(&format!("<li class=\"bad\">{}</li>\n", escaped(&line)));
        };
        for process in &service.processes {
            if let Some(reason) = &process.reason {
                bad(format!("{name}: {}: {reason}", process.program));
            }
        }
        for process in &service.uncovered {
            bad(format!(
                "{name}: {} was not covered: {}",
                process.program, process.reason
            ));
        }
        for calls in &service.unshaped {
            bad(format!(
                "{name}: {} calls without a decision: {}",
                calls.calls, calls.about
            ));
        }
    }
    let written = observed.audit.total.written;
    if let (Some(kernel), Some(unseen)) = (written.kernel, written.unseen) {
        let share = if kernel == 0 {
            0.0
        } else {
            unseen as f64 / kernel as f64
        };
        text.push_str(&format!(
            "<li>By the kernel's own count the backup wrote {}; {} of that went past Bonsai ({}).</li>\n",
            Bytes(kernel).human(),
            Bytes(unseen).human(),
            percent(share),
        ));
    }
    if !said {
        text.push_str("<li>No process and no call went uncovered.</li>\n");
    }
    text + "</ul>\n<p class=\"muted\">From <code>bonsai status --json</code> and <code>bonsai audit backup \
            --json</code>.</p>\n"
}

fn method(record: &Record, observed: &Observed) -> String {
    let mut text = format!(
        "<h2>How it was measured</h2>\n<p>The players and the receiver of the backup's connections are one program, \
         <code>bonsai-demo measure</code>, which counts bytes by bins of {} ms as it reads them. A player asks for more \
         when it has room in its buffer; its socket buffers 256 KiB. The files have no blocks on the disk, so that only \
         the link is short. One run, not a benchmark: medians and spreads over many runs are what <code>make bench</code> \
         is for.</p>\n<table class=\"facts\">\n",
        record.bin_ns / 1_000_000
    );
    for (name, value) in &observed.facts {
        text.push_str(&format!(
            "<tr><td>{}</td><td>{}</td></tr>\n",
            escaped(name),
            escaped(value)
        ));
    }
    text + "</table>\n"
}

/// How many copies the backup makes at once.
fn copies(record: &Record, observed: &Observed) -> usize {
    let service = (0..record.phases.len())
        .rev()
        .find_map(|phase| observed.service(phase, "backup"));
    service.map_or(0, |service| {
        service
            .processes
            .iter()
            .filter(|process| process.program == "rsync")
            .count()
    })
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::{Bin, Call, Service, Stats, Status, Uncovered, Waits};
    use crate::summary::tests::good;

    fn observed() -> Observed {
        let bin = |from_ns, to_ns, count| Bin {
            from_ns,
            to_ns,
            count,
        };
        let histogram = vec![
            bin(0, Some(1_000), 1),
            bin(98_304_000, Some(131_072_000), 3),
        ];
        let uncovered = Uncovered {
            program: "a<b>".to_owned(),
            reason: "it is static".to_owned(),
        };
        let service = Service {
            name: "backup".to_owned(),
            uncovered: vec![uncovered],
            ..Service::default()
        };
        let call = Call {
            call: "write".to_owned(),
            waits: Waits {
                count: 4,
                total_ns: 300_000_000,
                histogram,
            },
        };
        Observed {
            phases: vec![
                None,
                Some(Status {
                    services: vec![service],
                }),
            ],
            stats: Stats {
                calls: vec![call],
                longest_wait_ns: 100_000_000,
            },
            facts: vec![("kernel".to_owned(), "Linux & more".to_owned())],
            ..Observed::default()
        }
    }

    #[test]
    fn the_page_needs_nothing_but_itself() {
        let (record, observed) = (good(), observed());
        let summary = Summary::of(&record, &observed);
        let html = page(&record, &observed, &summary, "rsync <x>").expect("a page");
        let own = html.replace("http://www.w3.org/2000/svg", "");
        for outside in [
            "http:", "https:", "src=", "href=", "url(", "@import", "<script",
        ] {
            assert!(!own.contains(outside), "{outside}");
        }
        let count = |what: &str| html.matches(what).count();
        assert_eq!((count("<svg"), count("</svg>")), (4, 4));
        for tag in ["figure", "table", "ul", "div", "pre"] {
            assert_eq!(
                count(&format!("<{tag}")),
                count(&format!("</{tag}>")),
                "{tag}"
            );
        }
        for text in [
            "bonsai &lt;set&gt; &amp; co",
            "rsync &lt;x&gt;",
            "Linux &amp; more",
            "backup: a&lt;b&gt; was not covered: it is static",
            "4 waits of write, 300 ms in all",
        ] {
            assert!(html.contains(text), "{text}");
        }
        assert!(!html.contains("went uncovered"));
        assert!(!html.contains("does not show"));
    }

    #[test]
    fn every_colour_of_the_plots_has_one_for_the_dark() {
        let (record, observed) = (good(), observed());
        let summary = Summary::of(&record, &observed);
        let html = page(&record, &observed, &summary, "").expect("a page");
        let (style, body) = html.split_once("</style>").expect("a style sheet");
        let mut seen = 0;
        for attribute in ["fill=\"#", "stroke=\"#"] {
            for (at, _) in body.match_indices(attribute) {
                let named = &body[at..at + attribute.len() + 7];
                assert!(style.contains(&format!("svg [{named}]")), "{named}");
                seen += 1;
            }
        }
        assert!(seen > 100, "{seen}");
    }

    #[test]
    fn a_demonstration_that_failed_says_so() {
        let mut record = good();
        record.video.fill(0);
        let summary = Summary::of(&record, &Observed::default());
        let html = page(&record, &Observed::default(), &summary, "").expect("a page");
        assert!(html.contains("does not show all that it should"));
        assert!(html.contains("<li class=\"missed\">"));
        // Nobody waited, so there is no plot of waits.
        assert_eq!(html.matches("<svg").count(), 3);
    }
}
