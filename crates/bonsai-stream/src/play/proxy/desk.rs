//! What is fetched next, and who is given what: without sockets, and with a clock of the caller's.
//!
//! ```text
//!   player:  ask ──> take ──(not there yet)──> take ──> bytes
//!               │                                ^
//!               v                                │
//!   engine:   job ──> first_byte ─> received ─> came | failed
//! ```
//!
//! # Definitions
//! - *front*: the segment that is fetched, or next. *next*: the first that no player was given since it was
//!   last elsewhere.
//! - *position*: where the player should be ([`Viewer`]). It plays from the first segment that it asks for, at the media's
//!   pace, and never past *next*: whoever asks for nothing has paused, or has enough.
//! - *level*: from the position to the front. It is what the rule chooses by.
//!
//! # Invariants
//! 1. A segment is given whole, with the header of its own quality; one whose header was given keeps its
//!    quality, until another player comes.
//! 2. A player that waits for a segment is not held up by a buffer that is full: it knows better what it has
//!    played, and the position moves on.
//! 3. A stall is that the position has come to the front while a player waits.
//! 4. What is kept is not more than the buffer, and than the memory and one segment; headers have a little room of their
//!    own.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bonsai_media::adapt::{self, ClientNext, Ladder, Session, Settings, Summary};
use hyper::body::Bytes;

use super::Denied;
use super::headers::Headers;
use super::item::Item;
use super::pinned::{Pinned, Pins};
use super::report::{Fetched, Waits};
use super::sounds::Sounds;
use super::task::{Header, Job, Parcel, Task, Then};
use super::viewer::Viewer;

/// What was given is kept for so many segments more: players ask twice, for a look before they begin and when an answer is
/// late.
pub(super) const KEPT: usize = 2;

/// A player may ask for so many segments after the front, and waits for them.
const AHEAD: usize = 2;

/// Who waits for less has not waited, nanoseconds.
const WAITED: u64 = 10_000_000;

/// So many questions are open at a time.
const OPEN: usize = 256;

/// So many downloads are told of one by one.
const LOGGED: usize = 200_000;

#[derive(Debug)]
struct Held {
    bytes: Bytes,
    quality: usize,
    header: Option<Bytes>,
    /// Its place in the log.
    place: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Ask {
    ticket: u64,
    lease: u64,
    item: Item,
    since_ns: u64,
}

/// It.
#[derive(Debug)]
pub(super) struct Desk {
    viewer: Viewer,
    has_begun: bool,
    pins: Pins,
    starts_ms: Vec<f64>,
    sound_headers: usize,
    buffer_ms: f64,
    memory: u64,
    pictures: BTreeMap<usize, Held>,
    sounds: Sounds,
    headers: Headers<Header>,
    /// Of segments, those that the player has.
    given_headers: Headers<usize>,
    next: usize,
    asks: Vec<Ask>,
    tickets: u64,
    leases: u64,
    active: u64,
    turn: u64,
    /// What cannot be had, and why.
    broken: HashMap<Item, Arc<str>>,
    log: Vec<Fetched>,
    waits: Waits,
    /// How long a segment was waited for already, by a question for its header: which, and nanoseconds.
    waited: (usize, u64),
    seeks: u64,
}

/// When each begins, and when all ends, ms.
fn starts(durations_ms: &[f64]) -> Vec<f64> {
    let mut at = 0.0;
    let mut starts = vec![at];
    for ms in durations_ms {
        at += ms;
        starts.push(at);
    }
    starts
}

impl Desk {
    /// One for such a film, whose sound has segments of these lengths, and so many headers, if it is apart.
    ///
    /// # Errors
    /// A setting that cannot be with this ladder.
    pub(super) fn new(
        ladder: Arc<Ladder>,
        (sound_ms, sound_headers): (&[f64], usize),
        settings: Settings,
        memory: u64,
        now_ns: u64,
    ) -> Result<Self, adapt::Error> {
        let count = ladder.segments().unwrap_or(0);
        let durations: Vec<f64> = (0..count).map(|at| ladder.duration_ms(at)).collect();
        settings.check(&ladder)?;
        let pins = Pins::new(count);
        let rule = Pinned {
            rule: settings.rule.build(&ladder, &settings),
            pins: pins.clone(),
            is_pinned: false,
        };
        let buffer_ms = settings.buffer_ms;
        let session = Session::with_rule(ladder, settings, Box::new(rule))?;
        Ok(Self {
            viewer: Viewer::new(session, now_ns),
            has_begun: false,
            pins,
            starts_ms: starts(&durations),
            sound_headers,
            buffer_ms,
            memory,
            pictures: BTreeMap::new(),
            sounds: Sounds::new(starts(sound_ms)),
            headers: Headers::new(),
            given_headers: Headers::new(),
            next: 0,
            asks: Vec::new(),
            tickets: 0,
            leases: 0,
            active: 0,
            turn: 0,
            broken: HashMap::new(),
            log: Vec::new(),
            waits: Waits::default(),
            waited: (0, 0),
            seeks: 0,
        })
    }

