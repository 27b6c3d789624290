//! What a group has moved, and how long it waited for it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::device::DeviceNumber;
use crate::error::Error;
use crate::file;
use crate::group::Cgroup;
use crate::hierarchy::{Hierarchies, Version};

/// What a group and those below it have moved of a device since the group was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiskUse {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Reads, as the device got them.
    pub reads: u64,
    /// Writes, likewise.
    pub writes: u64,
}

impl DiskUse {
    /// What came since an earlier look.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
        }
    }

    /// Whether nothing was moved.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// For how long tasks of a group waited for block devices, since the group was made
/// (Documentation/accounting/psi.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pressure {
    /// At least one of them, us.
    pub some_us: u64,
    /// All of them that were not idle, us.
    pub full_us: u64,
}

/// What a group has moved, by device.
///
/// # Errors
/// [`Error::Vanished`], or it has not the controller.
pub fn usage(group: &Cgroup) -> Result<BTreeMap<DeviceNumber, DiskUse>, Error> {
    match group.version() {
        // Without the controller the group is counted in the one above it.
        Version::V2 => Ok(parse_stat(&group.read("io.stat")?)),
        Version::V1 => {
            let mut all = BTreeMap::new();
            for (number, word, n) in parse_serviced(&serviced(group, "io_service_bytes")?) {
                let one: &mut DiskUse = all.entry(number).or_default();
                match word {
                    "Read" => one.read_bytes = n,
                    "Write" => one.write_bytes = n,
                    _ => {}
                }
            }
            for (number, word, n) in parse_serviced(&serviced(group, "io_serviced")?) {
                let one: &mut DiskUse = all.entry(number).or_default();
                match word {
                    "Read" => one.reads = n,
                    "Write" => one.writes = n,
                    _ => {}
                }
            }
            Ok(all)
        }
    }
}

/// Bytes that a group has read and written of some devices: half of what [`usage`] costs.
///
/// # Errors
/// [`Error::Vanished`], or it has not the controller.
pub fn moved(group: &Cgroup, of: &[DeviceNumber]) -> Result<(u64, u64), Error> {
    let mut sum = (0_u64, 0_u64);
    match group.version() {
        Version::V2 => {
            for (number, one) in parse_stat(&group.read("io.stat")?) {
                if of.contains(&number) {
                    sum.0 = sum.0.saturating_add(one.read_bytes);
                    sum.1 = sum.1.saturating_add(one.write_bytes);
                }
            }
        }
        Version::V1 => {
            for (number, word, n) in parse_serviced(&serviced(group, "io_service_bytes")?) {
                match word {
                    "Read" if of.contains(&number) => sum.0 = sum.0.saturating_add(n),
                    "Write" if of.contains(&number) => sum.1 = sum.1.saturating_add(n),
                    _ => {}
                }
            }
        }
    }
    Ok(sum)
}

/// A counter of version 1, with the groups below.
fn serviced(group: &Cgroup, name: &str) -> Result<String, Error> {
    // Kernels before 4.15 count the group alone.
    let whole = group.read(&format!("blkio.throttle.{name}_recursive"));
    whole.or_else(|_| group.read(&format!("blkio.throttle.{name}")))
}

/// How long a group waited. Only version 2 keeps it; on a machine with both, the group of the
/// same path there.
#[must_use]
pub fn pressure(hierarchies: &Hierarchies, group: &Cgroup) -> Option<Pressure> {
    let unified = hierarchies.unified()?;
    let below = Path::new(group.path()).strip_prefix(&unified.root).ok()?;
    let file = unified.mount.join(below).join("io.pressure");
    let text = file::read(&file).ok()?;
    let total = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let total = line.split(' ').find_map(|word| word.strip_prefix("total="));
        total?.parse().ok()
    };
    Some(Pressure {
        some_us: total("some ")?,
        full_us: total("full ")?,
    })
}

/// `254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0` a line.
fn parse_stat(text: &str) -> BTreeMap<DeviceNumber, DiskUse> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let number: DeviceNumber = words.next()?.parse().ok()?;
        let mut one = DiskUse::default();
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let slot = match key {
                "rbytes" => &mut one.read_bytes,
                "wbytes" => &mut one.write_bytes,
                "rios" => &mut one.reads,
                "wios" => &mut one.writes,
                _ => continue,
            };
            *slot = value.parse().unwrap_or(0);
        }
        Some((number, one))
    };
    text.lines().filter_map(line).collect()
}

/// `254:0 Read 4096` a line, and `Total 4096` at the end.
fn parse_serviced(text: &str) -> impl Iterator<Item = (DeviceNumber, &str, u64)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (number, word) = (words.next()?.parse().ok()?, words.next()?);
        Some((number, word, words.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_the_kernel_writes_them() {
        let text = "254:0 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0\n\
                    7:0 \n254:16 cost.usage=3 rbytes=x\n";
        let found = parse_stat(text);
        assert_eq!(found.len(), 3);
        let one = found[&"254:0".parse::<DeviceNumber>().expect("a number")];
        assert_eq!((one.read_bytes, one.writes), (1_459_200, 353));
        let text = "254:0 Read 8192\n254:0 Write 0\n254:0 Sync 8192\nTotal 8192\n";
        let found: Vec<_> = parse_serviced(text).map(|(_, word, n)| (word, n)).collect();
        assert_eq!(found, [("Read", 8_192), ("Write", 0), ("Sync", 8_192)]);
    }
}
