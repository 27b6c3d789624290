//! The programs of `tests/hosts/more.txt` in each root file system that has them.

use std::path::Path;

use conformance::Finished;

use super::{BURST, FILE, Host, LENGTH, RATE, in_each, is_named, larger_hosts, print_table};
use crate::fixture::scratch;

/// One line of the list.
struct Program<'a> {
    name: &'a str,
    command: &'a str,
}

fn programs(list: &str) -> Vec<Program<'_>> {
    let lines = list
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| match line.split_once(": ") {
            Some((name, command)) => Program { name, command },
            None => panic!("more.txt: no `NAME: COMMAND`: {line}"),
        })
        .collect()
}

/// Bytes that were charged as read, by what `bonsai run --json` wrote at the end.
fn charged(finished: &Finished) -> Option<u64> {
    // Behind what the program wrote last, which may have ended no line.
    let (_, json) = finished.stderr.split_once("{\"schema\"")?;
    let json = format!("{{\"schema\"{}", json.lines().next()?);
    let counters: serde_json::Value = serde_json::from_str(&json).ok()?;
    let classes = counters["classes"].as_array()?;
    let read = classes.iter().find(|class| class["class"] == "read");
    Some(read.and_then(|class| class["bytes"].as_u64()).unwrap_or(0))
}

/// Part of the limit that a program had, or why it had none; an error where the limit did not hold and nothing was said.
#[expect(clippy::cast_precision_loss, reason = "some megabytes")]
fn verdict(program: &Program, finished: &Finished) -> Result<String, String> {
    let name = program.name;
    let Some(read) = charged(finished).filter(|_| finished.status.success()) else {
        return Err(format!("{name}: {finished:?}"));
    };
    // A program may take long to start, so that its time alone would say nothing.
    let least = (read.max(LENGTH) - BURST - 1) as f64 / RATE as f64;
    let rate = least / finished.elapsed.as_secs_f64();
    let is_whole = read >= LENGTH;
    if is_whole && rate <= 1.02 {
        return Ok(format!("{name} {rate:.2}"));
    }
    if is_named(finished) {
        return Ok(format!("{name} named"));
    }
    Err(format!(
        "{name}: {read} of {LENGTH} bytes charged, {rate:.1} of the limit, and not named: {finished:?}"
    ))
}

#[test]
fn more_programs_of_each_release_are_limited_or_named() {
    let test = "more_programs_of_each_release_are_limited_or_named";
    let Some(hosts) = larger_hosts(test) else {
        return;
    };
    let text = std::fs::read_to_string(scratch().join("hosts.data")).expect("a file");
    for (end, before, after) in [("pas", "{ ", " } begin end.\n"), ("xml", "<a>", "</a>\n")] {
        let wrapped = format!("{before}{text}{after}");
        std::fs::write(scratch().join(format!("hosts.data.{end}")), wrapped).expect("a file");
    }
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hosts/more.txt");
    let list = std::fs::read_to_string(list).expect("the list is there");
    let programs = programs(&list);
    let only = std::env::var("BONSAI_HOSTS_PROGRAMS").unwrap_or_default();
    let only: Vec<&str> = only.split_whitespace().collect();
    let try_all = |host: &Host| -> (Vec<String>, Vec<String>) {
        let (mut said, mut faults) = (Vec::new(), Vec::new());
        for program in &programs {
            let word = program.name.split([' ', ',']).next().unwrap_or_default();
            let is_wanted = only.is_empty() || only.contains(&word);
            if !is_wanted || !host.has_program(word) {
                continue;
            }
            let command = format!("{{ {}\n}} >/run/out", program.command);
            let finished = host.limited(&command, &[FILE]);
            let finished = finished.map_err(|error| format!("{}: {error}", program.name));
            match finished.and_then(|finished| verdict(program, &finished)) {
                Ok(verdict) => said.push(verdict),
                Err(fault) => {
                    eprintln!("{}: {fault}", host.release);
                    faults.push(format!("{}: {fault}", host.release));
                }
            }
        }
        (said, faults)
    };
    let found = in_each(&hosts, try_all);
    let lines: Vec<String> = hosts
        .iter()
        .zip(&found)
        .map(|(host, (said, _))| {
            format!("{} ({}): {}\n", host.release, said.len(), said.join(", "))
        })
        .collect();
    print_table(&lines);
    let faults: Vec<&String> = found.iter().flat_map(|(_, faults)| faults).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}
