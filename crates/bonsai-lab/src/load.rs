//! Whether the machine was quiet enough to believe a number.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::service::monotonic_ns;

/// Clock ticks of `/proc` in ns: always 100 a second on x86 (`USER_HZ`).
const TICK_NS: u64 = 10_000_000;

/// A control thread that wakes up later than this was kept from running.
pub(crate) const GAP_NS: u64 = 2_000_000;

/// Other programs that use more than this part of a core disturb.
const OTHERS: f64 = 0.15;

/// A hypervisor that takes more than this part of a core disturbs.
const STEAL: f64 = 0.02;

/// A reading of the machine's counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    at_ns: u64,
    load: f64,
    busy: u64,
    steal: u64,
    own: u64,
}

/// What the machine did besides the measurement, while it ran.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Conditions {
    /// Wall time, ms.
    pub(crate) wall_ms: u64,
    /// Load average over a minute, before and after.
    pub(crate) load: [f64; 2],
    /// Cores used by programs that are not part of the measurement.
    pub(crate) others: f64,
    /// Cores taken by the hypervisor.
    pub(crate) steal: f64,
    /// When a control thread that sleeps 1 ms at a time was late, and how late:
    /// instant of the monotonic clock and delay, ns.
    pub(crate) gaps: Vec<(u64, u64)>,
}

impl Moment {
    /// Now. Zeros where `/proc` does not say.
    pub(crate) fn now() -> Self {
        let numbers = |text: &str, skip: usize| -> Vec<u64> {
            text.split_ascii_whitespace()
                .skip(skip)
                .map_while(|word| word.parse().ok())
                .collect()
        };
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let cpu = numbers(stat.lines().next().unwrap_or_default(), 1);
        let at = |i: usize| cpu.get(i).copied().unwrap_or(0);
        // user nice system idle iowait irq softirq steal. What interrupts do, such as carrying
        // packets, is counted for no process, so it is nobody's here.
        let busy = at(0) + at(1) + at(2);
        let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let after_name = own.rsplit_once(')').map_or("", |(_, rest)| rest);
        // Behind the name: state, then ppid .. cmajflt (10), then utime stime cutime cstime.
        let own = numbers(after_name, 11).iter().take(4).sum();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().and_then(|word| word.parse().ok());
        Self {
            at_ns: monotonic_ns(),
            load: load.unwrap_or(0.0),
            busy,
            steal: at(7),
            own,
        }
    }

    /// What happened since. To be asked when the processes that were started
    /// since have ended: only then their CPU is known to be of the measurement.
    pub(crate) fn until_now(&self) -> Conditions {
        let now = Self::now();
        let wall_ns = now.at_ns.saturating_sub(self.at_ns).max(1);
        let cores = |ticks: u64| ticks as f64 * TICK_NS as f64 / wall_ns as f64;
        let busy = now.busy.saturating_sub(self.busy);
        let own = now.own.saturating_sub(self.own);
        Conditions {
            wall_ms: wall_ns / 1_000_000,
            load: [self.load, now.load],
            others: cores(busy.saturating_sub(own)),
            steal: cores(now.steal.saturating_sub(self.steal)),
            gaps: Vec::new(),
        }
    }
}

impl Conditions {
    /// These, where so many ms of the CPU that others used belong to processes of
    /// the measurement that live on.
    #[must_use]
    pub(crate) fn less(mut self, cpu_ms: u64) -> Self {
        self.others = (self.others - cpu_ms as f64 / self.wall_ms.max(1) as f64).max(0.0);
        self
    }

    /// Why a number measured meanwhile is doubtful, but for gaps of the control
    /// thread.
    pub(crate) fn doubt_but_gaps(&self) -> Option<String> {
        let without = Self {
            gaps: Vec::new(),
            ..self.clone()
        };
        without.doubt()
    }

    /// Why a number measured meanwhile is doubtful.
    pub(crate) fn doubt(&self) -> Option<String> {
        let mut reasons = Vec::new();
        // Ticks are coarse: below a quarter of a second they say nothing.
        if self.wall_ms >= 250 && self.others > OTHERS {
            reasons.push(format!("others used {:.1} cores", self.others));
        }
        if self.wall_ms >= 250 && self.steal > STEAL {
            reasons.push(format!("the hypervisor took {:.2} cores", self.steal));
        }
        if let Some(worst) = self.gaps.iter().map(|(_, late)| *late).max() {
            reasons.push(format!(
                "{} gaps, the longest {:.0} ms",
                self.gaps.len(),
                worst as f64 / 1e6
            ));
        }
        (!reasons.is_empty()).then(|| reasons.join(", "))
    }
}

