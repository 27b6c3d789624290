//! Choices, one by one, against those of the simulator Sabre on traces of real networks. `BONSAI_DATA` names
//! the folder with `abr/`; without it, that is `shared/data` beside the workspace.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use bonsai_media::adapt::{AfterAbandon, Fetch, Movie, Rule, Settings, Trace, simulate};
use serde::Deserialize;

/// Sabre prints six digits after the point.
const ROUNDING: f64 = 1e-6;

#[derive(Deserialize)]
struct Expected {
    network: String,
    algorithm: Rule,
    abandon: bool,
    choices: Vec<Fetch>,
    metrics: BTreeMap<String, f64>,
}

#[test]
fn every_run_chooses_as_sabre_does() {
    let Some(folder) = data() else {
        skip(
            "sabre::every_run_chooses_as_sabre_does",
            "no abr/expected.jsonl in BONSAI_DATA or ../shared/data",
        );
        return;
    };
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect("a file of the data");
    let movie: Movie = serde_json::from_str(&read("movie.json")).expect("a film");
    let (mut runs, mut wrong) = (0, Vec::new());
    for line in read("expected.jsonl").lines() {
        let expected: Expected = serde_json::from_str(line).expect("a run");
        let network = read(&format!("networks/{}", expected.network));
        let trace: Trace = serde_json::from_str(&network).expect("a network");
        runs += 1;
        wrong.extend(difference(&movie, &trace, &expected));
    }
    assert!(runs > 0, "there are runs to compare with");
    assert!(
        wrong.is_empty(),
        "{} of {runs} runs differ: {wrong:#?}",
        wrong.len()
    );
}

/// Where a run differs first, in a line.
fn difference(movie: &Movie, trace: &Trace, expected: &Expected) -> Option<String> {
    let settings = Settings {
        rule: expected.algorithm,
        abandon: expected.abandon,
        after_abandon: AfterAbandon::Ask,
        ..Settings::default()
    };
    let name = format!(
        "{} {} abandon={}",
        expected.network, expected.algorithm, expected.abandon
    );
    let run = simulate(movie, trace, &settings).expect("a run");
    if run.choices != expected.choices {
        let pairs = run.choices.iter().zip(&expected.choices);
        let same = pairs.take_while(|(here, there)| here == there).count();
        return Some(format!(
            "{name}: download {same}: {:?} here, {:?} there",
            run.choices.get(same),
            expected.choices.get(same)
        ));
    }
    let sabre = serde_json::to_value(&run.sabre).expect("numbers");
    let metrics = expected.metrics.iter();
    let mut apart = metrics.filter_map(|(metric, there)| {
        let here = sabre.get(metric).and_then(serde_json::Value::as_f64);
        let same = here.is_some_and(|here| (here - there).abs() <= ROUNDING);
        (!same).then(|| format!("{name}: {metric}: {here:?} here, {there} there"))
    });
    apart.next()
}

fn data() -> Option<PathBuf> {
    let folder = std::env::var_os("BONSAI_DATA").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")),
        PathBuf::from,
    );
    let folder = folder.join("abr");
    folder.join("expected.jsonl").is_file().then_some(folder)
}

/// Says that a test cannot run here, and why.
fn skip(test: &str, why: &str) {
    eprintln!("SKIP: {test}: {why}");
    if let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") {
        let mut log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(log)
            .expect("the log of skipped tests");
        writeln!(log, "{test}: {why}").expect("the log of skipped tests");
    }
}