    fn segments(&self) -> usize {
        self.starts_ms.len() - 1
    }

    /// What tells whether a task is still wanted.
    pub(super) const fn turn(&self) -> u64 {
        self.turn
    }

    /// Whether there is enough for a try that may fail.
    pub(super) fn is_comfortable(&self) -> bool {
        let half_ms = self.buffer_ms / 2.0;
        let has_some = self.viewer.level_ms() >= half_ms && !self.is_waited_for();
        has_some || self.held_ms() >= half_ms
    }

    /// What has come and was not given, ms of media.
    pub(super) fn held_ms(&self) -> f64 {
        let front = self.viewer.front().min(self.segments());
        (self.starts_ms[front] - self.starts_ms[self.next]).max(0.0)
    }

    /// What is kept of media, bytes.
    pub(super) fn bytes(&self) -> u64 {
        let pictures = self.pictures.values();
        let pictures: u64 = pictures.map(|held| as_u64(held.bytes.len())).sum();
        pictures + self.sounds.bytes()
    }

    /// Whether a player waits for a segment.
    fn is_waited_for(&self) -> bool {
        self.asks.iter().any(|ask| match ask.item {
            Item::Picture(of) => ask.lease == self.active && !self.pictures.contains_key(&of),
            Item::Header(of) => {
                let is_there = self.pictures.contains_key(&of);
                ask.lease == self.active && !is_there && !self.given_headers.has(of)
            }
            _ => false,
        })
    }

    /// Time passes until now. Whoever waits for nothing plays what it was given, and no more.
    fn advance(&mut self, now_ns: u64) {
        let has_all = self.next >= self.segments();
        let is_bound = !has_all && !self.is_waited_for();
        let end_ms = is_bound.then(|| self.starts_ms[self.next]);
        self.viewer.advance(now_ns, end_ms);
    }

    /// A number for whoever reads the playlist now. Who read it last and asks for something is the player.
    pub(super) const fn lease(&mut self) -> u64 {
        self.leases += 1;
        self.leases
    }

    /// A player asks for something. It is to be taken by this ticket, or given up.
    pub(super) fn ask(&mut self, now_ns: u64, lease: u64, item: Item) -> Result<u64, Denied> {
        self.advance(now_ns);
        if lease == 0 || lease > self.leases || !self.is_there(item) {
            return Err(Denied::Nothing);
        }
        if lease < self.active {
            return Err(Denied::Another);
        }
        if self.asks.len() >= OPEN {
            return Err(Denied::Busy);
        }
        if lease > self.active {
            self.active = lease;
            self.pins.clear();
            self.given_headers.clear();
        }
        match item {
            Item::Picture(segment) => self.go_to(segment),
            // Who has a header that it was given before does not go anywhere with it.
            Item::Header(segment) if !self.given_headers.has(segment) => {
                self.go_to(segment);
            }
            _ => {}
        }
        // It is tried anew.
        self.broken.remove(&item);
        if matches!(item, Item::Picture(_) | Item::Header(_)) {
            self.broken.remove(&Item::Picture(self.viewer.front()));
        }
        self.tickets += 1;
        self.asks.push(Ask {
            ticket: self.tickets,
            lease,
            item,
            since_ns: now_ns,
        });
        if self.is_waited_for() {
            self.viewer.go_on();
        }
        Ok(self.tickets)
    }

    fn is_there(&self, item: Item) -> bool {
        match item {
            Item::Picture(of) | Item::Header(of) => of < self.segments(),
            Item::Sound(of) => of < self.sounds.count(),
            Item::SoundHeader(of) => of < self.sound_headers,
        }
    }

    /// The player wants that segment next, or has it already.
    fn go_to(&mut self, segment: usize) {
        let front = self.viewer.front();
        let is_within = self.pictures.contains_key(&segment)
            || (front..=front.saturating_add(AHEAD)).contains(&segment);
        if self.has_begun && is_within {
            let waits_for_next = self.asks.iter().any(|ask| {
                matches!(ask.item, Item::Picture(of) | Item::Header(of) if of < segment)
                    && ask.lease == self.active
            });
            // Some are left out.
            if segment > self.next && !waits_for_next {
                self.next = segment;
                let by_ms = self.starts_ms[segment] - self.viewer.position_ms();
                self.viewer.leap(by_ms);
            }
        } else if !is_within || self.next != segment {
            self.seek(segment);
        }
        self.has_begun = true;
        self.viewer.go_on();
    }

