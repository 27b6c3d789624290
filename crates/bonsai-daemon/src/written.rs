//! Limits in force, as they were written.

use std::collections::BTreeMap;

use bonsai_services::limits::Limit;
use bonsai_units::Setting;

/// Limits by their names.
type Limits = BTreeMap<String, String>;

/// The limits in force of a service, those that are configured in the words of whoever did: a
/// ledger does not know in which unit a rate was written.
pub(crate) fn as_configured(in_force: &Limits, configured: &Limits) -> Limits {
    let mut limits = in_force.clone();
    for (name, text) in configured {
        // The name of one that comes into force would have its path looked at.
        let limit = Limit::parse(&format!("{name}=unlimited"));
        let Some(found) = limit.ok().and_then(|limit| limits.get_mut(&limit.name)) else {
            continue;
        };
        let settings = (found.parse::<Setting>(), text.parse::<Setting>());
        // Somebody may have changed it in the ledger.
        if let (Ok(now), Ok(configured)) = settings
            && is_same(now, configured)
        {
            found.clone_from(text);
        }
    }
    limits
}

fn is_same(first: Setting, second: Setting) -> bool {
    match (first, second) {
        (
            Setting::Rate { rate, burst },
            Setting::Rate {
                rate: other,
                burst: its,
            },
        ) => {
            let units = |burst: Option<bonsai_units::Burst>| burst.unwrap_or_default().units(rate);
            rate == other && units(burst) == units(its)
        }
        (first, second) => first == second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_repeated_in_the_unit_that_it_was_written_in() {
        let limits = |pairs: &[(&str, &str)]| -> Limits {
            let pairs = pairs.iter().copied();
            pairs.map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
        };
        let in_force = limits(&[
            ("open", "5/s"),
            ("recv/stream", "250kB/s"),
            ("recvfrom", "1MB/s"),
            ("send/stream", "250kB/s"),
            ("send@10.0.0.1", "1MB/s:burst=1kB"),
            ("sendto", "1MB/s"),
        ]);
        let configured = limits(&[
            ("accept4", "1/s"),
            ("recv/stream", "3Mbit/s"),
            ("recvfrom", "8Mbit/s:burst=20ms"),
            ("send/stream", "2Mbit/s"),
            ("send@10.0.0.1/32", "8Mbit/s:burst=1000B"),
            ("sendto", "8Mbit/s:burst=1kB"),
        ]);
        let expected = limits(&[
            ("open", "5/s"),
            ("recv/stream", "250kB/s"),
            ("recvfrom", "8Mbit/s:burst=20ms"),
            ("send/stream", "2Mbit/s"),
            ("send@10.0.0.1", "8Mbit/s:burst=1000B"),
            ("sendto", "1MB/s"),
        ]);
        assert_eq!(as_configured(&in_force, &configured), expected);
    }
}
