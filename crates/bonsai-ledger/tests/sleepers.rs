//! Threads that wait for an epoll set, and threads whose calls are refused, in every order of their steps: nothing that is hidden is
//! forgotten.
//!
//! The model has what the kernel has of a set: an event that stays until a thread that waits takes it. A step is one operation of
//! [`Sleepers`] or of the kernel; `loom/sleepers.rs` has the orders within one. Time passes when nobody can go on otherwise.
#![cfg(not(loom))]

use bonsai_ledger::{Asleep, Before, Sleepers};

/// When what is refused is due, by the thread that is refused.
const DUE: [u64; 2] = [10, 5];

/// What all threads share.
struct World {
    sleepers: Sleepers,
    now: u64,
    /// Wake-ups that lie in the set: one, or none.
    wake_up: bool,
    /// What is held, by who was refused; hidden once that is done.
    held: [bool; 2],
    /// Given back, so that its event is there.
    shown: [bool; 2],
}

/// A thread, by what it does next.
#[derive(Clone, Copy)]
enum Thread {
    /// Its call is refused: it is held, announced, and hidden. A wake-up is left between, if one is needed.
    Hold(usize),
    /// The same from an instant on.
    HoldAt(u64, usize),
    Announce(usize),
    Wake,
    Gone,
    /// Waits for the set: for so many events, the first of which it was woken for takes it away from there.
    Enter(u32),
    Read(u32, Asleep),
    Before(u32, Asleep),
    Scan(u32, Asleep, Before),
    Found(u32, Asleep, Before, u64),
    /// Asleep until an instant.
    Sleep(u32, Asleep, u64),
    /// It goes on waiting: aware of the earliest before it leaves.
    Again(u32, Asleep),
    AgainLeave(u32, Asleep, Asleep),
    AgainWake(u32, Asleep),
    FoundWake(u32, Asleep),
    /// It has an event, and comes back for others or not.
    Leave(u32, Asleep),
    LeaveWake(u32),
}

impl World {
    fn new() -> Self {
        Self {
            sleepers: Sleepers::new(),
            now: 0,
            wake_up: false,
            held: [false; 2],
            shown: [false; 2],
        }
    }

    /// Whether a thread can take a step at this instant.
    fn can_step(&self, thread: Thread) -> bool {
        match thread {
            Thread::Gone => false,
            Thread::HoldAt(from, _) => self.now >= from,
            Thread::Sleep(_, _, until) => {
                self.wake_up || self.now >= until || self.shown.contains(&true)
            }
            _ => true,
        }
    }

    fn step(&mut self, thread: Thread) -> Thread {
        use Thread::{
            Again, AgainLeave, AgainWake, Announce, Before, Enter, Found, FoundWake, Gone, Hold,
            HoldAt, Leave, LeaveWake, Read, Scan, Sleep, Wake,
        };
        let wake_if = |needed: bool, wake: Thread, other: Thread| if needed { wake } else { other };
        match thread {
            Hold(who) | HoldAt(_, who) => {
                self.held[who] = true;
                Announce(who)
            }
            Announce(who) => wake_if(self.sleepers.announce(DUE[who]), Wake, Gone),
            Wake => {
                self.wake_up = true;
                Gone
            }
            Gone => Gone,
            Enter(events) => Read(events, self.sleepers.enter()),
            Read(events, asleep) => match self.sleepers.earliest() {
                due if due <= self.now => Before(events, asleep),
                due => Sleep(events, asleep, due),
            },
            Before(events, asleep) => Scan(events, asleep, self.sleepers.before()),
            Scan(events, asleep, before) => {
                let mut first = u64::MAX;
                for (who, due) in DUE.into_iter().enumerate() {
                    if self.held[who] && due <= self.now {
                        (self.held[who], self.shown[who]) = (false, true);
                    } else if self.held[who] {
                        first = first.min(due);
                    }
                }
                Found(events, asleep, before, first)
            }
            Found(events, asleep, before, first) => {
                let needed = self.sleepers.found(before, first, self.now);
                wake_if(needed, FoundWake(events, asleep), Read(events, asleep))
            }
            FoundWake(events, asleep) => {
                self.wake_up = true;
                Read(events, asleep)
            }
            Sleep(events, asleep, _) => {
                let woken = core::mem::take(&mut self.wake_up);
                if let Some(event) = self.shown.iter_mut().find(|shown| **shown) {
                    *event = false;
                    return Leave(events, asleep);
                }
                let _ = woken;
                Again(events, asleep)
            }
            Again(events, before) => AgainLeave(events, before, self.sleepers.enter()),
            AgainLeave(events, before, asleep) => {
                let needed = self.sleepers.leave(before);
                wake_if(needed, AgainWake(events, asleep), Read(events, asleep))
            }
            AgainWake(events, asleep) => {
                self.wake_up = true;
                Read(events, asleep)
            }
            Leave(events, asleep) => {
                let then = if events > 1 { Enter(events - 1) } else { Gone };
                wake_if(self.sleepers.leave(asleep), LeaveWake(events), then)
            }
            LeaveWake(events) => {
                self.wake_up = true;
                if events > 1 { Enter(events - 1) } else { Gone }
            }
        }
    }
}

