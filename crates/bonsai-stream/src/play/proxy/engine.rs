//! What asks the servers.

use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::runtime::{Builder, LocalOptions};
use tokio::time::timeout;

use super::super::fetch::{Fetcher, Why};
use super::super::film::{Piece, Track};
use super::super::shared::Shared;
use super::super::wire::Came;
use super::inband;
use super::item::Item;
use super::open::{self, Source};
use super::servers::{Servers, Turn};
use super::task::{Header, Job, Parcel, Task, Then};
use super::{Event, Inner};
use crate::clock::{nanos, now};

/// How often it is looked whether it is to stop, and what the player does.
const LOOKS: Duration = Duration::from_millis(100);

/// How often a download is looked after when nothing comes of it.
const TICK: Duration = Duration::from_millis(250);

/// What comes of a download in a step, at least, bytes: less is nothing.
const LEAST: u64 = 1 << 10;

/// So often each server is asked for something before whoever waits for it is told.
const TRIES: usize = 3;

/// A header has no more bytes than that.
const HEADER: u64 = 1 << 20;

/// Where there are others, a step takes no longer than half of what is held lasts, but may take as long as this.
const SHORTEST: Duration = Duration::from_secs(2);

/// A segment that takes so many times as long as it lasts is asked for of another server,
const SLOW: f64 = 3.0;
/// if that was so many times as fast.
const FASTER: f64 = 2.0;

/// Room that is made for what is only announced, bytes.
const ANNOUNCED: u64 = 16 << 20;

/// Fetches until it is to stop.
pub(super) fn run(inner: &Inner, stop: &AtomicBool) -> io::Result<()> {
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(LocalOptions::default())?;
    runtime.block_on(Engine::new(inner).run(stop));
    Ok(())
}

/// A server, its connection, and what it has.
struct Upstream {
    fetcher: Fetcher,
    shared: Rc<Shared>,
    source: Option<Source>,
}

struct Engine<'a> {
    inner: &'a Inner,
    upstreams: Vec<Upstream>,
    servers: Servers,
    /// Failures in a row, of whichever server.
    failures: usize,
}

/// How a download went, where it is no failure.
enum Went {
    Well,
    GivenUp,
    /// It is not wanted any more.
    Over,
}

impl<'a> Engine<'a> {
    fn new(inner: &'a Inner) -> Self {
        let mut servers = Servers::new(inner.sources.len());
        let upstream = |(number, source): (usize, &Option<Source>)| {
            let (fetcher, shared) = open::fetcher(&inner.plan, number);
            if source.is_none() {
                servers.failed(number, now());
            }
            Upstream {
                fetcher,
                shared,
                source: source.clone(),
            }
        };
        let upstreams = inner.sources.iter().enumerate().map(upstream).collect();
        Self {
            inner,
            upstreams,
            servers,
            failures: 0,
        }
    }

