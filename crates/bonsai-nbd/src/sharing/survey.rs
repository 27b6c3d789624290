//! What images of one group have in common, counted from the map on request.
//!
//! # Story
//! A walk goes over the contents of the map in slices of [`SLICE`] steps; between them nobody is kept from the map for as
//! long as the slice took. Where there are more than [`MOST_STEPS`] blocks, one content in so many is looked at, and
//! numbers are estimates. A second, shorter walk asks the page cache for blocks of at most about [`MOST_ASKED`]
//! contents: how many of those that are resident have different contents. That is a sample, and its error is
//! said.
//!
//! # Invariants
//! 1. A content is of one group, and so are all of its blocks: nothing is ever counted across groups.
//! 2. The map is held for one slice at a time.
//! 3. Work and memory are bounded, whatever guests have written.
//!
//! # Limits
//! What changes meanwhile may be missed, or counted twice.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bonsai_dedup::drive::{Group, Volume, Walk};
use serde::{Deserialize, Serialize};

use super::{BLOCK, Member};
use crate::export::Export;

/// Steps for which the map is held: some tens of microseconds.
const SLICE: usize = 1024;
/// Steps of a survey: half a second at most.
const MOST_STEPS: u64 = 1 << 21;
/// Blocks that the page cache is asked for: some tens of milliseconds.
const MOST_ASKED: u64 = 1 << 14;
/// Blocks of one content that the page cache is asked for: others are taken to be cold.
const MOST_OF_ONE: u32 = 4096;
/// Images of a group whose pairs are counted, at most: what one content costs grows with their square.
const MOST_IMAGES: usize = 64;
/// The standard normal distribution has 95 % within so many deviations.
const NINETY_FIVE: f64 = 1.96;

/// What images of one group have in common. Numbers are of blocks of 4 KiB that are known, and not of zeroes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct GroupShares {
    /// Its name.
    pub group: String,
    /// Its exports: rows and columns of `shared_blocks`.
    pub exports: Vec<String>,
    /// Known blocks of each.
    pub known_blocks: Vec<u64>,
    /// Different contents of these.
    pub contents: u64,
    /// How many blocks of an export (row) have the content of a block of another one (column); with itself, of
    /// another block of its own. Empty where there are too many exports.
    pub shared_blocks: Vec<Vec<u64>>,
    /// One content in so many was looked at; the numbers are multiplied by that.
    pub one_in: u32,
    /// What of it the page cache has; `None` where the kernel does not say.
    pub cache: Option<CacheShares>,
}

/// What the page cache has of known blocks, by a sample of contents.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct CacheShares {
    /// Blocks that are resident.
    pub resident_blocks: u64,
    /// Different contents of these.
    pub contents: u64,
    /// Resident blocks for each content of these: 1 where nothing is there twice. `None` if nothing is resident.
    pub dedup_factor: Option<f64>,
    /// With 95 % the factor is no further away than this.
    pub error: f64,
    /// Contents that were looked at.
    pub sampled: u64,
    /// That was one in so many.
    pub one_in: u32,
}

/// Images of one group.
struct Family<'a> {
    group: Group,
    members: Vec<(&'a str, &'a Member)>,
    known: Vec<u64>,
    contents: u64,
    /// Row by row.
    shared: Vec<u64>,
    sample: Sample,
}

/// Sums over contents that were looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    sampled: u64,
    /// Those with a resident block.
    present: u64,
    resident: u64,
    resident_squared: u64,
    /// The kernel did not say.
    unknown: bool,
}

/// Blocks of a content by the family's members.
#[derive(Default)]
struct OfOne {
    content: Option<u32>,
    family: usize,
    /// Member, and its blocks.
    counts: Vec<(usize, u64)>,
    asked: u32,
    resident: u64,
    unknown: bool,
}

/// Counts what exports have in common, group by group, in the order in which they come.
#[must_use]
pub fn survey(exports: &[Arc<Export>]) -> Vec<GroupShares> {
    let mut survey = Survey::of(exports);
    let Some(first) = survey.first() else {
        return Vec::new();
    };
    // Zeroes are no part of it.
    let blocks = first.sharing.state.map().blocks_with_contents();
    let every = |most: u64| u32::try_from(blocks.div_ceil(most)).unwrap_or(u32::MAX);
    let (all, some) = (every(MOST_STEPS).max(1), every(MOST_ASKED).max(1));
    survey.walk(first, all, false);
    survey.walk(first, some, true);
    let families = survey.families.iter();
    families.map(|family| family.told(all, some)).collect()
}

