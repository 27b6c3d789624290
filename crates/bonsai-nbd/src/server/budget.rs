//! The memory that a server holds for its clients, in sum and for each connection.
//!
//! # Story
//! ```text
//! budget = connections x (slot + quota + TLS) + rest
//! slot:    what a connection has for itself: an inbox for what comes, a batch for replies
//! shared:  all quotas and the rest: buffers of requests that do not fit there, taken before a request begins, given back when its reply was sent
//! ```
//! Buffers are handles: whoever drops one gives it back, on every path. There is no other way to hold bytes of a client.
//!
//! # Invariants
//! 1. All slots and buffers together are never longer than the budget, and none is longer than what was reserved.
//! 2. Beyond its quota a connection takes a shared buffer only if it then holds at most half as much as is left for others, their
//!    quotas aside, and at most [`MOST_BYTES`]. So each connection leaves two thirds of the rest that it finds, and nobody takes
//!    all.
//! 3. No connection waits for memory that another one holds.
//!
//! # Why there is no deadlock, and nobody starves
//! A connection that is refused a buffer waits only while requests of its own are under way. These end by the disk and by its own
//! client. Once there are none it carries the request out in pieces, within its slot, which nobody else can take. So its progress
//! depends on its client and its disk alone, whatever others hold. A client that does not receive keeps its
//! buffers, is refused more, and is not read any further.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::lock;
use super::region::{Block, Blocks, Region, SMALLEST, block_size};

/// What has come from a client and is not used yet: two writes of 128 KiB, and more.
pub(super) const INBOX_BYTES: usize = 320 << 10;
/// Replies that go out together: one of 128 KiB, and 64 KiB of others.
pub(super) const BATCH_BYTES: usize = 192 << 10;
const SLOT_BYTES: usize = INBOX_BYTES + BATCH_BYTES;
/// Of a connection with TLS: what its relay holds in both directions (`tls.rs`).
const TLS_BYTES: usize = 384 << 10;
/// Shared buffers that a connection may have whatever others hold: small reads from the disk, many at once.
const QUOTA_BYTES: usize = 64 << 10;
/// Shared buffers of one connection, at most.
const MOST_BYTES: usize = 64 << 20;

/// The smallest budget for so many connections, in bytes.
#[must_use]
pub(super) const fn smallest(connections: usize, tls: bool) -> usize {
    let tls = if tls { TLS_BYTES } else { 0 };
    connections.saturating_mul(SLOT_BYTES + QUOTA_BYTES + tls)
}

/// The memory of a server.
#[derive(Debug)]
pub(super) struct Budget {
    region: Region,
    /// Where the shared part begins, in the region.
    shared: usize,
    /// All quotas.
    quotas: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Slots that nobody has.
    slots: Vec<usize>,
    blocks: Blocks,
    /// Bytes of the shared part that nobody has.
    left: usize,
}

/// What one connection holds of the shared part.
#[derive(Debug)]
pub(super) struct Account {
    budget: Arc<Budget>,
    /// Changed under the budget's lock alone.
    held: AtomicUsize,
}

/// Memory of a request or of a connection. It begins with what its last user left there.
#[derive(Debug)]
pub(super) struct Buffer {
    from: From,
    start: usize,
    length: usize,
}

#[derive(Debug)]
enum From {
    Slot(Arc<Slot>),
    Shared(Arc<Account>, Block),
}

#[derive(Debug)]
struct Slot {
    budget: Arc<Budget>,
    number: usize,
}

/// What a connection has for itself.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) account: Arc<Account>,
    pub(super) inbox: Buffer,
    pub(super) batch: Buffer,
}

impl Budget {
    /// `bytes` for so many connections, which must be at least [`smallest`].
    ///
    /// # Errors
    /// There is no address space.
    pub(super) fn new(bytes: usize, connections: usize, tls: bool) -> io::Result<Arc<Self>> {
        let own = connections.saturating_mul(SLOT_BYTES);
        let quotas = connections.saturating_mul(QUOTA_BYTES);
        let shared = bytes.saturating_sub(smallest(connections, tls)) + quotas;
        let shared = shared - shared % SMALLEST;
        Ok(Arc::new(Self {
            region: Region::new(own.saturating_add(shared))?,
            shared: own,
            quotas,
            state: Mutex::new(State {
                slots: (0..connections).rev().collect(),
                blocks: Blocks::new(shared),
                left: shared,
            }),
        }))
    }

    /// A slot and an account for a connection; `None` where all are taken.
    pub(super) fn connect(self: &Arc<Self>) -> Option<Own> {
        let number = lock(&self.state).slots.pop()?;
        let slot = Arc::new(Slot {
            budget: Arc::clone(self),
            number,
        });
        let buffer = |skip, length| Buffer {
            from: From::Slot(Arc::clone(&slot)),
            start: number * SLOT_BYTES + skip,
            length,
        };
        Some(Own {
            account: Arc::new(Account {
                budget: Arc::clone(self),
                held: AtomicUsize::new(0),
            }),
            inbox: buffer(0, INBOX_BYTES),
            batch: buffer(INBOX_BYTES, BATCH_BYTES),
        })
    }

