//! Hit ratios of LRU for every size.

use bonsai_dedup::curve::{Curve, Mattson};
use bonsai_dedup::sample::{SampledHits, Shards};
use bonsai_dedup::scheme::{NotAStream, Scheme, check_stream, contents_of, redirected};
use bonsai_dedup::stream::Stream;
use serde::Serialize;

use crate::BLOCK;
use crate::work::in_parallel;

/// A curve at some sizes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The scheme's name.
    pub scheme: String,
    /// From the smallest size on.
    pub points: Vec<Point>,
}

/// Ratios at one size, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Memory, bytes.
    pub cache_bytes: u64,
    /// Hits of all requests.
    pub hit_ratio: f64,
    /// Reads for which the disk was not asked, of all reads.
    pub reads_saved: f64,
    /// Hits of writes, of all writes.
    pub write_hits: f64,
    /// Half of the 95 % confidence interval of [`Self::reads_saved`]; 0 when exact.
    pub error: f64,
}

/// Why a scheme has no curve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{scheme} has no curve: {why}")]
pub struct NotACurve {
    /// The scheme's name.
    pub scheme: String,
    /// The reason.
    pub why: String,
}

/// Whether a scheme has a curve for this trace.
///
/// # Errors
/// It has none: why.
pub fn check_curve(stream: &Stream, scheme: Scheme) -> Result<(), NotACurve> {
    let no = |why: String| NotACurve {
        scheme: scheme.to_string(),
        why,
    };
    match scheme {
        Scheme::Plain | Scheme::Ideal => Ok(()),
        Scheme::Drive(how) => {
            check_stream(stream, how).map_err(|why: NotAStream| no(why.to_string()))
        }
        Scheme::Iodedup { .. } => Err(no(
            "its second cache sees only what the first one misses".into()
        )),
    }
}

/// The numbers of what is cached, in order, and how many there are.
fn sequence(stream: &Stream, scheme: Scheme) -> Result<(Vec<u32>, u32), NotACurve> {
    let no = |why: String| NotACurve {
        scheme: scheme.to_string(),
        why,
    };
    match scheme {
        Scheme::Plain => {
            let blocks = stream.requests.iter().map(|request| request.block);
            Ok((blocks.collect(), stream.blocks.len()))
        }
        Scheme::Ideal => {
            let (ids, of) = contents_of(stream);
            Ok((
                stream.requests.iter().map(|&request| of(request)).collect(),
                ids,
            ))
        }
        Scheme::Drive(how) => {
            let to = redirected(stream, how).map_err(|why: NotAStream| no(why.to_string()))?;
            Ok((to, stream.blocks.len()))
        }
        Scheme::Iodedup { .. } => {
            check_curve(stream, scheme)?;
            Ok((Vec::new(), 0))
        }
    }
}

/// Sizes at which a curve is shown, blocks: `per_octave` for each doubling, from 256 (1 MiB) on up to `most`.
#[must_use]
pub fn sizes(most: u64, per_octave: u32) -> Vec<u64> {
    let mut sizes = Vec::new();
    let mut exponent = 0;
    loop {
        let size = 256.0 * 2_f64.powf(f64::from(exponent) / f64::from(per_octave.max(1)));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 256 on"
        )]
        let size = size.round() as u64;
        if size >= most || size > u64::from(u32::MAX) {
            break;
        }
        sizes.push(size);
        exponent += 1;
    }
    sizes.push(most.max(1));
    sizes
}

fn ratio(of: u64, all: u64) -> f64 {
    if all == 0 {
        0.0
    } else {
        of as f64 / all as f64
    }
}

fn exact(curve: &Curve, blocks: u64) -> Point {
    let hits = curve.at(blocks);
    Point {
        cache_bytes: blocks * BLOCK,
        hit_ratio: ratio(hits.reads + hits.writes, curve.reads + curve.writes),
        reads_saved: ratio(hits.reads, curve.reads),
        write_hits: ratio(hits.writes, curve.writes),
        error: 0.0,
    }
}

fn estimated(hits: &SampledHits, blocks: u64) -> Point {
    Point {
        cache_bytes: blocks * BLOCK,
        hit_ratio: hits.all.ratio,
        reads_saved: hits.reads.ratio,
        write_hits: hits.writes.ratio,
        error: hits.reads.error,
    }
}

/// One exact pass for each scheme.
///
/// # Errors
/// A scheme has no curve: which, and why.
pub fn curves(
    stream: &Stream,
    schemes: &[Scheme],
    at: &[u64],
    threads: usize,
    done: impl Fn() + Sync,
) -> Result<Vec<Line>, NotACurve> {
    let pass = |&scheme: &Scheme| {
        let (ids, blocks) = sequence(stream, scheme)?;
        let mut mattson = Mattson::new(blocks);
        mattson.access_all(&ids, |at| stream.requests[at].is_write());
        let curve = mattson.finish();
        Ok(Line {
            scheme: scheme.to_string(),
            points: at.iter().map(|&blocks| exact(&curve, blocks)).collect(),
        })
    };
    in_parallel(schemes, threads, pass, done)
        .into_iter()
        .collect()
}

/// A sample of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// One block in this many is sampled.
    pub one_in: u32,
    /// Random seed: which blocks are sampled.
    pub seed: u64,
}

/// The same from a sample.
///
/// # Errors
/// A scheme has no curve: which, and why.
pub fn sampled(
    stream: &Stream,
    schemes: &[Scheme],
    at: &[u64],
    sample: Sample,
    threads: usize,
    done: impl Fn() + Sync,
) -> Result<Vec<Line>, NotACurve> {
    let pass = |&scheme: &Scheme| {
        let (ids, blocks) = sequence(stream, scheme)?;
        let mut shards = Shards::new(blocks, sample.one_in, sample.seed, at);
        shards.access_all(&ids, |at| stream.requests[at].is_write());
        let hits = shards.finish();
        let points = hits.iter().zip(at);
        Ok(Line {
            scheme: scheme.to_string(),
            points: points
                .map(|(hits, &blocks)| estimated(hits, blocks))
                .collect(),
        })
    };
    in_parallel(schemes, threads, pass, done)
        .into_iter()
        .collect()
}
