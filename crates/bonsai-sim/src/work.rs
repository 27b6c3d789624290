//! Jobs on several threads, with their results in order.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Does all jobs, on at most `threads` threads; `done` is told of each that is done.
pub(crate) fn in_parallel<J: Sync, T: Send>(
    jobs: &[J],
    threads: usize,
    work: impl Fn(&J) -> T + Sync,
    done: impl Fn() + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(jobs.len()));
    std::thread::scope(|scope| {
        let help = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = jobs.get(at) else {
                    return;
                };
                let result = work(job);
                let mut results = results.lock().unwrap_or_else(|broken| broken.into_inner());
                results.push((at, result));
                drop(results);
                done();
            }
        };
        for _ in 1..threads.min(jobs.len()) {
            // With fewer it takes longer.
            let _ = std::thread::Builder::new().spawn_scoped(scope, help);
        }
        help();
    });
    let mut results = results
        .into_inner()
        .unwrap_or_else(|broken| broken.into_inner());
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
