//! What is left for files beside streams under the same limit: those cannot wait, and files can.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bonsai_bucket::{Bucket, Ticket};
use bonsai_stream::serve::Allotted;
use tokio::time::{Sleep, sleep};

/// What a bucket saves up: twice a piece of a file, as it keeps half for leases, of which there are none.
const BURST: u64 = 128 << 10;

/// How often whoever waits looks whether there is more, or less.
const LOOKS: Duration = Duration::from_millis(250);

/// What files may be read at, by all connections together.
#[derive(Debug)]
pub(crate) struct Pace {
    allotted: Arc<Allotted>,
    began: Instant,
    line: Mutex<Line>,
}

#[derive(Debug)]
struct Line {
    bucket: Bucket,
    /// Bytes a second.
    rate: u64,
}

impl Pace {
    pub(crate) fn new(allotted: Arc<Allotted>) -> Arc<Self> {
        let line = Line {
            bucket: Bucket::new(1000, BURST, 0),
            rate: 1,
        };
        Arc::new(Self {
            allotted,
            began: Instant::now(),
            line: Mutex::new(line),
        })
    }

    /// The line, at its rate; `None` where nobody says one.
    fn line(&self) -> Option<(MutexGuard<'_, Line>, u64)> {
        let rate = self.allotted.rest()?.max(1);
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if rate != line.rate {
            line.rate = rate;
            line.bucket.retune(rate.saturating_mul(1000), BURST, 0, now);
        }
        Some((line, now))
    }

    /// A place in line for so many bytes, where there is one.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Turn> {
        let (mut line, now) = self.line()?;
        let ticket = line.bucket.take(bytes as u64, now);
        drop(line);
        Some(Turn {
            pace: Arc::clone(self),
            ticket,
            waits: None,
        })
    }

    /// How long a ticket waits.
    fn waits(&self, ticket: Ticket) -> Duration {
        let wait = self.line().map(|(line, now)| {
            let due = line.bucket.due(ticket, now);
            Duration::from_nanos(due.saturating_sub(now))
        });
        wait.unwrap_or_default()
    }
}

/// A place in line. What is not used of it goes to whoever comes next.
#[derive(Debug)]
pub(crate) struct Turn {
    pace: Arc<Pace>,
    ticket: Ticket,
    waits: Option<Pin<Box<Sleep>>>,
}

impl Turn {
    /// Waits until it is due.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(waits) = &mut self.waits {
                std::task::ready!(waits.as_mut().poll(context));
                self.waits = None;
            }
            let wait = self.pace.waits(self.ticket);
            if wait.is_zero() {
                return Poll::Ready(());
            }
            self.waits = Some(Box::pin(sleep(wait.min(LOOKS))));
        }
    }

    /// So many bytes of it are used.
    pub(crate) fn used(&mut self, bytes: usize) {
        self.ticket.units = self.ticket.units.saturating_sub(bytes as u64);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.ticket.units > 0
            && let Some((mut line, _)) = self.pace.line()
        {
            line.bucket.refund(self.ticket.units);
        }
    }
}
