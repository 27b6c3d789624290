//! A read as runs.

use std::sync::Arc;

use bonsai_dedup::drive::{Source, Stamp, Volume};

use super::known::Known;
use super::{BLOCK, MOST_RUNS, Member};
use crate::export::add;

/// Blocks one after the other that come from the same place.
#[derive(Debug)]
pub(super) struct Run {
    /// The first block of the read that it is for, and how many.
    pub(super) block: u64,
    pub(super) count: u64,
    pub(super) from: From,
    /// The disk has to be asked.
    pub(super) cold: bool,
}

#[derive(Debug)]
pub(super) enum From {
    Itself,
    Zero,
    Leader {
        volume: Volume,
        block: u64,
        /// Of each block of the leader's.
        stamps: Vec<Stamp>,
    },
}

/// How a read is to be done.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(super) runs: Vec<Run>,
    /// What may be learned of blocks that are read where they are.
    pub(super) learn: Vec<(u64, Stamp)>,
    /// Blocks that are led by others now. If they are read where they are, they lead.
    pub(super) led: Vec<(u64, Stamp)>,
    pub(super) volume: Volume,
    /// Images of which something is believed, and the time of their guards before the map was asked.
    pub(super) believed: Vec<Arc<Known>>,
    pub(super) began: u64,
}

impl Member {
    /// A plan by what is known, none of which is older than the last change by others that the kernel tells of.
    pub(super) fn plan(&self, offset: u64, length: usize) -> Plan {
        loop {
            let began = self.sharing.state.clock.now();
            if !self.is_believed() {
                return self.in_place(offset, length);
            }
            let (mut plan, [unknown, leads]) = self.by_the_map(offset, length);
            plan.began = began;
            self.keep_guarded(&mut plan);
            if self.is_outdated(&plan) {
                continue;
            }
            add(&self.counters.unknown, unknown);
            add(&self.counters.leads, leads);
            if self.sharing.verify {
                self.only_proven_zeroes(&mut plan);
            }
            self.keep_what_pays(&mut plan);
            if plan.needs_disk() {
                add(&self.sharing.disk_reads, 1);
            }
            return plan;
        }
    }

    /// Nothing is believed: all of it is read where it is.
    fn in_place(&self, offset: u64, length: usize) -> Plan {
        let mut plan = Plan::new(self.volume());
        let count = length as u64 / BLOCK;
        plan.runs.push(Run {
            block: offset / BLOCK,
            count,
            from: From::Itself,
            cold: true,
        });
        self.image.read_ahead(self.led.may(count, 0));
        add(&self.sharing.disk_reads, 1);
        plan
    }

    /// Blocks of images that are not guarded lead nobody.
    fn keep_guarded(&self, plan: &mut Plan) {
        let mut leaders: Vec<Arc<Known>> = Vec::new();
        for run in &mut plan.runs {
            let From::Leader { volume, .. } = run.from else {
                continue;
            };
            if !leaders.iter().any(|known| known.volume == volume) {
                let known = self.sharing.state.known(volume);
                leaders.extend(known.filter(|known| known.is_believed()).cloned());
            }
            if !leaders.iter().any(|known| known.volume == volume) {
                run.from = From::Itself;
                run.cold = true;
            }
        }
        if !plan.runs.iter().all(|run| matches!(run.from, From::Itself)) {
            plan.believed = leaders;
            if !plan
                .believed
                .iter()
                .any(|known| known.volume == plan.volume)
            {
                plan.believed.push(Arc::clone(&self.known));
            }
        }
    }

