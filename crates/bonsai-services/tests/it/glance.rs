//! Looking at many services, cheaply.

use bonsai_calls::{CALLS, CallId, select};
use bonsai_ledger::sync::bump;
use bonsai_ledger::{Ledger, Owner, ProcessId, ThreadPage};
use bonsai_services::glance::{Changes, Glances, PAGES, SELDOM, TURNS};
use bonsai_services::limits::{Limit, apply};
use bonsai_services::observe::monotonic_ns;
use bonsai_services::service::Services;
use bonsai_units::Resource;

use crate::support::{service, within};

/// A page for a thread.
fn page(ledger: &Ledger, tid: u32) -> &ThreadPage {
    let process = ProcessId {
        pid: 1,
        namespace: 0,
    };
    let me = Owner::of(process, tid);
    let page = ledger.claim_page(me, |_| false, |_| true);
    &ledger.threads[page.expect("a page")]
}

fn count(page: &ThreadPage, call: CallId, bytes: u64) {
    let count = &page.counts[usize::from(call)];
    bump(&count.calls, 1);
    bump(&count.bytes, bytes);
}

/// The same as the whole look says, by class.
fn exact(ledger: &Ledger) -> [u64; Resource::COUNT] {
    let totals = ledger.totals();
    Resource::ALL.map(|resource| {
        let class = select(resource.class()).expect("a class");
        let of = totals.iter().filter(|t| class.contains(&CALLS[t.call]));
        let bytes = of.map(|t| match resource {
            Resource::Calls => t.calls,
            _ => t.bytes,
        });
        bytes.sum()
    })
}

fn changes(came: &[&str], gone: &[&str]) -> Changes {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Changes {
        came: owned(came),
        gone: owned(gone),
    }
}

#[test]
fn totals_are_those_of_a_whole_look() {
    within("glance::totals_are_those_of_a_whole_look", || {
        let (_a, ledger) = service("a");
        let mut glances = Glances::new().expect("a runtime directory");
        assert_eq!(glances.look().expect("looked"), changes(&["a"], &[]));
        assert_eq!(glances.get("a").expect("there").totals, [0; 5]);
        let mut random = 7_u64;
        // More threads than are mapped at first, and entries that come later.
        for tid in 1..=40_u32 {
            let page = page(&ledger, tid);
            for _ in 0..20 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let call = (random >> 33) as usize % CALLS.len();
                count(page, CallId::try_from(call).expect("few"), random >> 50);
            }
            if tid % 7 == 0 {
                count(&ledger.crowd, bonsai_calls::SENDTO, 1000);
                glances.look().expect("looked");
            }
        }
        for _ in 0..TURNS {
            glances.look().expect("looked");
        }
        let exact = exact(&ledger);
        assert!(exact.iter().all(|units| *units > 0), "{exact:?}");
        assert_eq!(glances.get("a").expect("there").totals, exact);
        // What was counted before is seen at once.
        let page = page(&ledger, 1);
        let used = (0..CALLS.len()).find(|i| page.counts[*i].load().1 > 0);
        let used = CallId::try_from(used.expect("bytes")).expect("few");
        count(page, used, 12_345);
        glances.look().expect("looked");
        assert_eq!(
            glances.get("a").expect("there").totals,
            self::exact(&ledger)
        );
    });
}

/// With more threads than are read in a look, services take turns; nothing is lost, and those who
/// wait for a limit, or whom somebody wants to be seen, are seen at once.
#[test]
fn calm_services_of_many_threads_are_read_in_turns() {
    within(
        "glance::calm_services_of_many_threads_are_read_in_turns",
        || {
            let names = ["a", "b", "c", "d", "e", "f", "g"];
            let all = names.map(service);
            let pages = u32::try_from(PAGES * SELDOM / names.len()).expect("few");
            for (_, ledger) in &all {
                for tid in 1..=pages {
                    page(ledger, tid);
                }
            }
            let mut glances = Glances::new().expect("a runtime directory");
            // What one does for the first time is seen once its pages are read whole.
            for (_, ledger) in &all {
                count(&ledger.threads[1], bonsai_calls::SENDTO, 0);
            }
            for _ in 0..2 * TURNS * SELDOM {
                glances.look().expect("looked");
            }
            for (_, ledger) in &all {
                count(&ledger.threads[0], bonsai_calls::SENDTO, 1000);
            }
            // Of the calm ones, each once; of which one is looked at closely, at once.
            glances.closely("c", true);
            let sent = |glances: &Glances, name: &str| glances.get(name).expect("there").totals[2];
            glances.look().expect("looked");
            assert_eq!(sent(&glances, "c"), 1000);
            let seen = names.iter().filter(|name| sent(&glances, name) > 0).count();
            assert!(seen < names.len(), "{seen} of {} in one look", names.len());
            for _ in 1..SELDOM {
                glances.look().expect("looked");
            }
            for name in names {
                assert_eq!(sent(&glances, name), 1000, "{name}");
            }
            // One that owes its limit something is not calm.
            let limit = Limit::parse("send=1000B/s:burst=1B").expect("a limit");
            apply(&all[4].1, &[limit], None, monotonic_ns()).expect("applied");
            let limits = all[4].1.limits(monotonic_ns());
            let line = &all[4].1.lines[limits[0].bucket];
            line.issued(line.generation())
                .fetch_add(1_000_000, bonsai_ledger::sync::Ordering::Relaxed);
            count(&all[4].1.threads[0], bonsai_calls::SENDTO, 1000);
            glances.look().expect("looked");
            let glance = glances.get("e").expect("there");
            assert!(glance.backlog[2] > 0, "{glance:?}");
            assert_eq!(glance.totals[2], 2000);
            assert_eq!(glance.bounds[2], Some(1_000_000));
        },
    );
}

