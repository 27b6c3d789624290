//! What a measurement says, and why it may be doubted.

use bonsai_api::{Probed, Resource};
use bonsai_units::{Rate, Unit, format_date};

use super::disk::Run;
use super::link::Link;

/// Others that moved more than this part of all are said.
const BUSY: f64 = 0.05;

/// A spread of more than this part is said.
const WIDE: f64 = 0.1;

/// A file that a disk's own memory may hold.
const SMALL: u64 = 64 << 20;

/// The value below which a part of all is.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a short list"
    )]
    let at = (last as f64 * part).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Option<Vec<f64>> = values.collect();
    let values = values.filter(|values| !values.is_empty())?;
    Some(values.iter().sum::<f64>() / values.len() as f64)
}

/// A rate with three digits, as it is written.
fn written(per_s: f64) -> String {
    if per_s < 1.0 {
        return "1B/s".to_owned();
    }
    let digits = 10_f64.powf(per_s.log10().floor() - 2.0).max(1.0);
    let rounded = (per_s / digits).floor() * digits;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at least one, and beyond the range a cast saturates"
    )]
    let rate = Rate::from_milli((rounded as u64).saturating_mul(1000), Unit::Bytes);
    rate.to_string()
}

/// Of a disk.
pub(super) fn disk(resource: Resource, unix_ms: u64, run: &Run) -> Result<Probed, String> {
    // In the first slice the threads begin.
    let slices = run.slices.get(1..).unwrap_or_default();
    if slices.len() < 3 {
        return Err(format!(
            "{}: the disk is too slow or too quick to be measured in that time: measure for longer",
            run.folder.display()
        ));
    }
    let totals: Vec<f64> = slices
        .iter()
        .map(|s| s.own + s.others.unwrap_or(0.0))
        .collect();
    let mut sorted = totals.clone();
    sorted.sort_by(f64::total_cmp);
    let [low, median, high] = [0.1, 0.5, 0.9].map(|part| percentile(&sorted, part));
    let others = mean(slices.iter().map(|slice| slice.others));
    let against = mean(slices.iter().map(|slice| slice.against));
    let name = bonsai_units::Resource::from(resource);
    let [done, undone] = match resource {
        Resource::Write => ["written", "read"],
        _ => ["read", "written"],
    };
    let spread = (high - low) / 2.0 / median.max(1.0);
    let mut doubts = Vec::new();
    if let Some(others) = others.filter(|others| *others > BUSY * median) {
        let text = written(others);
        doubts.push(format!(
            "others were busy: {text} of it were {done} by them, and are counted"
        ));
    }
    if let Some(against) = against.filter(|against| *against > BUSY * median) {
        let text = written(against);
        doubts.push(format!(
            "others were busy: {text} were {undone} meanwhile, so that alone it may be more"
        ));
    }
    if others.is_none() {
        doubts.push("which device is behind that folder is not known, so what others did there is not counted".to_owned());
    }
    if spread > WIDE {
        doubts.push(format!(
            "the slices differ by {:.0} % either way",
            spread * 100.0
        ));
    }
    if run.file < SMALL {
        doubts.push(format!(
            "the file had {} MiB only, which the disk's own memory may hold",
            run.file >> 20
        ));
    }
    let device = run.device.as_deref().unwrap_or("the disk");
    let of = format!(
        "{device}, by direct sequential {name}s in {}",
        run.folder.display()
    );
    let capacity = written(median);
    let reason = format!(
        "measured on {}: median {capacity}, spread {:.0} %, {of}",
        format_date(unix_ms / 1000),
        spread * 100.0
    );
    Ok(Probed {
        resource,
        unix_ms,
        median,
        low,
        high,
        others,
        slices: totals,
        moved: run.moved,
        of,
        doubts,
        capacity,
        reason,
    })
}

