//! A session's stream: a clip's timeline, its files, and where its packets go.

use std::net::SocketAddr;
use std::sync::Arc;

use bonsai_media::clip::Track;
use bonsai_media::load::{Level, Need, QUALITIES};
use bonsai_media::packets::{self, Cut};
use bonsai_media::seen::Counted;
use bonsai_media::timeline::{Started, Timeline};

use super::ahead::Ahead;
use super::film::Film;
use super::parts::{Handler, Made, QualityView};
use super::pipeline::Pipeline;
use super::send;
use crate::clock::now;

/// Bytes of payload of a packet: with the headers of RTP, UDP and IP below what any Ethernet carries.
pub(super) const MOST: usize = 1388;

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) timeline: Timeline,
    pub(super) film: Arc<Film>,
    pub(super) ahead: Ahead,
    /// Qualities whose files are no longer what they were: none of them is gone over to.
    gone: [bool; QUALITIES],
    pub(super) clip: String,
    /// The name of its sender in reports, of this session alone (RFC 7022, 4.2).
    pub(super) cname: String,
    pub(super) peer: SocketAddr,
    /// The connection that it was asked for by, which packets among messages go by.
    pub(super) connection: usize,
    pub(super) lanes: Vec<Lane>,
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) handlers: Vec<Box<dyn Handler>>,
    pub(super) parts: Made,
    pub(super) packets: u64,
    /// Something was left out as the viewer takes less than is sent, and that was told.
    pub(super) is_slow: bool,
    pub(super) is_told: bool,
    /// What it needs as long as it plays.
    pub(super) need: Need,
    /// When it is looked after next: other entries for it are of times that have moved.
    pub(super) armed: u64,
}

/// Where a line's packets go, and how far its sample has gone.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) sink: Sink,
    pub(super) cut: Option<Cut>,
    /// The timestamp of the rest of it, where playing goes on in the middle of it.
    pub(super) rest: Option<u32>,
    /// When that was begun, and how long there is for it, where there is a pacer.
    pub(super) begun: Option<(u64, u64)>,
    /// How far its payloads have gone, where there is a packetiser.
    pub(super) payloads: Option<Box<send::Made>>,
    pub(super) is_picture: bool,
    /// The quality that it is sent in.
    pub(super) quality: usize,
    /// Parameter sets of that as a payload, and whether they go before what is sent next.
    pub(super) sets: Option<Vec<u8>>,
    pub(super) sets_due: bool,
    /// Whether pictures are left out up to the next that decoding can begin with.
    pub(super) skips: bool,
    /// Bytes of pictures from the last that decoding can begin with up to the next, and what of them was sent.
    pub(super) behind: u64,
    pub(super) sent: u64,
    /// What its viewer reported last, and when.
    pub(super) counted: Option<Counted>,
    pub(super) heard: u64,
    /// Whether its packets can be sent many at a time: the way there may not carry that.
    pub(super) has_gso: bool,
}

/// Where packets go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sink {
    /// As datagrams, from a pair of sockets.
    Datagrams {
        pair: usize,
        packets: SocketAddr,
        reports: SocketAddr,
    },
    /// Among the messages.
    Interleaved { packets: u8, reports: u8 },
}

impl Stream {
    pub(super) fn new(
        (film, ahead): (Arc<Film>, Ahead),
        (clip, cname): (String, String),
        (peer, connection): (SocketAddr, usize),
        (pipeline, handlers, parts): (Arc<Pipeline>, Vec<Box<dyn Handler>>, Made),
    ) -> Self {
        let (best, lower) = (Arc::clone(&film.found.clip), Arc::clone(&film.lower));
        Self {
            timeline: Timeline::with_lower(best, lower),
            film,
            ahead,
            gone: [false; QUALITIES],
            clip,
            cname,
            peer,
            connection,
            lanes: Vec::new(),
            pipeline,
            handlers,
            parts,
            packets: 0,
            is_slow: false,
            is_told: false,
            need: Need::default(),
            armed: u64::MAX,
        }
    }

    /// Sends a track there, with these random beginnings. Its line.
    pub(super) fn add(&mut self, track: usize, sink: Sink, random: (u32, u16, u32)) -> usize {
        let line = self.timeline.add(track, random.0, random.1, random.2);
        let sets = sets_of(self.timeline.track(line), &self.pipeline);
        self.lanes.push(Lane {
            sink,
            cut: None,
            rest: None,
            begun: None,
            payloads: None,
            quality: 0,
            is_picture: self.timeline.track(line).kind() == "video",
            sets,
            sets_due: false,
            skips: false,
            behind: u64::MAX,
            sent: 0,
            counted: None,
            heard: 0,
            has_gso: true,
        });
        line
    }

    /// What it needs if all of its clip is seen.
    pub(super) fn promised(&self) -> Need {
        self.film.found.needs.iter().sum()
    }

    /// What it needs now.
    pub(super) fn needed(&self) -> Need {
        match self.timeline.is_playing() {
            true => self.at_play(),
            false => Need::default(),
        }
    }

    /// What it needs when it plays.
    pub(super) fn at_play(&self) -> Need {
        let lines = (0..self.lanes.len()).filter_map(|line| {
            let track = self.timeline.number(line);
            self.film.found.needs.get(track)
        });
        lines.sum()
    }