struct Survey<'a> {
    families: Vec<Family<'a>>,
    /// By number of the volume: family and member.
    volumes: Vec<Option<(usize, usize)>>,
}

impl<'a> Survey<'a> {
    fn of(exports: &'a [Arc<Export>]) -> Self {
        let mut survey = Self {
            families: Vec::new(),
            volumes: Vec::new(),
        };
        for export in exports {
            let Some(member) = export.member() else {
                continue;
            };
            let same = |family: &Family<'_>| family.group == member.group;
            let at = survey.families.iter().position(same);
            let at = at.unwrap_or(survey.families.len());
            if at == survey.families.len() {
                survey.families.push(Family::new(member.group));
            }
            let Some(family) = survey.families.get_mut(at) else {
                continue;
            };
            let index = member.volume().index();
            if survey.volumes.len() <= index {
                survey.volumes.resize(index + 1, None);
            }
            if let Some(of) = survey.volumes.get_mut(index) {
                *of = Some((at, family.members.len()));
            }
            family.members.push((&export.info().name, member));
        }
        for family in &mut survey.families {
            let images = family.members.len();
            family.known = vec![0; images];
            family.shared = match images <= MOST_IMAGES {
                true => vec![0; images * images],
                false => Vec::new(),
            };
        }
        survey
    }

    fn first(&self) -> Option<&'a Member> {
        let family = self.families.first()?;
        family.members.first().map(|(_, member)| *member)
    }

    /// Goes over one content in `every`, and counts blocks, or those that are resident.
    fn walk(&mut self, of: &Member, every: u32, resident: bool) {
        let mut walk = Walk::new(every);
        let mut told: Vec<(u32, Volume, u64)> = Vec::with_capacity(SLICE);
        let mut one = OfOne::default();
        let mut left = 2 * MOST_STEPS;
        loop {
            let start = Instant::now();
            let more = of
                .sharing
                .state
                .map()
                .walk(&mut walk, SLICE, |content, volume, block| {
                    told.push((content, volume, block));
                });
            let held = start.elapsed();
            for (content, volume, block) in told.drain(..) {
                if one.content != Some(content) {
                    self.take(&mut one, resident);
                    one.content = Some(content);
                }
                self.add(&mut one, volume, block, resident);
            }
            left = left.saturating_sub(SLICE as u64);
            if !more || left == 0 {
                break;
            }
            // Whoever waits for the map has it as long as this had it.
            thread::sleep(held.max(Duration::from_micros(1)));
        }
        self.take(&mut one, resident);
    }

    fn add(&self, one: &mut OfOne, volume: Volume, block: u64, resident: bool) {
        let Some((at, member)) = self.volumes.get(volume.index()).copied().flatten() else {
            return;
        };
        one.family = at;
        match one.counts.iter_mut().find(|(of, _)| *of == member) {
            Some((_, count)) => *count += 1,
            None => one.counts.push((member, 1)),
        }
        if resident && one.asked < MOST_OF_ONE {
            one.asked += 1;
            let family = self.families.get(at);
            let image = family.and_then(|family| family.members.get(member));
            let pages = image.and_then(|(_, of)| of.image.resident_pages(block * BLOCK, BLOCK));
            one.unknown |= pages.is_none();
            one.resident += u64::from(pages.is_some_and(|pages| pages > 0));
        }
    }

    /// All blocks of a content are there.
    fn take(&mut self, one: &mut OfOne, resident: bool) {
        if let Some(family) = self.families.get_mut(one.family)
            && !one.counts.is_empty()
        {
            match resident {
                true => {
                    family.sample.unknown |= one.unknown;
                    family.sample.add(one.resident);
                }
                false => family.add(&one.counts),
            }
        }
        *one = OfOne {
            counts: std::mem::take(&mut one.counts),
            ..OfOne::default()
        };
        one.counts.clear();
    }
}

