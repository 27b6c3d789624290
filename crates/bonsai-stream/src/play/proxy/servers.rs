//! Which web server is asked next.
//!
//! All have the same film. Each is given as much time as the others, so that what it sends is in proportion to its speed. One
//! that fails is left alone, each time in a row for twice as long, and is tried again when there is enough in
//! the buffer, or there is no other.

/// How long a server that has failed once is left alone, nanoseconds; then twice as long each time,
const FIRST_WAIT: u64 = 500_000_000;
/// up to this.
const LONGEST_WAIT: u64 = 15_000_000_000;

/// What is new of a speed counts so much against what was known.
const NEW: f64 = 0.3;

/// A server, as far as choosing goes.
#[derive(Clone, Debug, Default)]
struct Server {
    /// Bits a millisecond; unknown before the first download.
    kbps: Option<f64>,
    /// How long it has been busy for us, milliseconds.
    busy_ms: f64,
    /// Failures in a row.
    failures: u32,
    /// It is left alone until then.
    until_ns: u64,
    /// It has another film.
    is_other: bool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Servers {
    all: Vec<Server>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// To ask this one.
    Ask(usize),
    /// To wait so long, nanoseconds: none is to be asked sooner.
    Wait(u64),
}

impl Servers {
    pub(super) fn new(count: usize) -> Self {
        Self {
            all: vec![Server::default(); count],
        }
    }

    /// Which is asked next. Whoever can wait is comfortable: then those that have failed are tried again.
    pub(super) fn turn(&self, now_ns: u64, is_comfortable: bool) -> Turn {
        let is_up = |server: &Server| server.failures == 0;
        let has_other = self.all.iter().any(|one| is_up(one) && !one.is_other);
        let mut ready: Option<(usize, &Server)> = None;
        let mut soonest = LONGEST_WAIT;
        for (number, server) in self.all.iter().enumerate() {
            if server.is_other {
                continue;
            }
            if server.until_ns > now_ns {
                soonest = soonest.min(server.until_ns - now_ns);
                continue;
            }
            if !is_up(server) && has_other && !is_comfortable {
                continue;
            }
            let is_sooner = ready.is_none_or(|(_, other)| server.comes_before(other));
            if is_sooner {
                ready = Some((number, server));
            }
        }
        ready.map_or(Turn::Wait(soonest), |(number, _)| Turn::Ask(number))
    }

    /// So much came of it in so long.
    pub(super) fn came(&mut self, number: usize, bytes: u64, took_ns: u64) {
        #[expect(
            clippy::cast_precision_loss,
            reason = "bytes of a segment, and its time"
        )]
        let (bits, ms) = (bytes as f64 * 8.0, took_ns.max(1_000) as f64 / 1e6);
        // Whoever is new, or was away, does not make up for the time before.
        let least = self.least_busy_ms(number);
        let server = &mut self.all[number];
        if server.kbps.is_none() || server.failures > 0 {
            server.busy_ms = server.busy_ms.max(least);
        }
        let new = bits / ms;
        server.kbps = Some(match server.kbps {
            Some(kbps) => kbps + NEW * (new - kbps),
            None => new,
        });
        server.busy_ms += ms;
        (server.failures, server.until_ns) = (0, 0);
    }

    fn least_busy_ms(&self, but: usize) -> f64 {
        let others = self.all.iter().enumerate();
        let others = others.filter(|(at, other)| *at != but && other.kbps.is_some());
        let least = others.map(|(_, other)| other.busy_ms).reduce(f64::min);
        least.unwrap_or(0.0)
    }

    /// It did not do what was asked of it.
    pub(super) fn failed(&mut self, number: usize, now_ns: u64) {
        let server = &mut self.all[number];
        let wait = FIRST_WAIT << server.failures.min(16);
        server.failures = server.failures.saturating_add(1);
        server.until_ns = now_ns.saturating_add(wait.min(LONGEST_WAIT));
    }

    /// It has another film, and is not asked again.
    pub(super) fn is_other(&mut self, number: usize) {
        self.all[number].is_other = true;
    }

    /// Whether there is another that has not failed.
    pub(super) fn has_other(&self, number: usize) -> bool {
        let mut others = self.all.iter().enumerate();
        others.any(|(at, other)| at != number && other.failures == 0 && !other.is_other)
    }

    /// How fast the best of the others is that have not failed, kbit/s.
    pub(super) fn best_other_kbps(&self, number: usize) -> Option<f64> {
        let others = self.all.iter().enumerate();
        let others =
            others.filter(|(at, other)| *at != number && other.failures == 0 && !other.is_other);
        others.filter_map(|(_, other)| other.kbps).reduce(f64::max)
    }

    /// Whether it had failed before.
    pub(super) fn is_down(&self, number: usize) -> bool {
        self.all[number].failures > 0
    }

    /// How many may be asked at all.
    pub(super) fn count(&self) -> usize {
        self.all.iter().filter(|server| !server.is_other).count()
    }

    /// What is known of its speed, kbit/s.
    pub(super) fn kbps(&self, number: usize) -> Option<f64> {
        self.all[number].kbps
    }
}

