//! A viewer's player, as a state machine: what it has buffered, and when its
//! picture freezes.
//!
//! # Definitions
//! - *received*: bytes of the film that have arrived, in order.
//! - *played*: how far the picture has come, in ns of the film.
//! - *buffered*: what was received and not played, in ns of the film.
//! - *frame*: 1/25 s of the film; it has arrived when its last byte has.
//!
//! ```text
//!            buffered >= START_NS
//!  Filling ------------------------> Playing       played grows with the clock
//!     ^                                 |
//!     +---------------------------------+
//!              buffered = 0: frozen
//! ```
//!
//! # Invariants
//! 1. `played` never passes `received`.
//! 2. A player asks for no more than [`CAPACITY_NS`] ahead, so that one which is
//!    fed well takes exactly the film's rate.
//! 3. A freeze begins at the instant at which the buffer ran empty, whenever that
//!    is noticed. The first filling is no freeze.
//!
//! Time is an argument throughout: ns of one clock that never goes back.

/// The most that a player buffers, ns of the film: that of a live stream with
/// little delay.
pub(crate) const CAPACITY_NS: u64 = 1_000_000_000;

/// What must be buffered before the picture moves, ns of the film.
pub(crate) const START_NS: u64 = 500_000_000;

/// Frames per second of the film.
pub(crate) const FRAMES_PER_S: u64 = 25;

const S: u64 = 1_000_000_000;

/// One player.
#[derive(Clone, Debug)]
pub(crate) struct Player {
    /// Of the film, bytes/s.
    rate: u64,
    received: u64,
    /// Until the last change of state.
    played_ns: u64,
    state: State,
    last_frame: Option<u64>,
    freezes: Vec<(u64, u64)>,
    frames: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Since `None`: nothing was played yet.
    Filling(Option<u64>),
    Playing(u64),
}

/// What a player saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// When its picture stood still: from, to; ns.
    pub(crate) freezes: Vec<(u64, u64)>,
    /// When a frame arrived, and how long after the frame before it; ns.
    pub(crate) frames: Vec<(u64, u64)>,
}

impl Player {
    /// A player of a film of `rate` bytes/s, at least 1, that has nothing yet.
    pub(crate) fn new(rate: u64) -> Self {
        Self {
            rate: rate.max(1),
            received: 0,
            played_ns: 0,
            state: State::Filling(None),
            last_frame: None,
            freezes: Vec::new(),
            frames: Vec::new(),
        }
    }

    /// `bytes` of the film have arrived at `now`.
    pub(crate) fn arrive(&mut self, now: u64, bytes: u64) {
        self.advance(now);
        let frame = (self.rate / FRAMES_PER_S).max(1);
        let before = self.received / frame;
        self.received += bytes;
        for _ in before..self.received / frame {
            if let Some(last) = self.last_frame {
                self.frames.push((now, now.saturating_sub(last)));
            }
            self.last_frame = Some(now);
        }
        if let State::Filling(since) = self.state
            && self.buffered_ns(now) >= START_NS
        {
            if let Some(since) = since {
                self.freezes.push((since, now));
            }
            self.state = State::Playing(now);
        }
    }

    /// Plays on until `now`.
    pub(crate) fn advance(&mut self, now: u64) {
        let State::Playing(since) = self.state else {
            return;
        };
        let end = self.film_ns();
        let empty = since + end.saturating_sub(self.played_ns);
        if empty <= now {
            self.played_ns = end;
            self.state = State::Filling(Some(empty));
        }
    }

    /// Whether the picture stands still, as of the last call that was told the time.
    pub(crate) fn is_frozen(&self) -> bool {
        matches!(self.state, State::Filling(Some(_)))
    }

    /// How long until there is room for `bytes` more, ns; 0 if there is.
    pub(crate) fn room_in_ns(&self, now: u64, bytes: u64) -> u64 {
        let wanted = self.buffered_ns(now) + self.ns_of(bytes);
        wanted.saturating_sub(CAPACITY_NS)
    }

    /// What there is room for at `now`, bytes.
    pub(crate) fn room(&self, now: u64) -> u64 {
        let room_ns = CAPACITY_NS.saturating_sub(self.buffered_ns(now));
        scaled(room_ns, self.rate, S)
    }