impl Family<'_> {
    fn new(group: Group) -> Self {
        Self {
            group,
            members: Vec::new(),
            known: Vec::new(),
            contents: 0,
            shared: Vec::new(),
            sample: Sample::default(),
        }
    }

    /// A content, by members and their blocks.
    fn add(&mut self, counts: &[(usize, u64)]) {
        self.contents += 1;
        let images = self.members.len();
        for (row, count) in counts {
            if let Some(known) = self.known.get_mut(*row) {
                *known += count;
            }
            for (column, others) in counts {
                let has = row != column || *others > 1;
                if let Some(shared) = self.shared.get_mut(row * images + column)
                    && has
                {
                    *shared += count;
                }
            }
        }
    }

    fn told(&self, all: u32, some: u32) -> GroupShares {
        let times = |count: &u64| count.saturating_mul(u64::from(all));
        let images = self.members.len();
        GroupShares {
            group: self
                .members
                .first()
                .map_or_else(String::new, |(_, member)| member.group().to_owned()),
            exports: self
                .members
                .iter()
                .map(|(name, _)| (*name).to_owned())
                .collect(),
            known_blocks: self.known.iter().map(times).collect(),
            contents: times(&self.contents),
            shared_blocks: self
                .shared
                .chunks(images.max(1))
                .map(|row| row.iter().map(times).collect())
                .collect(),
            one_in: all,
            cache: self.sample.told(some),
        }
    }
}

impl Sample {
    fn add(&mut self, resident: u64) {
        self.sampled += 1;
        self.present += u64::from(resident > 0);
        self.resident += resident;
        self.resident_squared += resident * resident;
    }

    /// The factor is a ratio of two sums over contents that were drawn at random; its error that of the linearised
    /// ratio, for a sample without repetition (Cochran, Sampling Techniques, 3rd edition, chapter 6).
    #[expect(clippy::cast_precision_loss, reason = "sums of a sample")]
    fn told(&self, every: u32) -> Option<CacheShares> {
        if self.unknown {
            return None;
        }
        let times = |count: u64| count.saturating_mul(u64::from(every));
        let (sampled, present) = (self.sampled as f64, self.present as f64);
        let factor = (self.present > 0).then(|| self.resident as f64 / present);
        let error = factor.map_or(0.0, |factor| {
            let squared = self.resident_squared as f64 - 2.0 * factor * self.resident as f64
                + factor * factor * present;
            let rest = 1.0 - 1.0 / f64::from(every);
            let spread = rest * sampled / (sampled - 1.0).max(1.0) * squared.max(0.0);
            NINETY_FIVE * spread.sqrt() / present
        });
        Some(CacheShares {
            resident_blocks: times(self.resident),
            contents: times(self.present),
            dedup_factor: factor,
            error,
            sampled: self.sampled,
            one_in: every,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(resident: impl IntoIterator<Item = u64>, every: u32) -> CacheShares {
        let mut sample = Sample::default();
        resident.into_iter().for_each(|of| sample.add(of));
        sample.told(every).expect("it is known")
    }

    #[test]
    fn a_factor_is_blocks_for_each_content_that_is_there() {
        let all = sample([0, 2, 1, 3, 0], 1);
        assert_eq!(all.dedup_factor, Some(2.0));
        assert_eq!((all.resident_blocks, all.contents, all.sampled), (6, 3, 5));
        assert!(all.error.abs() < f64::EPSILON, "all were seen");
        assert_eq!(sample([0, 0], 1).dedup_factor, None);
        assert_eq!(sample([2, 0], 10).resident_blocks, 20);
    }

    #[test]
    fn samples_are_as_near_as_they_say() {
        // Contents with 0 to 4 resident blocks, in an order like no other.
        let resident = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let all: Vec<u64> = (0..100_000).map(|number| resident(number) % 5).collect();
        let truth = sample(all.iter().copied(), 1)
            .dedup_factor
            .expect("a factor");
        let near = (0..100).filter(|first| {
            let drawn = sample(all.iter().copied().skip(*first).step_by(100), 100);
            (drawn.dedup_factor.expect("a factor") - truth).abs() <= drawn.error
        });
        let near = near.count();
        assert!(near >= 85, "{near} of 100 are within what 95 should be");
    }
}
