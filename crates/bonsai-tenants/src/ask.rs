//! What is asked for, as it is written: `tx=20Mbit/s guarantee=10Mbit/s`.

use std::str::FromStr;

use bonsai_link::{Share, Terms};
use bonsai_units::{Rate, Unit, parse_duration};

/// One thing to change; `None` takes it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The most it sends, bytes per second.
    Tx(Option<u64>),
    /// The most it receives, bytes per second.
    Rx(Option<u64>),
    /// What it has of its uplink, bytes per second.
    Guarantee(Option<u64>),
    /// The most it has of its uplink, bytes per second.
    Ceiling(Option<u64>),
    /// How what is left of the uplink is shared out.
    Weight(Option<u16>),
    /// For how long a limit may be exceeded, ns.
    Burst(Option<u64>),
}

/// What is asked for of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// What changes; the rest stays.
    pub changes: Vec<Change>,
    /// The uplink's name; by default what it had, or where the default route leads.
    pub uplink: Option<String>,
}

/// A word that takes a limit away.
const UNLIMITED: &str = "unlimited";

fn rate(key: &str, value: &str) -> Result<Option<u64>, String> {
    if value == UNLIMITED {
        return Ok(None);
    }
    let rate: Rate = value.parse().map_err(|error| format!("{key}: {error}"))?;
    if rate.unit() != Unit::Bytes {
        return Err(format!(
            "{key}={value} counts calls, and an interface counts bytes: write 20Mbit/s or 2.5MB/s"
        ));
    }
    // Parts of a byte are less than any clock.
    Ok(Some(rate.milli().div_ceil(1000)))
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or_else(|| {
            format!("{text:?} is no change: write KEY=VALUE, such as tx=20Mbit/s")
        })?;
        let none = value == "none" || value == UNLIMITED;
        Ok(match key {
            "tx" => Self::Tx(rate(key, value)?),
            "rx" => Self::Rx(rate(key, value)?),
            "guarantee" if none => Self::Guarantee(None),
            "guarantee" => Self::Guarantee(rate(key, value)?),
            "ceiling" => Self::Ceiling(rate(key, value)?),
            "weight" if none => Self::Weight(None),
            "weight" => {
                let weight = value.parse().ok().filter(|n| (1..=1000).contains(n));
                let wrong = || format!("weight={value} is out of range: 1 to 1000");
                Self::Weight(Some(weight.ok_or_else(wrong)?))
            }
            "burst" if none => Self::Burst(None),
            "burst" => {
                let time = parse_duration(value).map_err(|error| format!("burst: {error}"))?;
                let ns = u64::try_from(time.as_nanos()).ok();
                // Below, 1 % is lost at 1 Gbit/s; above, a limit is none.
                let ns = ns.filter(|ns| (1_000_000..=1_000_000_000).contains(ns));
                let wrong = || format!("burst={value} is out of range: 1ms to 1s");
                Self::Burst(Some(ns.ok_or_else(wrong)?))
            }
            _ => {
                return Err(format!(
                    "{key:?} cannot be set: tx, rx, guarantee, ceiling, weight, burst can"
                ));
            }
        })
    }
}

impl Change {
    /// Whether it is about the share of an uplink.
    #[must_use]
    pub fn is_share(self) -> bool {
        matches!(
            self,
            Self::Guarantee(Some(_)) | Self::Ceiling(Some(_)) | Self::Weight(Some(_))
        )
    }

    /// Makes the change. `uplink` is where a share would be that there is none of yet; `swapped`
    /// says that the interface that was meant is the other end of this one.
    pub(crate) fn make(self, terms: &mut Terms, uplink: Option<u32>, swapped: bool) {
        let mut share = |change: &dyn Fn(&mut Share)| {
            if terms.share.is_none() {
                terms.share = uplink.map(|uplink| Share {
                    uplink,
                    guarantee: None,
                    ceiling: None,
                    weight: 1,
                });
            }
            if let Some(share) = &mut terms.share {
                change(share);
                if share.guarantee.is_none() && share.ceiling.is_none() && share.weight == 1 {
                    terms.share = None;
                }
            }
        };
        match (self, swapped) {
            (Self::Tx(rate), false) | (Self::Rx(rate), true) => terms.tx = rate,
            (Self::Rx(rate), false) | (Self::Tx(rate), true) => terms.rx = rate,
            (Self::Guarantee(rate), _) => share(&|share| share.guarantee = rate),
            (Self::Ceiling(rate), _) => share(&|share| share.ceiling = rate),
            (Self::Weight(weight), _) => share(&|share| share.weight = weight.unwrap_or(1)),
            (Self::Burst(ns), _) => terms.burst_ns = ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_and_slips_are_answered() {
        for (text, change) in [
            ("tx=20Mbit/s", Change::Tx(Some(2_500_000))),
            ("rx=1MB/s", Change::Rx(Some(1_000_000))),
            ("tx=unlimited", Change::Tx(None)),
            ("guarantee=none", Change::Guarantee(None)),
            ("ceiling=90Mbit/s", Change::Ceiling(Some(11_250_000))),
            ("weight=7", Change::Weight(Some(7))),
            ("burst=5ms", Change::Burst(Some(5_000_000))),
        ] {
            assert_eq!(text.parse(), Ok(change), "{text}");
        }
        for (text, words) in [
            ("tx", "KEY=VALUE"),
            ("tx=20", "tx: "),
            ("tx=5/s", "counts calls"),
            ("speed=1Mbit/s", "cannot be set"),
            ("weight=0", "1 to 1000"),
            ("weight=1001", "1 to 1000"),
            ("burst=1us", "1ms to 1s"),
            ("burst=2s", "1ms to 1s"),
        ] {
            let error = text.parse::<Change>().expect_err(text);
            assert!(
                error.contains(words) && !error.contains('\n'),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn a_share_without_content_is_none() {
        let mut terms = Terms::default();
        Change::Guarantee(Some(5)).make(&mut terms, Some(3), false);
        assert_eq!(terms.share.as_ref().map(|share| share.uplink), Some(3));
        Change::Guarantee(None).make(&mut terms, None, false);
        assert!(terms.is_nothing());
        Change::Tx(Some(9)).make(&mut terms, None, true);
        assert_eq!((terms.tx, terms.rx), (None, Some(9)));
    }
}
