//! DRIVE over a trace, by the same map that a server has.

use super::{Drive, OnWrite, Outcome};
use crate::cache::{Cache, Policy, with_cache};
use crate::drive::{Config, Content, DriveMap, Group, How, Source, Volume, Why};
use crate::stream::{Request, Stream};

pub(super) fn run(stream: &Stream, policy: Policy, blocks: u32, how: Drive) -> Outcome {
    with_cache!(policy, blocks, stream.blocks.len(), |cache| {
        let mut cache = cache;
        let mut simulated = Simulated::new(stream, how);
        let mut outcome = Outcome::default();
        for &request in &stream.requests {
            simulated.step(request, &mut outcome, |block| cache.access(block));
        }
        simulated.say(&mut outcome);
        outcome.look_into(&cache, stream);
        outcome
    })
}

/// The blocks to which the requests of a trace go, when nothing that is cached, or known and forgotten,
/// changes that: metadata is updated on writes, and without bound. What any cache does with them is what it
/// does under DRIVE.
///
/// # Errors
/// The scheme has another kind of metadata, or the trace a request whose content is not known.
pub fn redirected(stream: &Stream, how: Drive) -> Result<Vec<u32>, NotAStream> {
    check_stream(stream, how)?;
    let mut simulated = Simulated::new(stream, how);
    let mut outcome = Outcome::default();
    let mut to = Vec::with_capacity(stream.requests.len());
    for &request in &stream.requests {
        simulated.step(request, &mut outcome, |block| {
            to.push(block);
            false
        });
    }
    Ok(to)
}

/// Whether [`redirected`] has an answer.
///
/// # Errors
/// It has none: why.
pub fn check_stream(stream: &Stream, how: Drive) -> Result<(), NotAStream> {
    if how.on_write != OnWrite::Update {
        return Err(NotAStream(
            "what a write invalidates is known again when a read misses, which depends on the cache",
        ));
    }
    if how.max_bytes.is_some() {
        return Err(NotAStream(
            "what bounded metadata forgets is known again when a read misses, which depends on the cache",
        ));
    }
    if stream
        .requests
        .iter()
        .any(|request| request.content().is_none())
    {
        return Err(NotAStream("the trace does not say what every block holds"));
    }
    Ok(())
}

/// Why redirected requests cannot be known without a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAStream(&'static str);

struct Simulated<'a> {
    stream: &'a Stream,
    map: DriveMap<u32>,
    how: Drive,
    /// One for each volume of the trace, when `by_place`; else one for each group.
    volumes: Vec<Volume>,
    /// Blocks are where the trace has them, so that the map takes what it takes in a server; else
    /// their numbers are their places, which is quicker.
    by_place: bool,
}

impl<'a> Simulated<'a> {
    fn new(stream: &'a Stream, how: Drive) -> Self {
        let ids = 0..stream.blocks.len();
        let last = ids.map(|id| stream.blocks.block(id).0).max().unwrap_or(0);
        let by_place = how.max_bytes.is_some();
        let config = how.max_bytes.map_or(Config::UNBOUNDED, Config::bounded);
        let mut map = DriveMap::new(config);
        let groups = if by_place || how.intra { last } else { 0 };
        let group = |volume| Group(if how.intra { volume } else { 0 });
        let volumes = (0..=groups).filter_map(|volume| map.add_volume(group(volume)));
        let volumes = volumes.collect();
        let mut new = Self {
            stream,
            map,
            how,
            volumes,
            by_place,
        };
        if how.scan {
            new.scan();
        }
        new
    }

    fn scan(&mut self) {
        for (id, content) in (0..).zip(self.stream.initial()) {
            if let Some(content) = content {
                let (volume, block) = self.place(id);
                self.map
                    .learn(volume, block, Content::Key(content), How::Scan);
            }
        }
    }

    #[inline]
    fn place(&self, id: u32) -> (Volume, u64) {
        if !self.by_place && !self.how.intra {
            return (self.volumes[0], id.into());
        }
        let (volume, block) = self.stream.blocks.block(id);
        let volume = self.volumes[(volume as usize).min(self.volumes.len() - 1)];
        (volume, if self.by_place { block } else { id.into() })
    }

    fn id(&self, volume: Volume, block: u64) -> Option<u32> {
        if !self.by_place {
            return u32::try_from(block).ok();
        }
        let number = u32::try_from(volume.index()).ok()?;
        self.stream.blocks.find(number, block)
    }

    #[inline]
    fn step(&mut self, request: Request, outcome: &mut Outcome, access: impl FnOnce(u32) -> bool) {
        let (volume, block) = self.place(request.block);
        if request.is_write() {
            self.map.overwrite(volume, block);
            outcome.count(true, access(request.block));
            if self.how.on_write == OnWrite::Update {
                self.learn(request, How::Write, outcome);
            }
            return;
        }
        outcome.lookups += 1;
        let source = self.map.read(volume, block);
        let leader = match source {
            Source::Leader { volume, block } => self.id(volume, block),
            Source::Itself(_) | Source::Zero => None,
        };
        let hit = access(leader.unwrap_or(request.block));
        outcome.count(false, hit);
        outcome.dedup_hits += u64::from(hit && leader.is_some());
        let is_known = !matches!(source, Source::Itself(why) if !why.is_known());
        // A guest's driver sees what comes from the disk; what is cached it need not ask for.
        if !hit && !is_known {
            outcome.compulsory += u64::from(source == Source::Itself(Why::Unknown));
            self.learn(request, How::Read, outcome);
        }
    }

    fn learn(&mut self, request: Request, how: How, outcome: &mut Outcome) {
        if let Some(content) = request.content() {
            outcome.updates += 1;
            let (volume, block) = self.place(request.block);
            self.map.learn(volume, block, Content::Key(content), how);
        }
    }

    fn say(&self, outcome: &mut Outcome) {
        outcome.map = Some(*self.map.counters());
        outcome.map_bytes = self.map.bytes() as u64;
        outcome.map_blocks = self.map.known_blocks();
    }
}
