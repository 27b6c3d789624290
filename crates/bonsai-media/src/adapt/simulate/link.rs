//! Bits on a network that changes from period to period.
//!
//! Times are sums of the times in each period, in the order in which they pass: what is chosen depends on
//! the last digit here and there, and has to be what Sabre chooses.

use super::super::{Error, Ladder};
use super::{Period, Trace};

/// A download is looked at when so many bits more have come,
const STEP_BITS: f64 = 12_000.0;
/// and so much time has passed since, milliseconds.
const STEP_MS: f64 = 50.0;
/// A run takes no more periods than this.
const MOST_STEPS: u64 = 10_000_000;

/// What has come of a download.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Came {
    pub(super) bits: f64,
    pub(super) ms: f64,
    pub(super) first_byte_ms: f64,
}

/// The network carries another quality than before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) at_ms: f64,
    pub(super) before: usize,
    pub(super) now: usize,
}

/// How many periods have passed, too many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps(u64);

impl Steps {
    pub(super) const fn of(self, segment: usize) -> Error {
        Error::Endless {
            segment,
            steps: self.0,
        }
    }
}

/// A network, at a time.
#[derive(Debug)]
pub(super) struct Link<'a> {
    periods: &'a [Period],
    ladder: &'a Ladder,
    index: usize,
    /// What is left of this period.
    left_ms: f64,
    now_ms: f64,
    carried: usize,
    changes: Vec<Change>,
    steps: u64,
}

impl<'a> Link<'a> {
    pub(super) fn new(trace: &'a Trace, ladder: &'a Ladder) -> Self {
        let periods = trace.periods();
        let mut this = Self {
            periods,
            ladder,
            index: 0,
            left_ms: periods[0].duration_ms,
            now_ms: 0.0,
            carried: 0,
            changes: Vec::new(),
            steps: 0,
        };
        this.carried = this.carries();
        this
    }

    /// The quality that the network carries in this period.
    pub(super) const fn carried(&self) -> usize {
        self.carried
    }

    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    fn period(&self) -> Period {
        self.periods[self.index]
    }

    fn carries(&self) -> usize {
        let Period {
            bandwidth_kbps,
            latency_ms,
            ..
        } = self.period();
        let of_segment = 1.0 - latency_ms / self.ladder.segment_ms();
        let kbps = bandwidth_kbps * of_segment;
        let higher = self.ladder.bitrates_kbps().iter().skip(1);
        higher.take_while(|&&bitrate| bitrate <= kbps).count()
    }

    /// Part of this period passes.
    fn pass(&mut self, ms: f64) {
        self.now_ms += ms;
        self.left_ms -= ms;
    }

    /// The rest of this period passes, and says how much that was.
    fn pass_rest(&mut self) -> Result<f64, Steps> {
        let ms = self.left_ms;
        self.now_ms += ms;
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return Err(Steps(MOST_STEPS));
        }
        self.index = (self.index + 1) % self.periods.len();
        self.left_ms = self.period().duration_ms;
        let before = self.carried;
        self.carried = self.carries();
        if self.carried != before {
            self.changes.push(Change {
                at_ms: self.now_ms,
                before,
                now: self.carried,
            });
        }
        Ok(ms)
    }

    /// Nothing is asked for.
    pub(super) fn idle(&mut self, mut ms: f64) -> Result<(), Steps> {
        while ms > self.left_ms {
            ms -= self.pass_rest()?;
        }
        self.pass(ms);
        Ok(())
    }

    /// From a request to the first byte. Where latency changes in between, the part that is done stays done.
    fn latency(&mut self) -> Result<f64, Steps> {
        let (mut part, mut total_ms) = (1.0, 0.0);
        while part > 0.0 {
            let latency_ms = self.period().latency_ms;
            let ms = part * latency_ms;
            if ms <= self.left_ms {
                self.pass(ms);
                total_ms += ms;
                part = 0.0;
            } else {
                let ms = self.pass_rest()?;
                total_ms += ms;
                part -= ms / latency_ms;
            }
        }
        Ok(total_ms)
    }

    fn transfer(&mut self, mut bits: f64) -> Result<f64, Steps> {
        let mut total_ms = 0.0;
        while bits > 0.0 {
            let kbps = self.period().bandwidth_kbps;
            if bits <= self.left_ms * kbps {
                let ms = bits / kbps;
                self.pass(ms);
                total_ms += ms;
                bits = 0.0;
            } else {
                let ms = self.pass_rest()?;
                total_ms += ms;
                bits -= ms * kbps;
            }
        }
        Ok(total_ms)
    }

    /// As much of so many bits as comes until both so many bits have come and so much time has passed.
    fn transfer_step(
        &mut self,
        mut bits: f64,
        mut least_bits: f64,
        mut least_ms: f64,
    ) -> Result<(f64, f64), Steps> {
        let (mut total_bits, mut total_ms) = (0.0, 0.0);
        while bits > 0.0 && (least_bits > 0.0 || least_ms > 0.0) {
            let kbps = self.period().bandwidth_kbps;
            let wanted = least_bits.max(least_ms * kbps);
            let possible = self.left_ms * kbps;
            let (came, ms) = if kbps <= 0.0 {
                if least_bits > 0.0 || least_ms > self.left_ms {
                    (0.0, self.pass_rest()?)
                } else {
                    self.pass(least_ms);
                    (0.0, least_ms)
                }
            } else if bits <= wanted && bits <= possible {
                self.pass(bits / kbps);
                (bits, bits / kbps)
            } else if wanted <= possible {
                // What is left of either by rounding is none.
                (least_bits, least_ms) = (0.0, 0.0);
                self.pass(wanted / kbps);
                (wanted, wanted / kbps)
            } else {
                (possible, self.pass_rest()?)
            };
            total_bits += came;
            total_ms += ms;
            bits -= came;
            least_bits -= came;
            least_ms -= ms;
        }
        Ok((total_bits, total_ms))
    }

    /// All of a download.
    pub(super) fn fetch(&mut self, bits: f64) -> Result<(Came, Option<usize>), Steps> {
        let first_byte_ms = self.latency()?;
        let ms = first_byte_ms + self.transfer(bits)?;
        let came = Came {
            bits,
            ms,
            first_byte_ms,
        };
        Ok((came, None))
    }

    /// A download, until `look` says that it is given up, and for which quality.
    pub(super) fn fetch_in_steps(
        &mut self,
        bits: f64,
        mut look: impl FnMut(&Came) -> Option<usize>,
    ) -> Result<(Came, Option<usize>), Steps> {
        let first_byte_ms = self.latency()?;
        let mut came = Came {
            bits: 0.0,
            ms: first_byte_ms,
            first_byte_ms,
        };
        let mut least_ms = STEP_MS - first_byte_ms;
        let mut lower = None;
        while came.bits < bits && lower.is_none() {
            let (more, ms) = self.transfer_step(bits - came.bits, STEP_BITS, least_ms)?;
            came.ms += ms;
            came.bits += more;
            least_ms = STEP_MS;
            if came.bits < bits {
                lower = look(&came);
            }
        }
        Ok((came, lower))
    }
}
