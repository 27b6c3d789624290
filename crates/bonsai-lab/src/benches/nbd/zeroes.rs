//! How long it takes a guest to write zeroes to all of a disk of 1 TiB that has none of them, beside nbdkit's file plugin.
//!
//! A server and a sparse image for each turn, in a random order: the file system has nothing to do, so that what is measured is the
//! server's own work, above all what it notes of the blocks.

use std::fs::File;
use std::time::{Duration, Instant};

use bonsai_nbd::client::{Ask, Connection, Event, Uri};
use bonsai_nbd::protocol::Command;
use serde::{Deserialize, Serialize};

use super::{KINDS, Kind, of_kind, serve_as};
use crate::benches::Benchmark;
use crate::benches::web::tree_cpu_ms;
use crate::child::is_installed;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{Pairing, with_interval};

/// The benchmark "nbd-zeroes".
#[derive(Debug)]
pub(crate) struct NbdZeroes;

const IMAGE_BYTES: u64 = 1 << 40;
/// What Linux' NBD client asks for at once.
const REQUEST_BYTES: u32 = 32 << 20;
/// Of nbdkit's time, at most.
const MOST: f64 = 1.3;
const PATIENCE: Duration = Duration::from_secs(30);

/// One turn of each.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Round {
    /// Seconds, in the order of measurement.
    measured: Vec<(Kind, f64)>,
}

impl Benchmark for NbdZeroes {
    fn name(&self) -> &'static str {
        "nbd-zeroes"
    }

    fn about(&self) -> &'static str {
        "time that zeroing a sparse image of 1 TiB takes, over that of nbdkit's file plugin"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        if !is_installed("nbdkit") {
            return context.skip("all", "nbdkit is not installed".to_owned());
        }
        for _ in 0..context.effort.of(3, 9, 25) {
            let before = Moment::now();
            let mut order = KINDS;
            context.shuffle(&mut order);
            let (mut measured, mut used) = (Vec::new(), 0);
            for kind in order {
                let (seconds, cpu_ms) = zero(context, kind)?;
                measured.push((kind, seconds));
                used += cpu_ms;
            }
            context.sample(before.until_now().less(used), &Round { measured })?;
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

/// The seconds that it takes, and what the server used of the processors, in milliseconds.
fn zero(context: &Context, kind: Kind) -> anyhow::Result<(f64, u64)> {
    let image = context.scratch().join("zeroes.raw");
    File::create(&image)?.set_len(IMAGE_BYTES)?;
    let (socket, server) = serve_as(context, kind, &image, &[])?;
    let uri: Uri = format!("nbd+unix:///?socket={}", socket.display()).parse()?;
    let mut client = Connection::open(&uri, true, PATIENCE)?;
    let start = Instant::now();
    for offset in (0..IMAGE_BYTES).step_by(REQUEST_BYTES as usize) {
        let ask = Ask {
            command: Command::WriteZeroes,
            flags: 0,
            offset,
            length: REQUEST_BYTES,
        };
        client.ask(ask, &[]);
        let mut failed = None;
        while client.in_flight() > 0 {
            client.turn(PATIENCE, &mut |event| {
                if let Event::Done { error, .. } = event {
                    failed = error;
                }
            })?;
        }
        anyhow::ensure!(failed.is_none(), "{kind:?} answers {failed:?}");
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok((seconds, tree_cpu_ms(server.pid())))
}

fn report(samples: &[Sample<Round>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(
        "A sparse image of 1 TiB, 32 MiB a request, one after the other. Seconds; ratios within a round.",
    );
    let pair = |kind| {
        let both = |s: &Sample<Round>| {
            Some((
                of_kind(&s.data.measured, Kind::Nbdkit)?,
                of_kind(&s.data.measured, kind)?,
            ))
        };
        Pairing::of(&samples.iter().filter_map(both).collect::<Vec<_>>(), seed)
    };
    let (Some(plain), Some(drive)) = (pair(Kind::Plain), pair(Kind::Drive)) else {
        return section;
    };
    let doubt = doubt_of(samples.iter().map(|s| &s.conditions));
    let mut table = Table::new(&["nbdkit, s", "plain", "drive", "doubt"]);
    table.row(vec![
        with_interval(&plain.base, 2),
        with_interval(&plain.ratio, 3),
        with_interval(&drive.ratio, 3),
        doubt.clone().unwrap_or_default(),
    ]);
    for (name, pairing) in [("plain", plain), ("drive", drive)] {
        section.promise(
            name.to_owned(),
            format!("at most {MOST}"),
            with_interval(&pairing.ratio, 3),
            Verdict::at_most(&pairing.ratio, MOST, doubt.as_ref()),
        );
    }
    section.table(table);
    section
}
