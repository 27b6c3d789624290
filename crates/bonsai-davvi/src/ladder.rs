//! Which qualities a video is made in.

/// Height, and the most kbit/s that pictures of that height get at up to 30 a second: in the range
/// of what Apple's HLS authoring specification and YouTube's live encoder settings recommend for H.264.
const LADDER: [(u32, u32); 8] = [
    (2160, 14_000),
    (1440, 8_000),
    (1080, 5_000),
    (720, 2_800),
    (480, 1_400),
    (360, 800),
    (240, 400),
    (144, 200),
];

/// The most qualities of a video, unless they are named.
const MOST: usize = 5;

/// The lowest pictures that are made.
pub(crate) const LOWEST: u32 = 16;

/// A quality to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rung {
    /// Lines; even.
    pub(crate) height: u32,
    /// The most that it may take on average over two segments, bit/s.
    pub(crate) most_bits: u32,
}

impl Rung {
    /// Of so many lines and pictures per second.
    pub(crate) fn new(height: u32, pictures: f64) -> Self {
        let kbits = kbits(height);
        let kbits = if pictures > 31.0 {
            kbits * 3 / 2
        } else {
            kbits
        };
        Self {
            height,
            most_bits: kbits * 1000,
        }
    }
}

/// Between two lines of the table in proportion; below it, by height.
fn kbits(height: u32) -> u32 {
    let above = LADDER.iter().rev().find(|(line, _)| *line >= height);
    let below = LADDER.iter().find(|(line, _)| *line <= height);
    match (above, below) {
        (Some((above, more)), Some((below, less))) if above > below => {
            less + (more - less) * (height - below) / (above - below)
        }
        (_, Some((_, kbits))) => *kbits,
        (_, None) => (200 * height / 144).max(40),
    }
}

/// The qualities for a source of so many lines, best first: its own, unless the ladder has one that is
/// nearly the same, and the next lower ones of the ladder; never fewer than two, unless it is tiny.
pub(crate) fn ladder(source: u32, pictures: f64) -> Vec<Rung> {
    let source = source & !1;
    let mut heights: Vec<u32> = LADDER.iter().map(|(line, _)| *line).collect();
    heights.retain(|height| *height <= source);
    let is_its_own = heights.first().is_none_or(|best| source * 10 > best * 11);
    if is_its_own {
        // What is larger than the table gains nothing from being kept so.
        heights.insert(0, source.min(LADDER[0].0));
        heights.dedup();
    }
    if let [only] = *heights.as_slice() {
        heights.push((only / 2) & !1);
    }
    heights.retain(|height| *height >= LOWEST);
    heights.truncate(MOST);
    heights
        .into_iter()
        .map(|height| Rung::new(height, pictures))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ladder_begins_with_the_source() {
        let heights = |source| -> Vec<u32> {
            ladder(source, 25.0)
                .iter()
                .map(|rung| rung.height)
                .collect()
        };
        assert_eq!(heights(1080), [1080, 720, 480, 360, 240]);
        assert_eq!(heights(1088), [1080, 720, 480, 360, 240]);
        assert_eq!(heights(576), [576, 480, 360, 240, 144]);
        assert_eq!(heights(180), [180, 144]);
        assert_eq!(heights(144), [144, 72]);
        assert_eq!(heights(101), [100, 50]);
        assert_eq!(heights(18), [18]);
        assert_eq!(heights(4320), [2160, 1440, 1080, 720, 480]);
    }

    #[test]
    fn more_lines_get_more() {
        let mut last = 0;
        for height in (LOWEST..3000).step_by(2) {
            let rung = Rung::new(height, 25.0);
            assert!(rung.most_bits >= last, "{height}");
            last = rung.most_bits;
        }
        assert_eq!(Rung::new(720, 25.0).most_bits, 2_800_000);
        assert_eq!(Rung::new(720, 50.0).most_bits, 4_200_000);
    }
}
