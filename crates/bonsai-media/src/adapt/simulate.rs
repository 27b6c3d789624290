//! A session on a network that is made up: the same code as with a real one, with time that is made up too.

mod link;
mod movie;
mod reference;
mod trace;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::link::{Came, Link};
use self::reference::Watch;
use super::{Error, Next, Progress, Session, Settings, Summary};

pub use self::movie::Movie;
pub use self::reference::Reference;
pub use self::trace::{Period, Trace};

/// A run that asks for more downloads than this for each segment gives them up for ever.
const DOWNLOADS: usize = 100;

/// A download of a run: written as `[segment, quality, 1 if it was given up]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(usize, usize, u8)", into = "(usize, usize, u8)")]
pub struct Fetch {
    /// Of which segment, from 0.
    pub segment: usize,
    /// In which quality.
    pub quality: usize,
    /// Whether it was given up.
    pub abandoned: bool,
}

impl From<(usize, usize, u8)> for Fetch {
    fn from((segment, quality, abandoned): (usize, usize, u8)) -> Self {
        Self {
            segment,
            quality,
            abandoned: abandoned != 0,
        }
    }
}

impl From<Fetch> for (usize, usize, u8) {
    fn from(fetch: Fetch) -> Self {
        (fetch.segment, fetch.quality, u8::from(fetch.abandoned))
    }
}

/// What a viewer did and saw.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// All downloads, in order.
    pub choices: Vec<Fetch>,
    /// What the viewer saw.
    pub summary: Summary,
    /// The same by the measures of Sabre.
    pub sabre: Reference,
}

/// One viewer watches all of a film over that network; when the trace is over it begins anew.
///
/// # Errors
/// If a setting cannot be with this film, the network does not bring it in ten million steps, or the downloads of
/// a segment are given up again and again.
pub fn simulate(movie: &Movie, trace: &Trace, settings: &Settings) -> Result<Run, Error> {
    let ladder = Arc::new(movie.ladder().clone());
    let mut session = Session::new(Arc::clone(&ladder), settings.clone())?;
    let mut watch = Watch::new(settings, &ladder);
    let mut link = Link::new(trace, &ladder);
    let mut choices = Vec::new();
    let mut first = true;
    loop {
        match session.next_step() {
            Next::Wait(ms) => {
                watch.pass(&mut session, &link, ms);
                link.idle(ms).map_err(|steps| steps.of(session.segment()))?;
            }
            Next::Fetch { segment, quality } => {
                let bits = movie.bits(segment, quality);
                let came = if first || !settings.abandon {
                    link.fetch(bits)
                } else {
                    link.fetch_in_steps(bits, |came| {
                        session.progress(&progress(quality, bits, came))
                    })
                };
                let (came, lower) = came.map_err(|steps| steps.of(segment))?;
                first = false;
                watch.changes(&session, &mut link);
                watch.pass(&mut session, &link, came.ms);
                match lower {
                    None => session.fetched(came.bits, came.ms, came.first_byte_ms),
                    Some(lower) => session.abandoned(lower, came.bits, came.ms, came.first_byte_ms),
                }
                choices.push(Fetch {
                    segment,
                    quality,
                    abandoned: lower.is_some(),
                });
                if choices.len() > DOWNLOADS * movie.segments() {
                    let downloads = choices.len();
                    return Err(Error::GivenUp { segment, downloads });
                }
            }
            Next::End => break,
        }
        watch.changes(&session, &mut link);
    }
    let left_ms = session.player().level_ms();
    watch.pass(&mut session, &link, left_ms);
    let summary = session.summary();
    let sabre = watch.reference(&session, &summary);
    Ok(Run {
        choices,
        summary,
        sabre,
    })
}

fn progress(quality: usize, size_bits: f64, came: &Came) -> Progress {
    Progress {
        quality,
        size_bits,
        came_bits: came.bits,
        time_ms: came.ms,
        first_byte_ms: came.first_byte_ms,
    }
}
