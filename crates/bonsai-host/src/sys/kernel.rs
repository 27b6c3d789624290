use rustix::io::Errno;
use rustix::thread::ClockId;
use rustix::thread::futex::{WaitvFlags, waitv};

use super::{Capability, State};

/// Version of the running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRelease {
    /// The first number, as 6 in `6.1.0-13-amd64`.
    pub major: u32,
    /// The second number, as 1 there.
    pub minor: u32,
    /// All of it, as `uname -r` prints it.
    pub text: String,
}

impl KernelRelease {
    /// Reads a release as `uname -r` prints it; `None` if it does not start with two numbers.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (major, rest) = text.split_once('.')?;
        let minor_end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        Some(Self {
            major: major.parse().ok()?,
            minor: rest.get(..minor_end)?.parse().ok()?,
            text: text.to_owned(),
        })
    }

    /// Whether it is at least version `major.minor`.
    #[must_use]
    pub fn at_least(&self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }
}

/// The release of the running kernel; `None` if it has no usual number.
#[must_use]
pub fn kernel_release() -> Option<KernelRelease> {
    let uname = rustix::system::uname();
    KernelRelease::parse(&uname.release().to_string_lossy())
}

/// The oldest kernel that everything needed by the preload library comes with: futexes, memory that
/// is wiped on fork (4.14).
const OLDEST: (u32, u32) = (4, 14);

pub(super) fn release() -> Capability {
    match kernel_release() {
        Some(release) if release.at_least(OLDEST.0, OLDEST.1) => {
            Capability::new("kernel", State::Yes, format!("Linux {}", release.text))
        }
        Some(release) => {
            let detail = format!(
                "Linux {} is older than {}.{}",
                release.text, OLDEST.0, OLDEST.1
            );
            Capability::new("kernel", State::No, detail)
        }
        None => Capability::new("kernel", State::Unknown, "its release has no number"),
    }
}

pub(super) fn futex_waitv() -> Capability {
    // Nothing to wait for is an invalid argument to a kernel that has the call.
    let (state, detail) = match waitv(&[], WaitvFlags::empty(), None, ClockId::Monotonic) {
        Ok(_) | Err(Errno::INVAL) => (
            State::Yes,
            "after a signal, a wait for a limit ends or goes on as the call would".to_owned(),
        ),
        Err(Errno::NOSYS) => {
            let detail = "Linux 5.16 brought it; after a signal, a wait for a limit goes on if all handlers of the program \
                          have SA_RESTART";
            (State::No, detail.to_owned())
        }
        Err(errno) => (State::Unknown, errno.to_string()),
    };
    Capability::new("futex_waitv", state, detail)
}

#[cfg(test)]
mod tests {
    use super::KernelRelease;

    #[test]
    fn releases() {
        for (text, major, minor) in [
            ("6.1.0-13-amd64", 6, 1),
            ("5.15", 5, 15),
            ("6.18.44-fc", 6, 18),
            ("6.7-rc1", 6, 7),
            ("10.0+", 10, 0),
        ] {
            let release = KernelRelease::parse(text).expect(text);
            assert_eq!(
                (release.major, release.minor, &*release.text),
                (major, minor, text)
            );
        }
        for text in ["", "6", "6.", "x.1", "6.x"] {
            assert_eq!(KernelRelease::parse(text), None, "{text}");
        }
        let release = KernelRelease::parse("5.16.1").expect("a release");
        assert!(release.at_least(5, 16) && release.at_least(4, 99) && !release.at_least(6, 0));
    }
}
