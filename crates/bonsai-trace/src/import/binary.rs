//! Binary traces: records of a fixed size, little-endian.
//!
//! | format | a record, bytes |
//! |---|---|
//! | vscsi 1, VMware's vscsiStats | 32: serial 4, length 4, segments 4, command 2, version 2, block 8, time in us 8 |
//! | vscsi 2 | 40: command 2, version 2, serial 4, length 4, segments 4, block 8, time in us 8, response time 8 |
//! | oracleGeneral, libCacheSim | 24: time in s 4, object 8, its size 4, number of the next access to it 8 |
//!
//! Lengths are in bytes, blocks of vscsi in sectors of 512 bytes; the version is the high byte of its field. So do
//! the files of CloudPhysics that libCacheSim comes with.

use std::collections::BTreeMap;

use super::scsi::{self, Command};
use super::skipped::Reason;
use super::{Found, Objects, Out, Wrong, bad};
use crate::model::{BLOCK, MAX_LENGTH, Op, Sink};

/// Takes records of one size.
pub(super) trait Records {
    /// The size of a record, bytes.
    fn size(&self) -> usize;

    fn record<S: Sink>(&mut self, record: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong>;
}

/// A little-endian number of a record; fields are within it.
fn number<const N: usize>(record: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..N].copy_from_slice(&record[at..at + N]);
    u64::from_le_bytes(bytes)
}

const SECTOR: u64 = 512;

/// The layouts of vscsiStats.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Version {
    One,
    Two,
}

impl Version {
    const fn size(self) -> usize {
        match self {
            Self::One => 32,
            Self::Two => 40,
        }
    }