    async fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let is_comfortable = self.inner.desk().is_comfortable();
            let number = match self.servers.turn(now(), is_comfortable) {
                Turn::Ask(number) => number,
                Turn::Wait(ns) => {
                    self.rest(ns).await;
                    continue;
                }
            };
            let job = self.inner.desk().job(now());
            match job {
                Job::Wait(ns) => self.rest(ns).await,
                Job::Picture(task) => self.picture(number, &task, stop).await,
                Job::Sound(of) => self.alone(number, Item::Sound(of), stop).await,
                Job::SoundHeader(of) => self.alone(number, Item::SoundHeader(of), stop).await,
            }
        }
    }

    async fn rest(&self, ns: u64) {
        let wait = Duration::from_nanos(ns).min(LOOKS);
        let _ = timeout(wait, self.inner.asked.notified()).await;
    }

    /// How long a step of this server may take.
    fn step(&self, number: usize) -> Duration {
        let step = self.inner.plan.step;
        if !self.servers.has_other(number) {
            return step;
        }
        let held = Duration::from_secs_f64(self.inner.desk().held_ms() / 2e3);
        let held = Duration::from_secs(held.as_secs());
        held.clamp(SHORTEST.min(step), step)
    }

    async fn picture(&mut self, number: usize, task: &Task, stop: &AtomicBool) {
        let (inner, step) = (self.inner, self.step(number));
        let began = now();
        let lasts = Duration::from_secs_f64(inner.film.segment_ms * SLOW / 1e3);
        let most = lasts.max(inner.plan.step);
        let other_kbps = self.servers.best_other_kbps(number);
        let mut parcel = Parcel {
            server: number,
            ..Parcel::default()
        };
        let went = {
            let upstream = &mut self.upstreams[number];
            let mut download = Download {
                inner,
                task: Some(task),
                bytes: 0,
                step,
                since_ns: began,
                other: other_kbps.map(|kbps| (began.saturating_add(nanos(most)), kbps)),
            };
            let fetched = fetch(upstream, &mut download, task, &mut parcel);
            tokio::select! {
                went = fetched => went,
                () = over(inner, Some(task.turn), stop) => Ok(Went::Over),
            }
        };
        match went {
            Ok(Went::Well) => {
                let bytes = parcel.bytes;
                self.told_well(number, bytes, now().saturating_sub(began));
                self.count(number, 1, bytes);
                inner.desk().came(now(), task, parcel);
            }
            Ok(Went::GivenUp | Went::Over) => self.upstreams[number].fetcher.hang_up(),
            Err(why) => {
                self.upstreams[number].fetcher.hang_up();
                inner.desk().failed(now(), task);
                self.told_failed(number, &why, Item::Picture(task.segment));
            }
        }
        inner.came.notify_waiters();
    }

    /// Sound that no segment brings.
    async fn alone(&mut self, number: usize, item: Item, stop: &AtomicBool) {
        let (inner, step) = (self.inner, self.step(number));
        let began = now();
        let upstream = &mut self.upstreams[number];
        let mut download = Download {
            inner,
            task: None,
            bytes: 0,
            step,
            since_ns: began,
            other: None,
        };
        let went = tokio::select! {
            went = sound(upstream, &mut download, item) => went.map(|()| Went::Well),
            () = over(inner, None, stop) => Ok(Went::Over),
        };
        match went {
            Ok(Went::GivenUp | Went::Over) => self.upstreams[number].fetcher.hang_up(),
            Ok(Went::Well) => {
                let bytes = download.bytes;
                self.told_well(number, bytes, now().saturating_sub(began));
                self.count(number, 0, bytes);
            }
            Err(why) => {
                self.upstreams[number].fetcher.hang_up();
                self.told_failed(number, &why, item);
            }
        }
        inner.came.notify_waiters();
    }

    fn count(&self, number: usize, segments: u64, bytes: u64) {
        let mut servers = self.inner.servers();
        let server = &mut servers[number];
        server.segments += segments;
        server.bytes += bytes;
        server.kbps = self.servers.kbps(number);
    }

    fn told_well(&mut self, number: usize, bytes: u64, took_ns: u64) {
        if self.servers.is_down(number) {
            let url = &self.inner.plan.servers[number].url;
            (self.inner.on_event)(&Event::Up { url });
        }
        self.servers.came(number, bytes, took_ns);
        self.failures = 0;
    }

    fn told_failed(&mut self, number: usize, why: &Why, item: Item) {
        let url = &self.inner.plan.servers[number].url;
        let text = why.to_string();
        match why {
            // Its lists came after all, and they are of something else. What is no list at all may be so for a while.
            Why::Film(_) => {
                self.servers.is_other(number);
                (self.inner.on_event)(&Event::Other { url, why: &text });
            }
            _ if !self.servers.is_down(number) => {
                (self.inner.on_event)(&Event::Down { url, why: &text });
            }
            _ => {}
        }
        {
            let mut servers = self.inner.servers();
            let server = &mut servers[number];
            server.failures += 1;
            server.last_failure = Some(text.clone());
        }
        self.servers.failed(number, now());
        self.failures += 1;
        if self.failures >= TRIES * self.servers.count().max(1) {
            self.failures = 0;
            self.inner.desk().breaks(item, &format!("{url}: {text}"));
        }
    }
}

