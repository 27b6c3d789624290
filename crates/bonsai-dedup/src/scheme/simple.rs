//! Plain caches: by block, and by content.

use super::Outcome;
use super::outcome::in_chunks;
use crate::cache::{Cache, Policy, with_cache};
use crate::stream::{Request, Stream};

pub(super) fn plain(stream: &Stream, policy: Policy, blocks: u32) -> Outcome {
    with_cache!(policy, blocks, stream.blocks.len(), |cache| {
        let mut cache = cache;
        let mut outcome = through(stream, &mut cache, |request| request.block);
        outcome.look_into(&cache, stream);
        outcome.compulsory = first_reads(stream, stream.blocks.len(), |request| request.block);
        outcome
    })
}

/// A number for what a request holds: its content, or its block when that is not known.
pub fn contents_of(stream: &Stream) -> (u32, impl Fn(Request) -> u32 + Copy + use<>) {
    let contents = stream.contents;
    let ids = contents.saturating_add(stream.blocks.len());
    let of = move |request: Request| request.content().unwrap_or(contents + request.block);
    (ids, of)
}

pub(super) fn ideal(stream: &Stream, policy: Policy, blocks: u32) -> Outcome {
    let (ids, of) = contents_of(stream);
    with_cache!(policy, blocks, ids, |cache| {
        let mut cache = cache;
        let mut outcome = through(stream, &mut cache, of);
        outcome.cached = cache.len().into();
        outcome.unique = outcome.cached;
        outcome.compulsory = first_reads(stream, ids, of);
        outcome
    })
}

fn through(stream: &Stream, cache: &mut impl Cache, of: impl Fn(Request) -> u32) -> Outcome {
    let mut outcome = Outcome::default();
    in_chunks(&stream.requests, of, |chunk, ids| {
        cache.access_all(ids, |at, hit| outcome.count(chunk[at].is_write(), hit));
    });
    outcome
}

/// Reads of what no request had before.
fn first_reads(stream: &Stream, ids: u32, of: impl Fn(Request) -> u32) -> u64 {
    let mut seen = vec![false; ids as usize];
    let mut first = 0;
    for &request in &stream.requests {
        let fresh = !std::mem::replace(&mut seen[of(request) as usize], true);
        first += u64::from(fresh && !request.is_write());
    }
    first
}
