//! The comparison as text.

use bonsai_units::Bytes;

use super::{Compared, Document, ProcessAudit, Side};
use crate::output::{Ink, Paint, finish, table};

/// The whole of it.
pub(super) fn text(document: &Document, paint: Paint) -> String {
    let header = ["pid", "program", "", "seen", "kernel", "unseen", "%"];
    let mut rows = table(&header, &[0, 3, 4, 5, 6]);
    let mut add = |pid: String, program: String, compared: &Compared| {
        for (name, side) in [("read", compared.read), ("written", compared.written)] {
            let first = name == "read";
            let once = |text: &str| {
                if first {
                    text.to_owned()
                } else {
                    String::new()
                }
            };
            rows.add_row(
                [once(&pid), once(&program), name.to_owned()]
                    .into_iter()
                    .chain(cells(side)),
            );
        }
    };
    for process in &document.processes {
        let covered = if process.covered {
            ""
        } else {
            " (not covered)"
        };
        add(
            process.pid.to_string(),
            format!("{}{covered}", process.program),
            &process.compared,
        );
    }
    add(
        String::new(),
        "the whole service".to_owned(),
        &document.total,
    );
    let mut text = format!(
        "{}\n{}",
        paint.ink(Ink::Bold, &document.service),
        finish(&rows)
    );
    let mut say = |line: String| text.push_str(&format!("\n  {line}\n"));
    for process in &document.processes {
        if let Some(reason) = &process.reason {
            say(format!(
                "Not covered: {} ({}): {reason}.",
                process.program, process.pid
            ));
        }
    }
    let calls = by_call(&document.processes);
    if !calls.is_empty() {
        say(format!("By call, live processes: {}.", calls.join(", ")));
    }
    let start: u64 = document
        .processes
        .iter()
        .map(|process| process.start_estimate)
        .sum();
    say(format!(
        "Starting the live processes' programs takes about {} of reading that no library can see.",
        Bytes(start).human()
    ));
    if !document.total_includes_ended {
        say(
            "The whole service is its live processes only: for those that have ended, nobody has the \
             kernel's count."
                .to_owned(),
        );
    }
    let unknown = Bytes(document.unknown_to_kernel).human();
    say(format!("{} ({unknown} so far).", document.limits));
    let mapped = &document.mapped;
    say(format!(
        "Neither counts what is read through mapped memory: at least {} so far, in {} page faults that \
         waited for storage.",
        Bytes(mapped.bytes).human(),
        mapped.faults
    ));
    text
}

fn cells(side: Side) -> [String; 4] {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), |b| Bytes(b).human());
    let share = side
        .unseen_percent
        .map_or_else(|| "-".to_owned(), |share| format!("{share:.2}"));
    [
        bytes(Some(side.seen)),
        bytes(side.kernel),
        bytes(side.unseen),
        share,
    ]
}

/// The calls of all processes with their bytes, the most first.
fn by_call(processes: &[ProcessAudit]) -> Vec<String> {
    let mut sums: Vec<(&str, &str, u64)> = Vec::new();
    for call in processes.iter().flat_map(|process| &process.calls) {
        match sums
            .iter_mut()
            .find(|sum| (sum.0, sum.1) == (call.call, call.kind))
        {
            Some(sum) => sum.2 += call.bytes,
            None => sums.push((call.call, call.kind, call.bytes)),
        }
    }
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.2));
    sums.iter()
        .map(|(call, kind, bytes)| format!("{call} ({kind}) {}", Bytes(*bytes).human()))
        .collect()
}
