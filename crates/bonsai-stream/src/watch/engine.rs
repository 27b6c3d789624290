//! One thread that waits for all of its viewers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bonsai_media::seen::{Gathering, Seen};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::viewer::{Desk, Of, Viewer};
use super::{Guest, Lower, Plan, Progress, ViewerReport};
use crate::clock::{Timer, now, ns};
use crate::datagrams::FIRST;

/// How often it is told how far it is.
const TOLD: u64 = 500_000_000;

/// How often it is told what viewers see.
const SEEN: u64 = 2 * TOLD;

/// Events that are taken at once.
const EVENTS: usize = 256;

/// How long after datagrams were read others are at the earliest: they gather in between. Each has the
/// kernel's time, so that nothing is measured otherwise by it; to be woken for each costs this thread,
/// and a sender that is here, more than the packet does.
const APART: u64 = 1_000_000;

/// What is said of the timer, as of sockets who and which.
const TIMER: u64 = u64::MAX;

/// What a thread's viewers saw.
pub(super) struct Part {
    pub(super) viewers: Vec<ViewerReport>,
    pub(super) cpu_ns: u64,
    /// The busiest second, 0 to 1.
    pub(super) busiest: f64,
    /// The most that it was too late for what it had to do at a time.
    pub(super) late_ns: u64,
}

struct Engine<'a> {
    plan: &'a Plan,
    epoll: OwnedFd,
    timer: Timer,
    viewers: Vec<Option<Viewer>>,
    /// Whether a viewer's messages are waited for to be taken.
    sends: Vec<bool>,
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// Which entry of a viewer counts: others are of times that have moved.
    armed: Vec<u64>,
    desk: Desk,
    reports: Vec<ViewerReport>,
    gathering: Gathering,
    seen_at: u64,
}

