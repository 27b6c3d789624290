//! What all streams are sent as, from the best to the least.

/// Qualities of a clip: the best, and five that are lower.
pub const QUALITIES: usize = LOWEST as usize + 1;

/// Levels that streams are sent on: one for each quality, and two with fewer pictures of the lowest.
pub const LEVELS: usize = QUALITIES + 2;

const LOWEST: u8 = 5;

/// Which pictures are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pictures {
    /// All.
    #[default]
    All,
    /// Those that others are predicted from.
    Needed,
    /// Those that decoding can begin with, and behind each of them as many as there is a rate for.
    Keys,
}

/// A level: the higher, the less is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u8);

impl Level {
    /// All pictures of the best quality.
    pub const BEST: Self = Self(0);

    /// All pictures of the lowest quality.
    pub const LOWEST: Self = Self(LOWEST);

    /// The least that is sent.
    pub const HIGHEST: Self = Self(LOWEST + 2);

    /// All of them, from the best on.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..=Self::HIGHEST.0).map(Self)
    }

    /// Its quality, 0 for the best: a clip that has fewer is sent in its lowest.
    #[must_use]
    pub fn quality(self) -> usize {
        usize::from(self.0.min(LOWEST))
    }

    /// Its pictures.
    #[must_use]
    pub const fn pictures(self) -> Pictures {
        match self.0.saturating_sub(LOWEST) {
            0 => Pictures::All,
            1 => Pictures::Needed,
            _ => Pictures::Keys,
        }
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}
