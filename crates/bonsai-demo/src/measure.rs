//! `bonsai-demo measure`: plays and receives, is told on standard input what
//! happens, and writes the record.
//!
//! A line on standard input is either `end`, or a phase that begins: its key,
//! title, what holds for the bulk copier ([`Bulk::parse`]) and the command, with
//! tabs between. When the input ends without `end`, whoever gave it is gone, and
//! so is the measurement.

use std::io::BufRead;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::bail;
use bonsai_units::Rate;
use clap::Args;

use crate::link::Link;
use crate::meter::{LONGEST, Meter, Series};
use crate::record::{BIN_NS, Bulk, Phase, PlayerRecord, Record, SCHEMA, mean_rate};
use crate::relay;
use crate::terminal::{Ink, Line, Paint, bar, mbit};
use crate::viewer::Viewer;

/// Between two pictures in the terminal.
const TICK: Duration = Duration::from_millis(250);

/// Over which the live rates are taken, ns.
const LIVE_NS: u64 = 1_000_000_000;

/// Until all players play.
const SETTLE: Duration = Duration::from_secs(10);

/// Play a film and receive bulk data, and write down what arrives when.
#[derive(Args, Debug)]
pub(crate) struct Measure {
    /// The server of the film.
    #[arg(long)]
    server: SocketAddr,
    /// The path of the film on the server.
    #[arg(long, default_value = "/film")]
    path: String,
    /// How many play it.
    #[arg(long, default_value_t = 6)]
    players: usize,
    /// The rate of the film.
    #[arg(long)]
    rate: Rate,
    /// Where the relay listens, and where its connections go.
    #[arg(long, num_args = 2, value_names = ["LISTEN", "TARGET"])]
    relay: Vec<SocketAddr>,
    /// Everything that arrives takes its turn on a link of this rate.
    #[arg(long)]
    link: Option<Rate>,
    /// The rate at which a bar in the terminal is full.
    #[arg(long)]
    full: Rate,
    /// Made when all players play.
    #[arg(long)]
    ready: PathBuf,
    /// Where the record goes.
    #[arg(long)]
    record: PathBuf,
}

/// Measures.
///
/// # Errors
/// The server or the relay does not work, or the input is not as it should be.
pub(crate) fn run(args: &Measure) -> anyhow::Result<()> {
    let [listen, target] = args.relay[..] else {
        bail!("--relay takes two addresses: where it listens, and where its connections go");
    };
    let film_rate = args.rate.milli() / 1_000;
    let unix = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let meter = Arc::new(Meter::new(
        args.link.map(|rate| Link::new(rate.milli() / 1_000)),
    ));
    relay::listen(&meter, listen, target)?;
    let viewer = |number| Viewer::start(&meter, number, args.server, &args.path, film_rate);
    let viewers: Vec<Viewer> = (1..=args.players).map(viewer).collect();
    settle(&meter, &viewers)?;
    bonsai_host::write_output(&args.ready, b"")?;

    let (phases, end_ns) = watch(&meter, &viewers, args.full.per_sec_f64())?;
    meter.stop();
    let players = viewers.into_iter().map(|viewer| {
        let seen = viewer.end()?;
        Ok(PlayerRecord {
            freezes: seen.freezes,
            frames: seen.frames,
        })
    });
    let players = players.collect::<anyhow::Result<_>>()?;
    let record = Record {
        schema: SCHEMA,
        unix_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
        bin_ns: BIN_NS,
        film_rate,
        phases,
        end_ns,
        players,
        video: meter.video.until(end_ns),
        bulk: meter.bulk.until(end_ns),
    };
    Ok(bonsai_host::write_output(
        &args.record,
        &serde_json::to_vec(&record)?,
    )?)
}