    fn release(&self, block: Block) {
        // SAFETY: the block was given back, or kept, and is not free yet: nobody has it.
        unsafe { self.region.clear(self.shared + block.start, block.size()) };
    }
}

impl Account {
    /// Reserves a buffer; `None` where this connection may have none of that size now.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Option<Buffer> {
        let size = block_size(bytes)?;
        let budget = &self.budget;
        let mut state = lock(&budget.state);
        let held = self.held.load(Ordering::Relaxed) + size;
        let left = state.left.checked_sub(size)?;
        let rest = left.saturating_sub(budget.quotas);
        if held > QUOTA_BYTES && (held > MOST_BYTES || held > rest / 2) {
            return None;
        }
        let block = state.blocks.take(bytes, |block| budget.release(block))?;
        state.left = left;
        self.held.store(held, Ordering::Relaxed);
        Some(Buffer {
            from: From::Shared(Arc::clone(self), block),
            start: budget.shared + block.start,
            length: bytes,
        })
    }

    fn give_back(&self, block: Block) {
        let budget = &self.budget;
        let mut state = lock(&budget.state);
        if !state.blocks.keep(block) {
            drop(state);
            budget.release(block);
            state = lock(&budget.state);
            state.blocks.join(block);
        }
        state.left += block.size();
        self.held.fetch_sub(block.size(), Ordering::Relaxed);
    }
}

impl Buffer {
    fn region(&self) -> &Region {
        match &self.from {
            From::Slot(slot) => &slot.budget.region,
            From::Shared(account, _) => &account.budget.region,
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is this buffer's alone until it is dropped: of a slot each half is made once, and a block is not
        // given to two. The borrow is that of `self`.
        unsafe { self.region().slice(self.start, self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { self.region().slice(self.start, self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let From::Shared(account, block) = &self.from {
            account.give_back(*block);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let budget = &self.budget;
        // SAFETY: both buffers of the slot have gone, as each of them holds it, and its number is not free yet.
        unsafe { budget.region.clear(self.number * SLOT_BYTES, SLOT_BYTES) };
        lock(&budget.state).slots.push(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_connection_leaves_some_for_the_others() {
        let budget = Budget::new(256 << 20, 8, false).expect("memory");
        let own: Vec<Own> = (0..8).filter_map(|_| budget.connect()).collect();
        assert!(own.len() == 8 && budget.connect().is_none());
        let mut held = Vec::new();
        let mut of_each = Vec::new();
        for own in &own {
            let before = held.len();
            held.extend(std::iter::from_fn(|| own.account.take(1 << 20)));
            of_each.push(held.len() - before);
        }
        assert_eq!(of_each.first(), Some(&64), "64 MiB of one");
        assert!(of_each.iter().all(|count| *count > 0), "{of_each:?}");
        drop(held);
        let all = lock(&budget.state).left;
        assert_eq!(all, (256 << 20) - smallest(8, false) + 8 * QUOTA_BYTES);
        drop(own);
        assert!(budget.connect().is_some());
    }

    #[test]
    fn parts_do_not_overlap() {
        let budget = Budget::new(16 << 20, 2, true).expect("memory");
        let mut own: Vec<Own> = (0..2).filter_map(|_| budget.connect()).collect();
        let mut taken: Vec<Buffer> = own
            .iter()
            .flat_map(|own| std::iter::from_fn(|| own.account.take(100_000)))
            .collect();
        let parts = own
            .iter_mut()
            .flat_map(|own| [&mut own.inbox, &mut own.batch]);
        let mut parts: Vec<&mut Buffer> = parts.chain(&mut taken).collect();
        assert!(parts.len() > 8);
        for (number, part) in (1..).zip(&mut parts) {
            part.fill(number);
        }
        for (number, part) in (1..).zip(&parts) {
            assert!(part.iter().all(|byte| *byte == number), "{number}");
        }
    }

    #[test]
    fn each_connection_has_its_quota_whatever_others_hold() {
        let budget = Budget::new(smallest(3, true), 3, true).expect("memory");
        let own: Vec<Own> = (0..3).filter_map(|_| budget.connect()).collect();
        let mut held = Vec::new();
        for own in &own {
            assert!(own.account.take(QUOTA_BYTES + 1).is_none());
            let before = held.len();
            held.extend(std::iter::from_fn(|| own.account.take(SMALLEST)));
            assert_eq!(held.len() - before, QUOTA_BYTES / SMALLEST);
            assert_eq!(
                (own.inbox.len(), own.batch.len()),
                (INBOX_BYTES, BATCH_BYTES)
            );
        }
        assert_eq!(lock(&budget.state).left, 0);
    }
}