/// Switches from a thread that could go on, in one order. (Where it cannot, any other may be next.)
const SWITCHES: usize = 3;

/// Runs threads in the order that `choices` says, and then as they come; what could have been chosen at each step.
fn run(threads: &[Thread], choices: &[usize]) -> Vec<usize> {
    let mut world = World::new();
    let mut threads = threads.to_vec();
    let (mut widths, mut last, mut switches, mut steps) = (Vec::new(), 0, 0, 0);
    loop {
        steps += 1;
        assert!(steps < 500, "they turn for nothing: {choices:?}");
        let mut able: Vec<usize> = (0..threads.len())
            .filter(|thread| world.can_step(threads[*thread]))
            .collect();
        // The one that has just run comes first.
        able.sort_by_key(|thread| *thread != last);
        let could_go_on = able.first() == Some(&last);
        if able.is_empty() {
            let until = |thread: &Thread| match thread {
                Thread::Sleep(_, _, until) if *until != u64::MAX => Some(*until),
                Thread::HoldAt(from, _) => Some(*from),
                _ => None,
            };
            let Some(next) = threads.iter().filter_map(until).min() else {
                break;
            };
            world.now = next;
            continue;
        }
        if could_go_on && switches == SWITCHES {
            able.truncate(1);
        }
        let choice = choices.get(widths.len()).copied().unwrap_or(0);
        widths.push(able.len());
        last = able[choice];
        switches += usize::from(could_go_on && choice > 0);
        threads[last] = world.step(threads[last]);
    }
    // As long as somebody waits, whatever was refused has been followed by an event.
    let sleeps = threads
        .iter()
        .any(|thread| matches!(thread, Thread::Sleep(..)));
    let left = world
        .held
        .iter()
        .chain(&world.shown)
        .filter(|is| **is)
        .count();
    assert!(!sleeps || left == 0, "{left} forgotten: {choices:?}");
    widths
}

/// Every order of the steps of these threads; how many there are.
fn every_order(threads: &[Thread]) -> usize {
    let (mut choices, mut runs) = (Vec::new(), 0);
    loop {
        let widths = run(threads, &choices);
        runs += 1;
        choices.resize(widths.len(), 0);
        // The next one: the last choice that has another.
        while let Some(choice) = choices.pop() {
            if choice + 1 < widths[choices.len()] {
                choices.push(choice + 1);
                break;
            }
        }
        if choices.is_empty() {
            return runs;
        }
    }
}

#[test]
fn one_sleeper_hears_of_what_another_thread_holds() {
    let orders = every_order(&[Thread::Enter(9), Thread::Hold(0)]);
    assert!(orders > 5, "{orders}");
}

#[test]
fn one_sleeper_hears_of_what_two_others_hold() {
    let orders = every_order(&[Thread::Enter(9), Thread::Hold(0), Thread::Hold(1)]);
    assert!(orders > 100, "{orders}");
}

/// One of them goes away with an event, and does not come back: the other one has to know what is due.
#[test]
fn of_two_sleepers_one_stays_aware() {
    let sleepers = [Thread::Enter(1), Thread::Enter(9)];
    let orders = every_order(&[sleepers[0], sleepers[1], Thread::Hold(0), Thread::Hold(1)]);
    assert!(orders > 100, "{orders}");
}

/// Something is held while a sleeper finds out anew what is due.
#[test]
fn what_is_held_while_the_earliest_is_found_out_is_not_missed() {
    let orders = every_order(&[Thread::Enter(9), Thread::Hold(1), Thread::HoldAt(5, 0)]);
    assert!(orders > 100, "{orders}");
}
