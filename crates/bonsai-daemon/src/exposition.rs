//! Text formats of metrics: OpenMetrics 1.0 for a client that asks for it, as Prometheus does, and the older format of Prometheus
//! for all others, such as `promtool check metrics` and agents that know no other.
//!
//! The two differ in the name of a counter's description (with `_total` in the older format), and in the end of the text.

use std::collections::BTreeMap;
use std::fmt::Write;

const OPEN: &str = "application/openmetrics-text";

/// A text of OpenMetrics in the format that a client's `Accept` asks for, with its content type.
#[must_use]
pub fn accepted(accept: Option<&str>, open: String) -> (&'static str, String) {
    if accept.is_some_and(is_open) {
        return (
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            open,
        );
    }
    ("text/plain; version=0.0.4; charset=utf-8", plain(&open))
}

/// Tells whether `Accept` names OpenMetrics, other than with a weight of 0.
fn is_open(accept: &str) -> bool {
    accept.split(',').any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_named = parts
            .next()
            .is_some_and(|kind| kind.eq_ignore_ascii_case(OPEN));
        let is_refused = parts.any(|part| {
            let weight = part.strip_prefix("q=").and_then(|q| q.parse::<f64>().ok());
            weight == Some(0.0)
        });
        is_named && !is_refused
    })
}

/// The older format.
fn plain(open: &str) -> String {
    // The end of a family's samples, and its type.
    let suffixed = |line: &str| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        let of_it = match kind {
            "counter" => ("_total", "counter"),
            "info" => ("_info", "gauge"),
            _ => return None,
        };
        Some((name.to_owned(), of_it))
    };
    let suffixed: BTreeMap<String, (&str, &str)> = open.lines().filter_map(suffixed).collect();
    let mut text = String::with_capacity(open.len());
    for line in open.lines() {
        let is_of = |word| Some((word, line.strip_prefix(word)?.split_once(' ')?));
        let described = is_of("# HELP ").or_else(|| is_of("# TYPE "));
        let described = described.and_then(|(word, (name, rest))| {
            let (end, kind) = *suffixed.get(name)?;
            let rest = if word == "# TYPE " { kind } else { rest };
            Some(format!("{word}{name}{end} {rest}"))
        });
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        let _ = writeln!(text, "{}", described.as_deref().unwrap_or(line));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP bonsai_calls Calls.\n# TYPE bonsai_calls counter\nbonsai_calls_total{service=\"# EOF\"} 3\n\
                        # HELP bonsai_rate_bytes Rate.\n# TYPE bonsai_rate_bytes gauge\n# UNIT bonsai_rate_bytes bytes\n\
                        bonsai_rate_bytes 2.0\n# HELP bonsai_build Version.\n# TYPE bonsai_build info\nbonsai_build_info{version=\"1\"} 1\n# EOF\n";

    #[test]
    fn a_client_gets_the_format_that_it_asks_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5";
        for open in [
            prometheus,
            "application/openmetrics-text",
            "text/plain, Application/OpenMetrics-Text; q=1",
        ] {
            let (kind, text) = accepted(Some(open), TEXT.to_owned());
            assert!(kind.starts_with(OPEN), "{open}");
            assert_eq!(text, TEXT);
        }
        for other in [
            None,
            Some("*/*"),
            Some("text/plain;version=0.0.4"),
            Some("application/openmetrics-text;q=0, */*"),
        ] {
            let (kind, text) = accepted(other, TEXT.to_owned());
            assert_eq!(
                kind, "text/plain; version=0.0.4; charset=utf-8",
                "{other:?}"
            );
            let expected = "# HELP bonsai_calls_total Calls.\n# TYPE bonsai_calls_total counter\n\
                            bonsai_calls_total{service=\"# EOF\"} 3\n# HELP bonsai_rate_bytes Rate.\n\
                            # TYPE bonsai_rate_bytes gauge\nbonsai_rate_bytes 2.0\n# HELP bonsai_build_info Version.\n\
                            # TYPE bonsai_build_info gauge\nbonsai_build_info{version=\"1\"} 1\n";
            assert_eq!(text, expected, "{other:?}");
        }
    }
}
