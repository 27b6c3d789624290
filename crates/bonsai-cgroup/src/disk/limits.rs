//! Limits on devices in files of the kernel: `io.max` of version 2, four `blkio.throttle` files
//! of version 1.

use std::collections::BTreeMap;
use std::fmt;

use bonsai_units::{DiskTerms, Rate};
use serde::{Deserialize, Serialize};

use crate::device::DeviceNumber;
use crate::error::Error;
use crate::group::Cgroup;
use crate::hierarchy::Version;

/// The limits of a group on a device; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskLimits {
    /// Bytes read per second.
    pub read_bytes: Option<u64>,
    /// Bytes written per second.
    pub write_bytes: Option<u64>,
    /// Reads per second, as the device gets them.
    pub read_calls: Option<u64>,
    /// Writes per second, likewise.
    pub write_calls: Option<u64>,
}

/// One of the four: what it is called in `io.max`, and its file in version 1
/// (Documentation/admin-guide/cgroup-v1/blkio-controller.rst).
const FOUR: [(&str, &str); 4] = [
    ("rbps", "blkio.throttle.read_bps_device"),
    ("wbps", "blkio.throttle.write_bps_device"),
    ("riops", "blkio.throttle.read_iops_device"),
    ("wiops", "blkio.throttle.write_iops_device"),
];

impl DiskLimits {
    /// In the order of `io.max`: bytes read and written, reads, writes.
    #[must_use]
    pub const fn as_array(&self) -> [Option<u64>; 4] {
        [
            self.read_bytes,
            self.write_bytes,
            self.read_calls,
            self.write_calls,
        ]
    }

    /// The same from an array.
    #[must_use]
    pub const fn from_array(four: [Option<u64>; 4]) -> Self {
        let [read_bytes, write_bytes, read_calls, write_calls] = four;
        Self {
            read_bytes,
            write_bytes,
            read_calls,
            write_calls,
        }
    }

    /// What these become by terms.
    #[must_use]
    pub const fn with(&self, terms: &DiskTerms) -> Self {
        Self {
            read_bytes: terms.read_bytes.over(self.read_bytes),
            write_bytes: terms.write_bytes.over(self.write_bytes),
            read_calls: terms.read_calls.over(self.read_calls),
            write_calls: terms.write_calls.over(self.write_calls),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for DiskLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |name, n: Option<u64>| n.map(|n| format!("{name}={}", Rate::bytes_per_sec(n)));
        let calls = |name, n: Option<u64>| n.map(|n| format!("{name}={}", Rate::calls_per_sec(n)));
        let words = [
            bytes("read", self.read_bytes),
            calls("read", self.read_calls),
            bytes("write", self.write_bytes),
            calls("write", self.write_calls),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        f.pad(&if words.is_empty() {
            "unlimited".to_owned()
        } else {
            words.join(" ")
        })
    }
}

/// All limits of a group that are in force, by device.
///
/// # Errors
/// [`Error::Vanished`], or it has not the controller.
pub fn read(group: &Cgroup) -> Result<BTreeMap<DeviceNumber, DiskLimits>, Error> {
    match group.version() {
        Version::V2 => Ok(parse_max(&group.read("io.max")?)),
        Version::V1 => {
            let mut all: BTreeMap<DeviceNumber, [Option<u64>; 4]> = BTreeMap::new();
            for (i, (_, name)) in FOUR.iter().enumerate() {
                for (number, n) in parse_throttle(&group.read(name)?) {
                    all.entry(number).or_default()[i] = Some(n);
                }
            }
            let all = all.into_iter();
            Ok(all
                .map(|(number, four)| (number, DiskLimits::from_array(four)))
                .collect())
        }
    }
}

/// Puts limits on one device into force. Of several files the first that is refused ends it:
/// whoever calls writes back what was there before.
pub(super) fn write(
    group: &Cgroup,
    number: DeviceNumber,
    now: &DiskLimits,
    wanted: &DiskLimits,
) -> Result<(), Error> {
    let four = wanted.as_array();
    match group.version() {
        Version::V2 => {
            let mut line = number.to_string();
            for ((key, _), n) in FOUR.iter().zip(four) {
                match n {
                    Some(n) => line.push_str(&format!(" {key}={n}")),
                    None => line.push_str(&format!(" {key}=max")),
                }
            }
            group.write("io.max", &line, &format!("{wanted} of device {number}"))
        }
        Version::V1 => {
            let now = now.as_array();
            for (i, (_, name)) in FOUR.iter().enumerate() {
                if now[i] != four[i] {
                    // Zero takes a limit away.
                    let line = format!("{number} {}", four[i].unwrap_or(0));
                    group.write(name, &line, &format!("{wanted} of device {number}"))?;
                }
            }
            Ok(())
        }
    }
}

/// `8:16 rbps=2097152 wbps=max riops=max wiops=120` a line.
fn parse_max(text: &str) -> BTreeMap<DeviceNumber, DiskLimits> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let number: DeviceNumber = words.next()?.parse().ok()?;
        let mut four = [None; 4];
        for word in words {
            let (key, value) = word.split_once('=')?;
            if let Some(i) = FOUR.iter().position(|(name, _)| *name == key) {
                four[i] = value.parse().ok();
            }
        }
        Some((number, DiskLimits::from_array(four)))
    };
    let all = text.lines().filter_map(line);
    all.filter(|(_, limits)| !limits.is_unlimited()).collect()
}

/// `8:16 2097152` a line.
fn parse_throttle(text: &str) -> impl Iterator<Item = (DeviceNumber, u64)> {
    text.lines().filter_map(|line| {
        let (number, n) = line.trim().split_once(' ')?;
        Some((number.parse().ok()?, n.trim().parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let number = |text: &str| text.parse::<DeviceNumber>().expect("a number");
        let text = "8:16 rbps=2097152 wbps=max riops=max wiops=120\n\
                    8:0 rbps=max wbps=max riops=max wiops=max\nodd\n8:32 rbps\n";
        let found = parse_max(text);
        assert_eq!(found.len(), 1);
        let limits = found[&number("8:16")];
        assert_eq!(limits.read_bytes, Some(2_097_152));
        assert_eq!(limits.write_calls, Some(120));
        assert_eq!(limits.to_string(), "read=2MiB/s write=120/s");
        let found: Vec<_> = parse_throttle("254:0 10485760\n7:0 x\n\n").collect();
        assert_eq!(found, [(number("254:0"), 10_485_760)]);
    }

    #[test]
    fn terms_change_what_they_name_and_nothing_else() {
        let terms = DiskTerms::parse(["read=1MB/s", "write=unlimited"]).expect("terms");
        let before = DiskLimits {
            read_calls: Some(5),
            write_bytes: Some(6_000),
            ..DiskLimits::default()
        };
        let after = before.with(&terms);
        assert_eq!(after.as_array(), [Some(1_000_000), None, Some(5), None]);
        assert!(!after.is_unlimited());
    }
}
