/// What becomes of one setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Change<T> {
    /// It stays as it is.
    #[default]
    Keep,
    /// It is taken away.
    Clear,
    /// It is set.
    To(T),
}

impl<T: Copy> Change<T> {
    /// Whether it stays as it is.
    #[must_use]
    pub const fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }

    /// What there is afterwards, where `now` is what there was.
    #[must_use]
    pub const fn over(self, now: Option<T>) -> Option<T> {
        match self {
            Self::Keep => now,
            Self::Clear => None,
            Self::To(new) => Some(new),
        }
    }
}