/// Returns when it is to stop, or what is of that turn is not wanted any more.
async fn over(inner: &Inner, turn: Option<u64>, stop: &AtomicBool) {
    loop {
        let is_other = turn.is_some_and(|turn| inner.desk().turn() != turn);
        if is_other || stop.load(Ordering::Relaxed) {
            return;
        }
        let _ = timeout(LOOKS, inner.asked.notified()).await;
    }
}

/// What a download is for, and how far it is.
struct Download<'a> {
    inner: &'a Inner,
    /// `None` for what the rule is not told of.
    task: Option<&'a Task>,
    /// Of all of its pieces.
    bytes: u64,
    step: Duration,
    since_ns: u64,
    /// When another server may be better, and how fast that was, kbit/s.
    other: Option<(u64, f64)>,
}

/// The lists of a server, once they have come.
async fn source(upstream: &mut Upstream, inner: &Inner) -> Result<Source, Why> {
    if let Some(source) = &upstream.source {
        return Ok(source.clone());
    }
    let url = &upstream.shared.plan.videos[0].url;
    let (_, source) = open::load(&mut upstream.fetcher, &upstream.shared, url).await?;
    if let Some(why) = inner.first.differs(&source) {
        return Err(Why::Film(why));
    }
    upstream.source = Some(source.clone());
    Ok(source)
}

/// A segment with its header and its sound.
async fn fetch(
    upstream: &mut Upstream,
    download: &mut Download<'_>,
    task: &Task,
    parcel: &mut Parcel,
) -> Result<Went, Why> {
    let source = source(upstream, download.inner).await?;
    let track = &source.pictures[task.quality];
    let Some(of) = track.segments.get(task.segment) else {
        return Err(Why::Tracks(format!("there is no segment {}", task.segment)));
    };
    if let Some(number) = of.header {
        let name = (Some((parcel.server, task.quality)), number);
        match header(upstream, download, track, name).await? {
            Some(header) => parcel.header = Some(header),
            None => return Ok(Went::GivenUp),
        }
    }
    let memory = download.inner.plan.memory;
    match download
        .piece(&mut upstream.fetcher, &of.piece, memory)
        .await?
    {
        Some(bytes) => parcel.picture = playable(bytes, parcel.header.as_ref(), &source),
        None => return Ok(Went::GivenUp),
    }
    for &number in &task.sounds {
        let Some((track, of)) = source
            .sound
            .as_ref()
            .and_then(|sound| Some((sound, sound.segments.get(number)?)))
        else {
            continue;
        };
        if let Some(number) = of.header
            && header(upstream, download, track, (None, number))
                .await?
                .is_none()
        {
            return Ok(Went::GivenUp);
        }
        // All pieces of a segment have that room together.
        let most = memory.saturating_sub(download.bytes);
        match download
            .piece(&mut upstream.fetcher, &of.piece, most)
            .await?
        {
            Some(bytes) => parcel.sounds.push((number, bytes)),
            None => return Ok(Went::GivenUp),
        }
    }
    parcel.bytes = download.bytes;
    Ok(Went::Well)
}

/// A segment as it can follow one of another quality.
fn playable(bytes: Bytes, header: Option<&Bytes>, source: &Source) -> Bytes {
    let header = header.filter(|_| source.pictures.len() > 1);
    let made = header.and_then(|header| inband::with_parameters(header, &bytes));
    made.map_or(bytes, Bytes::from)
}

/// A header, if it has not come before; `None` if the download is given up.
async fn header(
    upstream: &mut Upstream,
    download: &mut Download<'_>,
    track: &Track,
    name: Header,
) -> Result<Option<Bytes>, Why> {
    let known = download.inner.desk().header(name);
    if known.is_some() {
        return Ok(known);
    }
    let piece = track.headers.get(name.1);
    let piece = piece.ok_or_else(|| Why::Tracks(format!("there is no header {}", name.1)))?;
    let came = download.piece(&mut upstream.fetcher, piece, HEADER).await?;
    if let Some(bytes) = &came {
        download.inner.desk().header_came(name, bytes.clone());
    }
    Ok(came)
}

