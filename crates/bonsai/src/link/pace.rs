//! `bonsai link pace`: what a process sends by TCP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use bonsai_link::{Paced, rate_text};
use bonsai_services::refusal::Refusal;
use bonsai_units::Unit;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::cli::LinkPace;
use crate::output::{count, print};

/// How long between two looks at connections.
const LOOK: Duration = Duration::from_millis(50);
/// The slowest pace: a full packet takes a second.
const SLOWEST: u64 = 1_500;

/// Slows a process down until it is let go.
///
/// # Errors
/// There is none, or it may not be.
pub(super) fn run(args: &LinkPace) -> anyhow::Result<u8> {
    let input = |error: bonsai_link::Error| match error {
        bonsai_link::Error::Wrong(text) => Refusal::input(text),
        error => error.into(),
    };
    if args.rate.unit() != Unit::Bytes {
        bail!(Refusal::input(format!(
            "{} counts calls, and connections carry bytes: write 20Mbit/s or 2.5MB/s",
            args.rate
        )));
    }
    let rate = args.rate.milli() / 1000;
    if rate < SLOWEST {
        bail!(Refusal::input(format!(
            "{} is too slow for TCP: at least {}",
            args.rate.in_bits(),
            rate_text(SLOWEST)
        )));
    }
    // From here on, a signal lets go what is paced by then.
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    let mut paced = Paced::new(args.pid).map_err(input)?;
    let start = Instant::now();
    let mut told = None;
    while !ended.load(Ordering::Relaxed) && args.lasts.is_none_or(|lasts| start.elapsed() < lasts) {
        let turn = match paced.turn(rate) {
            Ok(turn) => turn,
            Err(bonsai_link::Error::Ended(pid)) => {
                print(&format!("process {pid} has ended\n"))?;
                return Ok(0);
            }
            Err(error) => return Err(input(error)),
        };
        if told.replace(turn.connections) != Some(turn.connections) {
            let connections = count(turn.connections as u64, "connection", "connections");
            print(&format!(
                "{}: {connections} at {}\n",
                args.pid,
                rate_text(rate)
            ))?;
        }
        std::thread::sleep(LOOK);
    }
    drop(paced);
    print(&format!("{}: as it was before\n", args.pid))?;
    Ok(0)
}
