//! The loader's cache of libraries, `/etc/ld.so.cache`, in the format that glibc 2.2 introduced and
//! that is alone since 2.32 (`sysdeps/generic/dl-cache.h`):
//!
//! ```text
//! "glibc-ld.so.cache1.1", u32 entries, u32 bytes of strings, 20 bytes of flags and extensions
//! entries times: i32 flags, u32 name, u32 path, u32 OS version (unused), u64 hardware capabilities
//! strings, ended by zero bytes; names and paths are offsets from the beginning
//! ```

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const CACHE: &str = "/etc/ld.so.cache";
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER_LEN: usize = 48;
const ENTRY_LEN: usize = 24;
/// `FLAG_ELF_LIBC6 | FLAG_X8664_LIB64`
const X86_64_LIBC6: u32 = 0x0303;

/// The path of the library `name` for 64-bit x86; `None` if there is no cache or no such entry.
pub(super) fn lookup(name: &str) -> Option<PathBuf> {
    find(&fs::read(CACHE).ok()?, name)
}

fn find(cache: &[u8], name: &str) -> Option<PathBuf> {
    // An old-format cache may come first; the offsets count from the magic.
    let start = cache
        .windows(MAGIC.len())
        .position(|window| window == MAGIC)?;
    let cache = cache.get(start..)?;
    let word = |at: usize| {
        let bytes = cache.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let string = |at: usize| {
        let offset = usize::try_from(word(at)?).ok()?;
        cache.get(offset..)?.split(|byte| *byte == 0).next()
    };
    // A damaged count does not make it look behind the end.
    let entries = usize::try_from(word(MAGIC.len())?)
        .ok()?
        .min(cache.len() / ENTRY_LEN);
    (0..entries).find_map(|i| {
        let at = HEADER_LEN.checked_add(i.checked_mul(ENTRY_LEN)?)?;
        let wanted = word(at)? == X86_64_LIBC6 && string(at + 4)? == name.as_bytes();
        let plain = word(at + 16)? == 0 && word(at + 20)? == 0;
        (wanted && plain).then(|| PathBuf::from(OsStr::from_bytes(string(at + 8)?)).into())?
    })
}

#[cfg(test)]
mod tests {
    use super::{CACHE, ENTRY_LEN, HEADER_LEN, MAGIC, X86_64_LIBC6, find};

    fn cache(entries: &[(u32, &str, &str, u64)]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(u32::try_from(entries.len()).expect("few").to_le_bytes());
        out.resize(HEADER_LEN, 0);
        let mut strings = Vec::new();
        for (flags, name, path, hwcap) in entries {
            let at = |strings: &Vec<u8>| {
                let at = HEADER_LEN + entries.len() * ENTRY_LEN + strings.len();
                u32::try_from(at).expect("small").to_le_bytes()
            };
            out.extend(flags.to_le_bytes());
            out.extend(at(&strings));
            strings.extend(name.bytes().chain([0]));
            out.extend(at(&strings));
            strings.extend(path.bytes().chain([0]));
            out.extend([0; 4]);
            out.extend(hwcap.to_le_bytes());
        }
        out.extend(strings);
        out
    }

    #[test]
    fn takes_the_plain_64_bit_entry() {
        let entries = [
            (0x0003, "libc.so.6", "/lib32/libc.so.6", 0),
            (X86_64_LIBC6, "libc.so.6", "/lib/v3/libc.so.6", 1 << 62),
            (X86_64_LIBC6, "libm.so.6", "/lib/libm.so.6", 0),
            (X86_64_LIBC6, "libc.so.6", "/lib/libc.so.6", 0),
        ];
        let cache = cache(&entries);
        let mut behind_an_old_one = b"ld.so-1.7.0\0".to_vec();
        behind_an_old_one.extend(&cache);
        for cache in [&cache, &behind_an_old_one] {
            assert_eq!(find(cache, "libc.so.6"), Some("/lib/libc.so.6".into()));
            assert_eq!(find(cache, "libx.so"), None);
        }
    }

    #[test]
    fn a_damaged_cache_gives_none() {
        let whole = cache(&[(X86_64_LIBC6, "libc.so.6", "/lib/libc.so.6", 0)]);
        for end in 0..HEADER_LEN + ENTRY_LEN + "libc.so.6".len() {
            assert_eq!(find(&whole[..end], "libc.so.6"), None, "cut to {end}");
        }
        let mut absurd = whole;
        absurd[20..24].fill(0xff);
        assert_eq!(find(&absurd, "libm.so.6"), None);
    }

    #[test]
    fn the_cache_of_this_machine_if_any_names_an_existing_library() {
        let found = super::lookup("libc.so.6");
        let has_cache = std::path::Path::new(CACHE).exists();
        assert_eq!(found.is_some(), has_cache, "{found:?}");
        assert!(found.is_none_or(|path| path.is_file()));
    }
}
