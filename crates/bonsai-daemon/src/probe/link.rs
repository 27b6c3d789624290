//! The speed of a network interface, as its driver says.

use std::fs;
use std::path::Path;

/// A link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// Megabits a second.
    pub(super) mbit: u64,
    /// Whether it sends and receives at the same time.
    pub(super) full_duplex: bool,
}

/// The interface that the kernel sends by what goes to the internet.
pub(super) fn of_default_route() -> Result<String, String> {
    let look = || -> Result<Vec<String>, bonsai_link::Error> {
        let ways = bonsai_link::ways_out(None)?;
        let links = bonsai_link::Site::open(None)?.links()?.into_iter();
        let named = links.filter(|link| ways.contains(&link.index));
        Ok(named.map(|link| link.name).collect())
    };
    let mut names = look().map_err(|error| bonsai_host::sentence(&error))?;
    match (names.pop(), names.as_slice()) {
        (Some(name), []) => Ok(name),
        (Some(last), others) => Err(format!(
            "routes lead by {} and {last}, so it is not known which link is meant: say interface",
            others.join(", ")
        )),
        (None, _) => Err(
            "there is no default route, so it is not known which link is meant: say interface"
                .to_owned(),
        ),
    }
}

/// Looks at an interface, in a folder as `/sys/class/net`.
pub(super) fn look(net: &Path, name: &str) -> Result<Link, String> {
    // The kernel's own rule (dev_valid_name), and nothing that leads elsewhere.
    let is_name = !name.is_empty()
        && name.len() < 16
        && ![".", ".."].contains(&name)
        && name
            .bytes()
            .all(|b| b.is_ascii_graphic() && b != b'/' && b != b':');
    let place = net.join(if is_name { name } else { "" });
    if !is_name || !place.exists() {
        return Err(format!("there is no network interface {name:?}"));
    }
    let read = |file: &str| {
        let text = fs::read_to_string(place.join(file)).unwrap_or_default();
        text.trim().to_owned()
    };
    let configure = "configure the capacity (bonsai config set capacity.send=1Gbit/s)";
    // What has no device below it has no line either, whatever it says: a pair of virtual ends
    // says 10 Gbit/s.
    if !place.join("device").exists() {
        return Err(format!(
            "{name} is no device, so it has no speed of its own: {configure}"
        ));
    }
    if read("operstate") == "down" {
        return Err(format!(
            "{name} is down, so its speed is not known: {configure}"
        ));
    }
    let speed = read("speed").parse::<i64>().ok().filter(|mbit| *mbit > 0);
    let mbit = speed.and_then(|mbit| u64::try_from(mbit).ok());
    let mbit = mbit.ok_or_else(|| {
        format!("the driver of {name} does not say how fast its link is: {configure}")
    })?;
    Ok(Link {
        mbit,
        full_duplex: read("duplex") != "half",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_that_says_its_speed_has_one() {
        let net = tempfile::tempdir().expect("a folder");
        let make = |name: &str, files: &[(&str, &str)]| {
            let place = net.path().join(name);
            fs::create_dir(&place).expect("a folder");
            for (file, text) in files {
                fs::write(place.join(file), text).expect("a file");
            }
        };
        let device = ("device", "");
        make(
            "eth0",
            &[
                device,
                ("speed", "2500\n"),
                ("operstate", "up\n"),
                ("duplex", "full\n"),
            ],
        );
        make(
            "eth1",
            &[
                device,
                ("speed", "100\n"),
                ("operstate", "unknown\n"),
                ("duplex", "half\n"),
            ],
        );
        make("eth2", &[device, ("speed", "-1\n"), ("operstate", "up\n")]);
        make(
            "eth3",
            &[device, ("speed", "1000\n"), ("operstate", "down\n")],
        );
        make("eth4", &[device]);
        make("veth0", &[("speed", "10000\n"), ("operstate", "up\n")]);
        make("lo", &[]);
        let look = |name| look(net.path(), name);
        let link = |mbit, full_duplex| Ok(Link { mbit, full_duplex });
        assert_eq!(look("eth0"), link(2500, true));
        assert_eq!(look("eth1"), link(100, false));
        for (name, expected) in [
            ("eth2", "does not say"),
            ("eth3", "is down"),
            ("eth4", "does not say"),
            ("veth0", "no speed of its own"),
            ("lo", "no speed of its own"),
            ("eth9", "there is no network interface"),
            ("", "there is no network interface"),
            ("..", "there is no network interface"),
            ("../net/eth0", "there is no network interface"),
        ] {
            let text = look(name).expect_err(name);
            assert!(
                text.contains(expected) && !text.contains('\n'),
                "{name}: {text}"
            );
        }
    }
}
