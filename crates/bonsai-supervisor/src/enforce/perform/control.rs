//! Control data of messages: descriptors become ours, and theirs again.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::enforce::memory::word;
use crate::enforce::threads::descriptor;

const HEADER: usize = 16;

/// One item of control data: where it stands, level and type, and its bytes.
struct Item {
    data: std::ops::Range<usize>,
    level: i32,
    kind: i32,
}

fn items(control: &[u8]) -> Vec<Item> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at + HEADER <= control.len() {
        let len = usize::try_from(word(control, at)).unwrap_or(usize::MAX);
        let Some(end) = at
            .checked_add(len)
            .filter(|end| len >= HEADER && *end <= control.len())
        else {
            break;
        };
        let [level, kind] = [8, 12].map(|offset| int(control, at + offset));
        found.push(Item {
            data: at + HEADER..end,
            level,
            kind,
        });
        at = end.next_multiple_of(8);
    }
    found
}

fn int(bytes: &[u8], at: usize) -> i32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    i32::from_le_bytes(four)
}

fn is_descriptors(item: &Item) -> bool {
    (item.level, item.kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
}

/// Makes the descriptors in control data ours; they are closed with what is returned.
///
/// # Errors
/// One of them is none; `EOPNOTSUPP` for credentials, which would be ours.
pub(super) fn to_ours(process: &OwnedFd, control: &mut [u8]) -> io::Result<Vec<OwnedFd>> {
    let mut held = Vec::new();
    for item in items(control) {
        if (item.level, item.kind) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        if !is_descriptors(&item) {
            continue;
        }
        for number in control[item.data].chunks_exact_mut(4) {
            let theirs = int(number, 0);
            let ours = descriptor(process, u64::from(theirs.cast_unsigned()))?;
            number.copy_from_slice(&ours.as_raw_fd().to_le_bytes());
            held.push(ours);
        }
    }
    Ok(held)
}

/// Gives the descriptors in received control data to the thread, by `give`, and closes
/// ours. Whatever cannot be given is -1 there.
pub(super) fn to_theirs(control: &mut [u8], mut give: impl FnMut(&OwnedFd) -> io::Result<i32>) {
    for item in items(control) {
        if !is_descriptors(&item) {
            continue;
        }
        for number in control[item.data].chunks_exact_mut(4) {
            // SAFETY: the kernel has just made it for us, in this very message.
            let ours = unsafe { OwnedFd::from_raw_fd(int(number, 0)) };
            let theirs = give(&ours).unwrap_or(-1);
            number.copy_from_slice(&theirs.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enforce::threads::process;

    fn item(len: u64, level: i32, kind: i32, data: &[i32]) -> Vec<u8> {
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend(level.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        data.iter()
            .for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn lengths_that_lie_end_the_list() {
        let good = item(24, libc::SOL_SOCKET, libc::SCM_RIGHTS, &[0, 1]);
        for bad in [0, 15, 25, 1 << 40, u64::MAX] {
            let bytes = [good.clone(), item(bad, 1, 1, &[0, 0])].concat();
            assert_eq!(items(&bytes).len(), 1, "{bad}");
        }
        assert_eq!(items(&[good.clone(), good].concat()).len(), 2);
        assert_eq!(items(&[0; 15]).len(), 0);
    }

    #[test]
    fn descriptors_become_ours_and_theirs_again() {
        let pid = std::process::id();
        let (first, _second) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let mut control = item(20, libc::SOL_SOCKET, libc::SCM_RIGHTS, &[first.as_raw_fd()]);
        let tid = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .unsigned_abs();
        let process = process(tid, pid).expect("ourselves");
        let held = to_ours(&process, &mut control).expect("ours");
        let number = held[0].as_raw_fd();
        assert_eq!(int(&control, HEADER), number);
        // Its number is the message's now.
        let _ = std::os::fd::IntoRawFd::into_raw_fd(held.into_iter().next().expect("one"));
        to_theirs(&mut control, |ours| {
            assert_eq!(ours.as_raw_fd(), number);
            Ok(77)
        });
        assert_eq!(int(&control, HEADER), 77);
        let mut credentials = item(28, libc::SOL_SOCKET, libc::SCM_CREDENTIALS, &[1, 0, 0]);
        to_ours(&process, &mut credentials).expect_err("another's name");
    }
}
