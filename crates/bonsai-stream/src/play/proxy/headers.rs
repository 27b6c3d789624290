//! Headers, those that came last.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use hyper::body::Bytes;

/// They have no more bytes than that, all together; the oldest go.
pub(super) const MOST: usize = 8 << 20;

/// By name.
#[derive(Debug)]
pub(super) struct Headers<N> {
    all: HashMap<N, Bytes>,
    /// As they came.
    order: VecDeque<N>,
    bytes: usize,
}

impl<N: Copy + Eq + Hash> Headers<N> {
    pub(super) fn new() -> Self {
        Self {
            all: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
        }
    }

    pub(super) fn get(&self, name: N) -> Option<Bytes> {
        self.all.get(&name).cloned()
    }

    pub(super) fn has(&self, name: N) -> bool {
        self.all.contains_key(&name)
    }

    /// One has come.
    pub(super) fn put(&mut self, name: N, bytes: Bytes) {
        self.bytes += bytes.len();
        match self.all.insert(name, bytes) {
            Some(old) => self.bytes -= old.len(),
            None => self.order.push_back(name),
        }
        while self.bytes > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            let old = self.all.remove(&oldest);
            self.bytes -= old.map_or(0, |old| old.len());
        }
    }

    /// All of them go.
    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let mut headers = Headers::new();
        let large = Bytes::from(vec![0; MOST / 8]);
        for name in 0..100 {
            headers.put(name, large.clone());
            headers.put(name, large.clone());
        }
        let kept: Vec<usize> = (0..100).filter(|name| headers.has(*name)).collect();
        assert_eq!(kept, (92..100).collect::<Vec<_>>());
        assert_eq!((headers.bytes, headers.order.len()), (MOST, 8));
        assert_eq!(headers.get(99), Some(large));
        headers.clear();
        assert!(headers.get(99).is_none() && headers.bytes == 0);
    }
}
