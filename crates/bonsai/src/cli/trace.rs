//! Block traces.

use std::path::PathBuf;
use std::time::Duration;

use bonsai_trace::import::{Columns, Delimiter, Objects};
use bonsai_units::parse_duration;
use clap::{Args, Subcommand, ValueEnum};

/// Block traces: take them in, look at them, make others like them.
///
/// A trace says who read and wrote which blocks of a device when, and, where it knows, what they held. Other formats are
/// imported into files of at most 16 bytes a request with checksums, .btr; every command that reads a trace also takes the
/// formats that import recognises, and imports them on the fly.
/// - is standard input or output; compressed input (.zst, .gz) is read as it is.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum TraceCommand {
    Import(TraceImport),
    Record(TraceRecord),
    Head(TraceHead),
    Stat(TraceStat),
    Gen(TraceGen),
    Export(TraceExport),
    Replay(TraceReplay),
}

const EXAMPLES: &str = "\
Examples:
  bonsai trace import homes.blkparse.gz -o homes.btr
  bonsai trace import --columns time=1:s,offset=4:sector,length=5:sector,op=3 own.csv -o own.btr
  bonsai trace record --nbd web -o live.btr --for 60s
  bonsai trace stat homes.btr --html report.html
  bonsai trace gen --like homes.btr -n 10M -o twin.btr
  bonsai trace export twin.btr --to fio -o twin.iolog
  bonsai trace replay twin.btr --to 'nbd+unix:///web?socket=disks.sock' --check";

/// Formats of others.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum TraceFormat {
    /// FIU: `ts_ns pid process lba size R|W major minor digest`
    Fiu,
    /// What blkparse(1) prints
    Blkparse,
    /// Events `block_rq_issue` or `block_rq_complete` of the kernel, as text: tracefs, trace-cmd report, perf script
    Tracefs,
    /// MSR Cambridge: Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime
    Msr,
    /// fio's iolog, version 2 or 3
    Fio,
    /// The ARC paper's .lis: `start count ignored sequence`
    Arc,
    /// CSV, with --columns
    Csv,
    /// VMware's vscsiStats, version 1 or 2 (binary)
    Vscsi,
    /// Objects of libCacheSim (binary)
    #[value(name = "oracleGeneral", alias = "oracle-general")]
    OracleGeneral,
}

/// Which event of a request counts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum TraceEvent {
    /// It was given to the device
    #[default]
    Issue,
    /// It came to the block layer
    Queue,
    /// The device was done
    Complete,
}

/// Take in a trace of another format.
///
/// The format is recognised by the first lines. The file appears under its name when it is whole.
/// Requests that begin or end within a block of 4096 bytes are kept as they are, counted, and access each block that
/// they touch; contents they may have are left out, for they are those of no block.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai trace import mail.blkparse -o mail.btr
  blkparse -i sda | bonsai trace import - -o sda.btr
  bonsai trace import --skip-bad 10 old.csv.gz --format msr -o old.btr
  bonsai trace import cloudPhysicsIO.vscsi -o cloud.btr
  bonsai trace import fixed.txt --delimiter blank --columns offset=1:sector,length=2:sector -o fixed.btr
  bonsai trace import log.csv --columns time=when:ms,volume=disk,offset=addr,length=bytes,op=kind -o log.btr")]
pub(crate) struct TraceImport {
    /// The trace; - is standard input.
    pub(crate) from: PathBuf,

    /// Where to; - is standard output.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// Its format, where it is not recognised.
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub(crate) format: Option<TraceFormat>,

    /// What is in which column of CSV, by number or heading: NAME=COLUMN or NAME=COLUMN:UNIT, with commas between, of time (ns, us, ms, s,
    /// filetime), volume (several with +), offset and length (B, sector, KiB, block), op, digest.
    #[arg(long, value_name = "COLUMNS")]
    pub(crate) columns: Option<Columns>,

    /// Character between the values of CSV, or comma, semicolon, tab, bar, colon, or blank for any number of blanks and tabs. Guessed by
    /// the first lines unless given.
    #[arg(long, value_name = "DELIMITER")]
    pub(crate) delimiter: Option<Delimiter>,

    /// Objects of oracleGeneral: id makes each a block of 4096 bytes, as libCacheSim --ignore-obj-size does; B, sector, KiB or
    /// block says that they are addresses in this unit, and their sizes lengths in bytes.
    #[arg(long, value_name = "UNIT", default_value = "id")]
    pub(crate) objects: Objects,

    /// Which event is a request, in blkparse and tracefs.
    #[arg(long, value_name = "EVENT", value_enum, default_value_t)]
    pub(crate) event: TraceEvent,

    /// Sector at which blocks begin, such as 63 for partitions of old: addresses are moved up to where that
    /// is a multiple of 8.
    #[arg(long, value_name = "SECTOR", default_value_t = 0)]
    pub(crate) first_sector: u64,

    /// In FIU's format the name of the process tells volumes apart, too: recorders of machines put the
    /// guest's name there.
    #[arg(long)]
    pub(crate) by_process: bool,

