//! One player.
//!
//! ```text
//!   playlists ──> segment of the lowest quality ──> the other playlists ──┐
//!                                                                         v
//!        ┌──────── wait <── client (bonsai-media) ──> segment: header, pictures, sound ──> told ──┐
//!        └────────────────────────────^───────────────────────────────────────────────────────────┘
//! ```

use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bonsai_media::adapt::{Client, ClientNext, Phase};
use tokio::time::{Instant, Sleep, sleep};

use super::fetch::{Fetcher, Why};
use super::film::{Offer, Piece, Source, Track};
use super::meter::Meter;
use super::shared::Shared;
use super::wire::Came;
use super::{Film, PlayerReport};
use crate::clock::{nanos, now};
use crate::watch::Guest;

/// So often in a row a segment may fail.
const TRIES: u32 = 4;

/// After the first failure; then twice as long each time.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// How often a download is looked after when nothing comes of it.
const LOOKS: Duration = Duration::from_millis(500);

/// What comes of a download in a step, at least, bytes: less is nothing.
const LEAST: u64 = 1 << 10;

/// A segment has no more bytes than that.
const MOST: u64 = 4 << 30;

/// Sound that begins so shortly before the end of a segment is of the next, ms.
const AT_END_MS: f64 = 100.0;

/// Why a player has failed, and in which step.
struct Failure {
    step: &'static str,
    why: String,
    /// The server said no.
    is_refused: bool,
}

impl Failure {
    fn new(step: &'static str, why: &Why) -> Self {
        let step = match why {
            Why::Connect { .. } => "connect",
            _ => step,
        };
        Self {
            step,
            is_refused: matches!(why, Why::Status { .. }),
            why: why.to_string(),
        }
    }
}

/// What becomes of a download, or of a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// All of it has come.
    Whole,
    /// It was given up for a lower quality.
    GivenUp,
    /// There is no time left.
    Over,
}

/// A download of a segment, with its header and its sound.
#[derive(Clone, Copy, Debug, Default)]
struct Download {
    bytes: u64,
    sound_bytes: u64,
    asked: u64,
}

struct Player {
    shared: Rc<Shared>,
    fetcher: Fetcher,
    offer: Arc<Offer>,
    /// Those whose playlists have come.
    tracks: Vec<Option<Arc<Track>>>,
    sound: Option<Arc<Track>>,
    /// Headers that have come: of which quality, and their number; of sound, without a quality.
    headers: Vec<(Option<usize>, usize)>,
    /// The next segment of sound, and when it begins, ms of media.
    sound_next: (usize, f64),
    /// What has come, ms of media.
    came_ms: f64,
    client: Client,
    meter: Meter,
    guest: Guest,
    since: u64,
    until: u64,
    is_shown: bool,
    /// Stalls that have been counted.
    stalls: u64,
    last_failure: Option<String>,
}

/// Plays from then on, and says what it saw.
pub(super) async fn play(shared: Rc<Shared>, guest: Guest) -> PlayerReport {
    let since = now();
    shared.count(|counts| counts.came += 1);
    let report = match Player::begin(shared.clone(), guest, since).await {
        Ok(mut player) => {
            let ended = player.watch().await;
            player.report(ended.err())
        }
        Err(failure) => {
            PlayerReport::failed(&guest, (failure.step, &failure.why), failure.is_refused)
        }
    };
    shared.count(|counts| {
        counts.done += u32::from(report.failure.is_none());
        counts.failed += u32::from(report.failure.is_some());
    });
    report
}

/// Fetches where the pieces of a track are.
pub(super) async fn track(fetcher: &mut Fetcher, source: &Source) -> Result<Arc<Track>, Why> {
    let url = match source {
        Source::Here(track) => return Ok(track.clone()),
        Source::At(url) => url,
    };
    let read = fetcher.document(url).await?.offer();
    // A list of lists would be one without end.
    match &read.qualities[..] {
        [(_, Source::Here(track))] if read.sound.is_none() => Ok(track.clone()),
        _ => Err(Why::Tracks(format!(
            "{url} leads to other lists, and not to segments"
        ))),
    }
}

