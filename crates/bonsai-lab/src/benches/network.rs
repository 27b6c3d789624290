//! A network namespace whose loopback is a link of a certain rate.

use std::process::Command;

use anyhow::Context as _;

fn command(words: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(words[0])
        .args(&words[1..])
        .output()
        .with_context(|| format!("{} cannot be started", words[0]))?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(
        output.status.success(),
        "{}: {}",
        words.join(" "),
        said.trim()
    );
    Ok(())
}

/// A network namespace with a limited loopback; removed with the value.
#[derive(Debug)]
pub(super) struct Network {
    name: String,
}

impl Network {
    /// A link where each packet waits for those before it.
    ///
    /// # Errors
    /// No root, no iproute2, or no such queue in this kernel.
    pub(super) fn make(rate: u64) -> anyhow::Result<Self> {
        let network = Self::up()?;
        let rate = format!("{}bit", rate * 8);
        network.inside(
            "tc qdisc add dev lo root tbf burst 64kb latency 100ms rate",
            &[&rate],
        )?;
        Ok(network)
    }

    /// A link that serves datagrams and all else in turn, where there is not room for both.
    ///
    /// # Errors
    /// As [`Network::make`].
    pub(super) fn in_turn(rate: u64) -> anyhow::Result<Self> {
        const CLASS: &str = "burst 64kb cburst 64kb quantum 3028";
        const FILTER: &str = "tc filter add dev lo parent 1: protocol ip";
        let network = Self::up()?;
        let (all, half) = (format!("{}bit", rate * 8), format!("{}bit", rate * 4));
        network.inside("tc qdisc add dev lo root handle 1: htb default 20", &[])?;
        let class = |words: &str, rate: &str| {
            let words = format!("tc class add dev lo {words} htb {CLASS} ceil {all} rate");
            network.inside(&words, &[rate])
        };
        class("parent 1: classid 1:1", &all)?;
        class("parent 1:1 classid 1:10", &half)?;
        class("parent 1:1 classid 1:20", &half)?;
        network.inside(
            FILTER,
            &[
                "u32", "match", "ip", "protocol", "17", "0xff", "flowid", "1:10",
            ],
        )?;
        Ok(network)
    }

    fn up() -> anyhow::Result<Self> {
        let name = format!("bonsai-bench-{}", std::process::id());
        command(&["ip", "netns", "add", &name])?;
        let network = Self { name };
        // Packets as on a wire: the loopback's 64 KiB are more than such a bucket.
        network.inside("ip link set lo mtu 1500 up", &[])?;
        Ok(network)
    }

    /// Runs a command of so many words, and more, in it.
    fn inside(&self, words: &str, more: &[&str]) -> anyhow::Result<()> {
        let mut all = vec!["ip", "netns", "exec", &self.name];
        all.extend(words.split(' '));
        all.extend(more);
        command(&all)
    }

    /// What starts a command in it.
    pub(super) fn place(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.name]
            .map(str::to_owned)
            .to_vec()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Nothing else can be done about it.
        let _ = command(&["ip", "netns", "delete", &self.name]);
    }
}
