//! A session for who fetches over a network, with a clock of theirs.

use std::sync::Arc;

use super::{Error, Ladder, Next, Player, Progress, Session, Settings, Summary};

/// Less than this since it was last asked says nothing new of a download: bits,
const STEP_BITS: f64 = 12_000.0;
/// and milliseconds. Both as Sabre has them.
const STEP_MS: f64 = 50.0;
/// After so many milliseconds that nearly nothing has come says enough.
const SILENCE_MS: f64 = 500.0;

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientNext {
    /// To wait so long, nanoseconds, and to ask again.
    Wait(u64),
    /// To fetch a segment in a quality, and to tell what comes of it.
    Fetch {
        /// Which, from 0.
        segment: usize,
        /// In which quality.
        quality: usize,
    },
    /// To wait so long until all is played, nanoseconds: all segments are there.
    Drain(u64),
    /// Nothing: all is played.
    End,
}

/// A viewer who fetches segments, one at a time. Times are nanoseconds of any clock; one that is earlier than
/// the one before counts as the same.
///
/// ```text
///   next ──> Wait: ask again then.   Fetch: request, then
///              first_byte ─> received ... ─> fetched | failed ──> next
///                               └─ Some(quality): cancel the request ──> next, which fetches that one
/// ```
#[derive(Debug)]
pub struct Client {
    session: Session,
    now_ns: u64,
    download: Option<Download>,
}

#[derive(Clone, Copy, Debug)]
struct Download {
    segment: usize,
    quality: usize,
    asked_ns: u64,
    first_byte_ns: Option<u64>,
    came_bits: f64,
    size_bits: Option<f64>,
    /// When the rule was last asked of it, and of how many bits.
    checked_ns: u64,
    checked_bits: f64,
}

impl Client {
    /// One that starts now.
    ///
    /// # Errors
    /// If a setting cannot be with this ladder.
    pub fn new(ladder: Arc<Ladder>, settings: Settings, now_ns: u64) -> Result<Self, Error> {
        Ok(Self::of(Session::new(ladder, settings)?, now_ns))
    }

    /// One of a session that is made, as of a rule of one's own.
    #[must_use]
    pub const fn of(session: Session, now_ns: u64) -> Self {
        Self {
            session,
            now_ns,
            download: None,
        }
    }

    /// What the viewer sees.
    #[must_use]
    pub const fn player(&self) -> &Player {
        self.session.player()
    }