/// Of a link.
pub(super) fn link(resource: Resource, unix_ms: u64, name: &str, link: &Link) -> Probed {
    let per_s = link.mbit as f64 * 1e6 / 8.0;
    let capacity = if link.mbit.is_multiple_of(1000) {
        format!("{}Gbit/s", link.mbit / 1000)
    } else {
        format!("{}Mbit/s", link.mbit)
    };
    let mut doubts =
        vec!["it is the speed of the link itself: the way beyond it may be slower".to_owned()];
    if !link.full_duplex {
        doubts.push("the link either sends or receives, so both together have that".to_owned());
    }
    let of = format!("the link of {name}, as its driver says");
    Probed {
        resource,
        unix_ms,
        median: per_s,
        low: per_s,
        high: per_s,
        others: None,
        slices: Vec::new(),
        moved: 0,
        reason: format!(
            "measured on {}: {capacity}, {of}",
            format_date(unix_ms / 1000)
        ),
        of,
        doubts,
        capacity,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::disk::Slice;

    fn run(slices: &[(f64, Option<f64>, Option<f64>)], file: u64) -> Run {
        let slices = slices.iter().map(|(own, others, against)| Slice {
            own: *own,
            others: *others,
            against: *against,
        });
        Run {
            slices: slices.collect(),
            file,
            moved: 7,
            device: Some("sda".to_owned()),
            folder: "/srv".into(),
        }
    }

    #[test]
    fn a_quiet_disk_has_no_doubt() {
        let mut slices = vec![(1e6, Some(0.0), Some(0.0))];
        slices.extend(
            [100.9e6, 99.0e6, 101.0e6, 100.0e6, 102.0e6].map(|own| (own, Some(1e6), Some(0.0))),
        );
        let probed =
            disk(Resource::Read, 1_700_000_000_000, &run(&slices, 256 << 20)).expect("enough");
        assert_eq!(probed.median, 101.9e6, "what others moved is part of it");
        assert_eq!(probed.capacity, "101MB/s", "never more than was seen");
        assert_eq!((probed.low, probed.high), (100e6, 103e6));
        assert_eq!(probed.doubts, [""; 0]);
        assert_eq!(
            probed.reason,
            "measured on 2023-11-14: median 101MB/s, spread 1 %, sda, by direct sequential reads in /srv"
        );
    }

    #[test]
    fn doubts_are_said() {
        let slices: Vec<_> = [50e6, 100e6, 60e6, 140e6, 100e6]
            .map(|own| (own, Some(20e6), Some(30e6)))
            .to_vec();
        let probed = disk(Resource::Write, 0, &run(&slices, 16 << 20)).expect("enough");
        let all = probed.doubts.join("; ");
        for word in [
            "20MB/s of it were written",
            "30MB/s were read",
            "differ by",
            "16 MiB",
        ] {
            assert!(all.contains(word), "{word}: {all}");
        }
        let unknown: Vec<_> = slices.iter().map(|(own, ..)| (*own, None, None)).collect();
        let probed = disk(Resource::Write, 0, &run(&unknown, 1 << 30)).expect("enough");
        assert!(probed.doubts[0].contains("not known"), "{probed:?}");
        assert_eq!(probed.others, None);
        disk(Resource::Read, 0, &run(&slices[..3], 1 << 30)).expect_err("two slices say nothing");
    }

    #[test]
    fn a_link_has_the_speed_that_it_says() {
        let of = |mbit, full_duplex| link(Resource::Send, 0, "eth0", &Link { mbit, full_duplex });
        assert_eq!(
            (of(1000, true).capacity.as_str(), of(1000, true).median),
            ("1Gbit/s", 125e6)
        );
        assert_eq!(of(2500, true).capacity, "2500Mbit/s");
        assert_eq!(
            (of(100, true).doubts.len(), of(100, false).doubts.len()),
            (1, 2)
        );
    }

    #[test]
    fn three_digits_are_kept() {
        for (per_s, text) in [
            (0.0, "1B/s"),
            (7.9, "7B/s"),
            (1_239_999.0, "1.23MB/s"),
            (9.876e9, "9.87GB/s"),
        ] {
            assert_eq!(written(per_s), text);
        }
    }
}
