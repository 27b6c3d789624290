//! The supervisor of an enforced service is killed, or its guard, or both.

use std::io::pipe;
use std::process::Stdio;
use std::time::{Duration, Instant};

use conformance::for_each;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::{
    BURST, PATIENCE, RATE, Tools, WRITE, can_enforce, enforced, receive, tools, until_seen,
};
use crate::fixture::{assert_none, bonsai};

/// The process below another: of the guard its supervisor.
pub(super) fn child_of(pid: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

pub(super) fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process");
    match kill_process(pid, Signal::KILL) {
        // It has ended by itself meanwhile.
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => panic!("{error}"),
    }
}

/// What a service was killed in.
struct Killed {
    moved: u64,
    code: i32,
    /// Whether it was where the case wants it: there was somebody to be killed, and its
    /// program had not ended by itself.
    in_time: bool,
}

/// Runs the attacker and kills whom `whom` chooses after a while; what came through by
/// the end of the service.
fn killed(tools: &Tools, after: Duration, whom: fn(u32) -> Vec<u32>) -> Result<Killed, String> {
    let bonsai = bonsai();
    let (ours, theirs) = pipe().map_err(|e| e.to_string())?;
    let start = Instant::now();
    let mut command = enforced(&bonsai, &[WRITE], &tools.attacker, &["threads"]);
    command.stdout(theirs).stderr(Stdio::null());
    let mut guard = command.spawn().map_err(|e| e.to_string())?;
    drop(command);
    let receiver = std::thread::spawn(move || receive(ours, start, (RATE, BURST)));
    std::thread::sleep(after);
    let whom = whom(guard.id());
    for pid in &whom {
        kill(*pid);
    }
    // A second later it ends by itself.
    let in_time = !whom.is_empty() && start.elapsed() < Duration::from_millis(900);
    let status = guard.wait().map_err(|e| e.to_string())?;
    while !receiver.is_finished() {
        if start.elapsed() > PATIENCE {
            return Err("it hangs".to_owned());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let moved = receiver.join().map_err(|_| "no receiver".to_owned())??;
    Ok(Killed {
        moved,
        code: status.code().unwrap_or(-1),
        in_time,
    })
}

#[test]
fn without_its_supervisor_a_service_ends_and_nothing_hangs() {
    let test = "without_its_supervisor_a_service_ends_and_nothing_hangs";
    let Some(tools) = tools(test).filter(|_| can_enforce(test)) else {
        return;
    };
    let supervisor = |guard| child_of(guard).into_iter().collect();
    let guard = |guard| vec![guard];
    let both = |guard| child_of(guard).into_iter().chain([guard]).collect();
    type Whom = fn(u32) -> Vec<u32>;
    let whom: [(&str, Whom); 3] = [("supervisor", supervisor), ("guard", guard), ("both", both)];
    let mut cases = Vec::new();
    for (name, whom) in whom {
        // At every step from its start on.
        for ms in [5, 15, 25, 40, 70, 110, 300, 500] {
            cases.push((name, whom, Duration::from_millis(ms)));
        }
    }
    let complaints = for_each(&cases, 3, |(name, whom, after)| {
        let is_early = *name == "supervisor" && after.as_millis() < 100;
        let attempt = || killed(tools, *after, *whom);
        let Killed { moved, code, .. } = until_seen(attempt, |seen| seen.in_time || is_early)
            .map_err(|error| format!("{name} after {after:?}: {error}"))?;
        // Before there was a supervisor, there was none to be killed.
        let expected: &[i32] = match *name {
            "supervisor" if is_early => &[137, 0, 142],
            "supervisor" => &[137],
            _ => &[-1],
        };
        if expected.contains(&code) {
            return Ok(());
        }
        Err(format!(
            "{name} after {after:?}: code {code}, {moved} bytes"
        ))
    });
    assert_none(&complaints);
}