    /// The session itself.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
    }

    fn pass(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.now_ns);
        self.now_ns = self.now_ns.max(now_ns);
        self.session.pass(ms(passed_ns), &mut ());
    }

    fn cancel(&mut self, now_ns: u64) {
        self.pass(now_ns);
        if let Some(download) = self.download.take() {
            self.session.cancelled(download.came_bits);
        }
    }

    /// What to do next. A request that it names is under way from now on; so of a live stream this is
    /// asked when the next segment is there.
    pub fn next_step(&mut self, now_ns: u64) -> ClientNext {
        self.pass(now_ns);
        match self.session.next_step() {
            Next::Wait(ms) => ClientNext::Wait(ns(ms)),
            Next::Fetch { segment, quality } => {
                self.download.get_or_insert(Download {
                    segment,
                    quality,
                    asked_ns: self.now_ns,
                    first_byte_ns: None,
                    came_bits: 0.0,
                    size_bits: None,
                    checked_ns: self.now_ns,
                    checked_bits: 0.0,
                });
                ClientNext::Fetch { segment, quality }
            }
            Next::End if self.session.is_over() => ClientNext::End,
            Next::End => ClientNext::Drain(ns(self.player().level_ms())),
        }
    }

    /// The answer has begun, and has so many bytes, if that is known.
    pub fn first_byte(&mut self, now_ns: u64, size_bytes: Option<u64>) {
        self.pass(now_ns);
        let now_ns = self.now_ns;
        if let Some(download) = &mut self.download {
            download.first_byte_ns.get_or_insert(now_ns);
            download.size_bits = size_bytes.map(bits);
        }
    }

    /// So many bytes of it have come in all. Whoever is told a quality cancels the request and asks for
    /// what is next: it is given up. To be told each time some have come, and about twice a second when none
    /// do, so that a download that has come to a stop is given up too. Before the first byte nothing is
    /// given up: that is what a deadline is for.
    pub fn received(&mut self, now_ns: u64, bytes: u64) -> Option<usize> {
        self.pass(now_ns);
        let now_ns = self.now_ns;
        let download = self.download.as_mut()?;
        if bytes == 0 {
            return None;
        }
        let first_byte_ns = *download.first_byte_ns.get_or_insert(now_ns);
        download.came_bits = bits(bytes);
        let more_bits = download.came_bits - download.checked_bits;
        let since_ms = ms(now_ns - download.checked_ns);
        if since_ms < STEP_MS || (more_bits < STEP_BITS && since_ms < SILENCE_MS) {
            return None;
        }
        download.checked_ns = now_ns;
        download.checked_bits = download.came_bits;
        let ladder = self.session.ladder();
        let usual_bits = ladder.kbps(download.quality) * ladder.duration_ms(download.segment);
        let progress = Progress {
            quality: download.quality,
            size_bits: download.size_bits.unwrap_or(usual_bits),
            came_bits: download.came_bits,
            time_ms: ms(now_ns - download.asked_ns),
            first_byte_ms: ms(first_byte_ns - download.asked_ns),
        };
        let lower = self.session.progress(&progress)?;
        self.download = None;
        self.session.abandoned(
            lower,
            progress.came_bits,
            progress.time_ms,
            progress.first_byte_ms,
        );
        Some(lower)
    }

    /// All of it has come, so many bytes.
    pub fn fetched(&mut self, now_ns: u64, bytes: u64) {
        self.pass(now_ns);
        if let Some(download) = self.download.take() {
            let first_byte_ns = download.first_byte_ns.unwrap_or(self.now_ns);
            let time_ms = ms(self.now_ns - download.asked_ns);
            let first_byte_ms = ms(first_byte_ns - download.asked_ns);
            self.session.fetched(bits(bytes), time_ms, first_byte_ms);
        }
    }

    /// It has failed: an error, or a deadline. The segment is next again; how often, and after which wait, is
    /// up to the caller, who may also [`skip`](Self::skip) it.
    pub fn failed(&mut self, now_ns: u64) {
        self.pass(now_ns);
        if let Some(download) = self.download.take() {
            self.session.failed(download.came_bits);
        }
    }

    /// The next segment is left out.
    pub fn skip(&mut self, now_ns: u64) {
        self.failed(now_ns);
        self.session.skip();
    }

    /// The viewer goes on at that segment. A request that is under way is to be cancelled.
    pub fn seek(&mut self, now_ns: u64, segment: usize) {
        self.cancel(now_ns);
        self.session.seek(segment);
    }

    /// The viewer pauses, or goes on. While paused, the buffer fills, and then [`next_step`](Self::next_step) says to
    /// wait, again and again.
    pub fn pause(&mut self, now_ns: u64, paused: bool) {
        self.pass(now_ns);
        self.session.pause(paused);
    }

    /// A real player that shows this stands still, or goes on: until then it is a stall.
    pub fn stand(&mut self, now_ns: u64, stands: bool) {
        self.pass(now_ns);
        self.session.stand(stands);
    }

    /// No segment follows, as at the end of a live stream.
    pub fn no_more(&mut self, now_ns: u64) {
        self.cancel(now_ns);
        self.session.no_more();
    }

    /// What the viewer saw until now.
    pub fn summary(&mut self, now_ns: u64) -> Summary {
        self.pass(now_ns);
        self.session.summary()
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Whoever waits is not to be a moment too early.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a wait is not negative, and a cast holds at both ends"
)]
fn ns(ms: f64) -> u64 {
    (ms * 1e6).ceil() as u64
}

fn bits(bytes: u64) -> f64 {
    bytes as f64 * 8.0
}
