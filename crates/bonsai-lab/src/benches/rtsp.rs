//! How smooth a video stays under a limit: the gaps between the packets that the
//! viewers of an unmodified RTSP server get.
//!
//! The server is GStreamer's. Four of them run at the same time, for many viewers and
//! for one, on TCP and on UDP, each in a service of its own. Viewers begin at
//! random instants within a key frame's distance, the same ones for all variants of
//! a round, which take turns in a random order. The first turn is the bare one: the
//! limits are multiples of what it took.

mod model;
mod server;
mod study;
mod viewer;
mod wire;

use std::ops::Range;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use self::server::Film;
use self::viewer::{Arrivals, Transport, Viewer};
use super::Benchmark;
use super::web::tree_cpu_ms;
use crate::context::{Context, Effort};
use crate::load::{Control, Moment};
use crate::record::Record;
use crate::report::Section;
use crate::service::{Doors, Waits, monotonic_ns};

/// The benchmark "rtsp".
#[derive(Debug)]
pub(crate) struct Rtsp;

/// From one key frame to the next, and so what they begin within.
const KEY_FRAMES_NS: u64 = 1_000_000_000;
/// From the last beginning to the measurement.
const SETTLING_NS: u64 = 200_000_000;
/// From a server's being ready to the first beginning.
const HEAD_START_NS: u64 = 20_000_000;

/// What is done to the server.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Variant {
    /// Nothing.
    Bare,
    /// A limit above what is sent, that key frames reach.
    Loose,
    /// One just above.
    Tight,
    /// The loose limit with a burst of a second's worth.
    Second,
    /// A limit below what is sent, as in the paper's Fig. 12.
    Overload,
}

const VARIANTS: [Variant; 5] = [
    Variant::Bare,
    Variant::Loose,
    Variant::Tight,
    Variant::Second,
    Variant::Overload,
];

/// A server's viewers.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Load {
    transport: Transport,
    viewers: usize,
}

const MOST_VIEWERS: usize = 10;

/// A second's worth of ten viewers is 2.4 MB, and a key frame 2.6 % of it; that of one
/// is 26 %: it takes longer to send than viewers shall wait.
const LOADS: [Load; 4] = [
    Load::of(Transport::Tcp, MOST_VIEWERS),
    Load::of(Transport::Udp, MOST_VIEWERS),
    Load::of(Transport::Tcp, 1),
    Load::of(Transport::Udp, 1),
];

impl Load {
    const fn of(transport: Transport, viewers: usize) -> Self {
        Self { transport, viewers }
    }
}

impl Variant {
    /// The limit as a multiple of what the bare server sends, hundredths.
    const fn hundredths(self) -> Option<u64> {
        match self {
            Self::Bare => None,
            Self::Loose | Self::Second => Some(120),
            Self::Tight => Some(105),
            Self::Overload => Some(80),
        }
    }

    /// The burst, us; `None` for the default one.
    const fn burst_us(self) -> Option<u64> {
        match self {
            Self::Second => Some(1_000_000),
            _ => None,
        }
    }

    /// The limit as it is written.
    fn limit(self, rate: u64) -> String {
        match self.burst_us() {
            None => format!("send={rate}B/s"),
            Some(us) => format!("send={rate}B/s:burst={}ms", us / 1_000),
        }
    }
}

/// A turn of a variant, on one of the servers.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    round: u32,
    variant: Variant,
    load: Load,
    /// Bytes per second; 0 for none.
    limit: u64,
    length_ms: u64,
    waits: Waits,
    unshaped: u64,
    viewers: Vec<Arrivals>,
}

impl Measured {
    /// Bytes per second that came.
    fn rate(&self) -> u64 {
        let bytes: u64 = self.viewers.iter().flat_map(|v| &v.bytes).sum();
        bytes * 1_000 / self.length_ms.max(1)
    }

    /// Times between packets of a viewer, ms; those that the start and the end of the
    /// measurement cut off as well, as far as they were seen.
    fn gaps(&self) -> Vec<f64> {
        let of = |viewer: &Arrivals| -> Vec<f64> {
            let last = (self.length_ms * 1_000).saturating_sub(viewer.us.iter().sum());
            let gaps = viewer.us.iter().copied().chain([last]);
            gaps.map(|us| us as f64 / 1e3).collect()
        };
        self.viewers.iter().flat_map(of).collect()
    }
}