#[test]
fn services_come_and_go() {
    within("glance::services_come_and_go", || {
        let mut glances = Glances::new().expect("a runtime directory");
        assert_eq!(glances.look().expect("looked"), Changes::default());
        assert!(glances.is_empty());
        let (b, b_ledger) = service("b");
        let (a, _) = service("a");
        assert_eq!(glances.look().expect("looked"), changes(&["a", "b"], &[]));
        assert_eq!(glances.look().expect("looked"), Changes::default());
        let names: Vec<&str> = glances.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b"]);
        a.remove().expect("removed");
        assert_eq!(glances.look().expect("looked"), changes(&[], &["a"]));
        // Another one of that name.
        let made = glances.created_ns("b");
        b.remove().expect("removed");
        drop(b_ledger);
        let (_b, b_ledger) = service("b");
        count(page(&b_ledger, 1), bonsai_calls::SENDTO, 5);
        assert_eq!(glances.look().expect("looked"), changes(&["b"], &["b"]));
        assert_ne!(glances.created_ns("b"), made);
        assert_eq!(glances.get("b").expect("there").totals, [0, 0, 5, 0, 1]);
        // One that is half made comes when it is whole, though the directory is the same.
        let folder = Services::open().expect("there").folder().join("c");
        std::fs::create_dir(&folder).expect("made");
        std::thread::sleep(std::time::Duration::from_millis(60));
        for _ in 0..3 {
            assert_eq!(glances.look().expect("looked"), Changes::default());
        }
        let ledger = Ledger::create(&folder.join("ledger"), "c").expect("a ledger");
        assert_eq!(glances.look().expect("looked"), changes(&["c"], &[]));
        drop(ledger);
        assert!(glances.get("d").is_none());
    });
}

#[test]
fn who_waits_is_seen_and_what_limits_hold_back() {
    within(
        "glance::who_waits_is_seen_and_what_limits_hold_back",
        || {
            let (_a, ledger) = service("a");
            let mut glances = Glances::new().expect("a runtime directory");
            glances.look().expect("looked");
            let limits = ["send=10kB/s", "net=1MB/s", "all=1/s"];
            let limits: Vec<Limit> = limits
                .iter()
                .map(|text| Limit::parse(text).expect(text))
                .collect();
            let now = monotonic_ns();
            apply(&ledger, &limits, None, now).expect("applied");
            let (_, mask, bytes) = ledger.mask(bonsai_calls::SENDTO);
            let tickets = ledger.take(mask, bytes, 50_000, 1, now);
            assert!(tickets.is_some());
            let page = page(&ledger, 77);
            let due = now + 5_000_000_000;
            page.wait.begin(now);
            page.wait.sleep(bonsai_calls::SENDTO, 77, 0, due, now);
            glances.look().expect("looked");
            let seen = *glances.get("a").expect("there");
            assert_eq!(seen.waiting, [0, 0, 1, 0, 1]);
            assert_eq!(seen.waited, [0, 0, 1, 0, 1]);
            let [read, write, send, recv, calls] = seen.backlog;
            assert_eq!((read, write, calls), (0, 0, 1));
            // Of both limits that it is under, the most; and 20 ms or so have passed.
            assert!((40_000..=50_000).contains(&send), "{send}");
            assert!(recv < 50_000, "{recv}");
            glances.look().expect("looked");
            let seen = *glances.get("a").expect("there");
            assert_eq!((seen.waiting[2], seen.waited[2]), (1, 0), "it went before");
            page.wait.end();
            // What lies between two looks is seen, too; and so is what it came to, soon.
            page.wait
                .sleep(bonsai_calls::RECVFROM, 77, 0, due, monotonic_ns());
            page.wait.end();
            count(page, bonsai_calls::RECVFROM, 1);
            ledger.record_wait(bonsai_calls::RECVFROM, 77, 1_000_000);
            ledger.record_wait(bonsai_calls::RECVFROM, 78, 2_000_000);
            glances.look().expect("looked");
            let seen = *glances.get("a").expect("there");
            assert_eq!((seen.waiting, seen.waited), ([0; 5], [0, 0, 0, 1, 1]));
            for _ in 0..TURNS {
                glances.look().expect("looked");
            }
            let seen = *glances.get("a").expect("there");
            assert_eq!((seen.waits[2], seen.waits[3]), ((0, 0), (2, 3_000_000)));
            let lifted =
                ["send=unlimited", "all=unlimited"].map(|text| Limit::parse(text).expect(text));
            apply(&ledger, &lifted, None, monotonic_ns()).expect("applied");
            std::thread::sleep(std::time::Duration::from_millis(60));
            glances.look().expect("looked");
            let seen = *glances.get("a").expect("there");
            assert_eq!((seen.waiting, seen.backlog), ([0; 5], [0; 5]));
        },
    );
}

#[test]
fn a_look_writes_nothing_and_keeps_no_descriptor() {
    within(
        "glance::a_look_writes_nothing_and_keeps_no_descriptor",
        || {
            let (a, ledger) = service("a");
            count(page(&ledger, 1), bonsai_calls::SENDTO, 5);
            let bytes = || std::fs::read(a.ledger_path()).expect("there");
            let open = || std::fs::read_dir("/proc/self/fd").expect("there").count();
            let (before, descriptors) = (bytes(), open());
            let mut glances = Glances::new().expect("a runtime directory");
            for _ in 0..2 * TURNS {
                glances.look().expect("looked");
            }
            assert!(before == bytes(), "it has written");
            assert_eq!(open(), descriptors);
        },
    );
}
