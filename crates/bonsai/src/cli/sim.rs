//! Simulation of caches.

use std::path::PathBuf;

use bonsai_sim::{Latency, Policy, Scheme};
use bonsai_units::Bytes;
use clap::{Args, Subcommand};

/// Block caches over a trace: what plain caching, IODEDUP and DRIVE would save.
///
/// Caches allocate on read and write, and write through. A trace is one of bonsai trace; where it contradicts itself
/// (a read returns what nobody wrote) the first access to a block is believed, and later reads return what a disk would.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum SimCommand {
    Run(SimRun),
    Curve(SimCurve),
    Table(SimTable),
}

const EXAMPLES: &str = "\
Examples:
  bonsai sim run homes.btr --cache 512MiB --scheme plain,iodedup:10%,drive,drive:scan,ideal
  bonsai sim run homes.btr --cache 256MiB,1GiB --policy lru,arc,s3fifo --html report.html
  bonsai sim curve homes.btr --html curves.html
  bonsai sim table homes.btr webvm.btr --cache 1GiB";

/// Run schemes and policies in caches of given sizes.
///
/// plain: no use of contents. iodedup:P%: P % of the memory is a second cache, by content. drive: reads go to the block with
/// the same content that was fetched last. ideal: one cache by content. Words behind drive: scan (contents are known
/// beforehand), invalidate (a write makes a block unknown), intra (contents are shared within a volume only), max=16MiB (bound
/// of the metadata); behind iodedup: invalidate.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai sim run homes.btr --cache 512MiB
  bonsai sim run homes.btr --cache 128MiB,512MiB --scheme drive,drive:intra,drive:max=4MiB --csv
  bonsai sim run homes.btr --cache 1GiB --policy lru,arc,clock,s3fifo,sieve --latency cache=230ns,disk=8ms")]
pub(crate) struct SimRun {
    /// The trace; - is standard input. Several with + between are taken as one, in the order of their times: their
    /// devices stay apart.
    pub(crate) trace: PathBuf,

    /// Memory: whole blocks of 4 KiB, up to 256 GiB; several with commas.
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        required = true,
        allow_hyphen_values = true
    )]
    pub(crate) cache: Vec<Bytes>,

    /// Schemes, with commas.
    #[arg(
        long,
        value_name = "SCHEMES",
        value_delimiter = ',',
        default_value = "plain,iodedup:10%,drive,drive:scan,ideal"
    )]
    pub(crate) scheme: Vec<Scheme>,

    /// Policies of the cache of blocks, with commas: lru, arc, clock, s3fifo, sieve.
    #[arg(
        long,
        value_name = "POLICIES",
        value_delimiter = ',',
        default_value = "lru"
    )]
    pub(crate) policy: Vec<Policy>,

    #[command(flatten)]
    pub(crate) how: SimHow,

    /// As JSON.
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,

    /// As CSV.
    #[arg(long)]
    pub(crate) csv: bool,

    /// Write a page with curves, in one file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// How it is simulated.
#[derive(Args, Debug)]
pub(crate) struct SimHow {
    /// Times by which the mean read is made: published (cache=230ns,disk=8ms), metadata (cache=83ns,disk=13.7ms,
    /// lookup=100ns,update=33us), or such a list.
    #[arg(long, value_name = "TIMES", default_value = "published", value_parser = latency)]
    pub(crate) latency: Latency,

    #[command(flatten)]
    pub(crate) of: SimOf,
}

/// How the trace is taken, and how many threads run.
#[derive(Args, Debug)]
pub(crate) struct SimOf {
    /// Take the contents of reads from the trace, even where it contradicts itself.
    #[arg(long)]
    pub(crate) as_recorded: bool,

    /// Number of threads [default: the number of CPUs].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

/// Hit ratios of LRU for every size, each scheme in one exact pass.
///
/// DRIVE has such a curve because where its reads go does not depend on what is cached, as long as writes update its metadata
/// and that is without bound.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai sim curve homes.btr
  bonsai sim curve homes.btr --points 32 --csv
  bonsai sim curve huge.btr --sample 100 --html curves.html")]
pub(crate) struct SimCurve {
    /// The trace; - is standard input. Several with + between are taken as one, in the order of their times: their
    /// devices stay apart.
    pub(crate) trace: PathBuf,

