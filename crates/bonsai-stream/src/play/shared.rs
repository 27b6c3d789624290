//! What the players of a thread have in common.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bonsai_media::adapt::{self, Ladder};
use hdrhistogram::Histogram;
use url::Url;

use super::film::{Document, Host, Offer, Track, Unreadable};
use super::{Film, Plan, Video};
use crate::watch::Progress;

/// Playlists that are kept: of a film there are some, and of films for one viewer each as many as viewers.
const KEPT: usize = 64;

/// Playlists that are fetched at a time take no more than that, all together.
const HELD: usize = 256 << 20;

/// What the players of a thread have in common. A playlist is read once, as long as it stays the same.
pub(super) struct Shared {
    pub(super) plan: Arc<Plan>,
    pub(super) counts: RefCell<Progress>,
    /// Times of segments of all, us.
    pub(super) times: RefCell<Histogram<u64>>,
    /// Of each video, what the first player saw of it.
    pub(super) films: RefCell<Vec<Option<Film>>>,
    documents: RefCell<HashMap<String, (Vec<u8>, Document)>>,
    offers: RefCell<Vec<(Arc<Track>, Arc<Offer>)>>,
    ladders: RefCell<Vec<(Arc<Track>, Arc<Ladder>)>>,
    addresses: RefCell<Vec<(Arc<Host>, SocketAddr)>>,
    held: Cell<usize>,
}

impl Shared {
    pub(super) fn new(plan: Arc<Plan>) -> Self {
        Self {
            films: RefCell::new(vec![None; plan.videos.len()]),
            plan,
            counts: RefCell::default(),
            times: RefCell::new(super::times()),
            documents: RefCell::default(),
            offers: RefCell::default(),
            ladders: RefCell::default(),
            addresses: RefCell::default(),
            held: Cell::new(0),
        }
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.counts.borrow_mut());
    }

    /// What a text from there says.
    pub(super) fn read(&self, from: &Url, bytes: Vec<u8>) -> Result<Document, Unreadable> {
        let mut documents = self.documents.borrow_mut();
        if let Some((known, document)) = documents.get(from.as_str())
            && *known == bytes
        {
            return Ok(document.clone());
        }
        let document = Document::read(&bytes, from)?;
        if documents.len() < KEPT {
            documents.insert(from.as_str().to_owned(), (bytes, document.clone()));
        }
        Ok(document)
    }

    /// What there is to choose from, the same for all who read the same.
    pub(super) fn offer(&self, document: Document) -> Arc<Offer> {
        let Document::Track(track) = document else {
            return document.offer();
        };
        let mut offers = self.offers.borrow_mut();
        if let Some((_, offer)) = offers.iter().find(|(known, _)| Arc::ptr_eq(known, &track)) {
            return offer.clone();
        }
        let offer = Document::Track(track.clone()).offer();
        if offers.len() < KEPT {
            offers.push((track, offer.clone()));
        }
        offer
    }

    /// The ladder of these bitrates, kbit/s, with the segments of that track.
    pub(super) fn ladder(
        &self,
        track: &Arc<Track>,
        kbps: Vec<f64>,
    ) -> Result<Arc<Ladder>, adapt::Error> {
        let mut ladders = self.ladders.borrow_mut();
        let is_it = |(known, ladder): &&(Arc<Track>, Arc<Ladder>)| {
            Arc::ptr_eq(known, track) && ladder.bitrates_kbps() == kbps
        };
        if let Some((_, ladder)) = ladders.iter().find(is_it) {
            return Ok(ladder.clone());
        }
        let ladder = Arc::new(track.ladder(kbps)?);
        if ladders.len() < KEPT {
            ladders.push((track.clone(), ladder.clone()));
        }
        Ok(ladder)
    }

    /// Where a server is.
    pub(super) async fn address(&self, host: &Arc<Host>) -> io::Result<SocketAddr> {
        let is_there = |video: &&Video| {
            let name = video.url.host_str();
            name.is_some_and(|name| name.trim_matches(['[', ']']) == host.name)
                && video.url.port_or_known_default() == Some(host.port)
        };
        if let Some(video) = self.plan.videos.iter().find(is_there) {
            return Ok(video.server);
        }
        let known = |(known, _): &&(Arc<Host>, SocketAddr)| known == host;
        if let Some((_, address)) = self.addresses.borrow().iter().find(known) {
            return Ok(*address);
        }
        let mut found = tokio::net::lookup_host((host.name.as_str(), host.port)).await?;
        let address = found
            .next()
            .ok_or_else(|| io::Error::other("the host has no address"))?;
        let mut addresses = self.addresses.borrow_mut();
        if addresses.len() < KEPT {
            addresses.push((host.clone(), address));
        }
        Ok(address)
    }

    /// Room for a piece of a playlist, until it is dropped.
    pub(super) fn hold(&self) -> Held<'_> {
        Held {
            of: &self.held,
            bytes: 0,
        }
    }
}

/// Room that a playlist takes while it comes.
pub(super) struct Held<'a> {
    of: &'a Cell<usize>,
    bytes: usize,
}

impl Held<'_> {
    /// Whether there is room for so many more.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.of.set(self.of.get() + bytes);
        self.of.get() <= HELD
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.of.set(self.of.get() - self.bytes);
    }
}