impl Player {
    /// One that knows what there is to play.
    async fn begin(shared: Rc<Shared>, guest: Guest, since: u64) -> Result<Self, Failure> {
        let failed = |why: &Why| Failure::new("playlist", why);
        let plan = shared.plan.clone();
        let mut fetcher = Fetcher::new(shared.clone());
        let document = fetcher.document(&plan.videos[guest.video].url).await;
        let offer = shared.offer(document.map_err(|why| failed(&why))?);
        let lowest = track(&mut fetcher, &offer.qualities[0].1).await;
        let lowest = lowest.map_err(|why| failed(&why))?;
        let sound = match &offer.sound {
            Some((_, source)) => {
                let sound = track(&mut fetcher, source).await;
                Some(sound.map_err(|why| failed(&why))?)
            }
            None => None,
        };
        let adapt = |error: bonsai_media::adapt::Error| failed(&error.into());
        let ladder = shared.ladder(&lowest, offer.kbps()).map_err(adapt)?;
        shared.films.borrow_mut()[guest.video].get_or_insert_with(|| Film {
            qualities: offer.qualities.iter().map(|(of, _)| of.clone()).collect(),
            sound: offer.sound.as_ref().map(|(of, _)| of.clone()),
            segment_ms: ladder.segment_ms(),
            segments: lowest.segments.len(),
        });
        let client = Client::new(ladder, plan.settings.clone(), since).map_err(adapt)?;
        let mut tracks = vec![None; offer.qualities.len()];
        tracks[0] = Some(lowest);
        Ok(Self {
            fetcher,
            offer,
            tracks,
            sound,
            headers: Vec::new(),
            sound_next: (0, 0.0),
            came_ms: 0.0,
            client,
            meter: Meter::new(plan.keeps_log),
            guest,
            since,
            until: since
                .saturating_add(guest.length_ns)
                .saturating_add(nanos(plan.step)),
            is_shown: false,
            stalls: 0,
            last_failure: None,
            shared,
        })
    }

    /// Plays until the film ends, or time is over.
    async fn watch(&mut self) -> Result<(), Failure> {
        let mut failures = 0;
        loop {
            let at = now();
            let next = self.client.next_step(at);
            self.look(at);
            if at >= self.until {
                return self.over();
            }
            match next {
                ClientNext::Wait(wait) | ClientNext::Drain(wait) => self.rest(wait).await,
                ClientNext::End => return Ok(()),
                ClientNext::Fetch { segment, quality } => {
                    match self.segment(segment, quality, at).await {
                        Ok(Part::Whole) => {
                            failures = 0;
                            self.prepare().await?;
                        }
                        Ok(Part::GivenUp) => self.fetcher.hang_up(),
                        Ok(Part::Over) => return self.over(),
                        Err(why) => {
                            self.fetcher.hang_up();
                            self.client.failed(now());
                            failures += 1;
                            self.last_failure = Some(why.to_string());
                            if failures >= TRIES {
                                return Err(Failure::new("segment", &why));
                            }
                            let wait = FIRST_WAIT * (1 << (failures - 1));
                            self.rest(nanos(wait)).await;
                        }
                    }
                }
            }
        }
    }

    /// The end, before that of the film.
    fn over(&self) -> Result<(), Failure> {
        if self.is_shown {
            return Ok(());
        }
        let passed = Duration::from_nanos(self.until.saturating_sub(self.since));
        Err(Failure {
            step: "start",
            is_refused: false,
            why: match &self.last_failure {
                Some(why) => format!("nothing was shown in {} s: {why}", passed.as_secs_f64()),
                None => format!("nothing was shown in {} s", passed.as_secs_f64()),
            },
        })
    }

    /// What the viewer sees may have changed.
    fn look(&mut self, at: u64) {
        self.meter.phase(&mut self.client, self.came_ms, at);
        if self.is_shown {
            let stalls = self.client.summary(at).stalls;
            let more = u32::try_from(stalls - self.stalls).unwrap_or(u32::MAX);
            self.stalls = stalls;
            self.shared
                .count(|counts| *counts.seen.stalls.get_or_insert(0) += more);
            return;
        }
        if self.client.player().phase() == Phase::Starting {
            return;
        }
        self.is_shown = true;
        self.shared.count(|counts| counts.playing += 1);
        let startup_ms = self.client.summary(at).startup_ms.unwrap_or(0.0);
        let startup = Duration::from_secs_f64(startup_ms.max(0.0) / 1e3);
        self.until = self
            .since
            .saturating_add(nanos(startup))
            .saturating_add(self.guest.length_ns);
    }

