//! What `member.c` notes: when it had written how much, and what follows from that.

use std::fs;
use std::path::Path;

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// Instants of the monotonic clock, ns, and bytes.
pub(super) type Notes = Vec<(u64, u64)>;

/// Reads them.
pub(super) fn read(path: &Path) -> anyhow::Result<Notes> {
    let bytes = fs::read(path)?;
    let mut words = bytes.chunks_exact(8).map(|word| {
        let mut eight = [0_u8; 8];
        eight.copy_from_slice(word);
        u64::from_le_bytes(eight)
    });
    let count = usize::try_from(words.next().unwrap_or(0))?;
    let pairs = std::iter::from_fn(|| Some((words.next()?, words.next()?)));
    Ok(pairs.take(count).collect())
}

/// Bytes written by an instant.
pub(super) fn at(notes: &Notes, ns: u64) -> u64 {
    let before = notes.partition_point(|(at, _)| *at <= ns);
    before.checked_sub(1).map_or(0, |i| notes[i].1)
}

/// Where they show a pause of so many ms: its first instant and its last.
pub(super) fn pauses(notes: &Notes, off_ms: u64) -> Vec<(u64, u64)> {
    let gaps = notes
        .windows(2)
        .filter(|pair| pair[1].1 == pair[0].1 && pair[1].0 - pair[0].0 > (off_ms - 10) * MS);
    gaps.map(|pair| (pair[0].0, pair[1].0)).collect()
}

/// How far somebody is behind a rate at most, ns, from an instant on and for so long.
pub(super) fn lag(notes: &Notes, from: u64, rate: u64, look: u64) -> u64 {
    let start = at(notes, from);
    let first = notes.partition_point(|(at, _)| *at <= from);
    let mut most = 0;
    for pair in notes[first..]
        .windows(2)
        .take_while(|pair| pair[1].0 < from + look)
    {
        // Until the next note it had no more than this.
        let due = (pair[0].1 - start) * S / rate;
        most = most.max((pair[1].0 - from).saturating_sub(due));
    }
    most
}

/// How long after an instant a window of some length begins that has nine tenths of the rate: a
/// call more or less is not seen. What is looked at, where there is none.
pub(super) fn until_full(notes: &Notes, from: u64, rate: u64, (window, look): (u64, u64)) -> u64 {
    let first = notes.partition_point(|(at, _)| *at <= from);
    let starts = notes[first..].iter().map(|(at, _)| at - 1);
    let full = std::iter::once(from).chain(starts).find(|start| {
        let got = at(notes, start + window) - at(notes, *start);
        got * S * 10 >= rate * window * 9
    });
    full.map_or(look, |start| start - from)
}

/// Bytes a second of all together, between two instants. What each has done by an end is taken
/// as the mean over a time around it: programs that are held back go in steps.
pub(super) fn together(all: &[Notes], from: u64, to: u64) -> f64 {
    const AROUND: u64 = 400;
    let half = AROUND / 2 * MS;
    let mean = |around: u64| {
        let instants = (0..AROUND).map(|i| around - half + i * MS);
        let sums = instants.map(|ns| all.iter().map(|notes| at(notes, ns)).sum::<u64>() as f64);
        sums.sum::<f64>() / AROUND as f64
    };
    let (from, to) = (from + half, to - half);
    (mean(to) - mean(from)) * S as f64 / (to.saturating_sub(from)).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: u64 = 30 * MS;

    #[test]
    fn lags_are_what_is_missing_of_a_rate() {
        // 1000 bytes/ms; nothing in the first 3 ms, then all of it at once.
        let notes: Notes = (0..30)
            .map(|i| (i * MS, if i < 3 { 0 } else { i * 1000 }))
            .collect();
        assert_eq!(lag(&notes, 0, 1_000_000, LOOK), 3 * MS);
        assert_eq!(lag(&notes, 5 * MS, 1_000_000, LOOK), MS);
        assert_eq!(at(&notes, 4 * MS + 1), 4000);
    }

    #[test]
    fn a_rate_is_full_where_a_millisecond_shows_it() {
        // A tenth of 1000 bytes/ms, and from 5 ms on all of it.
        let bytes = |tenth: u64| tenth * 10 + tenth.saturating_sub(50) * 90;
        let notes: Notes = (0..300).map(|i| (i * MS / 10, bytes(i))).collect();
        let full = until_full(&notes, 0, 1_000_000, (MS, LOOK));
        assert!((4_900_000..5_100_000).contains(&full), "{full}");
        assert_eq!(until_full(&notes, 10 * MS, 1_000_000, (MS, LOOK)), 0);
        assert_eq!(until_full(&notes, 0, 2_000_000, (MS, LOOK)), LOOK, "never");
    }

    #[test]
    fn pauses_are_found() {
        let notes: Notes = vec![
            (0, 0),
            (MS, 100),
            (2 * MS, 200),
            (92 * MS, 200),
            (93 * MS, 300),
        ];
        assert_eq!(pauses(&notes, 90), [(2 * MS, 92 * MS)]);
    }

    #[test]
    fn steps_do_not_make_a_rate_another() {
        // Two that write 5000 bytes each 5 ms, not at the same time.
        let steps = |shift: u64| -> Notes {
            (0..1_000)
                .map(|i| (i * 5 * MS + shift, i * 5_000))
                .collect()
        };
        let all = [steps(0), steps(2 * MS)];
        for from in [501 * MS, 503 * MS] {
            let rate = together(&all, from, from + 3_333 * MS);
            assert!((rate / 2e6 - 1.0).abs() < 2e-4, "{rate}");
        }
    }
}
