//! A read as runs.

mod proof;

use std::io;
use std::sync::Arc;

use bonsai_dedup::drive::{How, Source, Stamp, Volume};

use super::{BLOCK, MOST_RUNS, Member, content};
use crate::export::add;
use crate::image::{Now, Piece};

/// Blocks one after the other that come from the same place.
#[derive(Debug)]
struct Run {
    /// The first block of the read that it is for, and how many.
    block: u64,
    count: u64,
    from: From,
    /// The disk has to be asked.
    cold: bool,
}

#[derive(Debug)]
enum From {
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
    runs: Vec<Run>,
    /// What may be learned of blocks that are read where they are.
    learn: Vec<(u64, Stamp)>,
    /// Blocks that are led by others now. If they are read where they are, they lead.
    led: Vec<(u64, Stamp)>,
    volume: Volume,
}

impl Member {
    /// Whether a read of these bytes can be planned at all.
    #[must_use]
    pub(crate) fn is_whole(offset: u64, length: usize) -> bool {
        length > 0 && offset.is_multiple_of(BLOCK) && (length as u64).is_multiple_of(BLOCK)
    }

    /// Whether the page cache has all of it, so that there is nothing to plan. Where the kernel
    /// does not say, it is taken to.
    pub(crate) fn is_resident(&self, offset: u64, length: usize) -> bool {
        let pages = self.image.resident_pages(offset, length as u64);
        pages.is_none_or(|pages| pages * BLOCK >= length as u64)
    }