    fn seek(&mut self, segment: usize) {
        self.seeks += u64::from(self.has_begun);
        self.turn += 1;
        let start_ms = self.starts_ms[segment];
        self.viewer.seek(segment, start_ms);
        self.pictures.clear();
        self.sounds.seek(start_ms, start_ms + self.buffer_ms);
        self.next = segment;
        self.broken.clear();
    }

    /// What was asked for, if it is there; or why it will not be.
    pub(super) fn take(&mut self, now_ns: u64, ticket: u64) -> Option<Result<Bytes, Denied>> {
        self.advance(now_ns);
        let ask = *self.asks.iter().find(|ask| ask.ticket == ticket)?;
        let taken = self.given(&ask, now_ns)?;
        self.gone(now_ns, ticket);
        Some(taken)
    }

    fn given(&mut self, ask: &Ask, now_ns: u64) -> Option<Result<Bytes, Denied>> {
        if ask.lease != self.active {
            return Some(Err(Denied::Another));
        }
        let (Item::Header(of) | Item::Picture(of)) = ask.item else {
            return self.given_sound(ask.item);
        };
        let is_header = matches!(ask.item, Item::Header(_));
        let Some(held) = self.pictures.get(&of) else {
            if is_header && let Some(header) = self.given_headers.get(of) {
                return Some(Ok(header));
            }
            let front = self.viewer.front();
            if let Some(why) = self.broken.get(&Item::Picture(front)) {
                return Some(Err(Denied::Upstream(why.clone())));
            }
            let is_to_come = (front..=front.saturating_add(AHEAD)).contains(&of);
            return (!is_to_come).then_some(Err(Denied::Elsewhere));
        };
        if let Some(header) = &held.header {
            self.pins.set(of, held.quality);
            self.given_headers.put(of, header.clone());
        }
        let mut waited_ns = now_ns.saturating_sub(ask.since_ns);
        if is_header {
            let header = held.header.clone();
            self.waited = (of, waited_ns);
            return Some(header.ok_or(Denied::Nothing));
        }
        let bytes = held.bytes.clone();
        let (waited_for, before_ns) = std::mem::take(&mut self.waited);
        if waited_for == of {
            waited_ns = waited_ns.saturating_add(before_ns);
        }
        self.waits.add(waited_ns, waited_ns >= WAITED);
        if let Some(entry) = held.place.and_then(|place| self.log.get_mut(place)) {
            entry.given(waited_ns);
        }
        self.next = self.next.max(of + 1);
        self.drop_given();
        // It has something to play.
        self.viewer.go_on();
        Some(Ok(bytes))
    }

    fn given_sound(&mut self, item: Item) -> Option<Result<Bytes, Denied>> {
        if let Some(why) = self.broken.get(&item) {
            return Some(Err(Denied::Upstream(why.clone())));
        }
        match item {
            Item::SoundHeader(number) => self.headers.get((None, number)).map(Ok),
            Item::Sound(of) => self.sounds.give(of).map(Ok),
            _ => None,
        }
    }

    fn drop_given(&mut self) {
        let kept = self.next.saturating_sub(KEPT);
        self.pictures = self.pictures.split_off(&kept);
        self.sounds
            .forget(self.starts_ms[self.next] - self.buffer_ms);
    }

    /// Nobody waits for it any more.
    pub(super) fn gone(&mut self, now_ns: u64, ticket: u64) {
        self.advance(now_ns);
        self.asks.retain(|ask| ask.ticket != ticket);
    }

    /// Whether somebody waits for anything.
    #[cfg(test)]
    pub(super) fn is_asked(&self) -> bool {
        self.asks.iter().any(|ask| ask.lease == self.active)
    }

