//! IODEDUP (Koller and Rangaswami, FAST 2010), as the thesis on DRIVE simulates it: a cache of contents behind
//! the cache of blocks, and inclusive: what the second one answers goes into the first one as well.

use super::{OnWrite, Outcome};
use crate::cache::{Arc, Cache, Policy, with_cache};
use crate::stream::Stream;

/// Nothing is known of the block.
const UNKNOWN: u32 = u32::MAX;

pub(super) fn run(
    stream: &Stream,
    policy: Policy,
    blocks: u32,
    share: u32,
    on_write: OnWrite,
) -> Outcome {
    let for_contents = u64::from(blocks) * u64::from(share.min(1_000)) / 1_000;
    let for_contents = u32::try_from(for_contents).unwrap_or(blocks);
    if for_contents == 0 {
        return super::simple::plain(stream, policy, blocks);
    }
    let mut contents = Arc::in_whole_steps(for_contents, stream.contents);
    with_cache!(
        policy,
        blocks - for_contents,
        stream.blocks.len(),
        |cache| {
            let mut cache = cache;
            let mut outcome = go(stream, &mut cache, &mut contents, on_write);
            outcome.look_into(&cache, stream);
            // Whatever is in both counts twice; the second has no duplicates of its own.
            outcome.cached += u64::from(contents.len());
            outcome
        }
    )
}

fn go(stream: &Stream, cache: &mut impl Cache, contents: &mut Arc, on_write: OnWrite) -> Outcome {
    let mut outcome = Outcome::default();
    let mut known = vec![UNKNOWN; stream.blocks.len() as usize];
    for request in &stream.requests {
        let is_write = request.is_write();
        let hit = cache.access(request.block);
        let known = &mut known[request.block as usize];
        if is_write {
            outcome.count(true, hit);
            *known = UNKNOWN;
            if let Some(content) = request.content() {
                contents.access(content);
                if on_write == OnWrite::Update {
                    outcome.updates += 1;
                    *known = content;
                }
            }
            continue;
        }
        let mut answered = hit;
        if !hit {
            outcome.lookups += 1;
            if *known != UNKNOWN {
                answered = contents.access(*known);
                outcome.content_hits += u64::from(answered);
            } else if let Some(content) = request.content() {
                outcome.compulsory += 1;
                outcome.updates += 1;
                contents.access(content);
                *known = content;
            }
        }
        outcome.count(false, answered);
    }
    outcome
}
