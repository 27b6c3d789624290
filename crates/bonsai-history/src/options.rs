//! How much is kept.

use std::time::Duration;

/// How much is kept, and how often what failed is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The most bytes of `history.sqlite` with its WAL; at least [`Options::LEAST_POINTS`].
    pub points_bytes: u64,
    /// The most bytes of the audit trail.
    pub audit_bytes: u64,
    /// The most bytes of learned state and overlay together.
    pub state_bytes: u64,
    /// How long to wait after a fault before the file is tried again; doubled up to a minute.
    pub retry: Duration,
    /// Audit entries that are kept in memory while they cannot be written.
    pub audit_queue: usize,
    /// Ticks that the [`Writer`](crate::Writer) keeps while the disk is slow.
    pub tick_queue: usize,
}

impl Options {
    /// The least of `points_bytes`: room for the rows of some hundred services that are not
    /// blocks yet.
    pub const LEAST_POINTS: u64 = 8 << 20;
    /// The least of `audit_bytes` and `state_bytes`.
    pub const LEAST_RECORDS: u64 = 256 << 10;
    /// The part of the points that the tier of hours may have, in percent.
    pub const HOURS_PERCENT: u64 = 10;
    /// The part of the points that the tier of minutes may have, in percent.
    pub const MINUTES_PERCENT: u64 = 30;

    /// Of the points' bytes, those for the WAL.
    pub(crate) fn wal_bytes(&self) -> u64 {
        (self.points_bytes / 8).clamp(2 << 20, 32 << 20)
    }

    /// Why these cannot be.
    pub(crate) fn refusal(&self) -> Option<String> {
        let few = |what: &str, bytes: u64, least: u64| {
            (bytes < least)
                .then(|| format!("{what} {bytes} B is too little: give at least {least} B"))
        };
        few("history of", self.points_bytes, Self::LEAST_POINTS)
            .or_else(|| few("an audit trail of", self.audit_bytes, Self::LEAST_RECORDS))
            .or_else(|| few("learned state of", self.state_bytes, Self::LEAST_RECORDS))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            points_bytes: 512 << 20,
            audit_bytes: 32 << 20,
            state_bytes: 8 << 20,
            retry: Duration::from_secs(5),
            audit_queue: 4096,
            tick_queue: 120,
        }
    }
}
