//! Where the player should be, and what there is for it: the paper's segment buffer level.
//!
//! What a player has played is not told to who feeds it. So it is reckoned: it plays from the first segment that it asks
//! for, at the media's pace, and never past what it was given. It plays slower than that if it waits
//! for its own buffer first; then there is more than is thought here.

use bonsai_media::adapt::{Client, ClientNext, Session, Summary};

/// It.
#[derive(Debug)]
pub(super) struct Viewer {
    client: Client,
    /// Its clock is so much ahead of the caller's, nanoseconds.
    ahead_ns: u64,
    /// Until when it has run.
    at_ns: u64,
    is_paused: bool,
    /// Where it went on last, ms of media, and what it had played before, ms.
    origin: (f64, f64),
}

impl Viewer {
    /// One that has not come yet.
    pub(super) fn new(session: Session, now_ns: u64) -> Self {
        let mut client = Client::of(session, now_ns);
        client.pause(now_ns, true);
        Self {
            client,
            ahead_ns: 0,
            at_ns: now_ns,
            is_paused: true,
            origin: (0.0, 0.0),
        }
    }

    /// The segment that is fetched, or next.
    pub(super) fn front(&self) -> usize {
        self.client.session().segment()
    }

    /// What there is, ms of media.
    pub(super) fn level_ms(&self) -> f64 {
        self.client.player().level_ms()
    }

    /// Where it should be, ms of media.
    pub(super) fn position_ms(&mut self) -> f64 {
        self.origin.0 + self.summary().played_ms - self.origin.1
    }

    /// Time passes until now; where that is said, it goes no further than there, ms of media.
    pub(super) fn advance(&mut self, now_ns: u64, end_ms: Option<f64>) {
        let at_ns = self.at_ns.max(now_ns.saturating_add(self.ahead_ns));
        if let Some(end_ms) = end_ms.filter(|_| !self.is_paused) {
            let left_ms = end_ms - self.position_ms();
            let end_ns = self.at_ns.saturating_add(ns(left_ms));
            if at_ns >= end_ns {
                self.client.pause(end_ns, true);
                self.is_paused = true;
            }
        }
        self.at_ns = at_ns;
        self.client.pause(at_ns, self.is_paused);
    }

    /// It has something to play, or waits for it.
    pub(super) fn go_on(&mut self) {
        self.is_paused = false;
        self.client.pause(self.at_ns, false);
    }

    /// It is further than was thought.
    pub(super) fn leap(&mut self, by_ms: f64) {
        if by_ms > 0.0 {
            self.go_on();
            let by_ns = ns(by_ms).saturating_add(1);
            self.ahead_ns = self.ahead_ns.saturating_add(by_ns);
            self.at_ns = self.at_ns.saturating_add(by_ns);
            self.client.pause(self.at_ns, false);
        }
    }

    /// It goes on at that segment, which begins there, ms of media.
    pub(super) fn seek(&mut self, segment: usize, start_ms: f64) {
        self.client.seek(self.at_ns, segment);
        self.origin = (start_ms, self.summary().played_ms);
    }

    pub(super) fn next_step(&mut self) -> ClientNext {
        self.client.next_step(self.at_ns)
    }

    pub(super) fn first_byte(&mut self, size: Option<u64>) {
        self.client.first_byte(self.at_ns, size);
    }

    /// Whether the download is given up.
    pub(super) fn received(&mut self, bytes: u64) -> bool {
        self.client.received(self.at_ns, bytes).is_some()
    }

    pub(super) fn fetched(&mut self, bytes: u64) {
        self.client.fetched(self.at_ns, bytes);
    }

    pub(super) fn failed(&mut self) {
        self.client.failed(self.at_ns);
    }

    pub(super) fn summary(&mut self) -> Summary {
        self.client.summary(self.at_ns)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is not negative, and a cast holds at both ends"
)]
fn ns(ms: f64) -> u64 {
    (ms.max(0.0) * 1e6) as u64
}