    /// What it saw until `now`; a freeze that goes on ends there.
    pub(crate) fn finish(mut self, now: u64) -> Seen {
        self.advance(now);
        if let State::Filling(Some(since)) = self.state {
            self.freezes.push((since, now.max(since)));
        }
        Seen {
            freezes: self.freezes,
            frames: self.frames,
        }
    }

    /// What was received and not played at `now`, ns of the film.
    fn buffered_ns(&self, now: u64) -> u64 {
        let playing = match self.state {
            State::Filling(_) => 0,
            State::Playing(since) => now.saturating_sub(since),
        };
        self.film_ns().saturating_sub(self.played_ns + playing)
    }

    /// What was received, ns of the film.
    fn film_ns(&self) -> u64 {
        self.ns_of(self.received)
    }

    fn ns_of(&self, bytes: u64) -> u64 {
        scaled(bytes, S, self.rate)
    }
}

/// `value * mul / div` without overflow on the way; the largest value where the
/// result does not fit.
fn scaled(value: u64, mul: u64, div: u64) -> u64 {
    let exact = u128::from(value) * u128::from(mul) / u128::from(div);
    u64::try_from(exact).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    /// 1 byte is 1 us of the film; a frame has 40,000 bytes.
    const RATE: u64 = 1_000_000;

    /// A player that gets `per_ms` bytes every ms from `from` to `to` ms.
    fn feed(player: &mut Player, from: u64, to: u64, per_ms: u64) {
        for ms in from..to {
            player.arrive(ms * MS, per_ms.min(player.room(ms * MS)));
        }
    }

    #[test]
    fn fed_at_the_films_rate_it_never_freezes_and_frames_come_evenly() {
        let mut player = Player::new(RATE);
        feed(&mut player, 0, 10_000, 1_000);
        let seen = player.finish(10_000 * MS);
        assert_eq!(seen.freezes, []);
        assert_eq!(seen.frames.len(), 249);
        assert!(seen.frames.iter().all(|(_, gap)| *gap == 40 * MS));
    }

    #[test]
    fn a_well_fed_player_fills_up_and_then_takes_the_films_rate() {
        let mut player = Player::new(RATE);
        feed(&mut player, 0, 1_000, 100_000);
        assert!(player.room(1_000 * MS) <= 1_000);
        let before = player.received;
        feed(&mut player, 1_000, 3_000, 100_000);
        assert_eq!(player.received - before, 2_000_000);
        assert_eq!(player.room_in_ns(3_000 * MS, 10_000), 9 * MS);
        assert_eq!(player.room_in_ns(3_000 * MS, 0), 0);
    }

    #[test]
    fn a_freeze_begins_when_the_buffer_is_empty_and_ends_when_it_is_half_full() {
        let mut player = Player::new(RATE);
        feed(&mut player, 0, 500, 1_000);
        assert!(!player.is_frozen());
        // The last of 500 ms arrived at 499 ms; it is looked at much later.
        player.advance(5_000 * MS);
        assert!(player.is_frozen());
        feed(&mut player, 5_000, 5_499, 1_000);
        assert!(player.is_frozen());
        player.arrive(5_499 * MS, 1_000);
        assert!(!player.is_frozen());
        let seen = player.finish(5_600 * MS);
        assert_eq!(seen.freezes, [(999 * MS, 5_499 * MS)]);
    }

    #[test]
    fn half_the_rate_freezes_half_the_time() {
        let mut player = Player::new(RATE);
        feed(&mut player, 0, 1_000, 10_000);
        feed(&mut player, 1_000, 41_000, 500);
        let seen = player.finish(41_000 * MS);
        let frozen: u64 = seen.freezes.iter().map(|(from, to)| to - from).sum();
        let share = frozen as f64 / (40_000 * MS) as f64;
        assert!((0.46..0.51).contains(&share), "{share}");
        assert!(seen.freezes.windows(2).all(|two| two[0].1 < two[1].0));
    }

    #[test]
    fn the_first_filling_is_no_freeze_and_one_that_goes_on_is_counted() {
        let mut player = Player::new(RATE);
        feed(&mut player, 0, 400, 1_000);
        assert_eq!(
            player.clone().finish(9_000 * MS),
            Seen {
                freezes: Vec::new(),
                ..player.clone().finish(0)
            }
        );
        feed(&mut player, 400, 500, 1_000);
        let seen = player.finish(3_000 * MS);
        assert_eq!(seen.freezes, [(999 * MS, 3_000 * MS)]);
    }
}
