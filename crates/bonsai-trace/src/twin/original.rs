//! An original, in memory.

use crate::Error;
use crate::model::{Op, Request};
use crate::stat::Blocks;

/// What has no number.
pub(super) const NONE: u32 = u32::MAX;

/// An original, as its twins need it.
#[derive(Debug, Default)]
pub struct Original {
    pub(super) heads: Vec<Head>,
    /// For each access of a request with contents: its block's dense number, and its content.
    pub(super) blocks: Vec<u32>,
    pub(super) contents: Vec<u32>,
    /// Where runs begin, by numbers of requests.
    pub(super) runs: Vec<u32>,
    pub(super) numbers: Blocks,
    /// Where the last request of each volume ended, and where all do.
    pub(super) ends: Vec<u64>,
    pub(super) spans: Vec<u64>,
    pub(super) most_contents: u32,
    pub(super) shared: Vec<bool>,
    pub(super) first_block: Vec<u32>,
    pub(super) last: Option<(u32, Op)>,
    pub(super) last_ns: u64,
    pub(super) writes: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) offset: u64,
    pub(super) gap_ns: u64,
    /// Where its accesses are, if it has contents; else the next request's.
    pub(super) first_access: u32,
    pub(super) length: u32,
    pub(super) volume: u16,
    pub(super) op: Op,
    pub(super) has_contents: bool,
}

impl Original {
    /// Takes a request in.
    ///
    /// # Errors
    /// The trace has 2^32 contents or more, or as many blocks.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it is checked that they are fewer"
    )]
    pub fn add(&mut self, request: &Request<'_>) -> Result<(), Error> {
        let most = u64::from(u32::MAX);
        let is_full = [
            self.blocks.len() + request.contents.len(),
            self.numbers.keys().len(),
            self.heads.len(),
        ]
        .iter()
        .any(|n| *n as u64 >= most);
        if is_full || request.volume >= 1 << 16 {
            return Err(Error::TooMany {
                what: "requests, blocks or contents for the original of a twin",
                most,
            });
        }
        let at = request.volume as usize;
        if self.ends.len() <= at {
            self.ends.resize(at + 1, 0);
            self.spans.resize(at + 1, 0);
        }
        if self.last != Some((request.volume, request.op)) || self.ends[at] != request.offset {
            self.runs.push(self.heads.len() as u32);
        }
        self.last = Some((request.volume, request.op));
        self.ends[at] = request.end();
        self.spans[at] = self.spans[at].max(request.end());
        let gap = match self.heads.is_empty() {
            true => 0,
            false => request.time_ns.saturating_sub(self.last_ns),
        };
        self.last_ns = request.time_ns;
        self.writes += u64::from(request.op == Op::Write);
        self.heads.push(Head {
            offset: request.offset,
            gap_ns: gap,
            first_access: self.blocks.len() as u32,
            length: request.length,
            volume: request.volume as u16,
            op: request.op,
            has_contents: !request.contents.is_empty()
                && matches!(request.op, Op::Read | Op::Write),
        });
        // What is trimmed or flushed may be of any length, and is of no block that has to be remembered.
        if !matches!(request.op, Op::Read | Op::Write) {
            return Ok(());
        }
        for access in request.accesses() {
            let block = self.numbers.number(access.volume, access.block);
            let Some(content) = access.content else {
                continue;
            };
            self.blocks.push(block);
            self.contents.push(content);
            self.most_contents = self.most_contents.max(content + 1);
            let n = content as usize;
            if self.first_block.len() <= n {
                self.first_block.resize(n + 1, NONE);
                self.shared.resize(n + 1, false);
            }
            match self.first_block[n] {
                NONE => self.first_block[n] = block,
                other => self.shared[n] |= other != block,
            }
        }
        Ok(())
    }

    /// How many requests it has.
    pub const fn len(&self) -> u64 {
        self.heads.len() as u64
    }

    /// Whether it has none.
    pub const fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }
}
