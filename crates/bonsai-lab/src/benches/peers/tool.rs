//! Bonsai and its peers: how each puts a program under a limit.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::super::network::Network;
use super::super::web::Wrap;
use crate::child::is_installed;
use crate::context::Context;
use crate::service::{Doors, Service};

/// What limits.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Tool {
    Bonsai,
    /// Wrappers around the socket calls of one process.
    Trickle,
    /// The kernel's queue of an interface: `tbf` on the loopback of a network
    /// namespace.
    Tc,
    /// The kernel's throttle of a block device: cgroup v1.
    Blkio,
}

impl Tool {
    /// Its name in tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bonsai => "bonsai",
            Self::Trickle => "trickle",
            Self::Tc => "tc tbf",
            Self::Blkio => "cgroup blkio",
        }
    }
}

/// A limit in force, for as long as the value lives.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// What a command has to be wrapped in.
    pub(super) wrap: Wrap,
    service: Option<Service>,
    _group: Option<Group>,
}

impl Applied {
    /// Bonsai's limit on a class.
    pub(super) fn bonsai(context: &Context, class: &str, rate: u64) -> anyhow::Result<Self> {
        let service = context.service(Doors::Both, &[format!("{class}={rate}B/s")])?;
        let environment = service
            .environment()
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec();
        let wrap = Wrap {
            environment,
            ..Wrap::default()
        };
        Ok(Self {
            wrap,
            service: Some(service),
            _group: None,
        })
    }

    /// trickle's limit on one direction, which it takes in KiB/s.
    pub(super) fn trickle(direction: &str, rate: u64) -> anyhow::Result<Self> {
        anyhow::ensure!(is_installed("trickle"), "trickle is not installed");
        let kib = (rate as f64 / 1024.0).round();
        let tool = ["trickle", "-s", direction, &format!("{kib}")]
            .map(str::to_owned)
            .to_vec();
        Ok(Self {
            wrap: Wrap {
                tool,
                ..Wrap::default()
            },
            ..Self::default()
        })
    }

    /// Runs in a network namespace whose loopback is limited.
    pub(super) fn in_network(network: &Network) -> Self {
        Self {
            wrap: Wrap {
                place: network.place(),
                ..Wrap::default()
            },
            ..Self::default()
        }
    }

    /// A cgroup whose reads from, or writes to, the disk of `file` are limited.
    pub(super) fn blkio(file: &Path, writes: bool, rate: u64) -> anyhow::Result<Self> {
        let group = Group::make(file, writes, rate)?;
        let procs = group
            .folder
            .join("cgroup.procs")
            .to_string_lossy()
            .into_owned();
        let tool = ["sh", "-c", "echo $$ >\"$0\" && exec \"$@\"", &procs]
            .map(str::to_owned)
            .to_vec();
        Ok(Self {
            wrap: Wrap {
                tool,
                ..Wrap::default()
            },
            service: None,
            _group: Some(group),
        })
    }

    /// An error if the program did not enter its service.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if let Some(service) = &self.service {
            let (attached, _) = service.attached();
            anyhow::ensure!(attached > 0, "the program did not attach to its service");
            anyhow::ensure!(
                service.unshaped() == 0,
                "{} calls were not decided on",
                service.unshaped()
            );
        }
        Ok(())
    }
}

/// A group of the blkio controller; removed with the value.
#[derive(Debug)]
struct Group {
    folder: PathBuf,
}

impl Group {
    fn make(file: &Path, writes: bool, rate: u64) -> anyhow::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let root = Path::new("/sys/fs/cgroup/blkio");
        anyhow::ensure!(
            root.join("blkio.throttle.read_bps_device").exists(),
            "there is no cgroup v1 blkio controller"
        );
        let device = std::fs::metadata(file)?.dev();
        let mut number = format!(
            "{}:{}",
            rustix::fs::major(device),
            rustix::fs::minor(device)
        );
        let block = PathBuf::from(format!("/sys/dev/block/{number}"));
        anyhow::ensure!(
            block.exists(),
            "the temporary folder is on no block device of its own"
        );
        // Whole disks are throttled, not partitions.
        if block.join("partition").exists() {
            number = std::fs::read_to_string(block.join("../dev"))?
                .trim()
                .to_owned();
        }
        let folder = root.join(format!("bonsai-bench-{}", std::process::id()));
        std::fs::create_dir(&folder)
            .with_context(|| format!("{}: cannot be made", folder.display()))?;
        let group = Self { folder };
        let direction = if writes { "write" } else { "read" };
        let setting = group
            .folder
            .join(format!("blkio.throttle.{direction}_bps_device"));
        std::fs::write(&setting, format!("{number} {rate}"))
            .with_context(|| format!("{}", setting.display()))?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process of it may take a moment to be gone.
        for _ in 0..20 {
            match std::fs::remove_dir(&self.folder) {
                Err(error)
                    if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) =>
                {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
                _ => return,
            }
        }
    }
}
