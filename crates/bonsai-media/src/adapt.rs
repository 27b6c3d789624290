//! Which quality of which segment a viewer fetches next, and what the viewer sees of it.
//!
//! ```text
//!                 next ──> Wait | Fetch(segment, quality) | End
//!   Client ──> Session ──> Rule: throughput, bola, bolae, dynamic, davvi
//!   (now)      (passed)     ^          ^
//!                 │      estimate    level
//!                 │         │          │
//!                 └──> Estimator    Player: buffer, start, stalls, switches ──> Summary ──> Score
//! ```
//! A [`Client`] is what fetches over a real network holds on to: it is told what happens and when. Below it a
//! [`Session`] knows how much time has passed, and no more. [`simulate`] moves the same session through a
//! trace of a network, with time that is made up.
//!
//! ```
//! use bonsai_media::adapt::{Client, ClientNext, Ladder, Rule, Settings};
//!
//! let ladder = Ladder::new(2_000.0, vec![500.0, 1_000.0, 2_000.0], Some(30))?;
//! let settings = Settings { rule: Rule::Bola, ..Settings::default() };
//! let mut now = 0; // nanoseconds of the caller's clock
//! let mut client = Client::new(ladder.into(), settings, now)?;
//! loop {
//!     match client.next_step(now) {
//!         ClientNext::Wait(ns) | ClientNext::Drain(ns) => now += ns,
//!         ClientNext::Fetch { quality, .. } => {
//!             let bytes = [125_000, 250_000, 500_000][quality];
//!             now += 20_000_000;
//!             client.first_byte(now, Some(bytes));
//!             now += 400_000_000;
//!             if client.received(now, bytes / 2).is_some() {
//!                 continue; // the request is cancelled
//!             }
//!             now += 400_000_000;
//!             client.fetched(now, bytes);
//!         }
//!         ClientNext::End => break,
//!     }
//! }
//! assert_eq!(client.summary(now).stalls, 0);
//! # Ok::<(), bonsai_media::adapt::Error>(())
//! ```
//!
//! # Sources
//! - BOLA: Spiteri, Urgaonkar, Sitaraman, "BOLA: Near-Optimal Bitrate Adaptation for Online Videos",
//!   INFOCOM 2016.
//! - BOLA-E, dynamic, the rules of throughput, insufficient buffer and abandonment: Spiteri, Sitaraman,
//!   Sparacio, "From Theory to Practice: Improving Bitrate Adaptation in the DASH Reference Player", MMSys
//!   2018; and their simulator Sabre (UMass, 2018), whose numbers these have, and whose choices they make.
//! - davvi: the proxy of the paper 000, section 2.2.
//! - The linear score: Yin, Jindal, Sekar, Sinopoli, "A Control-Theoretic Approach for Dynamic Adaptive Video
//!   Streaming over HTTP", SIGCOMM 2015.
//!
//! # Invariants
//! 1. A quality is one of the ladder. Before anything was measured it is the lowest.
//! 2. The buffer is never below nothing, and never above its largest size.
//! 3. Time is one of: start, play, stall, seek, pause, after the end.
//! 4. A wait that was told ends: whoever waits that long and asks again comes a step further, unless paused.

mod client;
mod error;
mod estimate;
mod ladder;
mod player;
mod rule;
mod rules;
mod score;
mod session;
mod settings;
mod simulate;
#[cfg(test)]
mod tests;

pub use self::client::{Client, ClientNext};
pub use self::error::Error;
pub use self::estimate::{Accuracy, Estimate, Estimator};
pub use self::ladder::Ladder;
pub use self::player::{Dry, Observer, Phase, Player};
pub use self::rule::{Adapt, Choice, Fetched, Progress, Rule, View};
pub use self::score::{Score, Summary, Weights, fairness};
pub use self::session::{Next, Session};
pub use self::settings::{AfterAbandon, Settings};
pub use self::simulate::{Fetch, Movie, Period, Reference, Run, Trace, simulate};