    /// Schemes, with commas: plain, drive, drive:scan, drive:intra, ideal. Those that have no curve of this trace are left
    /// out, and named.
    #[arg(
        long,
        value_name = "SCHEMES",
        value_delimiter = ',',
        default_value = "plain,drive,drive:scan,ideal"
    )]
    pub(crate) scheme: Vec<Scheme>,

    /// Sample one block in N (8 and more), and print the error of each point: half of its 95 % confidence interval.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(8..=1_000_000))]
    pub(crate) sample: Option<u32>,

    /// Random seed of the sample.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "sample")]
    pub(crate) seed: u64,

    /// Sizes shown for each doubling, from 1 MiB on; 1 in text, 8 elsewhere, unless said.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) points: Option<u32>,

    #[command(flatten)]
    pub(crate) of: SimOf,

    /// As JSON.
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,

    /// As CSV.
    #[arg(long)]
    pub(crate) csv: bool,

    /// Write a page with the curves, in one file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Write the plot of reads saved, as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) figure: Option<PathBuf>,
}

/// The table of the thesis on DRIVE, for given traces, beside its published figures.
///
/// Hit ratio, disk reads saved and mean read latency of plain caching, DRIVE and IODEDUP (10 % of the memory by content), LRU.
/// The published ones are of the FIU traces, with 1 GiB.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai sim table homes.btr webvm.btr mail.btr homes.btr+webvm.btr --html table.html
  bonsai sim table debian4.btr --cache 512MiB")]
pub(crate) struct SimTable {
    /// The traces, a row for each scheme; with + between several are taken as one, in the order of their times.
    #[arg(required = true, value_name = "TRACE")]
    pub(crate) traces: Vec<PathBuf>,

    /// Memory: whole blocks of 4 KiB, up to 256 GiB.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1GiB",
        allow_hyphen_values = true
    )]
    pub(crate) cache: Bytes,

    #[command(flatten)]
    pub(crate) how: SimHow,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// Write a page with the table and a plot, in one file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Write the plot of reads saved, as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) figure: Option<PathBuf>,
}

/// Times by name, or as `cache=230ns,disk=8ms,lookup=100ns,update=33us`.
fn latency(text: &str) -> Result<Latency, String> {
    let mut latency = Latency {
        lookup_ns: 0.0,
        update_ns: 0.0,
        ..Latency::PUBLISHED
    };
    match text {
        "published" => return Ok(Latency::PUBLISHED),
        "metadata" => return Ok(Latency::WITH_METADATA),
        _ => (),
    }
    let mut said = Vec::new();
    for word in text.split(',') {
        let wrong = || {
            format!(
                "`{word}` is no time: published, metadata, or cache=230ns,disk=8ms,lookup=100ns,update=33us"
            )
        };
        let (name, time) = word.split_once('=').ok_or_else(wrong)?;
        let to = match name {
            "cache" => &mut latency.cache_ns,
            "disk" => &mut latency.disk_ns,
            "lookup" => &mut latency.lookup_ns,
            "update" => &mut latency.update_ns,
            _ => return Err(wrong()),
        };
        *to = nanoseconds(time).ok_or_else(wrong)?;
        if said.contains(&name) {
            return Err(format!(
                "`{word}`: {name} was given before; each time stands there once"
            ));
        }
        said.push(name);
    }
    Ok(latency)
}

fn nanoseconds(text: &str) -> Option<f64> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let (number, factor) = units
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    let number: f64 = number.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_names_and_units() {
        assert_eq!(latency("published"), Ok(Latency::PUBLISHED));
        assert_eq!(latency("metadata"), Ok(Latency::WITH_METADATA));
        let own = latency("disk=0.1ms,cache=100ns,update=2us").unwrap();
        assert_eq!(
            (own.disk_ns, own.cache_ns, own.update_ns),
            (1e5, 100.0, 2_000.0)
        );
        for bad in ["", "disk", "disk=8", "disk=-1ms", "disk=nanms", "tape=1s"] {
            assert!(latency(bad).unwrap_err().contains("is no time"), "{bad}");
        }
    }
}
