//! Reads that follow their plan.

use std::io;
use std::sync::Arc;

use bonsai_dedup::drive::{Content, How, Stamp, Volume};

use super::plan::{From, Plan, Run};
use super::{BLOCK, Member, content};
use crate::export::add;
use crate::image::{Now, Piece};

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
            } else if let Some(stamp) = self.known.stamps.of(block) {
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
        if !self.was_true(&plan) {
            self.count_race(&plan);
            plan.itself();
            return Ok(Some(plan));
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
        if !self.was_true(plan) {
            self.count_race(plan);
            return Ok(false);
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
        if !self.was_true(&plan) {
            self.count_race(&plan);
            return self.image.read(into, offset);
        }
        if !plan.needs_disk() {
            add(&self.counters.saved, 1);
        }
        self.lead(&plan);
        self.learn(plan.volume, offset, into, &plan.learn, How::Read);
        Ok(())
    }

    /// What was read elsewhere is not used.
    fn count_race(&self, plan: &Plan) {
        let elsewhere = plan
            .runs
            .iter()
            .filter(|run| !matches!(run.from, From::Itself));
        add(&self.counters.raced, elsewhere.map(|run| run.count).sum());
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
        let mut map = self.sharing.state.map_mut();
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
        if !self.holds(plan, run, (volume, block), stamps) {
            add(&self.counters.raced, run.count);
            return Ok(false);
        }
        if self.sharing.verify && !self.verify(run, into, (volume, block), stamps) {
            return Ok(false);
        }
        add(&self.counters.redirected_bytes, run.count * BLOCK);
        Ok(true)
    }

    /// Whether neither blocks nor their leaders were written since the read was planned: then what was read of the leaders
    /// is what the blocks hold. It takes no lock.
    fn holds(&self, plan: &Plan, run: &Run, leader: (Volume, u64), stamps: &[Stamp]) -> bool {
        let Some(of) = self.sharing.state.known(leader.0) else {
            return false;
        };
        let start = plan.led.partition_point(|(block, _)| *block < run.block);
        let own = plan.led.get(start..).unwrap_or_default();
        let own = own.get(..stamps.len()).unwrap_or_default();
        // Each block of a run of leaders has a stamp of its own.
        let all = own.len() == stamps.len();
        all && of.stamps.all_hold((leader.1..).zip(stamps.iter().copied()))
            && self.known.stamps.all_hold(own.iter().copied())
    }

    /// Compares what was read with the fingerprints of the blocks that it is for.
    fn verify(&self, run: &Run, into: &[u8], leader: (Volume, u64), stamps: &[Stamp]) -> bool {
        let map = self.sharing.state.map();
        let known = run.block..run.block + run.count;
        let known: Option<Vec<_>> = known.map(|own| map.content(self.volume(), own)).collect();
        drop(map);
        let Some(known) = known else {
            // Evicted meanwhile: there is nothing to compare with.
            add(&self.counters.raced, run.count);
            return false;
        };
        let (blocks, _) = into.as_chunks::<4096>();
        let right =
            |(bytes, known): (&[u8; 4096], &Content<_>)| *known == content(&self.key, bytes);
        let checked: Vec<bool> = blocks.iter().zip(&known).map(right).collect();
        if checked.contains(&false) {
            add(&self.counters.wrong, run.count);
            self.unlearn(leader, stamps, &checked);
            return false;
        }
        true
    }
}

/// The part of a read that a run is for.
fn part<'a>(into: &'a mut [u8], offset: u64, run: &Run) -> &'a mut [u8] {
    let start = usize::try_from(run.block * BLOCK - offset).unwrap_or(usize::MAX);
    let length = usize::try_from(run.count * BLOCK).unwrap_or(usize::MAX);
    let rest = into.get_mut(start..).unwrap_or_default();
    rest.get_mut(..length).unwrap_or_default()
}
