//! Several runs at a time: limited programs sleep, so that many fit on few processors.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Applies `each` to all items, at most `workers` at a time, and returns the
/// complaints, in the order of the items.
pub fn for_each<T: Sync>(
    items: &[T],
    workers: usize,
    each: impl Fn(&T) -> Result<(), String> + Sync,
) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let complaints = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..workers.min(items.len()) {
            scope.spawn(|| {
                while let Some((i, item)) = {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    items.get(i).map(|item| (i, item))
                } {
                    if let Err(complaint) = each(item) {
                        let mut all = complaints
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner);
                        all.push((i, complaint));
                    }
                }
            });
        }
    });
    let mut all = complaints
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    all.sort();
    all.into_iter().map(|(_, complaint)| complaint).collect()
}

#[cfg(test)]
mod tests {
    use super::for_each;

    #[test]
    fn all_items_are_seen_and_complaints_are_in_order() {
        let items: Vec<usize> = (0..100).collect();
        let odd = for_each(&items, 7, |i| match i % 2 {
            0 => Ok(()),
            _ => Err(i.to_string()),
        });
        let want: Vec<String> = (0..100)
            .filter(|i| i % 2 == 1)
            .map(|i| i.to_string())
            .collect();
        assert_eq!(odd, want);
    }
}
