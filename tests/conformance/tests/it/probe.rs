//! A program of `c/transparency`, bare and as a service.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use conformance::{Bonsai, Counters, Finished, finish};

use crate::fixture::{bonsai, compiler};

/// Longer than any of them takes; each ends itself before.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How the interposer enters.
pub(crate) const DOORS: [(&str, &[&str]); 2] =
    [("patched", &[]), ("exported symbols", &["--no-patch"])];

/// A program and what it is run with.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) folder: Option<PathBuf>,
    /// Set where it reads or writes by instructions of its own.
    pub(crate) goes_by: bool,
}

/// What a run showed.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Through which door; `bare` without Bonsai.
    pub(crate) door: &'static str,
    /// The lines to be compared.
    pub(crate) lines: Vec<String>,
    /// The lines that begin with `#`: the last word but one or two names it, the number is its value.
    pub(crate) notes: BTreeMap<String, f64>,
    pub(crate) finished: Finished,
    pub(crate) counters: Counters,
}

impl Seen {
    pub(crate) fn new(door: &'static str, finished: Finished, counters: Counters) -> Self {
        let (notes, lines) = finished
            .stdout
            .lines()
            .map(str::to_owned)
            .partition::<Vec<_>, _>(|line| line.starts_with('#'));
        let notes = notes.iter().filter_map(|line| note(line)).collect();
        Self {
            door,
            lines,
            notes,
            finished,
            counters,
        }
    }

    /// Never faster than allowed: `amount` units at `rate` per second with a burst, and less than
    /// one unit that an idle bucket has gained of the next. The program says how long it took.
    #[expect(clippy::cast_precision_loss, reason = "amounts are small")]
    pub(crate) fn assert_shaped(&self, amount: u64, rate: u64, burst: u64) {
        let took = self.notes["elapsed"] / 1000.0;
        let least = amount.saturating_sub(burst + 1) as f64 / rate as f64;
        assert!(
            took >= least * 0.98,
            "{}: {amount} units at {rate}/s in {took} s; {least:.3} s is the least",
            self.door
        );
        if took > least * 1.5 + 1.0 {
            eprintln!("NOTE: {}: took {took} s instead of {least:.3} s", self.door);
        }
    }
}

/// `# join limited write 12 ms` is ("join limited write", 12).
fn note(line: &str) -> Option<(String, f64)> {
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    let at = words.iter().rposition(|word| word.parse::<f64>().is_ok())?;
    Some((words[..at].join(" "), words[at].parse().ok()?))
}

impl Probe {
    /// Compiles `c/transparency/NAME.c`; `None` without a compiler.
    pub(crate) fn new(test: &str, name: &str, args: &[&str]) -> Option<Self> {
        let source = Path::new("transparency").join(format!("{name}.c"));
        let gcc = compiler(test)?;
        let text = std::fs::read_to_string(gcc.sources().join(&source)).expect("a source");
        let program = gcc
            .make(&format!("{name}-{test}"), &[source], &[])
            .unwrap_or_else(|error| panic!("{error}"));
        Some(Self {
            goes_by: text.contains("raw_read(") || text.contains("raw_write("),
            ..Self::of(program, args)
        })
    }

    /// A program that is there already.
    pub(crate) fn of(program: PathBuf, args: &[&str]) -> Self {
        Self {
            program,
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            env: Vec::new(),
            folder: None,
            goes_by: false,
        }
    }

    /// Adds a variable to its environment.
    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    fn prepared(&self, mut command: Command) -> Command {
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command
    }

    /// Runs it bare.
    pub(crate) fn bare(&self) -> Seen {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        let finished = finish(&mut self.prepared(command), PATIENCE)
            .unwrap_or_else(|error| panic!("{}: {error}", self.program.display()));
        Seen::new("bare", finished, Counters::default())
    }

    /// Runs it as a service, through one door.
    pub(crate) fn through(&self, door: (&'static str, &[&str]), limits: &[&str]) -> Seen {
        let (label, options) = door;
        self.service(&bonsai(), label, options, limits)
    }

    /// The same in another runtime directory.
    pub(crate) fn service(
        &self,
        bonsai: &Bonsai,
        label: &'static str,
        options: &[&str],
        limits: &[&str],
    ) -> Seen {
        let mut all = vec!["--json"];
        all.extend(options);
        all.extend(limits.iter().flat_map(|limit| ["--limit", limit]));
        let args: Vec<&OsStr> = self.args.iter().map(OsStr::new).collect();
        let (_, command) = bonsai.run(&all, &self.program, &args);
        let finished = finish(&mut self.prepared(command), PATIENCE)
            .unwrap_or_else(|error| panic!("{label}: {}: {error}", self.program.display()));
        let counters = Counters::said(&finished.stderr).unwrap_or_else(|error| {
            panic!("{label}: no counters ({error}) in {:?}", finished.stderr)
        });
        // A false alarm, unless calls are not seen: of its own, or inside libc.
        let is_seen = !self.goes_by && !options.contains(&"--no-patch");
        assert!(
            !is_seen || counters.unseen == (0, 0),
            "{label}: {}: {counters:?}",
            self.program.display()
        );
        Seen::new(label, finished, counters)
    }

    /// Runs it bare and through both doors: what it prints and how it ends is equal.
    pub(crate) fn same(&self, limits: &[&str]) -> Vec<Seen> {
        let bare = self.bare();
        assert!(bare.finished.status.success(), "bare: {:?}", bare.finished);
        let doors = DOORS.map(|door| self.through(door, limits));
        for seen in &doors {
            assert_eq!(
                (seen.finished.status.code(), &seen.lines),
                (bare.finished.status.code(), &bare.lines),
                "{}: {}",
                seen.door,
                seen.finished.stderr
            );
        }
        doors.into()
    }

    /// Runs it through both doors, where it prints what is known.
    pub(crate) fn prints(&self, limits: &[&str], lines: &[&str]) -> Vec<Seen> {
        let doors = DOORS.map(|door| self.through(door, limits));
        for seen in &doors {
            assert_eq!(seen.lines, lines, "{}: {:?}", seen.door, seen.finished);
            assert!(seen.finished.status.success(), "{:?}", seen.finished);
        }
        doors.into()
    }
}
