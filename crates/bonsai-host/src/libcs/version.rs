//! The version of a C library, as its file tells it.

use std::os::fd::OwnedFd;

use crate::elf::LibcFlavour;

/// The version in a file that was opened by its path only.
pub(super) fn of(file: &OwnedFd, flavour: LibcFlavour) -> Option<String> {
    let bytes = super::read(file)?;
    match flavour {
        LibcFlavour::Musl => musl(&bytes),
        _ => glibc(&bytes),
    }
}

/// Version in the line that glibc prints when it is executed: `GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.`
fn glibc(bytes: &[u8]) -> Option<String> {
    const BEFORE: &[u8] = b" release version ";
    let banner = find(bytes, b"GNU C Library ")?;
    let banner = banner.get(..256).unwrap_or(banner);
    let version = find(banner, BEFORE)?.get(BEFORE.len()..)?;
    let digits = version.iter().take_while(|byte| is_of_version(byte));
    let version: Vec<u8> = digits.copied().collect();
    let text = String::from_utf8(version).ok()?;
    Some(text.trim_end_matches('.').to_owned()).filter(|text| !text.is_empty())
}

/// musl's `__libc_version`, a string of its own: `1.2.3`, or `1.2.3-git-12-g0123456`. None where there are several that look like one.
fn musl(bytes: &[u8]) -> Option<String> {
    let strings = bytes.split(|byte| *byte == 0);
    let versions = strings.filter(|string| {
        let number: Vec<u8> = string.iter().copied().take_while(is_of_version).collect();
        let rest = string.get(number.len()..).unwrap_or_default();
        number.iter().filter(|byte| **byte == b'.').count() == 2
            && number.len() <= 9
            && number.starts_with(b"1.")
            && number
                .split(|byte| *byte == b'.')
                .all(|part| !part.is_empty())
            && (rest.is_empty() || rest.starts_with(b"-git-") && rest.len() < 40)
    });
    let mut versions: Vec<&[u8]> = versions.collect();
    versions.dedup();
    let [version] = versions.as_slice() else {
        return None;
    };
    String::from_utf8(version.to_vec()).ok()
}

const fn is_of_version(byte: &u8) -> bool {
    byte.is_ascii_digit() || *byte == b'.'
}

/// `bytes` from the first place of `what` on.
fn find<'a>(bytes: &'a [u8], what: &[u8]) -> Option<&'a [u8]> {
    let at = bytes.windows(what.len()).position(|part| part == what)?;
    bytes.get(at..)
}

#[cfg(test)]
mod tests {
    use super::{glibc, musl};

    #[test]
    fn versions_are_those_that_the_libraries_print() {
        let banner =
            b"\0GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\nCopyright\0";
        assert_eq!(glibc(banner), Some("2.36".to_owned()));
        assert_eq!(
            glibc(b"\0GNU C Library (x) stable release version \0"),
            None
        );
        assert_eq!(glibc(b"release version 2.36"), None);
        assert_eq!(musl(b"a\x001.2.3\0b"), Some("1.2.3".to_owned()));
        let git = b"\x001.2.5-git-12-g0123456\0";
        assert_eq!(musl(git), Some("1.2.5-git-12-g0123456".to_owned()));
        assert_eq!(musl(b"\x001.2.3\x001.1.9\0"), None);
        assert_eq!(musl(b"\x001..3\x001.2\x00"), None);
    }
}
