//! Reading and writing the memory of a thread of the service. Whatever is read may be
//! another thing a moment later: it is read once, and used as it was.

use std::io;

use super::amount;

/// The most spans of one call (`UIO_MAXIOV`).
pub(crate) const MOST_SPANS: usize = bonsai_calls::whole::MOST_VECTORS;

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

/// Bytes of at most `len`, `skip` bytes further on, that are readable memory from the first one on.
pub(crate) fn reachable(tid: u32, spans: &[Span], skip: u64, len: u64) -> io::Result<u64> {
    const PAGE: u64 = 4096;
    // Of each page the first byte that is wanted, and how many are wanted before it.
    let (mut probes, mut before, mut skip) = (Vec::new(), 0, skip);
    for span in spans {
        let passed = skip.min(span.len);
        skip -= passed;
        let mut at = span.at.wrapping_add(passed);
        let mut left = (span.len - passed).min(len - before);
        while left > 0 {
            let part = (PAGE - at % PAGE).min(left);
            probes.push((Span { at, len: 1 }, before));
            (at, left, before) = (at.wrapping_add(part), left - part, before + part);
        }
    }
    for batch in probes.chunks(MOST_SPANS) {
        let list: Vec<Span> = batch.iter().map(|(span, _)| *span).collect();
        let got = match read(tid, &list, 0, &mut vec![0; list.len()]) {
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => 0,
            got => got?,
        };
        if let Some((_, before)) = batch.get(got) {
            return Ok(*before);
        }
    }
    Ok(before)
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
pub(crate) fn listed(tid: u32, at: u64, count: u64) -> io::Result<Vec<Span>> {
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
            len: word(pair, 8),
        })
        .collect())
}

/// The same, as the kernel takes them.
///
/// # Errors
/// As of [`accepted`].
pub(crate) fn spans(tid: u32, at: u64, count: u64) -> io::Result<Vec<Span>> {
    accepted(listed(tid, at, count)?)
}

/// Spans as the kernel takes them: it looks at all of them, and cuts those beyond what one call moves (`__import_iovec`).
///
/// # Errors
/// One that the kernel refuses.
pub(crate) fn accepted(mut spans: Vec<Span>) -> io::Result<Vec<Span>> {
    if spans.iter().any(|span| !amount::is_count(span.len)) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut left = amount::MOST;
    // Of a single one the length is cut before it is looked at.
    if let [span] = &mut spans[..] {
        span.len = span.len.min(left);
    }
    for span in &mut spans {
        if !amount::is_memory(span.at, span.len) {
            return Err(fault());
        }
        span.len = span.len.min(left);
        left -= span.len;
    }
    Ok(spans)
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

    #[test]
    fn memory_is_reachable_up_to_the_first_page_that_is_none() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let tid = tid.cast_unsigned();
        let bytes = vec![0_u8; 50_000];
        let there = |skip, len| Span {
            at: bytes.as_ptr() as u64 + skip,
            len,
        };
        let nothing = Span { at: 1, len: 100 };
        let spans = [there(100, 20_000), there(0, 0), there(7, 3), nothing];
        let of = |skip, len| reachable(tid, &spans, skip, len).expect("our own memory");
        assert_eq!((of(0, 20_003), of(0, 20_103)), (20_003, 20_003));
        assert_eq!((of(5, 10), of(20_001, 50), of(20_003, 1)), (10, 2, 0));
    }

    #[test]
    fn what_the_kernel_refuses_of_a_list_is_refused() {
        let of = |lens: &[u64]| {
            let spans = lens.iter().map(|len| Span {
                at: 4096,
                len: *len,
            });
            accepted(spans.collect()).map(|spans| total(&spans))
        };
        assert_eq!(of(&[1, 2]).expect("two"), 3);
        assert_eq!(of(&[amount::MOST, 5, 6]).expect("cut"), amount::MOST);
        let code = |found: io::Result<u64>| found.expect_err("refused").raw_os_error();
        assert_eq!(code(of(&[1, u64::MAX])), Some(libc::EINVAL));
        assert_eq!(code(of(&[1, 1 << 62])), Some(libc::EFAULT));
        assert_eq!(of(&[1 << 62]).expect("cut before"), amount::MOST);
    }
}