    /// Reads what is resident, and learns of it what is new.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn read_resident(&self, into: &mut [u8], offset: u64) -> io::Result<Now> {
        let blocks = offset / BLOCK..(offset + into.len() as u64) / BLOCK;
        if self.known.seen.all(&blocks) {
            return self.image.read_now(into, offset);
        }
        let volume = self.volume();
        let mut learn = Vec::new();
        let map = self.sharing.state.map();
        for block in blocks.filter(|block| !self.known.seen.has(*block)) {
            if map.content(volume, block).is_some() {
                self.known.seen.add(block);
            } else if let Some(stamp) = map.stamp(volume, block) {
                learn.push((block, stamp));
            }
        }
        drop(map);
        let done = self.image.read_now(into, offset)?;
        if done == Now::Done {
            self.learn(volume, offset, into, &learn, How::Read);
        }
        Ok(done)
    }

    /// Reads without the disk, where all is resident elsewhere, or zero. Otherwise there is the plan, for whoever
    /// waits for the disk.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn read_now(&self, into: &mut [u8], offset: u64) -> io::Result<Option<Plan>> {
        let mut plan = self.plan(offset, into.len());
        if plan.needs_disk() {
            return Ok(Some(plan));
        }
        for run in &plan.runs {
            let part = part(into, offset, run);
            if !self.run_elsewhere(&plan, run, part, false)? {
                // They come just now, most of the time.
                plan.await_leaders();
                return Ok(Some(plan));
            }
        }
        add(&self.counters.saved, 1);
        Ok(None)
    }

    /// What the disk is needed for; nothing where an image has gone.
    pub(crate) fn pieces(&self, plan: &Plan, offset: u64) -> Vec<Piece> {
        let cold = plan.runs.iter().filter(|run| run.cold);
        let pieces = cold.map(|run| {
            let (image, block) = match run.from {
                From::Leader { volume, block, .. } => {
                    let known = self.sharing.state.known(volume)?;
                    (Arc::clone(&known.image), block)
                }
                _ => (Arc::clone(&self.image), run.block),
            };
            Some(Piece {
                image,
                offset: block * BLOCK,
                start: usize::try_from(run.block * BLOCK - offset).ok()?,
                length: usize::try_from(run.count * BLOCK).ok()?,
            })
        });
        pieces.collect::<Option<_>>().unwrap_or_default()
    }

    /// Does what is left of a read when its pieces have come; false where it has to be planned anew.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn finish(&self, plan: &Plan, into: &mut [u8], offset: u64) -> io::Result<bool> {
        for run in &plan.runs {
            let part = part(into, offset, run);
            let elsewhere = !matches!(run.from, From::Itself);
            if elsewhere && !self.run_elsewhere(plan, run, part, run.cold)? {
                return Ok(false);
            }
        }
        self.lead(plan);
        self.learn(plan.volume, offset, into, &plan.learn, How::Read);
        Ok(true)
    }

    /// Reads, and waits for the disk where it has to.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.fetch_ahead();
        // It may have come while this waited for a worker.
        if self.is_resident(offset, into.len()) && self.read_resident(into, offset)? == Now::Done {
            return Ok(());
        }
        let plan = self.plan(offset, into.len());
        for run in &plan.runs {
            let part = part(into, offset, run);
            // An error of another image is none of this one: it is read where it is.
            let fetched = run.cold && self.fetch(run, part).is_ok();
            let elsewhere = !matches!(run.from, From::Itself) && run.cold == fetched;
            if !elsewhere || !self.run_elsewhere(&plan, run, part, fetched)? {
                self.image.read(part, run.block * BLOCK)?;
            }
        }
        if !plan.needs_disk() {
            add(&self.counters.saved, 1);
        }
        self.lead(&plan);
        self.learn(plan.volume, offset, into, &plan.learn, How::Read);
        Ok(())
    }

    /// Blocks that were read where they are, as their leaders were not resident, lead from now on: the leader is the
    /// one that was fetched last. Otherwise the next duplicate would be read from the disk as well.
    fn lead(&self, plan: &Plan) {
        let fetched = plan
            .runs
            .iter()
            .filter(|run| matches!(run.from, From::Itself));
        let fetched: Vec<_> = fetched
            .map(|run| run.block..run.block + run.count)
            .collect();
        let led = |of: &&(u64, Stamp)| fetched.iter().any(|blocks| blocks.contains(&of.0));
        let mut led = plan.led.iter().filter(led).peekable();
        if led.peek().is_none() {
            return;
        }
        let mut map = self.sharing.state.map();
        let mut twice = Vec::new();
        for &(block, stamp) in led {
            let content = map.content(plan.volume, block);
            if let Some(content) = content.filter(|_| map.holds(plan.volume, block, stamp)) {
                map.overwrite(plan.volume, block);
                map.learned(plan.volume, block, content, How::Read, stamp);
                twice.extend(map.led_before(plan.volume, block));
            }
        }
        drop(map);
        self.sharing.state.give_up(&twice);
    }

    /// A plan by what is known, none of which is older than the last change by others that the kernel tells of.
    fn plan(&self, offset: u64, length: usize) -> Plan {
        loop {
            let (mut plan, [unknown, leads]) = self.by_the_map(offset, length);
            if self.is_outdated(&plan) {
                continue;
            }
            add(&self.counters.unknown, unknown);
            add(&self.counters.leads, leads);
            if self.sharing.verify {
                self.only_proven_zeroes(&mut plan);
            }
            self.keep_what_pays(&mut plan);
            return plan;
        }
    }

    fn by_the_map(&self, offset: u64, length: usize) -> (Plan, [u64; 2]) {
        let volume = self.volume();
        let mut plan = Plan {
            runs: Vec::new(),
            learn: Vec::new(),
            led: Vec::new(),
            volume,
        };
        let [mut unknown, mut leads] = [0, 0];
        let mut map = self.sharing.state.map();
        for block in offset / BLOCK..(offset + length as u64) / BLOCK {
            let source = map.read(volume, block);
            if let (Source::Leader { .. }, Some(stamp)) = (source, map.stamp(volume, block)) {
                plan.led.push((block, stamp));
            }
            match source {
                Source::Zero => plan.add(block, From::Zero),
                Source::Leader { volume, block: at } => match map.stamp(volume, at) {
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

    /// Reads a run of a leader that is not resident.
    fn fetch(&self, run: &Run, into: &mut [u8]) -> io::Result<()> {
        let From::Leader { volume, block, .. } = run.from else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let known = self.sharing.state.known(volume);
        let known = known.ok_or(io::ErrorKind::NotFound)?;
        known.image.read(into, block * BLOCK)
    }

    /// Reads a run that is not read where it is, without waiting for the disk, if it was not read before; false where
    /// that did not come to anything.
    fn run_elsewhere(
        &self,
        plan: &Plan,
        run: &Run,
        into: &mut [u8],
        fetched: bool,
    ) -> io::Result<bool> {
        let (volume, block, stamps) = match &run.from {
            From::Itself => return Ok(false),
            From::Zero => {
                // It was when it was planned: a write since has not been answered before this.
                into.fill(0);
                add(&self.counters.zero_bytes, run.count * BLOCK);
                return Ok(true);
            }
            From::Leader {
                volume,
                block,
                stamps,
            } => (*volume, *block, stamps),
        };
        if !fetched {
            let known = self.sharing.state.known(volume);
            // An error of another image is none of this one: it is read where it is.
            let read = known.map(|known| known.image.read_now(into, block * BLOCK));
            if !matches!(read, Some(Ok(Now::Done))) {
                add(&self.counters.cold, run.count);
                return Ok(false);
            }
        }
        let map = self.sharing.state.map();
        let mut expected = Vec::new();
        for (number, stamp) in (0..).zip(stamps) {
            let own = run.block + number;
            let leader = Source::Leader {
                volume,
                block: block + number,
            };
            if map.peek(plan.volume, own) != leader || !map.holds(volume, block + number, *stamp) {
                add(&self.counters.raced, run.count);
                return Ok(false);
            }
            if self.sharing.verify {
                expected.push(map.content(plan.volume, own));
            }
        }
        drop(map);
        if self.sharing.verify {
            let (blocks, _) = into.as_chunks::<4096>();
            let right = |(bytes, known): (&[u8; 4096], &Option<_>)| {
                known.is_none_or(|known| known == content(&self.key, bytes))
            };
            let checked: Vec<bool> = blocks.iter().zip(&expected).map(right).collect();
            if checked.contains(&false) {
                add(&self.counters.wrong, run.count);
                self.unlearn((volume, block), stamps, &checked);
                return Ok(false);
            }
        }
        add(&self.counters.redirected_bytes, run.count * BLOCK);
        Ok(true)
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

    /// All of it is read where it is.
    fn itself(&mut self) {
        self.runs = vec![Run {
            block: self.runs.first().map_or(0, |run| run.block),
            count: self.runs.iter().map(|run| run.count).sum(),
            from: From::Itself,
            cold: true,
        }];
    }

    /// Leaders are waited for.
    fn await_leaders(&mut self) {
        for run in &mut self.runs {
            run.cold |= matches!(run.from, From::Leader { .. });
        }
    }

    fn needs_disk(&self) -> bool {
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

/// The part of a read that a run is for.
fn part<'a>(into: &'a mut [u8], offset: u64, run: &Run) -> &'a mut [u8] {
    let start = usize::try_from(run.block * BLOCK - offset).unwrap_or(usize::MAX);
    let length = usize::try_from(run.count * BLOCK).unwrap_or(usize::MAX);
    let rest = into.get_mut(start..).unwrap_or_default();
    rest.get_mut(..length).unwrap_or_default()
}
