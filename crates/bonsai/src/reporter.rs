//! What viewers see, told to the daemon by a thread of its own.
//!
//! # Invariants
//! 1. Whoever has something to tell never waits: what does not fit into a short queue is left out, as
//!    there is something newer in a second.
//! 2. No daemon, one that goes, and one that does not know the service are no errors: it is tried again
//!    at intervals, and said once where it is to be said.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bonsai_api::QosReport;
use bonsai_client::{Client, ClientError};
use bonsai_stream::serve::Seen;

use crate::daemon;
use crate::output::say;

/// Reports that wait to be told.
const QUEUE: usize = 4;

/// How long a daemon that does not answer is left alone.
const AGAIN: Duration = Duration::from_secs(5);

/// Tells what the viewers of a service see.
pub(crate) struct Reporter {
    queue: SyncSender<Seen>,
    thread: JoinHandle<()>,
}

/// The thread's own.
struct Teller {
    service: String,
    source: &'static str,
    is_verbose: bool,
    client: Option<Client>,
    again: Option<Instant>,
    said: String,
}

impl Reporter {
    /// Of that service, in a word by whom.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(
        service: String,
        source: &'static str,
        is_verbose: bool,
    ) -> anyhow::Result<Self> {
        let (queue, reports) = sync_channel(QUEUE);
        let teller = Teller {
            service,
            source,
            is_verbose,
            client: None,
            again: None,
            said: String::new(),
        };
        let thread = thread::Builder::new().name("reports".to_owned());
        let thread = thread.spawn(move || teller.run(&reports));
        Ok(Self {
            queue,
            thread: thread.context("no thread for reports")?,
        })
    }

    /// Tells it, unless others still wait.
    pub(crate) fn tell(&self, seen: Seen) {
        if !seen.is_empty() {
            let _ = self.queue.try_send(seen);
        }
    }

    /// Waits until all is told that can be.
    pub(crate) fn end(self) {
        drop(self.queue);
        let _ = self.thread.join();
    }
}

impl Teller {
    fn run(mut self, reports: &Receiver<Seen>) {
        while let Ok(seen) = reports.recv() {
            self.tell(&seen);
        }
    }

    fn tell(&mut self, seen: &Seen) {
        let Some(client) = self.found() else {
            return;
        };
        let report = QosReport {
            service: self.service.clone(),
            source: Some(self.source.to_owned()),
            loss: seen.loss,
            delay_ms: seen.delay_ms,
            jitter_ms: seen.jitter_ms,
            stalls: seen.stalls,
        };
        match client.report(&report) {
            Ok(()) => self.say(|place, service| {
                format!("what viewers see goes to the daemon at {place}, for the service {service}")
            }),
            Err(error) => {
                let why = match &error {
                    ClientError::Refused(problem) => problem.detail.clone(),
                    error => error.to_string(),
                };
                self.say(|_, _| format!("what viewers see is not told to the daemon: {why}"));
                (self.client, self.again) = (None, Some(Instant::now() + AGAIN));
            }
        }
    }

    /// The daemon, if one is there.
    fn found(&mut self) -> Option<Client> {
        if self.client.is_none() {
            if self.again.is_some_and(|again| Instant::now() < again) {
                return None;
            }
            match daemon::running_for(&self.service) {
                Ok(Some(client)) => self.client = Some(client),
                Ok(None) => {
                    self.say(|_, service| {
                        format!("no daemon is there that knows the service {service}: what viewers see is not told")
                    });
                }
                Err(error) => {
                    self.say(|_, _| {
                        format!(
                            "what viewers see is not told to the daemon: {}",
                            bonsai_host::sentence(error.as_ref())
                        )
                    });
                }
            }
            self.again = Some(Instant::now() + AGAIN);
        }
        self.client.clone()
    }

    /// Says how it is, when that is something else than before.
    fn say(&mut self, text: impl Fn(&str, &str) -> String) {
        let place = self.client.as_ref().map_or("", Client::place);
        let text = text(place, &self.service);
        if text != self.said {
            if self.is_verbose {
                // Where nobody listens any more, it is told to the daemon all the same.
                say!("{text}");
            }
            self.said = text;
        }
    }
}
