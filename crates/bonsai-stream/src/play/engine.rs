//! One thread that carries all of its players.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use bonsai_media::seen::Seen;

use super::player::play;
use super::shared::Shared;
use super::{Film, Plan, PlayerReport};
use crate::clock::{now, ns};
use crate::watch::{Guest, Progress};

/// How often it is told how far it is.
const TOLD: u64 = 500_000_000;

/// What a thread's players saw.
pub(super) struct Part {
    pub(super) players: Vec<PlayerReport>,
    /// Of each video, if somebody came to know it.
    pub(super) films: Vec<Option<Film>>,
    pub(super) times: Histogram<u64>,
    pub(super) cpu_ns: u64,
    /// The part of its time that the thread was busy, 0 to 1: in the busiest half second, and in all of it.
    pub(super) busiest: f64,
    pub(super) busy: f64,
    /// The most that it was too late for something that it had to do at a time.
    pub(super) late_ns: u64,
}

/// Lets players come at their times after the beginning, and waits until all have gone.
pub(super) fn run(
    plan: &Arc<Plan>,
    begin: u64,
    guests: &[Guest],
    thread: usize,
    progress: &(dyn Fn(usize, Progress) + Sync),
) -> io::Result<Part> {
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(LocalOptions::default())?;
    let shared = Rc::new(Shared::new(plan.clone()));
    let part = runtime.block_on(all(&shared, begin, guests, &|at| progress(thread, at)));
    Ok(part)
}

async fn all(
    shared: &Rc<Shared>,
    begin: u64,
    guests: &[Guest],
    progress: &dyn Fn(Progress),
) -> Part {
    let cpu = || ns(clock_gettime(ClockId::ThreadCPUTime));
    let began = (now(), cpu());
    let (mut told, mut before) = (began.0 + TOLD, began);
    let (mut busiest, mut late_ns) = (0.0_f64, 0);
    let mut players = Vec::with_capacity(guests.len());
    let mut coming = guests.iter().copied().peekable();
    let mut playing: JoinSet<PlayerReport> = JoinSet::new();
    loop {
        let at = now();
        let due = |guest: Option<&Guest>| guest.map_or(told, |guest| told.min(begin + guest.at_ns));
        late_ns = late_ns.max(at.saturating_sub(due(coming.peek())));
        while let Some(guest) = coming.next_if(|guest| begin + guest.at_ns <= at) {
            playing.spawn_local(play(shared.clone(), guest));
        }
        if at >= told {
            progress(*shared.counts.borrow());
            shared.count(|counts| counts.seen = Seen::default());
            let used = cpu();
            busiest = busiest.max(part_of(used - before.1, at - before.0));
            (told, before) = (at + TOLD, (at, used));
        }
        if playing.is_empty() && coming.peek().is_none() {
            break;
        }
        let next = coming
            .peek()
            .map_or(told, |guest| told.min(begin + guest.at_ns));
        let left = Duration::from_nanos(next.saturating_sub(now()));
        if playing.is_empty() {
            sleep(left).await;
        } else {
            match timeout(left, playing.join_next()).await {
                Ok(Some(Ok(report))) => {
                    players.push(report);
                    continue;
                }
                Ok(Some(Err(error))) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // Nobody cancels one.
                    Err(_) => continue,
                },
                Ok(None) | Err(_) => {}
            }
        }
    }
    progress(*shared.counts.borrow());
    let used = cpu() - began.1;
    Part {
        players,
        films: shared.films.take(),
        times: shared.times.borrow().clone(),
        cpu_ns: used,
        busiest,
        busy: part_of(used, now() - began.0),
        late_ns,
    }
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a run")]
fn part_of(ns: u64, all_ns: u64) -> f64 {
    ns as f64 / all_ns.max(1) as f64
}
