//! What viewers of media servers see, under limits and beside others: the experiments of the papers
//! "Support for enterprise consolidation of I/O bound services" (000) and "Performance evaluation of
//! video-on-demand in virtualized environments: the client perspective" (002).
//!
//! | module | what is in it |
//! |---|---|
//! | `clip` | clips that ffmpeg makes, once a run |
//! | `server` | `bonsai serve`, GStreamer's server and VLC, bare or by `bonsai run` |
//! | `audience` | viewers: those of `bonsai watch` |
//! | `cross` | the meter beside a client of others |
//! | `capacity` | how many streams a server carries |
//! | `fig11`, `fig12`, `ten` | the figures of 000 |
//! | `vod` | the tables and figures of 002 |
//! | `chart` | what the plots have in common |
//!
//! Servers, and what stresses them, have one processor, viewers another.

mod audience;
pub(super) mod capacity;
mod chart;
mod clip;
pub(super) mod cross;
pub(super) mod fig11;
pub(super) mod fig12;
mod server;
pub(super) mod ten;
pub(super) mod vod;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::load::Conditions;

/// Kilobits a second of so many bytes a second.
fn kbit(bytes_per_sec: f64) -> f64 {
    bytes_per_sec * 8.0 / 1e3
}

/// Which processors are whose; `None` where there is but one.
#[derive(Clone, Copy, Debug, Default)]
struct Cores {
    server: Option<usize>,
    viewers: Option<usize>,
}

impl Cores {
    /// The first and the last that there are.
    fn find() -> Self {
        let Ok(all) = sched_getaffinity(None) else {
            return Self::default();
        };
        let mut found = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
        match (found.next(), found.next_back()) {
            (server @ Some(_), viewers @ Some(_)) => Self { server, viewers },
            _ => Self::default(),
        }
    }
}

/// From now on the calling thread, and those that it starts, run on one processor.
fn pin(core: Option<usize>) {
    let Some(core) = core else {
        return;
    };
    let mut set = CpuSet::new();
    set.set(core);
    // Where that is not granted, the machine is shared as it comes, and the client says how busy it was.
    let _ = sched_setaffinity(None, &set);
}

/// Of several reasons to doubt, all.
fn together(reasons: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let reasons: Vec<String> = reasons.into_iter().flatten().collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// How late the control thread was at most, ms.
fn latest_ms(conditions: &Conditions) -> f64 {
    let late = conditions.gaps.iter().map(|(_, late)| *late).max();
    late.unwrap_or(0) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pinned_runs_there() {
        let cores = Cores::find();
        if cores.viewers.is_none() {
            return;
        }
        assert_ne!(cores.server, cores.viewers);
        let found = std::thread::spawn(move || {
            pin(cores.viewers);
            let set = sched_getaffinity(None).expect("a set");
            (set.count(), cores.viewers.map(|core| set.is_set(core)))
        });
        assert_eq!(found.join().expect("ended"), (1, Some(true)));
    }

    #[test]
    fn reasons_are_said_together() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(together([None, None]), None);
        assert_eq!(together([text("a"), None, text("b")]), text("a; b"));
    }
}