    fn by_the_map(&self, offset: u64, length: usize) -> (Plan, [u64; 2]) {
        let volume = self.volume();
        let mut plan = Plan::new(volume);
        let [mut unknown, mut leads] = [0, 0];
        let map = self.sharing.state.map();
        for block in offset / BLOCK..(offset + length as u64) / BLOCK {
            let source = map.look(volume, block);
            let is_led = matches!(source, Source::Leader { .. });
            let own = map.stamp(volume, block).filter(|_| is_led);
            plan.led.extend(own.map(|stamp| (block, stamp)));
            match source {
                Source::Zero => plan.add(block, From::Zero),
                Source::Leader { volume, block: at } => match own.and(map.stamp(volume, at)) {
                    Some(stamp) => plan.add_leader(block, (volume, at), stamp),
                    None => plan.add(block, From::Itself),
                },
                Source::Itself(why) => {
                    if why.is_known() {
                        leads += 1;
                    } else {
                        unknown += 1;
                        let stamp = map.stamp(volume, block);
                        plan.learn.extend(stamp.map(|stamp| (block, stamp)));
                    }
                    plan.add(block, From::Itself);
                }
            }
        }
        drop(map);
        let (blocks, led) = (length as u64 / BLOCK, plan.led.len() as u64);
        self.image.read_ahead(self.led.may(blocks, led));
        (plan, [unknown, leads])
    }

    /// Runs whose leaders are not resident are read where they are, but for a read that comes from leaders as a
    /// whole: that takes the disk no longer, and the next duplicate finds the leaders. All of it is read where it is if there
    /// are too many runs.
    fn keep_what_pays(&self, plan: &mut Plan) {
        let elsewhere = plan
            .runs
            .iter()
            .filter(|run| !matches!(run.from, From::Zero));
        let alone = elsewhere.count() == 1;
        for run in &mut plan.runs {
            let From::Leader { volume, block, .. } = run.from else {
                continue;
            };
            let of = self.sharing.state.known(volume);
            let bytes = run.count * BLOCK;
            let pages = of.and_then(|of| of.image.resident_pages(block * BLOCK, bytes));
            if pages.is_none_or(|pages| pages < run.count) {
                add(&self.counters.cold, run.count);
                run.cold = true;
                if !alone {
                    run.from = From::Itself;
                }
            }
        }
        plan.runs.dedup_by(|next, run| {
            let same = matches!((&run.from, &next.from), (From::Itself, From::Itself));
            run.count += if same { next.count } else { 0 };
            same
        });
        if plan.runs.len() <= MOST_RUNS {
            return;
        }
        plan.itself();
        add(
            &self.counters.split,
            plan.runs.iter().map(|run| run.count).sum(),
        );
    }
}

impl Plan {
    fn add(&mut self, block: u64, from: From) {
        match (self.runs.last_mut(), &from) {
            (Some(run), From::Zero) if matches!(run.from, From::Zero) => run.count += 1,
            (Some(run), From::Itself) if matches!(run.from, From::Itself) => run.count += 1,
            _ => self.runs.push(Run {
                block,
                count: 1,
                cold: matches!(from, From::Itself),
                from,
            }),
        }
    }

    const fn new(volume: Volume) -> Self {
        Self {
            runs: Vec::new(),
            learn: Vec::new(),
            led: Vec::new(),
            volume,
            believed: Vec::new(),
            began: 0,
        }
    }

    /// All of it is read where it is.
    pub(super) fn itself(&mut self) {
        self.runs = vec![Run {
            block: self.runs.first().map_or(0, |run| run.block),
            count: self.runs.iter().map(|run| run.count).sum(),
            from: From::Itself,
            cold: true,
        }];
    }

    /// Leaders are waited for.
    pub(super) fn await_leaders(&mut self) {
        for run in &mut self.runs {
            run.cold |= matches!(run.from, From::Leader { .. });
        }
    }

    pub(super) fn needs_disk(&self) -> bool {
        self.runs.iter().any(|run| run.cold)
    }

    fn add_leader(&mut self, block: u64, (of, at): (Volume, u64), stamp: Stamp) {
        if let Some(run) = self.runs.last_mut()
            && let From::Leader {
                volume,
                block: first,
                stamps,
            } = &mut run.from
            && *volume == of
            && *first + run.count == at
        {
            stamps.push(stamp);
            run.count += 1;
            return;
        }
        let from = From::Leader {
            volume: of,
            block: at,
            stamps: vec![stamp],
        };
        self.runs.push(Run {
            block,
            count: 1,
            from,
            cold: false,
        });
    }
}
