//! Writing where a process itself may not: its code.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use nix::sys::ptrace;
use nix::unistd::Pid;

const WORD: usize = size_of::<libc::c_long>();

/// Writes into the memory of a process, of which threads are stopped and traced by us. A kernel may let no file of `/proc` write where the
/// process may not (`proc_mem.force_override=never`, Linux 6.12); then one of `threads` is asked for that by ptrace(2), a word at a time.
///
/// # Errors
/// Neither goes.
pub(crate) fn write(
    memory: &File,
    threads: impl IntoIterator<Item = Pid>,
    at: u64,
    bytes: &[u8],
) -> io::Result<()> {
    match memory.write_all_at(bytes, at) {
        Err(error) if error.raw_os_error() == Some(libc::EIO) => {
            let mut done = threads
                .into_iter()
                .map(|thread| poke(memory, thread, at, bytes));
            // ESRCH: it runs.
            done.find(
                |done| !matches!(done, Err(error) if error.raw_os_error() == Some(libc::ESRCH)),
            )
            .unwrap_or(Err(error))
        }
        done => done,
    }
}

fn poke(memory: &File, thread: Pid, at: u64, bytes: &[u8]) -> io::Result<()> {
    let mut place = at - at % WORD as u64;
    while place < at + bytes.len() as u64 {
        let mut word = [0; WORD];
        memory.read_exact_at(&mut word, place)?;
        for (to, address) in word.iter_mut().zip(place..) {
            let index = address
                .checked_sub(at)
                .and_then(|index| usize::try_from(index).ok());
            if let Some(byte) = index.and_then(|index| bytes.get(index)) {
                *to = *byte;
            }
        }
        let address = std::ptr::without_provenance_mut(usize::try_from(place).unwrap_or(0));
        ptrace::write(thread, address, libc::c_long::from_ne_bytes(word))?;
        place += WORD as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::ptrace::{self, Options};
    use nix::sys::wait::waitpid;

    use super::*;

    #[test]
    fn code_is_written_by_ptrace_a_byte_at_a_time_and_across_words() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("a child");
        let pid = Pid::from_raw(child.id().cast_signed());
        if let Err(error) = ptrace::seize(pid, Options::empty()) {
            eprintln!("SKIP: nothing can be traced here: {error}");
        } else {
            ptrace::interrupt(pid).expect("a stop");
            waitpid(pid, None).expect("a stop");
            let memory = File::open(format!("/proc/{pid}/mem")).expect("its memory");
            let at = ptrace::getregs(pid).expect("registers").rip & !15;
            let read = || {
                let mut bytes = [0; 32];
                memory.read_exact_at(&mut bytes, at).expect("code");
                bytes
            };
            let mut wanted = read();
            for (from, len) in [(3, 1), (5, 8), (8, 16), (1, 30)] {
                let bytes = &mut wanted[from..from + len];
                bytes.iter_mut().for_each(|byte| *byte = !*byte);
                poke(&memory, pid, at + from as u64, bytes).expect("written");
                assert_eq!(read(), wanted, "{len} bytes from {from}");
            }
        }
        child.kill().expect("a child");
        child.wait().expect("an end");
    }
}
