//! Control data of messages: descriptors become ours, and theirs again.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::enforce::memory::word;
use crate::enforce::names::Who;
use crate::enforce::rights::Rights;
use crate::enforce::threads::descriptor;

const HEADER: usize = 16;

/// The process of whoever has sent a message, as a descriptor (Linux 6.5).
const SCM_PIDFD: i32 = 4;

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

fn is_credentials(item: &Item) -> bool {
    (item.level, item.kind) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS)
}

fn is_descriptors(item: &Item) -> bool {
    (item.level, item.kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
}

/// Who sends a message: a process, and its rights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender<'a> {
    pub(super) pid: u32,
    pub(super) rights: &'a Rights,
}

/// What became of control data.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Descriptors that it names: they are closed with this.
    pub(super) fds: Vec<OwnedFd>,
    /// It says who has sent it.
    pub(super) says_who: bool,
}

fn said(control: &[u8], item: &Item) -> Who {
    let number = |at: usize| int(control, item.data.start + at).cast_unsigned();
    (number(0), number(4), number(8))
}

fn put_who(data: &mut [u8], (pid, user, group): Who) {
    for (number, four) in [pid, user, group].iter().zip(data.chunks_exact_mut(4)) {
        four.copy_from_slice(&number.to_le_bytes());
    }
}

/// Adds to control data who sends it: it would be us otherwise. It comes first, as the kernel ignores what is left at the end
/// and is too short for a header.
pub(super) fn say_who(control: &mut Vec<u8>, sender: Sender<'_>) {
    const LENGTH: usize = HEADER + 12;
    let mut first = Vec::with_capacity(LENGTH.next_multiple_of(8) + control.len());
    first.extend(LENGTH.to_le_bytes());
    first.extend(libc::SOL_SOCKET.to_le_bytes());
    first.extend(libc::SCM_CREDENTIALS.to_le_bytes());
    first.resize(LENGTH.next_multiple_of(8), 0);
    let (user, group) = sender.rights.who();
    put_who(&mut first[HEADER..], (sender.pid, user, group));
    first.append(control);
    *control = first;
}

/// Makes the descriptors in control data ours, and the process numbers.
///
/// # Errors
/// One of them is none; credentials that it may not claim; `EOPNOTSUPP` if the kernel would not believe us.
pub(super) fn to_ours(
    process: &OwnedFd,
    control: &mut [u8],
    sender: Option<Sender<'_>>,
) -> io::Result<Held> {
    let mut held = Held::default();
    for item in items(control) {
        if is_credentials(&item) {
            let sender = sender.ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
            if item.data.len() != 12 {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            let who = sender.rights.may_say(sender.pid, said(control, &item))?;
            put_who(&mut control[item.data], who);
            held.says_who = true;
            continue;
        }
        if !is_descriptors(&item) {
            continue;
        }
        for number in control[item.data].chunks_exact_mut(4) {
            let theirs = int(number, 0);
            let ours = descriptor(process, u64::from(theirs.cast_unsigned()))?;
            number.copy_from_slice(&ours.as_raw_fd().to_le_bytes());
            held.fds.push(ours);
        }
    }
    Ok(held)
}

/// Gives the descriptors in received control data to the thread, by `give`, and closes
/// ours. Whatever cannot be given is -1 there. Who has sent it is given as it is `called` there.
pub(super) fn to_theirs(
    control: &mut [u8],
    mut give: impl FnMut(&OwnedFd, bool) -> io::Result<i32>,
    called: impl Fn(Who) -> Who,
) {
    for item in items(control) {
        if is_credentials(&item) && item.data.len() >= 12 {
            let who = called(said(control, &item));
            put_who(&mut control[item.data.clone()], who);
        }
        // One of a process is closed by an exec, whatever was asked for.
        let is_process = (item.level, item.kind) == (libc::SOL_SOCKET, SCM_PIDFD);
        if !is_process && !is_descriptors(&item) {
            continue;
        }
        for number in control[item.data].chunks_exact_mut(4) {
            // In the place of one there may be an error.
            if int(number, 0) < 0 {
                continue;
            }
            // SAFETY: the kernel has just made it for us, in this very message.
            let ours = unsafe { OwnedFd::from_raw_fd(int(number, 0)) };
            let theirs = give(&ours, is_process).unwrap_or(-1);
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
    fn who_sends_comes_before_what_is_too_short() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let rights = Rights::of(tid.unsigned_abs()).expect("our rights");
        let sender = Sender {
            pid: std::process::id(),
            rights: &rights,
        };
        for len in [0, 1, 15, 24] {
            let mut control = vec![7; len];
            say_who(&mut control, sender);
            let found = items(&control);
            assert!(found.len() == 1 && is_credentials(&found[0]), "{len}");
            assert_eq!(control[32..], vec![7; len]);
        }
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
        let held = to_ours(&process, &mut control, None).expect("ours").fds;
        let number = held[0].as_raw_fd();
        assert_eq!(int(&control, HEADER), number);
        // Its number is the message's now.
        let _ = std::os::fd::IntoRawFd::into_raw_fd(held.into_iter().next().expect("one"));
        let give = |ours: &OwnedFd, closes: bool| {
            assert!(ours.as_raw_fd() == number && !closes);
            Ok(77)
        };
        to_theirs(&mut control, give, |who| who);
        assert_eq!(int(&control, HEADER), 77);
        let mut credentials = item(28, libc::SOL_SOCKET, libc::SCM_CREDENTIALS, &[1, 0, 0]);
        to_ours(&process, &mut credentials, None).expect_err("another's name");
        to_theirs(
            &mut credentials,
            |_, _| Ok(0),
            |who| (who.0 + 8, who.1, who.2),
        );
        assert_eq!(int(&credentials, HEADER), 9);
        let mut added = Vec::new();
        let rights = Rights::of(tid).expect("our own");
        let rights = &rights;
        let sender = Sender { pid, rights };
        say_who(&mut added, sender);
        let before = added.clone();
        let held = to_ours(&process, &mut added, Some(sender)).expect("it is");
        assert!(held.says_who && added == before);
    }
}