/// A segment of sound, or its header.
async fn sound(
    upstream: &mut Upstream,
    download: &mut Download<'_>,
    item: Item,
) -> Result<(), Why> {
    let source = source(upstream, download.inner).await?;
    let nothing = || Why::Tracks("there is no such sound".to_owned());
    let track = source.sound.as_ref().ok_or_else(nothing)?;
    match item {
        Item::Sound(number) => {
            let of = track.segments.get(number).ok_or_else(nothing)?;
            let most = download.inner.plan.memory;
            let came = download
                .piece(&mut upstream.fetcher, &of.piece, most)
                .await?;
            let bytes = came.ok_or_else(nothing)?;
            download.inner.desk().sound_came(number, bytes);
        }
        Item::SoundHeader(number) => {
            header(upstream, download, track, (None, number)).await?;
        }
        Item::Picture(_) | Item::Header(_) => return Err(nothing()),
    }
    Ok(())
}

fn too_large(most: u64) -> Why {
    Why::Tracks(format!(
        "a file has more than the {most} bytes that there is room for"
    ))
}

impl Download<'_> {
    /// All of a piece, of so many bytes at most; `None` if the download is given up.
    async fn piece(
        &mut self,
        fetcher: &mut Fetcher,
        piece: &Piece,
        most: u64,
    ) -> Result<Option<Bytes>, Why> {
        let silent = |_| Why::Silent(self.step);
        timeout(self.step, fetcher.ask(piece))
            .await
            .map_err(silent)??;
        let length = fetcher.wire().and_then(|wire| wire.length());
        if length.is_some_and(|length| length > most) {
            return Err(too_large(most));
        }
        let before = self.bytes;
        if let Some(task) = self.task {
            let size = length.map(|length| before + length);
            self.inner.desk().first_byte(now(), task, size);
        }
        let room = length.unwrap_or(0).min(ANNOUNCED);
        let mut all = Vec::with_capacity(usize::try_from(room).unwrap_or(0));
        let mut seen = (now(), before);
        loop {
            let Some(wire) = fetcher.wire() else {
                return Err(Why::Http("the connection has ended".to_owned()));
            };
            match timeout(TICK, wire.body()).await {
                Ok(Ok(Came::Bytes(bytes))) => {
                    self.bytes += u64::try_from(bytes.len()).unwrap_or(0);
                    if self.bytes - before > most {
                        return Err(too_large(most));
                    }
                    all.extend_from_slice(&bytes);
                }
                Ok(Ok(Came::End)) => {
                    let came = self.bytes - before;
                    let due = piece.range.map(|(first, last)| last - first + 1);
                    let due = due.or(length).unwrap_or(came).max(1);
                    return match came == due {
                        true => Ok(Some(all.into())),
                        false => Err(Why::Length { came, length: due }),
                    };
                }
                Ok(Err(error)) => return Err(Why::http(&error)),
                Err(_) => {}
            }
            if self.goes_on(&mut seen)? {
                continue;
            }
            return Ok(None);
        }
    }

    /// Whether enough of it comes, and it is not given up.
    fn goes_on(&self, seen: &mut (u64, u64)) -> Result<bool, Why> {
        let at = now();
        #[expect(
            clippy::cast_precision_loss,
            reason = "bytes of a segment, and its time"
        )]
        let kbps = self.bytes as f64 * 8e6 / at.saturating_sub(self.since_ns).max(1) as f64;
        let is_late = self
            .other
            .is_some_and(|(until, other)| at >= until && other > FASTER * kbps);
        if is_late || at >= seen.0.saturating_add(nanos(self.step)) {
            let bytes = self.bytes - seen.1;
            if is_late || bytes < LEAST {
                let step = Duration::from_nanos(at - seen.0);
                return Err(Why::Slow { bytes, step });
            }
            *seen = (at, self.bytes);
        }
        let then = self
            .task
            .map(|task| self.inner.desk().received(at, task, self.bytes));
        Ok(then.is_none_or(|then| then == Then::GoOn))
    }
}