    async fn rest(&self, wait_ns: u64) {
        let left = self.until.saturating_sub(now());
        sleep(Duration::from_nanos(wait_ns.min(left))).await;
    }

    /// The other playlists, once there is something to see.
    async fn prepare(&mut self) -> Result<(), Failure> {
        for quality in 0..self.tracks.len() {
            let made = self.track(quality).await;
            made.map_err(|why| Failure::new("playlist", &why))?;
        }
        Ok(())
    }

    async fn track(&mut self, quality: usize) -> Result<Arc<Track>, Why> {
        if let Some(track) = &self.tracks[quality] {
            return Ok(track.clone());
        }
        let offer = self.offer.clone();
        let track = track(&mut self.fetcher, &offer.qualities[quality].1).await?;
        let due = self.client.session().ladder().segments();
        if due != Some(track.segments.len()) {
            return Err(Why::Tracks(format!(
                "quality {quality} has {} segments, and the lowest has {}: all have to have as many",
                track.segments.len(),
                due.unwrap_or(0)
            )));
        }
        self.tracks[quality] = Some(track.clone());
        Ok(track)
    }

    /// Fetches a segment.
    async fn segment(&mut self, segment: usize, quality: usize, asked: u64) -> Result<Part, Why> {
        let track = self.track(quality).await?;
        let Some(of) = track.segments.get(segment) else {
            return Err(Why::Tracks(format!("there is no segment {segment}")));
        };
        let mut download = Download {
            asked,
            ..Download::default()
        };
        let mut tick = pin!(sleep(LOOKS));
        let header = of.header.map(|number| (Some(quality), number));
        let mut part = self
            .header(&track, header, &mut download, tick.as_mut())
            .await?;
        if part == Part::Whole {
            part = self.part(&of.piece, &mut download, tick.as_mut()).await?;
        }
        let pictures = download.bytes;
        let is_last = segment + 1 == track.segments.len();
        let end_ms = match is_last {
            true => f64::INFINITY,
            false => self.came_ms + of.ms - AT_END_MS,
        };
        if let Some(sound) = self.sound.clone() {
            while part == Part::Whole
                && self.sound_next.1 < end_ms
                && let Some(of) = sound.segments.get(self.sound_next.0)
            {
                let header = of.header.map(|number| (None, number));
                part = self
                    .header(&sound, header, &mut download, tick.as_mut())
                    .await?;
                if part == Part::Whole {
                    part = self.part(&of.piece, &mut download, tick.as_mut()).await?;
                }
                if part == Part::Whole {
                    self.sound_next = (self.sound_next.0 + 1, self.sound_next.1 + of.ms);
                }
            }
        }
        if part == Part::Whole {
            download.sound_bytes = download.bytes - pictures;
            self.fetched(segment, quality, of.ms, &download);
        }
        Ok(part)
    }

    fn fetched(&mut self, segment: usize, quality: usize, ms: f64, download: &Download) {
        let at = now();
        let us = at.saturating_sub(download.asked) / 1_000;
        if self.shared.plan.keeps_log {
            // A stall ends with it, and is to be seen before.
            let _ = self.client.summary(at);
        }
        self.meter.phase(&mut self.client, self.came_ms, at);
        self.client.fetched(at, download.bytes);
        self.came_ms += ms;
        self.meter.fetched(us, quality);
        let pictures = download.bytes - download.sound_bytes;
        self.meter
            .log(segment, quality, ms, (pictures, download.sound_bytes));
        let _ = self.shared.times.borrow_mut().record(us);
        self.shared.count(|counts| counts.packets += 1);
        self.look(at);
    }

