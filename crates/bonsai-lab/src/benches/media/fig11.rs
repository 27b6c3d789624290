//! Fig. 11 of 000: what each viewer gets of a server under a limit, beside another server under its own.
//!
//! The servers are what they are: `bonsai serve`, GStreamer's, VLC, unmodified. Two of a kind run at the same
//! time on one processor, each a service of its own under a limit of what it sends, and others' one by one as well; the viewers
//! are on another. Viewers come one after the other within the time between two key frames, so that theirs do not
//! coincide. Up to a second after the last has come nothing is counted: the paper's bucket was full then.
//!
//! A server that may not send what its viewers ask for drops nothing here, but sends later and later: what
//! shows it is the lag, and not loss, gaps or jitter. Pictures are left out in a variant of our own server.

mod study;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::Cores;
use super::audience::{Ask, Seen, watch_all};
use super::clip::{KEY_FRAMES, NAME, Shelf};
use super::server::{Kind, Server, Start};
use crate::context::{Context, Effort};
use crate::load::{Control, Moment};
use crate::record::Record;
use crate::report::Section;

/// The benchmark "media-fig11".
#[derive(Debug)]
pub(crate) struct Fig11;

/// The paper's limit, bytes a second, and others.
const LIMITS: [u64; 3] = [10_000_000, 5_000_000, 2_500_000];
const TWO: usize = 2;
/// Others' servers alone, too: two of them may want more than the one processor.
const ONE: usize = 1;
/// From the beginning of the last viewer's to that of what is counted, and a rest at the end.
const BESIDE: Duration = Duration::from_millis(1_500);
/// So long may it take until all viewers of others' servers have come, which answer late when they are held
/// back.
const SLOW: Duration = Duration::from_secs(6);

/// Servers of a kind with so many viewers each, under a limit each.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    kind: Kind,
    /// Bytes a second.
    limit: u64,
    viewers: u32,
    servers: Vec<Seen>,
    /// CPU time of each server, ms.
    cpu_ms: Vec<u64>,
}

impl Measured {
    fn cell(&self) -> Cell {
        Cell {
            kind: self.kind,
            limit: self.limit,
            viewers: self.viewers,
            servers: self.servers.len(),
        }
    }
}

/// What is measured at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    kind: Kind,
    limit: u64,
    viewers: u32,
    servers: usize,
}

impl Cell {
    /// The servers.
    fn name(self) -> String {
        let alone = if self.servers == ONE { " alone" } else { "" };
        format!("{}{alone}", self.kind.name())
    }

    fn text(self) -> String {
        let limit = crate::study::rate(self.limit);
        format!("{}, {limit}, {} viewers", self.name(), self.viewers)
    }
}

/// What is measured, in this order.
fn cells(effort: Effort) -> Vec<Cell> {
    let [whole, half, quarter] = LIMITS;
    let all = &[10, 20, 30, 40, 50, 70, 100][..];
    let some = &[30, 40, 50, 70, 100][..];
    let (quick, one) = (&[30, 50, 100][..], &[50][..]);
    let plan = match effort {
        Effort::Quick => vec![
            (Kind::Classic, whole, TWO, quick),
            (Kind::Fast, whole, TWO, one),
            (Kind::Gstreamer, whole, TWO, one),
            (Kind::Vlc, whole, TWO, one),
        ],
        Effort::Normal | Effort::Full => vec![
            (Kind::Classic, whole, TWO, all),
            (Kind::Classic, half, TWO, some),
            (Kind::Classic, quarter, TWO, &[10, 20, 40][..]),
            (Kind::Fast, whole, TWO, some),
            (Kind::Dropping, whole, TWO, some),
            (Kind::Gstreamer, whole, TWO, some),
            (Kind::Gstreamer, whole, ONE, some),
            (Kind::Vlc, whole, TWO, some),
            (Kind::Vlc, whole, ONE, some),
        ],
    };
    let cells = plan.into_iter().flat_map(|(kind, limit, servers, counts)| {
        counts.iter().map(move |viewers| Cell {
            kind,
            limit,
            viewers: *viewers,
            servers,
        })
    });
    cells.collect()
}

impl Benchmark for Fig11 {
    fn name(&self) -> &'static str {
        "media-fig11"
    }

    fn about(&self) -> &'static str {
        "bandwidth of 10 to 100 viewers of each of two servers under limits: the paper's Fig. 11"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let length = Duration::from_secs(context.effort.of(5, 12, 20));
        let shelf = match Shelf::make(context, (length + BESIDE + SLOW).as_secs() + 2) {
            Ok(shelf) => shelf,
            Err(error) => return context.skip("all of it", format!("{error:#}")),
        };
        let mut missing: Vec<Kind> = Vec::new();
        for cell in cells(context.effort) {
            if !context.is_wanted(&cell.text()) || missing.contains(&cell.kind) {
                continue;
            }
            if let Some(why) = cell.kind.missing() {
                missing.push(cell.kind);
                context.skip(cell.kind.name(), why)?;
                continue;
            }
            context.progress(&cell.text());
            if let Err(error) = measure(context, &shelf, cell, length) {
                context.check()?;
                // What others' servers cannot do here is no failure of the benchmark.
                anyhow::ensure!(!cell.kind.is_ours(), error);
                missing.push(cell.kind);
                context.skip(cell.kind.name(), format!("{error:#}"))?;
            }
        }
        if let Some(figure) = context.figure.clone() {
            let record = Record::read(&context.recorder.path)?;
            study::write(&figure, &record.samples(self.name()))?;
            context.progress(&format!("figure: {}", figure.display()));
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        study::report(&record.samples(self.name()))
    }
}

fn measure(
    context: &mut Context,
    shelf: &Shelf,
    cell: Cell,
    length: Duration,
) -> anyhow::Result<()> {
    let before = Moment::now();
    let cores = Cores::find();
    let mut servers = Vec::new();
    for number in 0..cell.servers {
        let limit = format!("send={}B/s", cell.limit);
        let service = ["--name", &format!("media-{number}"), "--limit", &limit];
        let start = Start {
            kind: cell.kind,
            shelf,
            service: Some(service.map(str::to_owned).to_vec()),
            core: cores.server,
            room: None,
        };
        servers.push(start.start(context)?);
    }
    let slow = if cell.kind.is_ours() {
        Duration::ZERO
    } else {
        SLOW
    };
    let length = length + BESIDE + slow;
    let asks: Vec<Ask<'_>> = servers
        .iter()
        .map(|server| Ask {
            url: server.url(NAME),
            server: server.at,
            viewers: cell.viewers,
            within: KEY_FRAMES,
            after: Duration::ZERO,
            length,
            room: None,
            core: cores.viewers,
        })
        .collect();
    let control = Control::start();
    let seen = watch_all(&asks)?;
    let gaps = control.finish();
    let cpu_ms = servers.iter().map(Server::cpu_ms).collect();
    // Their CPU is known to be of the measurement once they have ended.
    drop(servers);
    let mut conditions = before.until_now();
    conditions.gaps = gaps;
    let measured = Measured {
        kind: cell.kind,
        limit: cell.limit,
        viewers: cell.viewers,
        servers: seen,
        cpu_ms,
    };
    context.sample(conditions, &measured)
}
