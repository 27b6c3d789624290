//! Interfaces as they are seen: at once for questions, and by a look of its own for scrapes, which wait
//! for no kernel.
//!
//! # Invariants
//! 1. One looks at a time, for questions; and one for scrapes, however many there are.
//! 2. A scrape has what was seen at most [`OLD`] ago, or nothing.
//! 3. Nothing is looked at for scrapes when there has been none for [`SCRAPED`].

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bonsai_api::{Links, Problem};
use bonsai_tenants::{Before, look_since};
use tokio::sync::watch;

use super::body::aside;
use crate::links::Orders;

/// Questions within this time of another are shown the same.
const FRESH: Duration = Duration::from_millis(100);

/// Traffic is counted since the last look, unless that is longer ago,
const LONG_AGO: Duration = Duration::from_secs(10);

/// and for at least so long.
const LEAST: Duration = Duration::from_millis(100);

/// Between two looks for scrapes.
const BETWEEN: Duration = Duration::from_secs(5);

/// So long after a scrape it is looked for the next one.
const SCRAPED: Duration = Duration::from_secs(120);

/// An older look is not served.
const OLD: Duration = Duration::from_secs(15);

/// The first scrape waits so long for the first look.
const FIRST: Duration = Duration::from_secs(1);

/// The last look of a question, and its state of the configuration.
type Last = Option<(Before, Links, u64)>;

/// The look that scrapes are served, or none that succeeded, and its time.
type Shown = Option<(Instant, Option<Arc<Links>>)>;

/// The last looks.
#[derive(Debug)]
pub(crate) struct Samples {
    last: tokio::sync::Mutex<Last>,
    scrapes: Arc<Scrapes>,
}

#[derive(Debug)]
struct Scrapes {
    shown: watch::Sender<Shown>,
    scraped: Mutex<Instant>,
    is_looking: AtomicBool,
    /// Looks for scrapes so far.
    looks: AtomicU64,
}

impl Default for Samples {
    fn default() -> Self {
        let scrapes = Scrapes {
            shown: watch::Sender::default(),
            scraped: Mutex::new(Instant::now()),
            is_looking: AtomicBool::default(),
            looks: AtomicU64::default(),
        };
        Self {
            last: tokio::sync::Mutex::default(),
            scrapes: Arc::new(scrapes),
        }
    }
}

impl Samples {
    /// The interfaces of now. Where nothing can be seen, that is said in it.
    pub(super) async fn now(&self, orders: &Orders) -> Result<Links, Problem> {
        let mut last = self.last.lock().await;
        // A change that was made is seen by the next question.
        let state = orders.kept().revision;
        let fresh = |(before, _, of): &&(Before, Links, u64)| before.age() < FRESH && *of == state;
        if let Some((_, links, _)) = last.as_ref().filter(fresh) {
            return Ok(links.clone());
        }
        let before = last.take().map(|(before, ..)| before);
        let before = before.filter(|before| before.age() < LONG_AGO);
        let folder = Arc::clone(&orders.folder);
        Ok(match aside(move || look(&folder, before)).await? {
            Ok((links, now)) => {
                *last = Some((now, links.clone(), state));
                links
            }
            Err(error) => Links {
                problems: vec![format!("interfaces are not seen: {}", error.sentence())],
                ..Links::default()
            },
        })
    }

    /// The last look, for a scrape; nothing, if nothing could be seen.
    pub(super) async fn lately(&self, orders: &Orders) -> Option<Arc<Links>> {
        let scrapes = &self.scrapes;
        scrapes.is_scraped();
        let mut shown = scrapes.shown.subscribe();
        if !scrapes.is_looking.swap(true, Ordering::AcqRel) {
            tokio::spawn(Arc::clone(scrapes).look(orders.clone()));
        }
        let seen = shown.wait_for(Option::is_some);
        let _ = tokio::time::timeout(FIRST, seen).await;
        let shown = shown.borrow();
        let (at, links) = shown.as_ref()?;
        links.clone().filter(|_| at.elapsed() < OLD)
    }

    /// Looks for scrapes so far.
    pub(super) fn looks(&self) -> u64 {
        self.scrapes.looks.load(Ordering::Relaxed)
    }
}

/// Looks, and counts traffic since an earlier look: for [`LEAST`], if there was none.
fn look(folder: &Path, since: Option<Before>) -> Result<(Links, Before), bonsai_tenants::Error> {
    let since = match since {
        Some(since) => since,
        None => look_since(folder, None)?.1,
    };
    std::thread::sleep(LEAST.saturating_sub(since.age()));
    look_since(folder, Some(&since))
}

impl Scrapes {
    fn is_scraped(&self) {
        *self.scraped.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn is_wanted(&self) -> bool {
        let scraped = self.scraped.lock().unwrap_or_else(PoisonError::into_inner);
        scraped.elapsed() < SCRAPED
    }

    /// Looks again and again, as long as there are scrapes.
    async fn look(self: Arc<Self>, orders: Orders) {
        let mut before = None;
        while self.is_wanted() {
            let folder = Arc::clone(&orders.folder);
            let since = before.take();
            let Ok(looked) = aside(move || look(&folder, since)).await else {
                // The daemon is ending.
                return;
            };
            self.looks.fetch_add(1, Ordering::Relaxed);
            let seen = looked.ok().map(|(links, now)| {
                before = Some(now);
                Arc::new(links)
            });
            self.shown.send_replace(Some((Instant::now(), seen)));
            tokio::time::sleep(BETWEEN).await;
        }
        self.shown.send_replace(None);
        // A scrape that came just now begins anew with the next one.
        self.is_looking.store(false, Ordering::Release);
    }
}