    /// The fields of a record; `None` where its version is another.
    fn fields(self, record: &[u8]) -> Option<Fields> {
        let (command, length, version, block, time) = match self {
            Self::One => (12, 4, 14, 16, 24),
            Self::Two => (0, 8, 2, 16, 24),
        };
        let expected = match self {
            Self::One => 1,
            Self::Two => 2,
        };
        (number::<2>(record, version) >> 8 == expected).then(|| Fields {
            command: number::<2>(record, command),
            length: number::<4>(record, length),
            block: number::<8>(record, block),
            time_us: number::<8>(record, time),
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Fields {
    command: u64,
    length: u64,
    block: u64,
    time_us: u64,
}

impl Fields {
    /// What it does; vendors have commands of their own, which transfer no blocks that are known.
    fn command(self) -> Option<Command> {
        let code = u8::try_from(self.command).ok()?;
        Some(scsi::command(code).unwrap_or(Command::NoBlocks))
    }

    /// Whether a disk can have been asked for that.
    fn is_plausible(self) -> bool {
        self.command().is_some()
            && self.length <= u64::from(MAX_LENGTH)
            && (self.command() == Some(Command::NoBlocks) || self.block < 1 << 53)
            && self.time_us < 1 << 60
    }
}

/// Records of vscsiStats.
#[derive(Debug)]
pub(super) struct Vscsi {
    version: Version,
    volume: Option<u32>,
}

/// Records that are looked at to recognise a format.
const TRIED: usize = 1_000;

impl Vscsi {
    /// Recognises the version by the first records.
    pub(super) fn of(beginning: &[u8]) -> Option<Self> {
        let version = [Version::Two, Version::One].into_iter().find(|version| {
            let mut records = beginning
                .chunks_exact(version.size())
                .take(TRIED)
                .peekable();
            records.peek().is_some()
                && records.all(|record| version.fields(record).is_some_and(Fields::is_plausible))
        })?;
        Some(Self {
            version,
            volume: None,
        })
    }
}

impl Records for Vscsi {
    fn size(&self) -> usize {
        self.version.size()
    }

    fn record<S: Sink>(&mut self, record: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong> {
        let fields = self.version.fields(record).ok_or_else(|| {
            bad(
                "the version of the record is another than that of the first",
                "records of one version of vscsiStats",
            )
        })?;
        let op = match fields.command() {
            Some(Command::Op(op)) => op,
            Some(Command::NoBlocks) => return out.skip(Reason::NoBlocks),
            None => {
                return Err(bad(
                    format!(
                        "the command {:#04x} is no SCSI command of disks",
                        fields.command
                    ),
                    "an operation code of one byte, such as 0x28",
                ));
            }
        };
        // UNMAP has its extents in its data, of 8 + 16 n bytes, which vscsiStats does not record.
        if op == Op::Trim && !fields.length.is_multiple_of(SECTOR) {
            return out.skip(Reason::NoBlocks);
        }
        // READ and WRITE of no blocks are no errors (SBC-4).
        if fields.length == 0 && op != Op::Flush {
            return out.skip(Reason::NoBlocks);
        }
        let volume = match self.volume {
            Some(volume) => volume,
            None => *self.volume.insert(out.sink.volume("vscsi")?),
        };
        let (Some(offset), Some(time_ns)) = (
            fields.block.checked_mul(SECTOR),
            fields.time_us.checked_mul(1_000),
        ) else {
            return Err(bad(
                format!(
                    "block {} at {} us is beyond all devices",
                    fields.block, fields.time_us
                ),
                "a block and a time that a device can have",
            ));
        };
        let is_flush = op == Op::Flush;
        out.request(Found {
            time_ns,
            volume,
            offset: if is_flush { 0 } else { offset },
            length: if is_flush { 0 } else { fields.length },
            op,
        })
    }
}

/// Objects of libCacheSim.
#[derive(Debug)]
pub(super) struct OracleGeneral {
    objects: Objects,
    volume: Option<u32>,
    /// Objects whose number is larger than that of any block of a device, numbered as they come.
    hashed: BTreeMap<u64, u64>,
    hashed_volume: Option<u32>,
}

const ORACLE_SIZE: usize = 24;

/// Numbers of blocks below that are addresses of blocks.
const MOST_BLOCKS: u64 = 1 << 49;

impl OracleGeneral {
    pub(super) fn new(objects: Objects) -> Self {
        Self {
            objects,
            volume: None,
            hashed: BTreeMap::new(),
            hashed_volume: None,
        }
    }

    /// Whether the first records are of this format: times never go back, and the access that a record
    /// names as the next one of its object is that, as far as it can be seen.
    pub(super) fn is_format(beginning: &[u8]) -> bool {
        let records: Vec<&[u8]> = beginning
            .chunks_exact(ORACLE_SIZE)
            .take(10 * TRIED)
            .collect();
        let mut last = 0;
        !records.is_empty()
            && records.iter().enumerate().all(|(n, record)| {
                let (time, object) = (number::<4>(record, 0), number::<8>(record, 4));
                let next = number::<8>(record, 16);
                let is_later = time >= last;
                last = time;
                // -1 and 2^63 - 1: never again.
                let is_never = next >= i64::MAX as u64;
                // Counted from 0 or from 1.
                let is_it = |at: usize| {
                    records
                        .get(at)
                        .is_some_and(|it| number::<8>(it, 4) == object)
                };
                let is_next = usize::try_from(next).is_ok_and(|next| {
                    next > n
                        && next < 1 << 40
                        && (next > records.len() || is_it(next) || is_it(next - 1))
                });
                is_later && (is_never || is_next)
            })
    }

    /// The block that stands for an object.
    fn block<S: Sink>(&mut self, object: u64, out: &mut Out<'_, S>) -> Result<(u32, u64), Wrong> {
        if object < MOST_BLOCKS {
            return Ok((self.volume(out)?, object));
        }
        let volume = match self.hashed_volume {
            Some(volume) => volume,
            None => *self
                .hashed_volume
                .insert(out.sink.volume("hashed objects")?),
        };
        let next = self.hashed.len() as u64;
        Ok((volume, *self.hashed.entry(object).or_insert(next)))
    }

    fn volume<S: Sink>(&mut self, out: &mut Out<'_, S>) -> Result<u32, Wrong> {
        Ok(match self.volume {
            Some(volume) => volume,
            None => *self.volume.insert(out.sink.volume("objects")?),
        })
    }
}

impl Records for OracleGeneral {
    fn size(&self) -> usize {
        ORACLE_SIZE
    }

    fn record<S: Sink>(&mut self, record: &[u8], out: &mut Out<'_, S>) -> Result<(), Wrong> {
        let (seconds, object, size) = (
            number::<4>(record, 0),
            number::<8>(record, 4),
            number::<4>(record, 12),
        );
        let (volume, offset, length) = match self.objects {
            Objects::Blocks => {
                let (volume, block) = self.block(object, out)?;
                out.report.sizes_left_out += u64::from(size != BLOCK);
                (volume, block * BLOCK, BLOCK)
            }
            Objects::Addresses(unit) => {
                let offset = object.checked_mul(unit).ok_or_else(|| {
                    bad(
                        format!("the address {object} is beyond all devices"),
                        "addresses on a device; without --objects each object is one block",
                    )
                })?;
                (self.volume(out)?, offset, size)
            }
        };
        if length == 0 {
            return out.skip(Reason::NoBlocks);
        }
        out.request(Found {
            time_ns: seconds * 1_000_000_000,
            volume,
            offset,
            length,
            op: Op::Read,
        })
    }
}