    /// Bad records that are passed over, and counted; one more is an error.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) skip_bad: u64,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Record what a block server or a device of this machine is asked for, until Ctrl-C.
///
/// Exports of `bonsai drive serve` are recorded with fingerprints of what their blocks hold: equal contents have equal
/// ones within one recording, and nothing else can be told from them. Devices are recorded by events of the kernel, which say
/// nothing of contents; that needs root, and tracefs. Requests that come too quickly are counted, and the trace says how
/// many are missing where. The file is new, and for its owner alone. What was recorded can be read when the
/// recorder is killed, but for the last second.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai trace record --nbd web -o live.btr --for 60s
  bonsai trace record --nbd web --nbd dev -o both.btr
  bonsai trace record --device vda -o vda.btr
  bonsai trace record --nbd web -o - --for 10s | bonsai trace stat -")]
pub(crate) struct TraceRecord {
    /// An export of a server of this user; may be repeated, with exports of the same server.
    #[arg(long, value_name = "EXPORT", required_unless_present = "device")]
    pub(crate) nbd: Vec<String>,

    /// A disk, such as vda or /dev/sda.
    #[arg(long, value_name = "DISK", conflicts_with = "nbd")]
    pub(crate) device: Option<PathBuf>,

    /// Where to; - is standard output.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// End after this time.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) lasts: Option<Duration>,

    /// Which event of a device's request is recorded.
    #[arg(
        long,
        value_name = "EVENT",
        value_enum,
        default_value_t,
        conflicts_with = "nbd"
    )]
    pub(crate) event: TraceEvent,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the first requests of a trace.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai trace head homes.btr
  bonsai trace head -n 3 --json homes.btr")]
pub(crate) struct TraceHead {
    /// The trace; - is standard input.
    pub(crate) trace: PathBuf,

    /// How many requests.
    #[arg(short, long = "number", value_name = "N", default_value_t = 10)]
    pub(crate) number: u64,

    /// As JSON, a request a line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Describe a trace: what it reads and writes, and how often the same blocks and contents come again.
///
/// Distances of reuse are exact: the number of other blocks (or contents) that were accessed since the last access
/// of the same, so that the part of accesses with less than N is the hit ratio of an LRU cache of N blocks.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai trace stat homes.btr
  bonsai trace stat homes.btr --html report.html
  bonsai trace stat --json homes.btr")]
pub(crate) struct TraceStat {
    /// The trace; - is standard input.
    pub(crate) trace: PathBuf,

    /// Write a page with plots, in one file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Describe what there is of a trace that is cut off, as of a recorder that was killed.
    #[arg(long)]
    pub(crate) cut_off: bool,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make a trace like another, of any length.
///
/// The twin goes through the original's runs again, in an order that differs locally, on fresh addresses and contents,
/// as often as the length needs. So its hit ratios and distributions are those of the original, unless an option
/// changes one. The same seed makes the same twin. It is no way to hide what the original did.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai trace gen --like homes.btr -n 10M -o twin.btr
  bonsai trace gen --like homes.btr -n 1M --sharing 0.5 --writes 0.3 -o fewer.btr
  bonsai trace gen --like homes.btr -n 100k -o twin.btr --content image.raw")]
pub(crate) struct TraceGen {
    /// The original.
    #[arg(long, value_name = "TRACE")]
    pub(crate) like: PathBuf,

    /// How many requests: 10M is 10 million, k thousand, G 10^9. As many as the original has, unless said.
    #[arg(short, long = "number", value_name = "N", value_parser = count)]
    pub(crate) number: Option<u64>,

    /// Where to; - is standard output.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// Random seed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Runs in a window, which stay in their order.
    #[arg(long, value_name = "RUNS", default_value_t = 96)]
    pub(crate) window: usize,

    /// Windows that may change places with each other; 1 leaves the order as it is.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) shuffle: usize,

    /// Part of the blocks with a content of others that keep it; the rest get their own.
    #[arg(long, value_name = "0..1", default_value_t = 1.0)]
    pub(crate) sharing: f64,

    /// So many twins together, a window of each in turns, as more guests do: distances of reuse are so many times as long.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) together: u16,

    /// Part of the runs over known blocks that stay so; the rest go to new blocks.
    #[arg(long, value_name = "0..1", default_value_t = 1.0)]
    pub(crate) reuse: f64,

    /// Part of the requests that write; as in the original, unless said.
    #[arg(long, value_name = "0..1")]
    pub(crate) writes: Option<f64>,

    /// Longest run: pieces of so many blocks of 4096 bytes are laid apart, and requests cut where they end.
    #[arg(long, value_name = "BLOCKS")]
    pub(crate) longest_run: Option<u32>,

    /// Gaps of blocks that are never accessed, multiplied: jumps over them are so many times as long.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) gaps: f64,

    /// Times between requests, multiplied.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) pace: f64,

