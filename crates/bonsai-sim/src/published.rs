//! Published figures of the schemes, each with where it is from.
//!
//! Traces: those of the IODEDUP paper (Koller and Rangaswami, FAST 2010), with 4 KiB blocks and 1 GiB of memory
//! (LRU, write-through) unless said otherwise. The slides are of the defence (Towards Improved Provisioning and
//! Utilization of Resources in Virtualized Environments), the counters those that were published with the thesis' simulator.
//! Slides and counters of the aggregated trace do not agree, and nothing says why.

use serde::Serialize;

/// A published result; ratios are %, times ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Published {
    /// The trace.
    pub trace: &'static str,
    /// The scheme, by our name.
    pub scheme: &'static str,
    /// Hits of reads and writes, %.
    pub hit_ratio: Option<f64>,
    /// Reads saved, %.
    pub reads_saved: f64,
    /// Mean time of a read, ms.
    pub read_ms: Option<f64>,
    /// Where it is from.
    pub source: &'static str,
}

const SLIDES: &str = "slides";
const COUNTERS: &str = "counters";

const fn slide(scheme: &'static str, hit_ratio: f64, reads_saved: f64, read_ms: f64) -> Published {
    Published {
        trace: "homes+webvm",
        scheme,
        hit_ratio: Some(hit_ratio),
        reads_saved,
        read_ms: Some(read_ms),
        source: SLIDES,
    }
}

const fn counted(
    trace: &'static str,
    scheme: &'static str,
    hit_ratio: Option<f64>,
    reads_saved: f64,
) -> Published {
    Published {
        trace,
        scheme,
        hit_ratio,
        reads_saved,
        read_ms: None,
        source: COUNTERS,
    }
}

/// Part of a trace's reads, %.
const fn of(hits: u32, reads: u32) -> f64 {
    100.0 * hits as f64 / reads as f64
}

const WEBVM: u32 = 3_116_456;
const WEBVM_ALL: u32 = 14_294_158;
const HOMES: u32 = 4_052_176;
const MAIL: u32 = 2_375_409;

/// All of them.
pub const FIGURES: [Published; 15] = [
    slide("plain", 61.2, 1.6, 7.9),
    slide("drive", 67.6, 18.5, 6.5),
    slide("iodedup:10%", 62.4, 4.3, 7.7),
    counted("homes+webvm", "plain", Some(61.1683), 1.61),
    counted("homes+webvm", "drive", Some(65.2281), 17.1),
    counted("homes+webvm", "iodedup:10%", Some(64.08), 4.13),
    counted(
        "webvm",
        "plain",
        Some(of(12_303_451, WEBVM_ALL)),
        of(1_471_112, WEBVM),
    ),
    counted(
        "webvm",
        "drive",
        Some(of(13_635_026, WEBVM_ALL)),
        of(2_722_411, WEBVM),
    ),
    counted("webvm", "iodedup:10%", None, of(704_111, WEBVM)),
    counted("homes", "plain", Some(62.692), of(54_820, HOMES)),
    counted("homes", "drive", Some(62.915), of(103_452, HOMES)),
    counted("homes", "iodedup:10%", None, of(62_801, HOMES)),
    counted("mail", "plain", Some(72.0434), of(251_609, MAIL)),
    counted("mail", "drive", Some(72.1848), of(315_921, MAIL)),
    counted("mail", "iodedup:10%", None, of(275_435, MAIL)),
];