    /// Plays in a quality, or as soon as that can be. Where it goes on, it does so in the middle of samples
    /// that have been begun, and what cannot be decoded is still left out.
    pub(super) fn play(
        &mut self,
        from_ns: Option<u64>,
        until_ns: Option<u64>,
        quality: usize,
        now: u64,
    ) -> Started {
        self.pause(now);
        for line in 0..self.lanes.len() {
            let goes_on = from_ns.is_none() && self.timeline.sample(line).is_some();
            self.lanes[line].begin(goes_on, now);
            if self.lanes[line].cut.is_none() {
                let quality = self.choose(line, quality);
                self.timeline.switch(line, quality);
            }
        }
        self.ahead.begin(self.at_play().at(Level::BEST));
        let started = self.timeline.play(from_ns, until_ns, now);
        for line in 0..self.lanes.len() {
            if self.timeline.sample(line).is_none() {
                self.lanes[line].begin(false, now);
            }
            self.keep(line);
        }
        started
    }

    /// Whether a line is later than that, nanoseconds.
    pub(super) fn is_later(&self, than: u64, now: u64) -> bool {
        (0..self.lanes.len()).any(|line| self.timeline.late(line, now) > than)
    }

    /// Stops, and knows how the rest of samples is sent that have been begun.
    pub(super) fn pause(&mut self, now: u64) {
        for (line, lane) in self.lanes.iter_mut().enumerate() {
            if self.timeline.is_playing() && lane.is_begun() && lane.rest.is_none() {
                lane.rest = Some(self.timeline.header(line, 0, false).timestamp);
            }
        }
        self.timeline.pause(now);
        self.ahead.clear();
    }

    /// Looks at its files; why it cannot go on, if one that it is sent from has changed.
    pub(super) fn check(&mut self) -> Option<&'static str> {
        let files = 1 + self.film.lower.len();
        let lines = 0..self.lanes.len();
        for (quality, gone) in self.gone.iter_mut().enumerate().take(files) {
            let Some(why) = self.film.changed(quality) else {
                continue;
            };
            if lines
                .clone()
                .any(|line| self.timeline.quality(line) == quality)
            {
                return Some(why);
            }
            *gone = true;
        }
        None
    }

    /// The quality that a line is to be sent in, where the server would have it in that one.
    fn choose(&mut self, line: usize, server: usize) -> usize {
        let qualities = self.timeline.qualities(line);
        if qualities < 2 {
            return server;
        }
        let chosen = self.select(line, server.min(qualities - 1), qualities);
        // The next lower one that there is still, or the next better one.
        let is_there = |quality: &usize| !self.gone.get(*quality).is_some_and(|gone| *gone);
        let lower = (chosen..qualities).find(is_there);
        let better = || (0..chosen).rev().find(is_there);
        lower.or_else(better).unwrap_or(chosen)
    }

    /// The same of all that there were.
    fn select(&mut self, line: usize, server: usize, qualities: usize) -> usize {
        if !self.parts.selects() {
            return server;
        }
        let clips = self.film.clips().take(qualities);
        let bits: Vec<u64> = clips
            .map(|clip| clip.pictures().map_or(0, |track| track.bits_per_sec))
            .collect();
        self.parts.quality(&QualityView {
            bits_per_sec: &bits,
            current: self.timeline.quality(line),
            server,
            late_ns: self.timeline.late(line, now()),
        })
    }

    /// Sends a line as soon as that can be in the quality that the server would have it in, or a selector
    /// says instead; whether another sample is its next by that.
    pub(super) fn turn(&mut self, line: usize, server: usize) -> bool {
        let quality = self.choose(line, server);
        let is_other = self.timeline.switch(line, quality);
        self.keep(line);
        is_other
    }

    /// Keeps to the quality of a line's next sample.
    fn keep(&mut self, line: usize) {
        let quality = self.timeline.quality(line);
        if quality != self.lanes[line].quality {
            let sets = sets_of(self.timeline.track(line), &self.pipeline);
            let lane = &mut self.lanes[line];
            (lane.quality, lane.sets) = (quality, sets);
        }
    }

    /// Ends what its packets go through.
    pub(super) fn end(&mut self) {
        for handler in &mut self.handlers {
            handler.end();
        }
    }
}

impl Lane {
    /// Whether some of its sample has been sent, and not all.
    fn is_begun(&self) -> bool {
        let has_gone = self.payloads.as_ref().is_some_and(|made| made.gone > 0);
        has_gone || self.cut.is_some_and(|cut| cut.at() > 0)
    }

    /// Playing begins, where it was or elsewhere.
    fn begin(&mut self, goes_on: bool, now: u64) {
        self.skips &= goes_on;
        if goes_on && self.is_begun() {
            // What is left of it takes as long as it would have.
            self.begun = self.begun.map(|(_, room)| (now, room));
            return;
        }
        (self.cut, self.rest, self.sets_due) = (None, None, false);
        (self.begun, self.payloads) = (None, None);
    }
}

/// Parameter sets of a track, together; a packetiser sends them itself, where it does.
fn sets_of(track: &Track, pipeline: &Pipeline) -> Option<Vec<u8>> {
    match pipeline.takes(&track.codec) {
        true => None,
        false => packets::sets_together(&track.codec, pipeline.payload),
    }
}
