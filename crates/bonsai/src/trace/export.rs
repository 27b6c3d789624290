//! `bonsai trace export`: traces in the formats of others.
//!
//! What is exported can be imported again: names of volumes that a format cannot hold are refused, or replaced and named on
//! standard error (FIU's, which has numbers of devices alone).

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{Read, Write};

use bonsai_services::refusal::Refusal;
use bonsai_trace::{Op, Reader, Request};

use super::files::save;
use super::import::said;
use super::show::trace;
use crate::cli::{TraceExport, TraceTo};
use crate::output::{count, escaped, say};

/// Exports a trace.
///
/// # Errors
/// It is bad, has a name that the format cannot hold, or cannot be written.
pub(super) fn run(args: &TraceExport) -> anyhow::Result<()> {
    if let Some(file) = args.file.as_ref() {
        if !matches!(args.to, TraceTo::Fio | TraceTo::Fio2) {
            return Err(Refusal::input("--file is for --to fio and fio2"));
        }
        check_word(file).map_err(|why| Refusal::input(format!("--file {file:?} {why}")))?;
    }
    let (reader, progress) = trace(&args.trace)?;
    let mut reader = reader.keeping_fingerprints();
    let name = args.trace.display().to_string();
    let notes = save(&args.output, |out| {
        let mut to = Exported::new(args, out)?;
        loop {
            let batch = match reader.next_batch() {
                Ok(Some(batch)) => batch.clone(),
                Ok(None) => break,
                Err(error) => return Err(said(&name, error)),
            };
            for request in batch.iter() {
                to.request(&request, &reader)?;
            }
        }
        to.end()?;
        Ok(to.notes())
    })?;
    progress.done();
    for note in notes {
        say!("bonsai: {}: {note}", escaped(&name));
    }
    Ok(())
}

/// Why a name cannot be a word of an iolog, if so.
fn check_word(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        Err("is empty, and an iolog has names of files")
    } else if name
        .chars()
        .any(|c| c.is_whitespace() || c.is_control() || c == '\u{feff}')
    {
        Err("has a blank or control character, which no name in an iolog has")
    } else {
        Ok(())
    }
}

/// Why a name cannot be a value of CSV, if so.
fn check_value(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.trim() != name {
        Err("is empty, or begins or ends with blanks, which readers of CSV take away")
    } else if name.chars().any(char::is_control) {
        Err("has a control character, which readers of CSV end a line or a value at")
    } else {
        Ok(())
    }
}

/// The numbers of a device, where a name is just these.
fn device(name: &str) -> Option<(u32, u32)> {
    let (major, minor) = name.split_once(':')?;
    let found = (major.parse().ok()?, minor.parse().ok()?);
    (format!("{}:{}", found.0, found.1) == name).then_some(found)
}

/// A trace on its way into another format.
struct Exported<'a> {
    to: TraceTo,
    file: Option<&'a str>,
    out: &'a mut dyn Write,
    /// By numbers of volumes, as far as they are checked.
    names: Vec<String>,
    /// Files of an iolog that are open, by volumes.
    opened: Vec<bool>,
    /// Devices of FIU's format that are taken.
    devices: HashSet<(u32, u32)>,
    renamed: Vec<(String, String)>,
    left_out: u64,
    first_ns: Option<u64>,
    last_us: u64,
    line: String,
}

impl<'a> Exported<'a> {
    fn new(args: &'a TraceExport, out: &'a mut dyn Write) -> anyhow::Result<Self> {
        match args.to {
            TraceTo::Fio => writeln!(out, "fio version 3 iolog")?,
            TraceTo::Fio2 => writeln!(out, "fio version 2 iolog")?,
            TraceTo::Csv => writeln!(out, "time_ns,volume,offset,length,op,digest")?,
            TraceTo::Fiu => {}
        }
        Ok(Self {
            to: args.to,
            file: args.file.as_deref(),
            out,
            names: Vec::new(),
            opened: Vec::new(),
            devices: HashSet::new(),
            renamed: Vec::new(),
            left_out: 0,
            first_ns: None,
            last_us: 0,
            line: String::new(),
        })
    }

    /// Names of the volumes up to one, as the format has them.
    fn names_up_to(&mut self, volume: u32, from: &Reader<Box<dyn Read>>) -> anyhow::Result<()> {
        if (volume as usize) < self.names.len() {
            return Ok(());
        }
        // Devices that have their numbers keep them, also those that come later.
        let known = from.volumes().iter().filter_map(|of| device(&of.name));
        self.devices.extend(known);
        for volume in &from.volumes()[self.names.len()..] {
            let name = self.name(&volume.name)?;
            self.names.push(name);
            self.opened.push(false);
        }
        Ok(())
    }

