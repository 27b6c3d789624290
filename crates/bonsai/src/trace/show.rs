//! `bonsai trace head` and `bonsai trace export`.

use std::fmt::Write as _;
use std::io::{Read, Write};

use bonsai_trace::{Op, Reader, Request};
use serde_json::json;

use super::files::save;
use super::import::said;
use crate::cli::{TraceExport, TraceHead, TraceTo};
use crate::output::{finish, print, table};

pub(crate) use super::opened::trace;

pub(super) fn head(args: &TraceHead) -> anyhow::Result<()> {
    let (reader, _) = trace(&args.trace)?;
    let mut reader = reader.keeping_fingerprints();
    let name = args.trace.display().to_string();
    let mut left = args.number;
    let mut lines = table(
        &["time", "volume", "op", "offset", "length", "contents"],
        &[0, 3, 4],
    );
    let mut text = String::new();
    while left > 0 {
        let Some(batch) = reader.next_batch().map_err(|error| said(&name, error))? else {
            break;
        };
        let batch = batch.clone();
        for request in batch
            .iter()
            .take(usize::try_from(left).unwrap_or(usize::MAX))
        {
            left -= 1;
            let volume = &reader.volumes()[request.volume as usize].name;
            let digests = request
                .contents
                .iter()
                .map(|content| reader.fingerprints()[*content as usize].to_string());
            if args.json {
                let line = json!({
                    "time_ns": request.time_ns,
                    "volume": volume,
                    "op": request.op.word(),
                    "offset": request.offset,
                    "length": request.length,
                    "contents": digests.collect::<Vec<_>>(),
                });
                text += &format!("{line}\n");
                continue;
            }
            let seconds = format!(
                "{}.{:09} s",
                request.time_ns / 1_000_000_000,
                request.time_ns % 1_000_000_000
            );
            let mut contents = digests.take(1).collect::<String>();
            if request.contents.len() > 1 {
                contents += &format!(" and {} more", request.contents.len() - 1);
            }
            lines.add_row([
                seconds,
                volume.clone(),
                request.op.word().to_owned(),
                request.offset.to_string(),
                request.length.to_string(),
                contents,
            ]);
        }
    }
    if !args.json {
        text = finish(&lines);
    }
    print(&text)
}

pub(super) fn export(args: &TraceExport) -> anyhow::Result<()> {
    let (reader, progress) = trace(&args.trace)?;
    let mut reader = reader.keeping_fingerprints();
    let name = args.trace.display().to_string();
    save(&args.output, |out| {
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
        to.end()
    })?;
    progress.done();
    Ok(())
}

/// A trace on its way into another format.
struct Exported<'a> {
    to: TraceTo,
    file: Option<&'a str>,
    out: &'a mut dyn Write,
    /// Files of an iolog that are open.
    opened: Vec<bool>,
    names: Vec<String>,
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
            opened: Vec::new(),
            names: Vec::new(),
            first_ns: None,
            last_us: 0,
            line: String::new(),
        })
    }

    fn request(
        &mut self,
        request: &Request<'_>,
        from: &Reader<Box<dyn Read>>,
    ) -> anyhow::Result<()> {
        let volume = &from.volumes()[request.volume as usize].name;
        let digest = |n: usize| {
            let content = request.contents.get(n)?;
            from.fingerprints().get(*content as usize)
        };
        self.line.clear();
        match self.to {
            TraceTo::Fio | TraceTo::Fio2 => self.iolog(request, volume)?,
            TraceTo::Csv => {
                let Request {
                    time_ns,
                    offset,
                    length,
                    op,
                    ..
                } = request;
                let op = op.word();
                // Names with commas and quotes are for a library, and volumes have none in practice.
                let quoted = if volume.contains([',', '"']) {
                    format!("\"{}\"", volume.replace('"', "\"\""))
                } else {
                    volume.clone()
                };
                write!(self.line, "{time_ns},{quoted},{offset},{length},{op},")?;
                for n in 0..request.contents.len() {
                    if let Some(digest) = digest(n) {
                        write!(self.line, "{digest}")?;
                    }
                }
                self.line.push('\n');
            }
            TraceTo::Fiu => {
                let op = match request.op {
                    Op::Read => 'R',
                    Op::Write => 'W',
                    // The format has neither trims nor flushes.
                    Op::Trim | Op::Flush => return Ok(()),
                };
                let (major, minor) = volume
                    .split_once(':')
                    .filter(|(one, other)| {
                        one.parse::<u32>().is_ok() && other.parse::<u32>().is_ok()
                    })
                    .map_or((0, request.volume.to_string()), |(one, other)| {
                        (one.parse().unwrap_or(0), other.to_owned())
                    });
                for (n, block) in request.blocks().enumerate() {
                    let (time, lba) = (request.time_ns, block * 8);
                    write!(self.line, "{time} 0 - {lba} 8 {op} {major} {minor}")?;
                    if let Some(digest) = digest(n) {
                        write!(self.line, " {digest}")?;
                    }
                    self.line.push('\n');
                }
            }
        }
        self.out.write_all(self.line.as_bytes())?;
        Ok(())
    }

    fn iolog(&mut self, request: &Request<'_>, volume: &str) -> anyhow::Result<()> {
        let name = self.file.unwrap_or(volume);
        let first = *self.first_ns.get_or_insert(request.time_ns);
        // What came late was issued late: fio's times never go back.
        let us = (request.time_ns.saturating_sub(first) / 1_000).max(self.last_us);
        let at = match self.file {
            Some(_) => 0,
            None => request.volume as usize,
        };
        let is_timed = self.to == TraceTo::Fio;
        let line = &mut self.line;
        let mut put = |rest: std::fmt::Arguments<'_>| {
            if is_timed {
                writeln!(line, "{us} {name} {rest}")
            } else {
                writeln!(line, "{name} {rest}")
            }
        };
        if self.opened.len() <= at {
            self.opened.resize(at + 1, false);
            self.names.resize(at + 1, String::new());
        }
        if !self.opened[at] {
            self.opened[at] = true;
            name.clone_into(&mut self.names[at]);
            put(format_args!("add"))?;
            put(format_args!("open"))?;
        }
        // Version 2 knows waits, since the last one, and only of 100 us and more.
        if !is_timed && us >= self.last_us + 100 {
            put(format_args!("wait {} 0", us - self.last_us))?;
            self.last_us = us;
        }
        let (offset, length) = (request.offset, request.length);
        match request.op {
            Op::Read => put(format_args!("read {offset} {length}"))?,
            Op::Write => put(format_args!("write {offset} {length}"))?,
            Op::Trim => put(format_args!("trim {offset} {length}"))?,
            Op::Flush => put(format_args!("sync 0 0"))?,
        }
        if is_timed {
            self.last_us = us;
        }
        Ok(())
    }

    fn end(&mut self) -> anyhow::Result<()> {
        if matches!(self.to, TraceTo::Fio | TraceTo::Fio2) {
            for (name, is_open) in self.names.iter().zip(&self.opened) {
                if !is_open {
                    continue;
                }
                if self.to == TraceTo::Fio {
                    write!(self.out, "{} ", self.last_us)?;
                }
                writeln!(self.out, "{name} close")?;
            }
        }
        Ok(())
    }
}
