//! Where blocks of an original are, when the gaps between those that it accesses are wider or narrower.

use super::original::Original;
use crate::model::BLOCK;

/// By volume.
pub(super) struct Places {
    stretches: Vec<Vec<Stretch>>,
    factor: f64,
}

/// Blocks one after the other that are all accessed.
#[derive(Clone, Copy)]
struct Stretch {
    first: u64,
    /// The one behind the last.
    end: u64,
    /// Where the first one goes.
    to: u64,
}

impl Places {
    /// A gap stays one, however narrow: what is not together is not made so.
    pub(super) fn new(original: &Original, factor: f64) -> Self {
        let mut blocks = original.numbers.keys().to_vec();
        blocks.sort_unstable();
        let mut volumes: Vec<Vec<Stretch>> = vec![Vec::new(); original.spans.len()];
        for (volume, block) in blocks {
            let of = &mut volumes[volume as usize];
            match of.last_mut() {
                Some(last) if last.end == block => last.end += 1,
                last => {
                    let (end, to) = last.map_or((0, 0), |last| (last.end, last.after()));
                    of.push(Stretch {
                        first: block,
                        end: block + 1,
                        to: to.saturating_add(scaled(block - end, factor)),
                    });
                }
            }
        }
        Self {
            stretches: volumes,
            factor,
        }
    }

    /// Where a byte goes; in a gap, as far into it as the gap is wider. It never goes further back than a byte before it.
    pub(super) fn of(&self, volume: u16, offset: u64) -> u64 {
        let block = offset / BLOCK;
        let stretches = &self.stretches[usize::from(volume)];
        let at = stretches.partition_point(|stretch| stretch.end <= block);
        let to = match stretches.get(at).filter(|stretch| stretch.first <= block) {
            Some(stretch) => stretch.to.saturating_add(block - stretch.first),
            None => {
                let before = at.checked_sub(1).map(|at| stretches[at]);
                let (end, to) = before.map_or((0, 0), |before| (before.end, before.after()));
                let to = to.saturating_add(scaled(block - end, self.factor));
                // However narrow the gap is made, it ends where the next stretch begins.
                stretches.get(at).map_or(to, |next| to.min(next.to))
            }
        };
        to.saturating_mul(BLOCK).saturating_add(offset % BLOCK)
    }

    /// Bytes of each volume, at most so many.
    pub(super) fn spans(&self, original: &Original, most: u64) -> Vec<u64> {
        let spans = (0..).zip(&original.spans);
        spans
            .map(|(volume, span)| self.of(volume, *span).min(most))
            .collect()
    }
}

impl Stretch {
    /// The block behind where its last one goes.
    fn after(&self) -> u64 {
        self.to.saturating_add(self.end - self.first)
    }
}

fn scaled(gap: u64, factor: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "casts of floats saturate"
    )]
    let scaled = (gap as f64 * factor) as u64;
    scaled.max(gap.min(1))
}