    /// Fetches a header that has not come before.
    async fn header(
        &mut self,
        track: &Track,
        header: Option<(Option<usize>, usize)>,
        download: &mut Download,
        tick: Pin<&mut Sleep>,
    ) -> Result<Part, Why> {
        let Some(header) = header.filter(|header| !self.headers.contains(header)) else {
            return Ok(Part::Whole);
        };
        let Some(piece) = track.headers.get(header.1) else {
            return Ok(Part::Whole);
        };
        let part = self.part(piece, download, tick).await?;
        if part == Part::Whole {
            self.headers.push(header);
        }
        Ok(part)
    }

    /// Fetches a piece, and tells the client of its bytes as they come.
    async fn part(
        &mut self,
        piece: &Piece,
        download: &mut Download,
        mut tick: Pin<&mut Sleep>,
    ) -> Result<Part, Why> {
        self.fetcher.ask(piece).await?;
        let before = download.bytes;
        let length = self.fetcher.wire().and_then(|wire| wire.length());
        if length.is_some_and(|length| length > MOST) {
            return Err(Why::Length {
                came: 0,
                length: length.unwrap_or(0),
            });
        }
        let at = now();
        self.client
            .first_byte(at, length.map(|length| before + length));
        let (step, mut seen) = (nanos(self.shared.plan.step), (at, before));
        loop {
            let Some(wire) = self.fetcher.wire() else {
                return Err(Why::Http("the connection has ended".to_owned()));
            };
            let event = std::future::poll_fn(|cx| match wire.poll_body(cx) {
                Poll::Ready(came) => Poll::Ready(Some(came)),
                Poll::Pending => tick.as_mut().poll(cx).map(|()| None),
            });
            match event.await {
                Some(Ok(Came::Bytes(bytes))) => {
                    let bytes = u64::try_from(bytes.len()).unwrap_or(0);
                    download.bytes += bytes;
                    self.shared.count(|counts| counts.bytes += bytes);
                    if self.client.received(now(), download.bytes).is_some() {
                        return Ok(Part::GivenUp);
                    }
                    if download.bytes - before > MOST {
                        return Err(Why::Length {
                            came: download.bytes,
                            length: MOST,
                        });
                    }
                }
                Some(Ok(Came::End)) => {
                    let came = download.bytes - before;
                    let due = piece.range.map(|(first, last)| last - first + 1);
                    let due = due.or(length).unwrap_or(came).max(1);
                    return match came == due {
                        true => Ok(Part::Whole),
                        false => Err(Why::Length { came, length: due }),
                    };
                }
                Some(Err(error)) => return Err(Why::http(&error)),
                None => {
                    let at = now();
                    if at >= self.until {
                        return Ok(Part::Over);
                    }
                    if at >= seen.0 + step {
                        let bytes = download.bytes - seen.1;
                        if bytes < LEAST {
                            return Err(Why::Slow {
                                bytes,
                                step: self.shared.plan.step,
                            });
                        }
                        seen = (at, download.bytes);
                    }
                    if self.client.received(at, download.bytes).is_some() {
                        return Ok(Part::GivenUp);
                    }
                    self.look(at);
                    let left = Duration::from_nanos(self.until.saturating_sub(at));
                    tick.as_mut().reset(Instant::now() + LOOKS.min(left));
                }
            }
        }
    }

    fn report(mut self, failure: Option<Failure>) -> PlayerReport {
        let at = now().min(self.until.max(self.since));
        self.meter.phase(&mut self.client, self.came_ms, at);
        if self.is_shown {
            self.shared.count(|counts| counts.playing -= 1);
        }
        let is_known = self.offer.qualities[0].0.kbps.is_some();
        let seen = self.meter.seen(
            &mut self.client,
            at,
            (self.came_ms, is_known),
            self.fetcher.connections,
            self.shared.plan.settings.buffer_ms,
        );
        PlayerReport {
            came_ns: self.guest.at_ns,
            video: self.guest.video + 1,
            failed_at: failure.as_ref().map(|failure| failure.step),
            is_refused: failure.as_ref().is_some_and(|of| of.is_refused),
            failure: failure.map(|of| format!("{}: {}", of.step, of.why)),
            seen: Some(seen),
        }
    }
}
