//! Threads that wait for an epoll set, under every order of memory accesses. What they do after one another is in `tests/sleepers.rs`.

use crate::common::check;
use bonsai_ledger::Sleepers;
use bonsai_ledger::sync::{AtomicU32, Ordering};
use loom::sync::Arc;
use loom::thread;

/// When what is refused is due, by the thread that is refused.
const DUE: [u64; 2] = [10, 5];

#[derive(Default)]
struct Set {
    sleepers: Sleepers,
    held: [AtomicU32; 2],
    wake_up: AtomicU32,
}

impl Set {
    fn wake_if(&self, needed: bool) {
        if needed {
            self.wake_up.store(1, Ordering::SeqCst);
        }
    }

    /// A call is refused, and its descriptor hidden.
    fn hold(&self, who: usize) {
        self.held[who].store(1, Ordering::SeqCst);
        self.wake_if(self.sleepers.announce(DUE[who]));
    }

    /// When the first is due of what is held.
    fn first(&self) -> u64 {
        let due = |who: usize| match self.held[who].load(Ordering::SeqCst) {
            0 => u64::MAX,
            _ => DUE[who],
        };
        due(0).min(due(1))
    }
}

/// Falls asleep while others are refused: until then, or with a wake-up in the set.
fn falls_asleep(refused: usize) {
    check(Some(3), move || {
        let set = Arc::new(Set::default());
        let others: Vec<_> = (0..refused)
            .map(|who| {
                let set = Arc::clone(&set);
                thread::spawn(move || set.hold(who))
            })
            .collect();
        let _asleep = set.sleepers.enter();
        let until = set.sleepers.earliest();
        for other in others {
            other.join().unwrap();
        }
        let woken = set.wake_up.load(Ordering::SeqCst) == 1;
        assert!(until <= set.first() || woken, "asleep until {until}");
    });
}

#[test]
fn who_falls_asleep_knows_or_is_woken() {
    falls_asleep(1);
}

#[test]
fn who_falls_asleep_knows_of_both_or_is_woken() {
    falls_asleep(2);
}

/// One that has an event goes away while a call is refused: the other one, who went to sleep before, knows of that or is woken.
#[test]
fn who_stays_asleep_is_woken() {
    check(Some(3), || {
        let set = Arc::new(Set::default());
        let until = {
            let _stays = set.sleepers.enter();
            set.sleepers.earliest()
        };
        let goes = set.sleepers.enter();
        let other = {
            let set = Arc::clone(&set);
            thread::spawn(move || set.hold(0))
        };
        set.wake_if(set.sleepers.leave(goes));
        other.join().unwrap();
        let woken = set.wake_up.load(Ordering::SeqCst) == 1;
        assert!(until <= set.first() || woken);
    });
}

/// The earliest is found out anew while a call is refused: it is not raised over that.
#[test]
fn nothing_is_missed_while_the_earliest_is_found_out() {
    check(Some(3), || {
        let set = Arc::new(Set::default());
        set.wake_if(set.sleepers.announce(1));
        let other = {
            let set = Arc::clone(&set);
            thread::spawn(move || set.hold(0))
        };
        let before = set.sleepers.before();
        let first = set.first();
        set.wake_if(set.sleepers.found(before, first, 2));
        other.join().unwrap();
        assert!(set.sleepers.earliest() <= set.first());
    });
}
