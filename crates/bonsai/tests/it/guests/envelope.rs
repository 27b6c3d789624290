//! Whether a guest moves what it may, and no more: counted in bytes by the kernel, and at the other end
//! of its connections.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bonsai_link::Site;

use super::flow::{Flows, UNCOUNTED};
use crate::links::machine::Machine;

/// A Mbit/s, in bytes per second.
pub(super) const MBIT: f64 = 125_000.0;

/// How long a guest may take for what it is given time for: it has the CPUs not for itself.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The block that what guests send goes through.
pub(super) const BLOCK: &str = "bonsai-ifb";

/// What the limiters of a guest have let through, bytes of layer 2: what it sent, what it received.
fn let_through(machine: &Machine, tap: &str) -> [u64; 2] {
    let mut site = Site::open(Some(machine.host.as_fd())).expect("a site");
    let links = site.links().expect("links");
    [BLOCK, tap].map(|name| {
        let device = bonsai_link::named(&links, name).expect("it is there").index;
        let mut bytes = 0;
        let each = |class: Option<bonsai_link::Class>| match class {
            None => bytes = 0,
            // The one that all others of the device are in.
            Some(class) if class.terms.parent == 0 => bytes += class.counters.bytes,
            Some(_) => {}
        };
        site.classes(device, each).expect("classes");
        bytes
    })
}

/// Holds for as long as it takes until the guest has used more than half of both limits (Mbit/s, of
/// what it sends and what it receives): not a byte more than they allow, in no part of that time.
pub(super) fn is_limited(machine: &Machine, tap: &str, flows: &Flows, limits: [f64; 2]) {
    let moved = || [flows.up.bytes(), flows.down.bytes()];
    let let_through = || let_through(machine, tap);
    let began = (Instant::now(), let_through(), moved());
    let mut last = (began.0, began.1);
    let mut used = [false; 2];
    while used != [true; 2] || began.0.elapsed() < Duration::from_secs(1) {
        assert!(
            flows.have_survived(),
            "{limits:?}: a connection is interrupted: {:?}",
            flows.ends()
        );
        assert!(
            began.0.elapsed() < PATIENCE,
            "half of {limits:?} is never used: {:?} B in {:?}",
            let_through(),
            began.0.elapsed()
        );
        std::thread::sleep(Duration::from_millis(200));
        let before = Instant::now();
        let now = (let_through(), moved());
        // Windows begin before and end after what was counted in them.
        let after = Instant::now();
        for way in 0..2 {
            let rate = limits[way] * MBIT;
            // A burst of 2 ms, and a packet that was not cut yet, with all its heads.
            let ahead = 0.002 * rate + 1_514.0 + 70_000.0;
            let step = (now.0[way] - last.1[way]) as f64;
            let time = (after - last.0).as_secs_f64();
            assert!(
                step <= rate * time + ahead,
                "{step} B in {time} s of {limits:?}, {way}"
            );
            used[way] |= step > 0.5 * rate * time;
            let all = (now.0[way] - began.1[way]) as f64;
            let time = (after - began.0).as_secs_f64();
            assert!(
                all <= rate * time + ahead,
                "{all} B in {time} s of {limits:?}, {way}"
            );
            // Nothing has gone by.
            let payload = (now.1[way] - began.2[way]) as f64;
            assert!(
                payload <= rate * time + ahead + UNCOUNTED,
                "{payload} B of payload in {time} s of {limits:?}, {way}"
            );
        }
        last = (before, now.0);
    }
}