/// Waits until every player plays and has filled its buffer.
fn settle(meter: &Meter, viewers: &[Viewer]) -> anyhow::Result<()> {
    let start = Instant::now();
    while !viewers
        .iter()
        .all(|viewer| viewer.picture.moves.load(Ordering::Relaxed))
    {
        if let Some(failure) = meter.failure() {
            bail!(failure);
        }
        if start.elapsed() > SETTLE {
            bail!(
                "the players have not filled their buffers after {SETTLE:?}: the link is too slow for them"
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Takes the phases from standard input and shows what happens, until the end.
fn watch(meter: &Arc<Meter>, viewers: &[Viewer], full: f64) -> anyhow::Result<(Vec<Phase>, u64)> {
    let lines = input(meter);
    let show = Show {
        meter,
        viewers,
        full,
        line: Line::stdout(),
        paint: Paint::stdout(),
    };
    let mut phases: Vec<Phase> = Vec::new();
    loop {
        match lines.recv_timeout(TICK) {
            Ok((now, line)) => {
                if let Some(phase) = phases.last() {
                    show.finish(phase, now);
                }
                if line == "end" && !phases.is_empty() {
                    return Ok((phases, now));
                }
                let phase = parse(&line, now)?;
                show.line
                    .print(&show.paint.ink(Ink::Bold, &format!("$ {}", phase.command)));
                phases.push(phase);
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(phase) = phases.last() {
                    show.tick(phase);
                }
            }
            Err(RecvTimeoutError::Disconnected) => bail!("standard input has ended in the middle"),
        }
        if let Some(failure) = meter.failure() {
            bail!(failure);
        }
        if u128::from(meter.now()) > LONGEST.as_nanos() {
            bail!("the measurement takes longer than {LONGEST:?}");
        }
    }
}

/// The lines of standard input, and when they came.
fn input(meter: &Arc<Meter>) -> mpsc::Receiver<(u64, String)> {
    let (lines, received) = mpsc::channel();
    let meter = Arc::clone(meter);
    // Ends with its input, or with the process.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if lines.send((meter.now(), line)).is_err() {
                break;
            }
        }
    });
    received
}

fn parse(line: &str, start_ns: u64) -> anyhow::Result<Phase> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [key, title, bulk, command] = fields[..] else {
        bail!("{line:?} is no phase: write its key, title, limit and command, with tabs between");
    };
    Ok(Phase {
        key: key.to_owned(),
        title: title.to_owned(),
        bulk: Bulk::parse(bulk)?,
        command: command.to_owned(),
        start_ns,
    })
}

/// The picture in the terminal.
struct Show<'a> {
    meter: &'a Meter,
    viewers: &'a [Viewer],
    /// At which rate a bar is full, bytes/s.
    full: f64,
    line: Line,
    paint: Paint,
}

impl Show<'_> {
    fn tick(&self, phase: &Phase) {
        let now = self.meter.now();
        let frozen = self
            .viewers
            .iter()
            .filter(|viewer| viewer.picture.frozen.load(Ordering::Relaxed));
        let frozen = match frozen.count() {
            0 => String::new(),
            frozen => self.paint.ink(
                Ink::Bad,
                &format!("{frozen} of {} frozen", self.viewers.len()),
            ),
        };
        let text = self.rates(phase, now.saturating_sub(LIVE_NS), now);
        let seconds = now.saturating_sub(phase.start_ns) / 1_000_000_000;
        self.line.show(&format!("{text} {seconds:>3} s  {frozen}"));
    }

    fn finish(&self, phase: &Phase, now: u64) {
        let text = self.rates(phase, phase.start_ns, now);
        let seconds = (now.saturating_sub(phase.start_ns) + 500_000_000) / 1_000_000_000;
        self.line.print(&format!("{text} {seconds:>3} s"));
    }

    fn rates(&self, phase: &Phase, from: u64, to: u64) -> String {
        let part = |name: &str, ink, series: &Series| {
            let rate = mean_rate(&series.until(to), from, to);
            let bar = self.paint.ink(ink, &bar(rate / self.full, 10));
            format!("{name} {:>5} {bar}", mbit(rate))
        };
        let video = part("video", Ink::Video, &self.meter.video);
        let bulk = part("backup", Ink::Bulk, &self.meter.bulk);
        format!("  {:<10}{video}  {bulk} Mbit/s", phase.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_lines_with_tabs() {
        let phase = parse(
            "tight\tA tight limit\t20Mbit/s\tbonsai set backup send=20Mbit/s",
            7,
        )
        .expect("a phase");
        assert_eq!((phase.bulk, phase.start_ns), (Bulk::Limit(2_500_000), 7));
        assert_eq!(phase.command, "bonsai set backup send=20Mbit/s");
        for wrong in ["", "end", "a\tb\tc", "a\tb\t40\td"] {
            parse(wrong, 0).expect_err(wrong);
        }
    }
}
