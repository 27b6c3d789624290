//! Children that have a time in which to end.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Time for a killed child to go. One in a call to a file system that does not answer stays beyond that, and is not waited for.
const AFTER_KILL: Duration = Duration::from_millis(200);

/// Waits for a child that leads a process group of its own, and kills the group after `limit`; `None` then.
///
/// # Errors
/// The child cannot be waited for.
pub(crate) fn wait_at_most(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    if let Some(status) = ended(child, limit)? {
        return Ok(Some(status));
    }
    // Gone in this moment, or ended by this.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    ended(child, AFTER_KILL)?;
    Ok(None)
}

fn ended(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= end {
            return Ok(status);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    #[test]
    fn a_child_that_does_not_end_is_killed() {
        let mut command = Command::new("sleep");
        let mut child = command.arg("60").process_group(0).spawn().expect("sleep");
        let begin = Instant::now();
        let ended = wait_at_most(&mut child, Duration::from_millis(20)).expect("ours");
        assert_eq!(ended, None);
        assert!(begin.elapsed() < Duration::from_secs(20));
        assert!(child.try_wait().expect("ours").is_some());
    }
}
