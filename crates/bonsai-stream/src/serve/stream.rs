//! A session's stream: a clip's timeline, its file, and where its packets go.

use std::fs::File;
use std::net::SocketAddr;
use std::sync::Arc;

use bonsai_media::clip::Codec;
use bonsai_media::load::Need;
use bonsai_media::packets::{Cut, h264};
use bonsai_media::seen::Counted;
use bonsai_media::timeline::Timeline;

use super::handler::Handler;
use super::pipeline::Pipeline;
use super::root::{Opened, Stamp};

/// Bytes of payload of a packet: with the headers of RTP, UDP and IP below what any Ethernet carries.
pub(super) const MOST: usize = 1388;

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) timeline: Timeline,
    pub(super) file: File,
    pub(super) stamp: Stamp,
    pub(super) clip: String,
    pub(super) peer: SocketAddr,
    /// The connection that it was asked for by, which packets among messages go by.
    pub(super) connection: usize,
    pub(super) lanes: Vec<Lane>,
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) handlers: Vec<Box<dyn Handler>>,
    pub(super) packets: u64,
    /// What each track of its clip needs, and what it needs itself as long as it plays.
    needs: Arc<[Need]>,
    pub(super) need: Need,
    /// When it is looked after next: other entries for it are of times that have moved.
    pub(super) armed: u64,
}

/// Where a line's packets go, and how far its sample has gone.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) sink: Sink,
    pub(super) cut: Option<Cut>,
    pub(super) is_picture: bool,
    /// Parameter sets as a payload, and whether they go before what is sent next.
    pub(super) sets: Option<Vec<u8>>,
    pub(super) sets_due: bool,
    /// Whether pictures are left out up to the next that decoding can begin with.
    pub(super) skips: bool,
    /// Bytes of pictures that may be sent before that, where not all are.
    pub(super) left: u64,
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
        timeline: Timeline,
        opened: Opened,
        clip: String,
        (peer, connection): (SocketAddr, usize),
        needs: Arc<[Need]>,
        (pipeline, handlers): (Arc<Pipeline>, Vec<Box<dyn Handler>>),
    ) -> Self {
        Self {
            timeline,
            file: opened.file,
            stamp: opened.stamp,
            clip,
            peer,
            connection,
            lanes: Vec::new(),
            pipeline,
            handlers,
            packets: 0,
            needs,
            need: Need::default(),
            armed: u64::MAX,
        }
    }

    /// Sends a track there, with these random beginnings. Its line.
    pub(super) fn add(&mut self, track: usize, sink: Sink, random: (u32, u16, u32)) -> usize {
        let line = self.timeline.add(track, random.0, random.1, random.2);
        let sets = match &self.timeline.track(line).codec {
            Codec::H264 { sets, .. } => {
                let sets: Vec<&[u8]> = sets.iter().map(Vec::as_slice).collect();
                h264::together(&sets, self.pipeline.payload)
            }
            Codec::Aac { .. } => None,
        };
        self.lanes.push(Lane {
            sink,
            cut: None,
            is_picture: self.timeline.track(line).kind() == "video",
            sets,
            sets_due: false,
            skips: false,
            left: u64::MAX,
            counted: None,
            heard: 0,
            has_gso: true,
        });
        line
    }

    /// What it needs if all of its clip is seen.
    pub(super) fn promised(&self) -> Need {
        self.needs
            .iter()
            .fold(Need::default(), |sum, need| sum + *need)
    }

    /// What it needs now.
    pub(super) fn needed(&self) -> Need {
        if !self.timeline.is_playing() {
            return Need::default();
        }
        let lines = (0..self.lanes.len()).filter_map(|line| {
            let track = self.timeline.number(line);
            self.needs.get(track)
        });
        lines.fold(Need::default(), |sum, need| sum + *need)
    }

    /// What was begun is not gone on with.
    pub(super) fn begin_anew(&mut self) {
        for lane in &mut self.lanes {
            (lane.cut, lane.sets_due, lane.skips) = (None, false, false);
        }
    }

    /// Ends what its packets go through.
    pub(super) fn end(&mut self) {
        for handler in &mut self.handlers {
            handler.end();
        }
    }
}
