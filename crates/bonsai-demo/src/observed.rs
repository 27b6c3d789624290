//! What `bonsai` itself said while it was measured (its JSON documents), and the
//! facts of the machine. Only what the page shows is read; more may be there.

use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Everything seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// `bonsai status` in each phase.
    pub(crate) phases: Vec<Option<Status>>,
    /// `bonsai stats` of the bulk copier at the end.
    pub(crate) stats: Stats,
    /// `bonsai audit` of the bulk copier at the end.
    pub(crate) audit: Audit,
    /// Facts of the machine: name, value.
    pub(crate) facts: Vec<(String, String)>,
}

/// `bonsai status --json`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Status {
    /// All services.
    pub(crate) services: Vec<Service>,
}

/// One service of it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Service {
    /// Its name.
    pub(crate) name: String,
    /// Its limits.
    #[serde(default)]
    pub(crate) limits: Vec<Limit>,
    /// Processes that Bonsai is in.
    #[serde(default)]
    pub(crate) processes: Vec<Process>,
    /// Processes that it is not in.
    #[serde(default)]
    pub(crate) uncovered: Vec<Uncovered>,
    /// Calls without a decision.
    #[serde(default)]
    pub(crate) unshaped: Vec<Unshaped>,
}

/// A limit.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Limit {
    /// What the calls under it moved, units/s.
    pub(crate) got: Option<f64>,
}

/// A process that Bonsai is in.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Process {
    /// File name of its program.
    pub(crate) program: String,
    /// How far: `patched`, `symbols_only` or `entered`.
    pub(crate) covered: String,
    /// Why not further.
    pub(crate) reason: Option<String>,
}

/// A process that it is not in.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Uncovered {
    /// File name of its program.
    pub(crate) program: String,
    /// Why.
    pub(crate) reason: String,
}

/// Calls that went through without a decision.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Unshaped {
    /// Why.
    pub(crate) about: String,
    /// How many.
    pub(crate) calls: u64,
}

/// `bonsai stats --json`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Stats {
    /// Each call that was made.
    #[serde(default)]
    pub(crate) calls: Vec<Call>,
    /// ns.
    #[serde(default)]
    pub(crate) longest_wait_ns: u64,
}

/// One call of it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Call {
    /// Its name.
    pub(crate) call: String,
    /// Its waits.
    pub(crate) waits: Waits,
}

/// Waits that were imposed.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Waits {
    /// How many.
    pub(crate) count: u64,
    /// Their sum, ns.
    pub(crate) total_ns: u64,
    /// Their histogram.
    #[serde(default)]
    pub(crate) histogram: Vec<Bin>,
}

/// One range of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Bin {
    /// From here, ns.
    pub(crate) from_ns: u64,
    /// To below here, ns; `None` for no end.
    pub(crate) to_ns: Option<u64>,
    /// How many.
    pub(crate) count: u64,
}

/// `bonsai audit --json`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Audit {
    /// The service as a whole.
    pub(crate) total: Compared,
}

/// Both directions.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Compared {
    /// What it wrote, to sockets, too.
    pub(crate) written: Side,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Side {
    /// By the kernel, bytes.
    pub(crate) kernel: Option<u64>,
    /// What Bonsai did not see of it, bytes.
    pub(crate) unseen: Option<u64>,
}

impl Observed {
    /// Reads what the folder has for the phases of these keys.
    ///
    /// # Errors
    /// A file is missing, or is not what it should be.
    pub(crate) fn read(folder: &Path, keys: &[&str]) -> anyhow::Result<Self> {
        let status = |key: &&str| json(&folder.join(format!("status-{key}.json"))).map(Some);
        Ok(Self {
            phases: keys.iter().map(status).collect::<anyhow::Result<_>>()?,
            stats: json(&folder.join("stats.json"))?,
            audit: json(&folder.join("audit.json"))?,
            facts: facts(&text(&folder.join("facts.tsv"))?),
        })
    }

    /// A service in a phase.
    pub(crate) fn service(&self, phase: usize, name: &str) -> Option<&Service> {
        let status = self.phases.get(phase)?.as_ref()?;
        status.services.iter().find(|service| service.name == name)
    }

    /// A fact of the machine.
    pub(crate) fn fact(&self, name: &str) -> Option<&str> {
        self.facts
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))
}

fn json<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    serde_json::from_str(&text(path)?)
        .with_context(|| format!("{}: is not as expected", path.display()))
}

fn facts(text: &str) -> Vec<(String, String)> {
    let pairs = text.lines().filter_map(|line| line.split_once('\t'));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}
