//! A trace as simulations go through it: 8 bytes a request of one block.

use crate::intern::{Interner, Unnumbered};

/// The content of a block of which the trace says none.
pub const NO_CONTENT: u32 = u32::MAX >> 1;

const WRITE: u32 = 1 << 31;

/// One block is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The block's number.
    pub block: u32,
    packed: u32,
}

impl Request {
    /// A read, or a write, of a block with a content; [`NO_CONTENT`] when it is not known.
    #[must_use]
    pub const fn new(block: u32, content: u32, is_write: bool) -> Self {
        let packed = if is_write {
            content | WRITE
        } else {
            content & !WRITE
        };
        Self { block, packed }
    }

    /// Whether it is a write.
    #[must_use]
    pub const fn is_write(self) -> bool {
        self.packed & WRITE != 0
    }

    /// What the block holds then, if that is known.
    #[must_use]
    pub const fn content(self) -> Option<u32> {
        let content = self.packed & !WRITE;
        if content == NO_CONTENT {
            None
        } else {
            Some(content)
        }
    }
}

/// Requests of a trace, with blocks and contents numbered from 0.
#[derive(Debug, Default)]
pub struct Stream {
    /// The requests, in order.
    pub requests: Vec<Request>,
    /// Numbers of blocks, and back.
    pub blocks: Interner,
    /// Contents are below this.
    pub contents: u32,
    /// Reads that returned something else than the trace had put there before, if they were put right.
    pub inconsistent: u64,
    keys: Vec<u64>,
    rest: Vec<u32>,
    ids: Vec<u32>,
}

/// Requests that are numbered at once.
const AT_ONCE: usize = 4_096;

impl Stream {
    /// One more request. Requests are in [`Self::requests`] after [`Self::finish`].
    ///
    /// # Errors
    /// The block cannot be numbered.
    pub fn push(
        &mut self,
        volume: u32,
        block: u64,
        content: Option<u32>,
        is_write: bool,
    ) -> Result<(), Unnumbered> {
        self.keys.push(Interner::key(volume, block)?);
        let content = content.filter(|&content| content < NO_CONTENT);
        if let Some(content) = content {
            self.contents = self.contents.max(content + 1);
        }
        let content = content.unwrap_or(NO_CONTENT);
        self.rest.push(Request::new(0, content, is_write).packed);
        if self.keys.len() == AT_ONCE {
            self.number()?;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Unnumbered> {
        self.ids.clear();
        self.blocks.number(&self.keys, &mut self.ids)?;
        let both = self.ids.iter().zip(&self.rest);
        let requests = both.map(|(&block, &packed)| Request { block, packed });
        self.requests.extend(requests);
        self.keys.clear();
        self.rest.clear();
        Ok(())
    }

    /// No more will come.
    ///
    /// # Errors
    /// A block cannot be numbered.
    pub fn finish(&mut self) -> Result<(), Unnumbered> {
        self.number()
    }

    /// Makes a trace agree with itself, as a disk would: the first access to a block says what it holds, writes
    /// change that, and a read returns what is there, whatever the trace says. A request whose content the trace
    /// does not know makes the content of the block unknown if it writes, and gets what is there if it reads.
    pub fn make_consistent(&mut self) {
        const NEVER: u32 = u32::MAX;
        let mut disk = vec![NEVER; self.blocks.len() as usize];
        self.inconsistent = 0;
        for request in &mut self.requests {
            let there = &mut disk[request.block as usize];
            let said = request.packed & !WRITE;
            if request.is_write() || *there == NEVER || *there == NO_CONTENT {
                *there = said;
            } else {
                self.inconsistent += u64::from(said != *there && said != NO_CONTENT);
                request.packed = *there;
            }
        }
    }

    /// What each block holds before the first request, where the trace tells: its first access is a read.
    #[must_use]
    pub fn initial(&self) -> Vec<Option<u32>> {
        const NEVER: u32 = u32::MAX;
        let mut first = vec![NEVER; self.blocks.len() as usize];
        for request in &self.requests {
            let there = &mut first[request.block as usize];
            if *there == NEVER {
                *there = if request.is_write() {
                    NO_CONTENT
                } else {
                    request.packed
                };
            }
        }
        let known = |content: u32| (content != NEVER && content != NO_CONTENT).then_some(content);
        first.into_iter().map(known).collect()
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.requests.capacity() * size_of::<Request>() + self.blocks.bytes()
    }
}
