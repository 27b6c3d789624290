//! What services share of a machine.

use core::fmt;
use core::str::FromStr;

use crate::rate::{Rate, Unit};

/// One of the things that the services of a machine share, each with a rate of its own.
///
/// Its name is that of the class of calls that moves it, so that `send=40Mbit/s` means
/// the same calls everywhere; only `calls` is the class `all`, counted in calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// Bytes read from disk: what moves through files, pipes, terminals and devices.
    Read,
    /// Bytes written to disk, likewise.
    Write,
    /// Bytes sent on sockets.
    Send,
    /// Bytes received on sockets.
    Recv,
    /// Calls made.
    Calls,
}

/// A word that names no resource.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no resource: the resources are read, write, send, recv and calls")]
pub struct ResourceError(String);

impl Resource {
    /// How many there are.
    pub const COUNT: usize = 5;

    /// All of them, in the order of their indices.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Read, Self::Write, Self::Send, Self::Recv, Self::Calls];

    /// Its place in an array of all.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Send => "send",
            Self::Recv => "recv",
            Self::Calls => "calls",
        }
    }

    /// The class of calls that a limit on it is written with.
    #[must_use]
    pub const fn class(self) -> &'static str {
        match self {
            Self::Calls => "all",
            other => other.name(),
        }
    }

    /// What is counted.
    #[must_use]
    pub const fn unit(self) -> Unit {
        match self {
            Self::Calls => Unit::Calls,
            _ => Unit::Bytes,
        }
    }

    /// A rate of it for people: network rates in bits, others in bytes or calls.
    #[must_use]
    pub fn for_people(self, rate: Rate) -> String {
        match self {
            Self::Send | Self::Recv => rate.network(),
            _ => rate.storage(),
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Resource {
    type Err = ResourceError;

    fn from_str(text: &str) -> Result<Self, ResourceError> {
        let mut all = Self::ALL.into_iter();
        all.find(|resource| resource.name() == text)
            .ok_or_else(|| ResourceError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (i, resource) in Resource::ALL.into_iter().enumerate() {
            assert_eq!(resource.index(), i);
            assert_eq!(resource.to_string().parse(), Ok(resource));
        }
        let error = "disk".parse::<Resource>().expect_err("no resource");
        assert!(
            error
                .to_string()
                .contains("read, write, send, recv and calls")
        );
    }

    #[test]
    fn rates_are_shown_in_their_own_units() {
        let rate = Rate::bytes_per_sec(10_000_000);
        assert_eq!(Resource::Send.for_people(rate), "80 Mbit/s");
        assert_eq!(Resource::Read.for_people(rate), "10 MB/s");
        assert_eq!(
            Resource::Calls.for_people(Rate::calls_per_sec(100)),
            "100/s"
        );
    }
}