    /// Also write an image of each volume before the first request, for replay: equal contents are equal bytes. Images are
    /// sparse and end at the volume's last byte; with several volumes, each has the volume's name at the end of its own.
    #[arg(long, value_name = "FILE")]
    pub(crate) content: Option<PathBuf>,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Formats for others.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum TraceTo {
    /// fio's iolog of version 3, with times: fio --read_iolog
    Fio,
    /// fio's iolog of version 2, without times, for fio before 3.31
    Fio2,
    /// FIU: a line for each block, where contents are known
    Fiu,
    /// CSV: time_ns,volume,offset,length,op,digest
    Csv,
}

/// Write a trace in a format of others.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai trace export homes.btr --to fio -o homes.iolog
  bonsai trace export homes.btr --to csv -o - | head")]
pub(crate) struct TraceExport {
    /// The trace; - is standard input.
    pub(crate) trace: PathBuf,

    /// The format.
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub(crate) to: TraceTo,

    /// Where to; - is standard output.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// For fio: the file or device of all requests, instead of the volumes' names.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<String>,
}

/// Replay a trace against a server of NBD, such as `bonsai drive serve`, nbdkit or qemu-nbd.
///
/// Requests go to the exports in the order of the trace: at its times, faster, or as fast as the servers answer. Two that
/// touch the same blocks, of which one changes them, are never under way together. Writes write the bytes of their contents,
/// as the images of `bonsai trace gen --content` hold them: equal contents are equal bytes. They overwrite what is there!
/// Exit code 1 if a request failed or, with --check, found something else.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai trace gen --like homes.btr --shuffle 1 -o twin.btr --content disk.raw
  bonsai drive serve disk.raw --socket disks.sock &
  bonsai trace replay twin.btr --to 'nbd+unix:///disk?socket=disks.sock' --check
  bonsai trace replay twin.btr --to 'nbd://host/disk' --speed max --depth 8 --reads-only
  bonsai trace replay four.btr --merge --to 'nbd+unix:///disk.{device}?socket=disks.sock'
  bonsai trace replay two.btr --to vda=nbd://host/a --to vdb=nbd://host/b")]
pub(crate) struct TraceReplay {
    /// The trace; - is standard input.
    pub(crate) trace: PathBuf,

    /// Where to: nbd+unix:///EXPORT?socket=PATH or nbd://HOST:PORT/EXPORT. DEVICE=URI is for one device of the trace;
    /// {device} stands for a device's name, with _ for other than letters, digits and -, as in names of images.
    #[arg(long, value_name = "URI", required = true)]
    pub(crate) to: Vec<String>,

    /// How fast: 1x keeps the trace's times, 10x takes a tenth of them, max waits for answers alone.
    #[arg(long, value_name = "SPEED", default_value = "1x")]
    pub(crate) speed: Speed,

    /// Requests under way at a time, of all devices together.
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) depth: u32,

    /// Requests of one instant and kind that follow each other on a device are one, as they were before a recorder wrote a
    /// line for each block.
    #[arg(long)]
    pub(crate) merge: bool,

    /// Leave away what is not read.
    #[arg(long)]
    pub(crate) reads_only: bool,

    /// Write random data where the trace has no content hashes.
    #[arg(long)]
    pub(crate) fill: bool,

    /// Compare what is read with what has to be there: images are those of `bonsai trace gen --content`.
    #[arg(long)]
    pub(crate) check: bool,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How fast a trace is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Speed {
    /// So many times as fast as it was.
    Times(f64),
    /// As fast as servers answer.
    Max,
}

impl std::str::FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Max);
        }
        let factor: Option<f64> = text.strip_suffix('x').and_then(|n| n.parse().ok());
        factor
            .filter(|factor| (1e-6..=1e6).contains(factor))
            .map(Self::Times)
            .ok_or_else(|| format!("{text:?} is no speed: write 1x, 10x, 0.5x or max"))
    }
}

impl std::fmt::Display for Speed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Times(factor) => write!(f, "{factor}x"),
            Self::Max => f.write_str("max"),
        }
    }
}

/// A count with k, M or G.
fn count(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'M', 'G']) {
        Some(digits) => (digits, &text[digits.len()..]),
        None => (text, ""),
    };
    let scale = match unit {
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => 1,
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|n| n.checked_mul(scale))
        .filter(|n| *n > 0)
        .ok_or_else(|| format!("{text:?} is no count: write 500k, 10M or 1000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_factors() {
        assert_eq!("1x".parse(), Ok(Speed::Times(1.0)));
        assert_eq!("0.5x".parse(), Ok(Speed::Times(0.5)));
        assert_eq!("max".parse(), Ok(Speed::Max));
        for wrong in ["", "x", "1", "0x", "-1x", "infx", "NaNx", "fast"] {
            assert!(wrong.parse::<Speed>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn counts_have_units() {
        assert_eq!(count("10M"), Ok(10_000_000));
        assert_eq!(count("7"), Ok(7));
        for wrong in ["0", "M", "1m", "99999999999G", "-1"] {
            assert!(count(wrong).is_err(), "{wrong}");
        }
    }
}
