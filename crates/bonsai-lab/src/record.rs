//! The record of a run: JSON lines, each written before the next sample is taken.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::facts::Host;
use crate::load::Conditions;

/// The version of the format.
const FORMAT: u32 = 1;

/// One line.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Line {
    /// The first line: what was run, on what.
    Run(Run),
    /// Something measured.
    Sample {
        /// The benchmark.
        bench: String,
        /// What else the machine did.
        conditions: Conditions,
        /// What was measured and found, in the benchmark's own form.
        data: Value,
    },
    /// Something that was not measured.
    Skip {
        /// The benchmark.
        bench: String,
        /// What.
        what: String,
        /// Why.
        why: String,
    },
    /// The last line.
    End {
        /// Seconds since the first.
        seconds: u64,
        /// Load average over a minute at the end.
        load: f64,
    },
}

/// What was run, on what.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Run {
    /// Version of the format.
    pub(crate) format: u32,
    /// When, UTC.
    pub(crate) started: String,
    /// The benchmarks.
    pub(crate) names: Vec<String>,
    /// `Quick`, `Normal` or `Full`.
    pub(crate) effort: String,
    /// Where all random orders come from.
    pub(crate) seed: u64,
    /// The machine.
    pub(crate) host: Host,
    /// Load average over a minute at the start.
    pub(crate) load: f64,
}

impl Run {
    /// The first line of a new record.
    pub(crate) fn new(
        started: String,
        names: Vec<String>,
        effort: String,
        seed: u64,
        host: Host,
    ) -> Self {
        Self {
            format: FORMAT,
            started,
            names,
            effort,
            seed,
            host,
            load: load_average(),
        }
    }
}

/// Load average over a minute.
pub(crate) fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0.0)
}

/// A record being written.
#[derive(Debug)]
pub(crate) struct Recorder {
    file: File,
    /// Where it is.
    pub(crate) path: PathBuf,
}

impl Recorder {
    /// Starts the record `path` with its first line.
    ///
    /// # Errors
    /// It exists already, or cannot be written.
    pub(crate) fn create(path: PathBuf, run: &Run) -> anyhow::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("{}: cannot be made", folder.display()))?;
        }
        let file = File::create_new(&path)
            .with_context(|| format!("{}: cannot be made", path.display()))?;
        let mut recorder = Self { file, path };
        recorder.write(&Line::Run(run.clone()))?;
        Ok(recorder)
    }

    /// Appends a line.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn write(&mut self, line: &Line) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.file
            .write_all(&text)
            .with_context(|| format!("{}: cannot be written", self.path.display()))
    }
}

/// A record that was read.
#[derive(Debug)]
pub(crate) struct Record {
    /// Its first line.
    pub(crate) run: Run,
    lines: Vec<Line>,
}

/// A sample in its benchmark's own form.
#[derive(Clone, Debug)]
pub(crate) struct Sample<T> {
    /// What else the machine did.
    pub(crate) conditions: Conditions,
    /// What was measured.
    pub(crate) data: T,
}

impl Record {
    /// Reads a record. One that was cut off, because its run was, is read as far
    /// as it goes.
    ///
    /// # Errors
    /// The file cannot be read, or a line is none of a record.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let file =
            File::open(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let mut lines = Vec::new();
        let mut broken = None;
        for (number, text) in BufReader::new(file).lines().enumerate() {
            let text = text.with_context(|| format!("{}: cannot be read", path.display()))?;
            if let Some(error) = broken {
                return Err(error);
            }
            match serde_json::from_str(&text) {
                Ok(line) => lines.push(line),
                Err(error) => {
                    let place = format!(
                        "{}:{}: no line of a benchmark's record",
                        path.display(),
                        number + 1
                    );
                    broken = Some(anyhow::Error::from(error).context(place));
                }
            }
        }
        let Some(Line::Run(run)) = lines.first().cloned() else {
            return Err(broken.unwrap_or_else(|| anyhow::anyhow!("{}: no record", path.display())));
        };
        anyhow::ensure!(
            run.format == FORMAT,
            "{}: record of format {}, this program reads format {FORMAT}",
            path.display(),
            run.format
        );
        Ok(Self { run, lines })
    }

    /// The samples of a benchmark that have the form `T`, in order.
    pub(crate) fn samples<T: DeserializeOwned>(&self, name: &str) -> Vec<Sample<T>> {
        let of = |line: &Line| match line {
            Line::Sample {
                bench,
                conditions,
                data,
            } if bench == name => {
                let data = serde_json::from_value(data.clone()).ok()?;
                Some(Sample {
                    conditions: conditions.clone(),
                    data,
                })
            }
            _ => None,
        };
        self.lines.iter().filter_map(of).collect()
    }

    /// What a benchmark did not measure, and why.
    pub(crate) fn skips(&self, name: &str) -> Vec<(&str, &str)> {
        fn of<'a>(line: &'a Line, name: &str) -> Option<(&'a str, &'a str)> {
            match line {
                Line::Skip { bench, what, why } if bench == name => Some((what, why)),
                _ => None,
            }
        }
        self.lines
            .iter()
            .filter_map(|line| of(line, name))
            .collect()
    }

    /// Seconds that the run took; `None` if it was cut off.
    pub(crate) fn seconds(&self) -> Option<u64> {
        match self.lines.last() {
            Some(Line::End { seconds, .. }) => Some(*seconds),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("raw/a.jsonl");
        let host = Host::read(Path::new("/nonexistent"));
        let run = Run::new(
            "now".to_owned(),
            vec!["a".to_owned()],
            "Quick".to_owned(),
            7,
            host,
        );
        let mut recorder = Recorder::create(path.clone(), &run).expect("made");
        for i in 0..3_u64 {
            let conditions = Conditions {
                wall_ms: i,
                ..Conditions::default()
            };
            let line = Line::Sample {
                bench: "a".to_owned(),
                conditions,
                data: serde_json::json!([i]),
            };
            recorder.write(&line).expect("written");
        }
        let skip = Line::Skip {
            bench: "a".to_owned(),
            what: "x".to_owned(),
            why: "y".to_owned(),
        };
        recorder.write(&skip).expect("written");
        Recorder::create(path.clone(), &run).expect_err("never overwritten");

        // A run that was killed leaves half a line.
        recorder
            .file
            .write_all(b"{\"kind\":\"sam")
            .expect("written");
        let record = Record::read(&path).expect("read");
        assert_eq!(record.run.seed, 7);
        let samples: Vec<Sample<Vec<u64>>> = record.samples("a");
        let found: Vec<_> = samples
            .iter()
            .map(|s| (s.conditions.wall_ms, s.data.clone()))
            .collect();
        assert_eq!(found, [(0, vec![0]), (1, vec![1]), (2, vec![2])]);
        assert!(record.samples::<String>("a").is_empty(), "another form");
        assert!(record.samples::<Vec<u64>>("b").is_empty());
        assert_eq!(record.skips("a"), [("x", "y")]);
        assert_eq!(record.seconds(), None);

        recorder.file.write_all(b"\n{}\n").expect("written");
        Record::read(&path).expect_err("damaged in the middle");
    }
}