/// The reasons to doubt several measurements, as one sentence: how many of them
/// were disturbed, and the worst reason.
pub(crate) fn doubt_of<'a>(all: impl Iterator<Item = &'a Conditions>) -> Option<String> {
    let all: Vec<&Conditions> = all.collect();
    let doubtful: Vec<String> = all.iter().filter_map(|c| c.doubt()).collect();
    // Medians over rounds do not mind a few bad ones.
    if doubtful.len() * 4 <= all.len() {
        return None;
    }
    let worst = all.iter().max_by(|a, b| a.others.total_cmp(&b.others))?;
    let reason = worst.doubt().or_else(|| doubtful.first().cloned())?;
    Some(format!(
        "{} of {} measurements disturbed: {reason}",
        doubtful.len(),
        all.len()
    ))
}

/// A thread that only sleeps and looks how late it wakes up: if it is late, so
/// was everything else on this machine.
#[derive(Debug)]
pub(crate) struct Control {
    stop: Arc<AtomicBool>,
    gaps: Arc<Mutex<Vec<(u64, u64)>>>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Starts it.
    pub(crate) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let gaps = Arc::new(Mutex::new(Vec::new()));
        let (stopped, found) = (Arc::clone(&stop), Arc::clone(&gaps));
        let thread = std::thread::spawn(move || {
            const TURN_NS: u64 = 1_000_000;
            while !stopped.load(Ordering::Relaxed) {
                let from = monotonic_ns();
                std::thread::sleep(Duration::from_nanos(TURN_NS));
                let late = monotonic_ns().saturating_sub(from + TURN_NS);
                if late > GAP_NS
                    && let Ok(mut gaps) = found.lock()
                {
                    gaps.push((from, late));
                }
            }
        });
        Self {
            stop,
            gaps,
            thread: Some(thread),
        }
    }

    /// Ends it; returns when it was late and how late, ns.
    pub(crate) fn finish(mut self) -> Vec<(u64, u64)> {
        self.join();
        self.gaps
            .lock()
            .map_or_else(|_| Vec::new(), |gaps| gaps.clone())
    }

    fn join(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet() -> Conditions {
        Conditions {
            wall_ms: 1_000,
            ..Conditions::default()
        }
    }

    #[test]
    fn what_disturbs_is_named() {
        assert_eq!(quiet().doubt(), None);
        let others = Conditions {
            others: 0.5,
            ..quiet()
        };
        assert_eq!(others.doubt().as_deref(), Some("others used 0.5 cores"));
        let short = Conditions {
            wall_ms: 100,
            ..others
        };
        assert_eq!(short.doubt(), None, "ticks say nothing of 100 ms");
        let gaps = Conditions {
            gaps: vec![(0, 3_000_000), (9, 7_000_000)],
            ..quiet()
        };
        assert_eq!(gaps.doubt().as_deref(), Some("2 gaps, the longest 7 ms"));
    }

    #[test]
    fn few_disturbed_rounds_do_not_matter() {
        let bad = Conditions {
            others: 1.0,
            ..quiet()
        };
        let mixed = |n: usize| (0..8).map(move |i| i < n);
        let doubt = |n: usize| {
            let all: Vec<_> = mixed(n)
                .map(|is_bad| if is_bad { bad.clone() } else { quiet() })
                .collect();
            doubt_of(all.iter())
        };
        assert_eq!(doubt(2), None);
        assert!(
            doubt(3)
                .expect("doubt")
                .starts_with("3 of 8 measurements disturbed: others")
        );
    }

    #[test]
    fn own_work_is_not_that_of_others() {
        let before = Moment::now();
        let end = monotonic_ns() + 20_000_000_000;
        while Moment::now().own < before.own + 5 {
            assert!(monotonic_ns() < end, "own work is not seen");
        }
        // Two clocks of the kernel, with ticks of their own.
        while Moment::now().busy < before.busy + 5 {
            assert!(monotonic_ns() < end, "own work is not seen in all of it");
        }
    }
}
