//! The stream of addresses of a cache that reads duplicates from one of them (DRIVE), with all it has to know, and
//! contents that are learnt at reads and writes.

/// A block without a content, a content without a leader, or the end of a list.
const NONE: u32 = u32::MAX;

/// Which block is read in place of another.
///
/// A content's leader is the block at which it was learnt last. A read of a block of which the content is known goes
/// to the leader; a write, and the first read of a block, go to the block. A leader that is overwritten is followed
/// by the block at which its content was learnt before.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaders {
    /// The content of each block.
    contents: Vec<u32>,
    /// The top of each content's list in `learnt`.
    tops: Vec<u32>,
    /// Blocks, and what is below them in the list.
    learnt: Vec<(u32, u32)>,
}

fn at(list: &mut Vec<u32>, n: u32) -> &mut u32 {
    let n = n as usize;
    if list.len() <= n {
        list.resize(n + 1, NONE);
    }
    &mut list[n]
}

impl Leaders {
    pub(super) fn read(&mut self, block: u32, content: u32) -> u32 {
        if *at(&mut self.contents, block) != content {
            self.learn(block, content);
            return block;
        }
        self.leader(content).unwrap_or(block)
    }

    pub(super) fn write(&mut self, block: u32, content: u32) -> u32 {
        self.learn(block, content);
        block
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "fewer than accesses, below 2^32"
    )]
    fn learn(&mut self, block: u32, content: u32) {
        *at(&mut self.contents, block) = content;
        let next = self.learnt.len() as u32;
        let below = std::mem::replace(at(&mut self.tops, content), next);
        self.learnt.push((block, below));
    }

    /// Those on top that hold something else by now are forgotten.
    fn leader(&mut self, content: u32) -> Option<u32> {
        let top = at(&mut self.tops, content);
        while *top != NONE {
            let (block, below) = self.learnt[*top as usize];
            if self.contents[block as usize] == content {
                return Some(block);
            }
            *top = below;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_go_to_where_a_content_was_learnt_last() {
        let mut leaders = Leaders::default();
        assert_eq!(leaders.read(1, 7), 1);
        assert_eq!(leaders.read(2, 7), 2);
        assert_eq!(leaders.read(1, 7), 2);
        assert_eq!(leaders.write(3, 7), 3);
        assert_eq!(leaders.read(1, 7), 3);
        assert_eq!(leaders.write(3, 8), 3);
        assert_eq!(leaders.read(1, 7), 2);
    }
}