    fn name(&mut self, name: &str) -> anyhow::Result<String> {
        let refused =
            |why: &str, hint: &str| Refusal::input(format!("volume {name:?} {why}; {hint}"));
        match (self.to, self.file) {
            (TraceTo::Fio | TraceTo::Fio2, Some(file)) => Ok(file.to_owned()),
            (TraceTo::Fio | TraceTo::Fio2, None) => {
                check_word(name).map(|()| name.to_owned()).map_err(|why| {
                    refused(
                        why,
                        "--file names one file for all volumes, and --to csv keeps the names",
                    )
                })
            }
            (TraceTo::Csv, _) => check_value(name)
                .map(|()| quoted(name))
                .map_err(|why| refused(why, "--to fiu replaces names by numbers")),
            (TraceTo::Fiu, _) => {
                if let Some((major, minor)) = device(name) {
                    return Ok(format!("{major} {minor}"));
                }
                let mut free = (0..=u32::MAX).filter(|minor| !self.devices.contains(&(0, *minor)));
                let minor = free.next().unwrap_or(0);
                self.devices.insert((0, minor));
                self.renamed.push((name.to_owned(), format!("0:{minor}")));
                Ok(format!("0 {minor}"))
            }
        }
    }

    fn request(
        &mut self,
        request: &Request<'_>,
        from: &Reader<Box<dyn Read>>,
    ) -> anyhow::Result<()> {
        self.names_up_to(request.volume, from)?;
        self.line.clear();
        match self.to {
            TraceTo::Fio | TraceTo::Fio2 => self.iolog(request)?,
            TraceTo::Csv => self.csv(request, from)?,
            TraceTo::Fiu => self.fiu(request, from)?,
        }
        self.out.write_all(self.line.as_bytes())?;
        Ok(())
    }

    fn csv(&mut self, request: &Request<'_>, from: &Reader<Box<dyn Read>>) -> anyhow::Result<()> {
        let (time_ns, offset, length) = (request.time_ns, request.offset, request.length);
        let (name, op) = (&self.names[request.volume as usize], request.op.word());
        write!(self.line, "{time_ns},{name},{offset},{length},{op},")?;
        for content in request.contents {
            if let Some(digest) = from.fingerprints().get(*content as usize) {
                write!(self.line, "{digest}")?;
            }
        }
        self.line.push('\n');
        Ok(())
    }

    fn fiu(&mut self, request: &Request<'_>, from: &Reader<Box<dyn Read>>) -> anyhow::Result<()> {
        let op = match request.op {
            Op::Read => 'R',
            Op::Write => 'W',
            // The format has neither trims nor flushes.
            Op::Trim | Op::Flush => {
                self.left_out += 1;
                return Ok(());
            }
        };
        let name = &self.names[request.volume as usize];
        for (n, block) in request.blocks().enumerate() {
            let (time, lba) = (request.time_ns, block * 8);
            write!(self.line, "{time} 0 - {lba} 8 {op} {name}")?;
            let content = request.contents.get(n);
            if let Some(digest) =
                content.and_then(|content| from.fingerprints().get(*content as usize))
            {
                write!(self.line, " {digest}")?;
            }
            self.line.push('\n');
            // A request may be long, and a line each block longer.
            if self.line.len() >= 1 << 16 {
                self.out.write_all(self.line.as_bytes())?;
                self.line.clear();
            }
        }
        Ok(())
    }

    fn iolog(&mut self, request: &Request<'_>) -> anyhow::Result<()> {
        let first = *self.first_ns.get_or_insert(request.time_ns);
        // What came late was issued late: fio's times never go back.
        let us = (request.time_ns.saturating_sub(first) / 1_000).max(self.last_us);
        let at = match self.file {
            Some(_) => 0,
            None => request.volume as usize,
        };
        let name = &self.names[request.volume as usize];
        let is_timed = self.to == TraceTo::Fio;
        let line = &mut self.line;
        let mut put = |rest: std::fmt::Arguments<'_>| {
            if is_timed {
                writeln!(line, "{us} {name} {rest}")
            } else {
                writeln!(line, "{name} {rest}")
            }
        };
        if !self.opened[at] {
            self.opened[at] = true;
            put(format_args!("add"))?;
            put(format_args!("open"))?;
        }
        // Version 2 knows waits: until so many ms after the start (fio 3.33, iolog.c, iolog_delay).
        if !is_timed && us / 1_000 > self.last_us / 1_000 {
            put(format_args!("wait {} 0", us / 1_000))?;
        }
        self.last_us = us;
        let (offset, length) = (request.offset, request.length);
        match request.op {
            Op::Read => put(format_args!("read {offset} {length}"))?,
            Op::Write => put(format_args!("write {offset} {length}"))?,
            Op::Trim => put(format_args!("trim {offset} {length}"))?,
            Op::Flush => put(format_args!("sync 0 0"))?,
        }
        Ok(())
    }

    fn end(&mut self) -> anyhow::Result<()> {
        for (name, _) in self
            .names
            .iter()
            .zip(&self.opened)
            .filter(|(_, is_open)| **is_open)
        {
            if self.to == TraceTo::Fio {
                write!(self.out, "{} ", self.last_us)?;
            }
            writeln!(self.out, "{name} close")?;
        }
        Ok(())
    }

    /// What is not as it was.
    fn notes(self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.left_out > 0 {
            let left_out = count(self.left_out, "trim or flush is", "trims and flushes are");
            notes.push(format!("{left_out} left out: FIU's format has none"));
        }
        let renamed = self.renamed.iter();
        notes.extend(renamed.map(|(name, device)| {
            format!(
                "volume {} is {device} in FIU's format, which has numbers of devices alone",
                escaped(name)
            )
        }));
        notes
    }
}

/// A value of CSV.
fn quoted(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-.:@/+".contains(c);
    match name.chars().all(is_plain) {
        true => name.to_owned(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}
