//! The table of `bonsai doctor`, cell by cell: a program of each kind moves a megabyte
//! by each kind of call, under limits in each of the ways, and what becomes of it is what
//! the table says. `covered/kinds.rs` makes the programs, `covered/tried.rs` runs them.

mod kinds;
mod restricted;
mod tried;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use conformance::{Bonsai, finish, for_each, skip};
use serde_json::Value;

use self::tried::{Tried, tried};
use crate::fixture::{assert_none, bonsai, compiler};
use crate::probe::PATIENCE;

const BYTES: u64 = 1 << 20;
const RATE: u64 = 4_000_000;
const BURST: u64 = 40_000;
const LIMIT: &str = "write=4MB/s:burst=40kB";

/// How many are tried at a time: most of them wait for their limit.
const AT_A_TIME: usize = 6;

/// `ENOSYS`, as the programs say it.
const DENIED: &str = "denied 38";

/// How a 32-bit program ends that is denied its calls, and with them any other way to say
/// so: by an invalid instruction.
const SPEECHLESS: i32 = 128 + 4;

/// One cell, in the words of `bonsai doctor --json`.
#[derive(Clone, Debug)]
struct Cell {
    mode: String,
    program: String,
    calls: String,
    answer: String,
    /// What its program is told: to "wait" when it is ready, or before ("late").
    told: &'static str,
}

/// The cells of a `bonsai doctor --json`.
fn cells(doctor: &str) -> Vec<Cell> {
    let document: Value = serde_json::from_str(doctor).expect("JSON");
    let word = |cell: &Value, name: &str| cell[name].as_str().expect(name).to_owned();
    let table = document["machine"]["coverage"].as_array().expect("a table");
    let cell = |cell| Cell {
        mode: word(cell, "mode"),
        program: word(cell, "program"),
        calls: word(cell, "calls"),
        answer: word(cell, "answer"),
        told: "wait",
    };
    table.iter().map(cell).collect()
}

fn doctor(bonsai: &Bonsai) -> Vec<Cell> {
    let mut command = bonsai.command(&["doctor", "--json"]);
    cells(&finish(&mut command, PATIENCE).expect("doctor").stdout)
}

/// The library with instructions of its own, where everybody may read it.
fn library(test: &str, folder: &Path) -> PathBuf {
    let options = ["-shared", "-fPIC"];
    let made = compiler(test)
        .map(|gcc| gcc.make("libinside-covered.so", &["transparency/inside.c"], &options));
    let made = made
        .expect("found before")
        .unwrap_or_else(|error| panic!("{error}"));
    let library = folder.join("libinside-covered.so");
    std::fs::copy(made, &library).expect("a copy");
    kinds::set_mode(&library, 0o755);
    library
}

/// Whether a cell is true; why not.
fn judge(cell: &Cell, seen: &Tried) -> Result<(), String> {
    let least = Duration::from_secs_f64((BYTES - BURST) as f64 / RATE as f64 * 0.98);
    let is_whole = seen.code == Some(0) && seen.moved == BYTES;
    let is_denied = seen.said.contains(DENIED)
        || cell.program == "foreign" && seen.code == Some(SPEECHLESS) && seen.said.is_empty();
    let problem = match cell.answer.as_str() {
        "denied" if seen.moved != 0 => "it moved something",
        "denied" if !is_denied => "it is told otherwise",
        "denied" => return Ok(()),
        "refused"
            if seen
                .refused
                .as_ref()
                .is_none_or(|text| text.lines().count() != 1) =>
        {
            "it is not refused in one sentence"
        }
        // What ran already goes on as if nothing had been.
        "refused" if cell.mode == "attach" && !is_whole => "it did not go on",
        "refused" if cell.mode != "attach" && seen.moved != 0 => "it ran all the same",
        "refused" => return Ok(()),
        _ if !is_whole => "it failed",
        "limited" if seen.counted < BYTES => "too little is counted",
        "limited" if seen.took < least => "faster than its limit",
        "limited" if seen.is_named => "named as not covered",
        "named" if !seen.is_named => "not named",
        "named" | "audited" | "measured" if seen.counted >= BYTES => "limited after all",
        "audited" if seen.unseen < BYTES => "the audit does not show it",
        "measured" if seen.fetched.is_some_and(|bytes| bytes == 0) => "what came in is not told",
        "limited" | "named" | "audited" | "measured" => return Ok(()),
        _ => "no such answer",
    };
    Err(format!("{cell:?}: {problem}: {seen:?}"))
}

/// Tries cells, as the user and in the environment of `bonsai`.
fn try_all(test: &str, bonsai: &Bonsai, mut all: Vec<Cell>) {
    let folder = tempfile::tempdir().expect("a folder");
    kinds::open_to_all(folder.path());
    let library = library(test, folder.path());
    all.retain(|cell| cell.answer != "nothing");
    let mut programs = BTreeMap::new();
    for cell in &all {
        let kind = cell.program.as_str();
        programs.entry(kind.to_owned()).or_insert_with(|| {
            kinds::build(test, kind, folder.path())
                .inspect_err(|why| skip(test, &format!("{kind}: {why}")))
                .ok()
        });
    }
    let foreign = kinds::foreign_library(folder.path());
    let complaints = for_each(&all, AT_A_TIME, |cell| {
        let Some(program) = programs.get(&cell.program).and_then(Option::as_ref) else {
            return Ok(());
        };
        let library = match (cell.program.as_str(), &foreign) {
            ("foreign", Ok(foreign)) => foreign,
            ("foreign", Err(error)) => return Err(error.clone()),
            _ => &library,
        };
        judge(cell, &tried(bonsai, cell, program, library)?)
    });
    assert_none(&complaints);
}

#[test]
fn every_cell_of_the_table_is_true() {
    let test = "every_cell_of_the_table_is_true";
    if compiler(test).is_some() {
        let bonsai = bonsai();
        try_all(test, &bonsai, doctor(&bonsai));
    }
}

/// What the table cannot say: a ring that is made after somebody has attached.
#[test]
fn a_ring_that_is_made_after_attaching_is_limited() {
    let test = "a_ring_that_is_made_after_attaching_is_limited";
    if compiler(test).is_none() {
        return;
    }
    let cell = |program: &str| Cell {
        mode: "attach".to_owned(),
        program: program.to_owned(),
        calls: "ring".to_owned(),
        answer: "limited".to_owned(),
        told: "late",
    };
    let kinds = ["glibc", "musl", "static_glibc", "static_musl"];
    try_all(test, &bonsai(), kinds.map(cell).into());
}

/// Root may attach to what others may not.
#[test]
fn every_cell_is_true_for_an_ordinary_user() {
    let test = "every_cell_is_true_for_an_ordinary_user";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root can be two users");
    }
    if compiler(test).is_some() {
        let theirs = bonsai().of_user(kinds::OTHER);
        let theirs = theirs.unwrap_or_else(|error| panic!("{error}"));
        try_all(test, &theirs, doctor(&theirs));
    }
}