    /// What to do next. A task that was told before is to be told of first.
    pub(super) fn job(&mut self, now_ns: u64) -> Job {
        const LONG: u64 = 1_000_000_000;
        self.advance(now_ns);
        for ask in &self.asks {
            match ask.item {
                _ if ask.lease != self.active || self.broken.contains_key(&ask.item) => {}
                Item::Sound(of) if !self.sounds.has(of) => return Job::Sound(of),
                Item::SoundHeader(of) if !self.headers.has((None, of)) => {
                    return Job::SoundHeader(of);
                }
                _ => {}
            }
        }
        let is_waited_for = self.is_waited_for();
        if self
            .broken
            .contains_key(&Item::Picture(self.viewer.front()))
        {
            return Job::Wait(LONG);
        }
        if self.bytes() >= self.memory && !is_waited_for {
            return Job::Wait(LONG);
        }
        // Each turn of it lets the position move on by what is in the way.
        for _ in 0..16 {
            match self.viewer.next_step() {
                ClientNext::Fetch { segment, quality } => {
                    return Job::Picture(Task {
                        segment,
                        quality,
                        sounds: self.sounds_of(segment),
                        turn: self.turn,
                        since_ns: now_ns,
                    });
                }
                #[expect(clippy::cast_precision_loss, reason = "a wait")]
                ClientNext::Wait(ns) if is_waited_for => self.viewer.leap(ns as f64 / 1e6),
                ClientNext::Wait(ns) => return Job::Wait(ns.clamp(1_000_000, LONG)),
                ClientNext::Drain(_) | ClientNext::End => return Job::Wait(LONG),
            }
        }
        Job::Wait(1_000_000)
    }

    /// The segments of sound that come with one of the pictures.
    fn sounds_of(&self, segment: usize) -> Vec<usize> {
        let is_last = segment + 1 == self.segments();
        let to_ms = match is_last {
            true => f64::INFINITY,
            false => self.starts_ms[segment + 1],
        };
        self.sounds.missing(self.starts_ms[segment], to_ms)
    }

    /// A header that has come before.
    pub(super) fn header(&self, header: Header) -> Option<Bytes> {
        self.headers.get(header)
    }

    /// One has come.
    pub(super) fn header_came(&mut self, header: Header, bytes: Bytes) {
        self.headers.put(header, bytes);
    }

    /// Sound that was fetched alone has come.
    pub(super) fn sound_came(&mut self, of: usize, bytes: Bytes) {
        if self.bytes() >= self.memory {
            self.sounds.clear();
        }
        self.sounds.put(of, bytes);
    }

    /// The answer to a task has begun, and will have so many bytes, if that is known.
    pub(super) fn first_byte(&mut self, now_ns: u64, task: &Task, size: Option<u64>) {
        self.advance(now_ns);
        if task.turn == self.turn {
            self.viewer.first_byte(size);
        }
    }

    /// So much of a task has come.
    pub(super) fn received(&mut self, now_ns: u64, task: &Task, bytes: u64) -> Then {
        self.advance(now_ns);
        if task.turn != self.turn {
            return Then::Over;
        }
        match self.viewer.received(bytes) {
            true => Then::GiveUp,
            false => Then::GoOn,
        }
    }

    /// A task is done.
    pub(super) fn came(&mut self, now_ns: u64, task: &Task, parcel: Parcel) {
        self.advance(now_ns);
        if task.turn != self.turn {
            return;
        }
        self.viewer.fetched(parcel.bytes);
        let sound_bytes: usize = parcel.sounds.iter().map(|(_, bytes)| bytes.len()).sum();
        let took_ns = now_ns.saturating_sub(task.since_ns);
        let place = (self.log.len() < LOGGED).then_some(self.log.len());
        if place.is_some() {
            self.log.push(Fetched::new(
                (task.segment, task.quality),
                (as_u64(parcel.picture.len()), as_u64(sound_bytes)),
                took_ns,
                parcel.server,
            ));
        }
        for (of, bytes) in parcel.sounds {
            self.sound_came(of, bytes);
        }
        self.pictures.insert(
            task.segment,
            Held {
                bytes: parcel.picture,
                quality: task.quality,
                header: parcel.header,
                place,
            },
        );
    }

    /// A task has failed: it is next again.
    pub(super) fn failed(&mut self, now_ns: u64, task: &Task) {
        self.advance(now_ns);
        if task.turn == self.turn {
            self.viewer.failed();
        }
    }

    /// Something cannot be had, until it is asked for anew.
    pub(super) fn breaks(&mut self, item: Item, why: &str) {
        if self.broken.len() >= OPEN {
            // Nobody has asked for them again.
            self.broken.clear();
        }
        self.broken.insert(item, why.into());
    }

    /// What the player saw, as far as it is known; and what was fetched.
    pub(super) fn seen(&mut self, now_ns: u64) -> (Summary, Vec<Fetched>, Waits, u64) {
        self.advance(now_ns);
        let summary = self.viewer.summary();
        (summary, self.log.clone(), self.waits, self.seeks)
    }

    /// Segments that are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> Vec<usize> {
        self.pictures.keys().copied().collect()
    }
}

fn as_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