impl Server {
    fn comes_before(&self, other: &Self) -> bool {
        match (self.kbps, other.kbps) {
            (None, Some(_)) => true,
            (None, None) | (Some(_), None) => false,
            (Some(_), Some(_)) => self.busy_ms < other.busy_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn segments_are_spread_by_the_speed_of_servers() {
        let mut servers = Servers::new(3);
        let mut sent = [0_u64; 3];
        // 1, 2 and 5 MB/s.
        for _ in 0..800 {
            let Turn::Ask(number) = servers.turn(0, true) else {
                panic!("none is down");
            };
            let took = 500_000 * 1_000 / [1, 2, 5][number];
            servers.came(number, 500_000, took);
            sent[number] += 1;
        }
        for (number, part) in [100_u64, 200, 500].into_iter().enumerate() {
            assert!(sent[number].abs_diff(part) <= 2, "{sent:?}");
        }
    }

    #[test]
    fn who_fails_is_left_for_the_others_and_tried_again() {
        let mut servers = Servers::new(2);
        servers.came(0, 1_000, SECOND);
        servers.came(1, 1_000, SECOND);
        servers.failed(0, 0);
        assert!(servers.is_down(0) && servers.has_other(0) && !servers.has_other(1));
        for now in [0, SECOND, 60 * SECOND] {
            assert_eq!(servers.turn(now, false), Turn::Ask(1), "{now}");
        }
        // It is tried again in peace, and not before its time.
        servers.came(1, 1_000, SECOND);
        assert_eq!(servers.turn(SECOND / 4, true), Turn::Ask(1));
        assert_eq!(servers.turn(SECOND, true), Turn::Ask(0));
        servers.failed(0, SECOND);
        assert_eq!(servers.turn(SECOND * 3 / 2, true), Turn::Ask(1));
        assert_eq!(servers.turn(SECOND * 2, true), Turn::Ask(0));
        // Where all are down, the first that may be asked is waited for.
        servers.failed(1, SECOND * 3 / 2);
        assert_eq!(servers.turn(SECOND * 7 / 4, false), Turn::Wait(SECOND / 4));
        assert_eq!(servers.turn(SECOND * 2, false), Turn::Ask(0));
        servers.came(0, 1_000, SECOND);
        assert!(!servers.is_down(0));
        servers.is_other(0);
        assert_eq!(servers.count(), 1);
        assert_eq!(servers.turn(SECOND * 3, false), Turn::Ask(1));
    }

    #[test]
    fn who_was_away_does_not_make_up_for_it() {
        let mut servers = Servers::new(2);
        servers.came(0, 1_000, SECOND);
        servers.came(1, 1_000, SECOND);
        servers.failed(0, 0);
        for _ in 0..100 {
            servers.came(1, 1_000, SECOND);
        }
        servers.came(0, 1_000, SECOND);
        servers.came(1, 1_000, SECOND);
        assert_eq!(servers.turn(SECOND, true), Turn::Ask(0));
        servers.came(0, 1_000, SECOND);
        servers.came(0, 1_000, SECOND);
        assert_eq!(servers.turn(SECOND, true), Turn::Ask(1));
    }
}
