//! Local time: of the hours by which demand is learned, and of what people read.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Local time now, seconds east of UTC: of the system's zone (`TZ`, `/etc/localtime`), looked up anew, so that it moves with the
/// clocks and with a zone that is set while the daemon runs.
pub(crate) fn utc_offset_s(unix_s: u64) -> i32 {
    of(&TimeZone::system(), unix_s)
}

fn of(zone: &TimeZone, unix_s: u64) -> i32 {
    let at = i64::try_from(unix_s).ok();
    let at = at.and_then(|at| Timestamp::from_second(at).ok());
    at.map_or(0, |at| zone.to_offset(at).seconds())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_move_with_the_clocks() {
        // Middle Europe: from 2:00 to 3:00 on 2026-03-29, and back on 2026-10-25, at 1:00 UTC.
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone");
        for (unix_s, offset) in [
            (1_774_745_999, 3600),
            (1_774_746_000, 7200),
            (1_792_889_999, 7200),
            (1_792_890_000, 3600),
        ] {
            assert_eq!(of(&zone, unix_s), offset, "{unix_s}");
        }
        let half = TimeZone::posix("IST-5:30").expect("a zone");
        assert_eq!(of(&half, 1_774_746_000), 19_800);
        assert_eq!(of(&half, u64::MAX), 0);
    }
}