/// Lets viewers come at their times after the beginning, and waits until all have gone.
pub(super) fn run(
    plan: &Plan,
    begin: u64,
    guests: &[Guest],
    thread: usize,
    progress: &(dyn Fn(usize, Progress) + Sync),
) -> io::Result<Part> {
    let share = u16::try_from(thread % 8).unwrap_or(0) * 2800;
    let mut engine = Engine {
        plan,
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        timer: Timer::new()?,
        viewers: Vec::new(),
        sends: Vec::new(),
        due: BinaryHeap::new(),
        armed: Vec::new(),
        desk: Desk::new(FIRST + share),
        reports: Vec::new(),
        gathering: Gathering::default(),
        seen_at: begin + SEEN,
    };
    let timer = EventData::new_u64(TIMER);
    epoll::add(&engine.epoll, &engine.timer, timer, EventFlags::IN)?;
    let cpu = || ns(clock_gettime(ClockId::ThreadCPUTime));
    let began = cpu();
    let (mut told, mut busiest, mut before) = (begin + TOLD, 0.0_f64, (begin, began));
    let mut late_ns = 0;
    let mut events = Vec::with_capacity(EVENTS);
    let mut coming = guests.iter().copied().peekable();
    while coming.peek().is_some() || engine.viewers.iter().any(Option::is_some) {
        let at = now();
        engine.desk.clocks.compare(at);
        let next = coming
            .peek()
            .map_or(told, |guest| told.min(begin + guest.at_ns));
        late_ns = late_ns.max(at.saturating_sub(next));
        while let Some(guest) = coming.next_if(|guest| begin + guest.at_ns <= at) {
            engine.come(&guest, at);
        }
        engine.tick(at);
        if at >= told {
            progress(thread, engine.progress(at));
            let used = cpu();
            busiest = busiest.max((used - before.1) as f64 / (at - before.0).max(1) as f64);
            (told, before) = (at + TOLD, (at, used));
        }
        let next = coming.peek().map_or(u64::MAX, |guest| begin + guest.at_ns);
        let due = engine.due.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        let target = next.min(due).min(told);
        let waits = target > now() && engine.timer.wake_at(target);
        let timeout = (!waits).then(Timespec::default);
        events.clear();
        match epoll::wait(&engine.epoll, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let at = now();
        for event in events.iter().filter(|event| event.data.u64() != TIMER) {
            engine.ready(*event, at);
        }
        if plan.lower == Lower::Udp && !events.is_empty() {
            let rest = (at + APART).saturating_sub(now());
            std::thread::sleep(std::time::Duration::from_nanos(rest));
        }
        // Between two looks at the clock it has waited until then, and not longer.
        if waits {
            late_ns = late_ns.max(at.saturating_sub(target));
        }
    }
    progress(thread, engine.progress(now()));
    Ok(Part {
        viewers: engine.reports,
        cpu_ns: cpu() - began,
        busiest,
        late_ns,
    })
}

impl Engine<'_> {
    fn come(&mut self, guest: &Guest, at: u64) {
        let index = self.viewers.len();
        let viewer = Viewer::come(self.plan, guest, at).and_then(|viewer| {
            let flags = EventFlags::IN | EventFlags::OUT;
            epoll::add(
                &self.epoll,
                viewer.messages(),
                data(index, Of::Messages),
                flags,
            )?;
            Ok(viewer)
        });
        match viewer {
            Ok(viewer) => {
                self.viewers.push(Some(viewer));
                self.sends.push(true);
                self.armed.push(u64::MAX);
                self.after(index);
            }
            Err(error) => self.reports.push(ViewerReport {
                came_ns: guest.at_ns,
                video: guest.video + 1,
                failure: Some(format!(
                    "connect: {}: {error}",
                    self.plan.videos[guest.video].server
                )),
                failed_at: Some("connect"),
                is_refused: false,
                tracks: Vec::new(),
            }),
        }
    }

    fn ready(&mut self, event: Event, at: u64) {
        let (index, of) = read(event.data.u64());
        let Some(Some(viewer)) = self.viewers.get_mut(index) else {
            return;
        };
        let epoll = self.epoll.as_fd();
        let mut add = |socket: BorrowedFd<'_>, of: Of| -> io::Result<()> {
            Ok(epoll::add(epoll, socket, data(index, of), EventFlags::IN)?)
        };
        viewer.ready(of, self.plan, &mut self.desk, at, &mut add);
        self.after(index);
    }

    fn tick(&mut self, at: u64) {
        while let Some(Reverse((due, index))) = self.due.peek().copied() {
            if due > at {
                return;
            }
            self.due.pop();
            if self.armed[index] != due {
                continue;
            }
            self.armed[index] = u64::MAX;
            if let Some(Some(viewer)) = self.viewers.get_mut(index) {
                viewer.tick(self.plan, at);
            }
            self.after(index);
        }
    }

    /// A viewer was looked after: it has gone, or is due at another time.
    fn after(&mut self, index: usize) {
        let Some(slot) = self.viewers.get_mut(index) else {
            return;
        };
        if slot.as_ref().is_some_and(Viewer::is_gone) {
            // Its sockets are forgotten when they are closed.
            self.reports
                .extend(slot.take().and_then(Viewer::into_report));
            return;
        }
        let Some(viewer) = slot else {
            return;
        };
        let due = viewer.due();
        if due != self.armed[index] {
            self.armed[index] = due;
            self.due.push(Reverse((due, index)));
        }
        let sends = viewer.waits_to_send();
        if sends != self.sends[index] {
            let mut flags = EventFlags::IN;
            flags.set(EventFlags::OUT, sends);
            let of = data(index, Of::Messages);
            if epoll::modify(&self.epoll, viewer.messages(), of, flags).is_ok() {
                self.sends[index] = sends;
            }
        }
    }

    /// What viewers see, each second.
    fn seen(&mut self, at: u64) -> Seen {
        if at < self.seen_at {
            return Seen::default();
        }
        self.seen_at = at + SEEN;
        for viewer in self.viewers.iter_mut().flatten() {
            viewer.glimpse(&mut self.gathering, at);
        }
        self.gathering.take()
    }

    fn progress(&mut self, at: u64) -> Progress {
        let seen = self.seen(at);
        let count = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
        let here = self.viewers.iter().flatten();
        let failed = self
            .reports
            .iter()
            .filter(|one| one.failure.is_some())
            .count();
        let counts = here.clone().map(Viewer::counts);
        let gone = self.reports.iter().flat_map(|one| &one.tracks);
        let gone = gone.map(|track| (track.stream.received, track.stream.bytes));
        let (packets, bytes) = counts
            .chain(gone)
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Progress {
            came: count(self.reports.len() + here.clone().count()),
            playing: count(here.filter(|viewer| viewer.is_playing()).count()),
            done: count(self.reports.len() - failed),
            failed: count(failed),
            packets,
            bytes,
            seen,
        }
    }
}

/// Which viewer's socket it is, in 64 bits.
fn data(index: usize, of: Of) -> EventData {
    let of = match of {
        Of::Messages => 0,
        Of::Track(track, is_control) => 1 + track * 2 + usize::from(is_control),
    };
    EventData::new_u64((index as u64) << 16 | (of as u64 & 0xffff))
}

fn read(data: u64) -> (usize, Of) {
    let index = usize::try_from(data >> 16).unwrap_or(usize::MAX);
    let of = match usize::try_from(data & 0xffff).unwrap_or(0) {
        0 => Of::Messages,
        of => Of::Track((of - 1) / 2, of % 2 == 0),
    };
    (index, of)
}