impl Benchmark for Rtsp {
    fn name(&self) -> &'static str {
        "rtsp"
    }

    fn about(&self) -> &'static str {
        "gaps in the streams of an RTSP server under limits"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let (rounds, seconds) = context.effort.of((1, 2), (3, 4), (10, 10));
        let film = match Film::encode(context, seconds + 4) {
            Ok(film) => film,
            Err(error) => {
                context.check()?;
                return context.skip("everything", format!("{error:#}"));
            }
        };
        let mut limits = None;
        for round in 0..rounds {
            let begin = beginnings(context);
            let mut order = VARIANTS.to_vec();
            if context.effort == Effort::Quick {
                order.retain(|variant| *variant != Variant::Overload);
            }
            // Without what the bare server sends there are no limits.
            let from = usize::from(limits.is_none());
            context.shuffle(&mut order[from..]);
            for variant in order {
                context.progress(&format!(
                    "round {} of {rounds}: {}",
                    round + 1,
                    study::name(variant)
                ));
                let turn = Turn {
                    round,
                    variant,
                    length: Duration::from_secs(seconds),
                    limits: limits.unwrap_or_default(),
                };
                let rates = turn.measure(context, &film, &begin)?;
                limits.get_or_insert(rates);
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        study::report(&record.samples(self.name()))
    }
}

/// When viewers begin, ns: two in each fifth of the time between key frames. Left all
/// to chance, so many key frames would coincide now and then that no limiter could
/// send them in time.
fn beginnings(context: &mut Context) -> Vec<u64> {
    const SLOTS: u64 = 5;
    let slot = KEY_FRAMES_NS / SLOTS;
    let mut all: Vec<u64> = (0..SLOTS)
        .flat_map(|i| [i * slot, i * slot])
        .take(MOST_VIEWERS)
        .map(|from| from + context.random.below(slot))
        .collect();
    context.shuffle(&mut all);
    all
}

/// What is measured at a time.
#[derive(Clone, Copy, Debug)]
struct Turn {
    round: u32,
    variant: Variant,
    length: Duration,
    /// What the bare servers sent, bytes per second.
    limits: [u64; LOADS.len()],
}

impl Turn {
    /// Measures; returns the rates that were got.
    fn measure(
        self,
        context: &mut Context,
        film: &Film,
        begin: &[u64],
    ) -> anyhow::Result<[u64; LOADS.len()]> {
        let before = Moment::now();
        let mut rates = [0; LOADS.len()];
        let mut services = Vec::new();
        let mut servers = Vec::new();
        for (rate, bare) in rates.iter_mut().zip(self.limits) {
            let service = match self.variant.hundredths() {
                None => None,
                Some(part) => {
                    *rate = bare * part / 100;
                    Some(context.service(Doors::Both, &[self.variant.limit(*rate)])?)
                }
            };
            servers.push(film.serve(context, service.as_ref())?);
            services.push(service);
        }
        let mut viewers = Vec::new();
        for (load, server) in LOADS.iter().zip(&servers) {
            for begin in &begin[..load.viewers] {
                viewers.push((Viewer::new(server.port, load.transport)?, *begin));
            }
            context.check()?;
        }
        let control = Control::start();
        let play = monotonic_ns() + HEAD_START_NS;
        let start = play + KEY_FRAMES_NS + SETTLING_NS;
        let end = start + u64::try_from(self.length.as_nanos())?;
        let mut arrivals = watch(viewers, play, start..end)?.into_iter();
        let waits: Vec<(Waits, u64)> = services
            .iter()
            .map(|service| {
                let service = service.as_ref();
                service.map_or_else(Default::default, |s| (s.waits(), s.unshaped()))
            })
            .collect();
        let late = control.finish();
        let used: u64 = servers.iter().map(|s| tree_cpu_ms(s.running.pid())).sum();
        let mut conditions = before.until_now().less(used);
        conditions.gaps = late.into_iter().filter(|(at, _)| *at >= start).collect();
        drop(servers);

        let mut got = [0; LOADS.len()];
        for (i, load) in LOADS.into_iter().enumerate() {
            let measured = Measured {
                round: self.round,
                variant: self.variant,
                load,
                limit: rates[i],
                length_ms: u64::try_from(self.length.as_millis())?,
                waits: waits[i].0,
                unshaped: waits[i].1,
                viewers: arrivals.by_ref().take(load.viewers).collect(),
            };
            got[i] = measured.rate();
            anyhow::ensure!(got[i] > 0, "the RTSP server sent nothing");
            context.sample(conditions.clone(), &measured)?;
        }
        Ok(got)
    }
}

/// All viewers at once, each from its own beginning after the instant `play` on.
fn watch(
    viewers: Vec<(Viewer, u64)>,
    play: u64,
    measured: Range<u64>,
) -> anyhow::Result<Vec<Arrivals>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = viewers
            .into_iter()
            .map(|(viewer, begin)| {
                let measured = measured.clone();
                scope.spawn(move || viewer.watch(play + begin, measured))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().ok().context("a viewer has panicked")?)
            .collect()
    })
}
