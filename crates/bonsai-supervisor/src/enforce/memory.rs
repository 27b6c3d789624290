//! Reading and writing the memory of a thread of the service. Whatever is read may be
//! another thing a moment later: it is read once, and used as it was.

use std::io;

/// The most spans of one call (`UIO_MAXIOV`).
pub(crate) const MOST_SPANS: usize = 1024;

/// A piece of a thread's memory (`struct iovec`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) at: u64,
    pub(crate) len: u64,
}

/// So many parts of a list need no memory of their own.
const FEW: usize = 8;

const NONE: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// Spans from `skip` bytes on, at most `len` bytes of them.
fn window(spans: &[Span], mut skip: u64, mut len: u64, found: &mut [libc::iovec]) -> usize {
    let mut count = 0;
    for span in spans {
        if skip >= span.len {
            skip -= span.len;
            continue;
        }
        let part = (span.len - skip).min(len);
        if part == 0 || count == found.len() {
            break;
        }
        found[count] = libc::iovec {
            iov_base: (span.at.wrapping_add(skip)) as *mut libc::c_void,
            iov_len: usize::try_from(part).unwrap_or(usize::MAX),
        };
        count += 1;
        (skip, len) = (0, len - part);
    }
    count
}

/// Does something with a window of spans.
fn within<T>(spans: &[Span], skip: u64, len: usize, run: impl FnOnce(&[libc::iovec]) -> T) -> T {
    let (mut few, mut many);
    let found: &mut [libc::iovec] = if spans.len() <= FEW {
        few = [NONE; FEW];
        &mut few
    } else {
        many = vec![NONE; spans.len().min(MOST_SPANS)];
        &mut many
    };
    let count = window(spans, skip, len as u64, found);
    run(&found[..count])
}

/// Bytes of all spans together.
pub(crate) fn total(spans: &[Span]) -> u64 {
    spans
        .iter()
        .fold(0, |sum, span| sum.saturating_add(span.len))
}

/// Copies up to `into.len()` bytes; returns how many could be read.
pub(crate) fn read(tid: u32, spans: &[Span], skip: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    // SAFETY: the local part is ours; the remote one is checked by the kernel.
    let got = within(spans, skip, into.len(), |remote| unsafe {
        libc::process_vm_readv(
            tid.cast_signed(),
            &raw const local,
            1,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    });
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// The same in the other direction.
pub(crate) fn write(tid: u32, spans: &[Span], skip: u64, from: &[u8]) -> io::Result<usize> {
    let local = libc::iovec {
        iov_base: from.as_ptr().cast_mut().cast(),
        iov_len: from.len(),
    };
    // SAFETY: the local part is ours and only read; the remote one is checked by the
    // kernel.
    let put = within(spans, skip, from.len(), |remote| unsafe {
        libc::process_vm_writev(
            tid.cast_signed(),
            &raw const local,
            1,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    });
    usize::try_from(put).map_err(|_| io::Error::last_os_error())
}

/// Exactly `N` bytes.
pub(crate) fn read_exactly<const N: usize>(tid: u32, at: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let span = Span { at, len: N as u64 };
    match read(tid, &[span], 0, &mut bytes)? {
        got if got == N => Ok(bytes),
        _ => Err(fault()),
    }
}

/// All of `bytes`.
pub(crate) fn write_exactly(tid: u32, at: u64, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let span = Span {
        at,
        len: bytes.len() as u64,
    };
    match write(tid, &[span], 0, bytes)? {
        put if put == bytes.len() => Ok(()),
        _ => Err(fault()),
    }
}

/// A list of spans (`struct iovec[]`), of at most [`MOST_SPANS`].
pub(crate) fn spans(tid: u32, at: u64, count: u64) -> io::Result<Vec<Span>> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > MOST_SPANS {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let (mut few, mut many);
    let bytes: &mut [u8] = if count <= FEW {
        few = [0; 16 * FEW];
        &mut few[..16 * count]
    } else {
        many = vec![0; 16 * count];
        &mut many
    };
    let list = Span {
        at,
        len: bytes.len() as u64,
    };
    if !bytes.is_empty() && read(tid, &[list], 0, bytes)? != bytes.len() {
        return Err(fault());
    }
    Ok(bytes
        .chunks_exact(16)
        .map(|pair| Span {
            at: word(pair, 0),
            len: word(pair, 8).min(crate::enforce::amount::MOST),
        })
        .collect())
}

/// The word at an offset.
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

pub(crate) fn fault() -> io::Error {
    io::Error::from_raw_os_error(libc::EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_begin_and_end_within_spans() {
        let spans = [(100, 10), (200, 0), (300, 5)].map(|(at, len)| Span { at, len });
        let of = |skip, len| -> Vec<(usize, usize)> {
            let mut found = [NONE; FEW];
            let count = window(&spans, skip, len, &mut found);
            found[..count]
                .iter()
                .map(|v| (v.iov_base as usize, v.iov_len))
                .collect()
        };
        assert_eq!(of(0, 15), [(100, 10), (300, 5)]);
        assert_eq!(of(4, 8), [(104, 6), (300, 2)]);
        assert_eq!(of(10, 100), [(300, 5)]);
        assert_eq!(of(15, 1), []);
        assert_eq!(total(&spans), 15);
    }
}
