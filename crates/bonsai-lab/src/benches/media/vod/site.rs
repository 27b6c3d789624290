//! Two tenants, the link that they share, and whoever is outside.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::context::Context;
use crate::net::rooms::{ENDPOINT, House, Room, UPLINK, Wire};
use crate::service::shared_memory;

/// The link, Mbit/s: the card of the paper's server.
const LINK: u64 = 100;
/// Of the link, what no guarantee takes: others must not starve.
const REST: u64 = 3;
const MEDIA: u8 = 0;
const OTHER: u8 = 1;

/// What a viewer takes of layer 2, bits a second: pictures and sound, in datagrams of up to 1,400 bytes with
/// their headers.
const VIEWER: u64 = 2_080_000;

/// The tenants' host and its neighbours.
#[derive(Debug)]
pub(super) struct Site {
    house: House,
    bonsai: PathBuf,
    /// Runtime directories, one for each namespace.
    folder: TempDir,
}

/// What the media server is guaranteed, Mbit/s: what its viewers take, and 6 % more.
pub(super) fn guarantee(viewers: u32) -> u64 {
    (VIEWER * u64::from(viewers) * 106 / 100)
        .div_ceil(1_000_000)
        .min(LINK - REST)
}

impl Site {
    /// Makes it, with a link of 100 Mbit/s in both directions.
    ///
    /// # Errors
    /// No right to make namespaces, or `bonsai` is not there.
    pub(super) fn new(context: &Context) -> anyhow::Result<Self> {
        let bonsai = context.bonsai()?;
        let folder = tempfile::Builder::new()
            .prefix("bonsai-bench-")
            .tempdir_in(shared_memory())?;
        let site = Self {
            house: House::new(2, Wire::default())?,
            bonsai,
            folder,
        };
        // There is no card of 100 Mbit/s in a namespace: what leaves at either end is held to that.
        let tx = format!("tx={LINK}Mbit/s");
        site.link(&site.house.host, "host", &["set", UPLINK, &tx])?;
        site.link(site.outside(), "outside", &["set", ENDPOINT, &tx])?;
        Ok(site)
    }

    /// Gives the media server a guarantee on the link, in Mbit/s, or takes it away.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn protect(&self, guarantee: Option<u64>) -> anyhow::Result<()> {
        let port = House::port(MEDIA);
        let uplink = format!("uplink={UPLINK}");
        match guarantee {
            Some(rate) => {
                let guarantee = format!("guarantee={rate}Mbit/s");
                self.link(
                    &self.house.host,
                    "host",
                    &["set", &port, &guarantee, &uplink],
                )
            }
            None => self.link(&self.house.host, "host", &["clear", &port]),
        }
    }

    /// `bonsai link`, in a room.
    fn link(&self, room: &Room, name: &str, words: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(&self.bonsai);
        command.arg("link").args(words);
        command.env("BONSAI_RUNTIME_DIR", self.folder.path().join(name));
        room.run(&mut command, "").map(|_| ())
    }

    /// Where the media server is.
    pub(super) fn media(&self) -> (&Room, Ipv4Addr) {
        (
            &self.house.tenants[usize::from(MEDIA)],
            House::address(MEDIA),
        )
    }

    /// Where the stress is.
    pub(super) fn other(&self) -> &Room {
        &self.house.tenants[usize::from(OTHER)]
    }

    /// Where viewers are, and whoever the stress talks to.
    pub(super) fn outside(&self) -> &Room {
        self.house.outside().room
    }

    /// The address of the outside.
    pub(super) fn outside_address(&self) -> Ipv4Addr {
        self.house.outside().address
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::packet::udp_frame;

    #[test]
    fn the_guarantee_covers_what_viewers_take_and_leaves_something() {
        assert_eq!(guarantee(40), 89);
        assert_eq!(guarantee(12), 27);
        assert_eq!(guarantee(1_000), LINK - REST);
        // Whole datagrams, and the sound's smaller ones: 47 of some 340 bytes a second.
        let video = 1_790_000 * udp_frame(1_400) / 1_388;
        let sound = (128_000 / 8 + 47 * (udp_frame(0) + 16)) * 8;
        assert!(
            (VIEWER * 95 / 100..VIEWER).contains(&(video + sound)),
            "{}",
            video + sound
        );
    }
}
