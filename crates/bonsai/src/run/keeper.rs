//! The process beside the program: passes signals on, adopts orphans, waits.
//!
//! # Signals
//! The program is in our process group, so what the terminal sends (Ctrl-C,
//! Ctrl-\, Ctrl-Z, a new window size, a hang-up) has reached it already. Passed on
//! is what another process sent to us. A signal that was ignored when we were
//! started (`nohup`) stays ignored, here and in the program.
//!
//! When Ctrl-Z stops the program, we stop, too, so that the shell gets its
//! terminal back; when we are continued, so is the program.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use bonsai_host::elf::Cover;
use bonsai_host::inherit_sigpipe;
use bonsai_services::refusal::Refusal;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait,
};
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
    SIGWINCH,
};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use super::helpers::Residence;
use super::program::{CANNOT_EXECUTE, Program};

/// Signals that are passed on.
const PASSED_ON: [i32; 10] = [
    SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGCONT, SIGTSTP, SIGWINCH,
];

/// How long what the program started may take to end after it.
const GRACE: Duration = Duration::from_millis(50);

/// What is needed before the program may be started.
#[derive(Debug)]
pub(super) struct Ready {
    signals: SignalsInfo<WithOrigin>,
}

/// The keeper of a running program.
#[derive(Debug)]
pub(super) struct Keeper {
    signals: SignalsInfo<WithOrigin>,
    program: Pid,
    /// The resident helper, which ends with the program.
    residence: Option<Residence>,
    /// Somebody asked for a stop: we follow the program.
    follow_stop: bool,
    stopped: bool,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Its exit code, or 128 and the number of the signal that ended it.
    pub(super) code: u8,
    /// Whether processes that it started live on.
    pub(super) left_behind: bool,
    /// Whether a signal ended it.
    pub(super) by_signal: bool,
}

impl Ready {
    /// Takes over the signals, and the orphans to come.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn new() -> anyhow::Result<Self> {
        let ignored = ignored_signals();
        let wanted = PASSED_ON
            .iter()
            .filter(|signal| ignored & (1 << (**signal - 1)) == 0);
        let signals = SignalsInfo::<WithOrigin>::new(wanted.chain([&SIGCHLD]))
            .context("signals cannot be received")?;
        set_child_subreaper(Some(getpid())).context("orphans cannot be adopted")?;
        Ok(Self { signals })
    }

    /// Starts the program; `not_run` is called where the kernel does not run it, and a shell does.
    ///
    /// # Errors
    /// A refusal with code 126 if the kernel does not execute it.
    pub(super) fn start(
        mut self,
        command: &mut Command,
        program: &Program,
        residence: Option<Residence>,
        not_run: impl Fn(),
    ) -> anyhow::Result<Keeper> {
        inherit_sigpipe(command);
        let child = match command.spawn() {
            // As every shell and execvp(3) do with text that names no interpreter.
            Err(error) if is_no_exec(&error) && program.cover == Some(Cover::NotElf) => {
                not_run();
                by_shell(command, program).spawn()
            }
            spawned => spawned,
        };
        let child = child.map_err(|error| {
            let path = program.path.display();
            // The kernel has no such answer for a file that may be executed.
            let is_refused = error.raw_os_error() == Some(Errno::PERM.raw_os_error());
            let text = if is_refused && program.is_entered {
                format!("{path} could not be entered, and --strict refuses that")
            } else {
                format!("{path} cannot be executed: {error}")
            };
            Refusal::code(CANNOT_EXECUTE, text)
        })?;
        let program = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let program = program.context("the program has no process id")?;
        // Up to its exec(2) it has our handlers, which lose what it gets.
        let early: Vec<Origin> = self.signals.pending().collect();
        let mut keeper = Keeper {
            signals: self.signals,
            program,
            residence,
            follow_stop: false,
            stopped: false,
        };
        for origin in early {
            // What the terminal sent then has not reached it.
            keeper.pass_on(&origin, true);
        }
        Ok(keeper)
    }
}

fn is_no_exec(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error())
}

/// The same command, run by the shell.
fn by_shell(command: &Command, program: &Program) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell
        .arg0("/bin/sh")
        .arg(&program.path)
        .args(&program.argv[1..]);
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            shell.env(name, value);
        }
    }
    inherit_sigpipe(&mut shell);
    shell
}

/// Signals that whoever started us had set to be ignored, a bit each.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

impl Keeper {
    /// Waits for the end of the program.
    ///
    /// # Errors
    /// The kernel does not let us wait.
    pub(super) fn wait(mut self) -> anyhow::Result<End> {
        let (code, by_signal) = loop {
            // SIGCHLD is caught since before the start, so a change that this
            // misses ends the wait below.
            if let Some(end) = self.reap()? {
                break end;
            }
            let arrived: Vec<Origin> = self.signals.wait().collect();
            for origin in arrived {
                let sender = origin.process.map(|process| process.pid);
                let from_program = sender == Some(self.program.as_raw_nonzero().get());
                let sent = matches!(origin.cause, Cause::Sent(_)) && !from_program;
                self.pass_on(&origin, sent);
            }
        };
        // Among those that live on, this is none of the program's.
        drop(self.residence.take());
        Ok(End {
            code,
            left_behind: self.others_live_on()?,
            by_signal,
        })
    }

    /// Ends the program, which was started for nothing.
    pub(super) fn stop(self) {
        let _ = kill_process(self.program, Signal::KILL);
        let _ = self.wait();
    }

    /// Collects changed children; the exit code if the program is among them, and
    /// whether a signal ended it.
    fn reap(&mut self) -> anyhow::Result<Option<(u8, bool)>> {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.program => {
                    if let Some(code) = exit_code(status) {
                        let by_signal = status.terminating_signal().is_some();
                        return Ok(Some((code, by_signal)));
                    }
                    self.stop_as_well();
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Ok(None),
                Err(errno) => return Err(errno).context("the program cannot be waited for"),
            }
        }
    }

    /// Stops us after the program was stopped, if that came from the terminal.
    fn stop_as_well(&mut self) {
        self.stopped = true;
        if self.follow_stop {
            // Returns when somebody continues us, which is passed on then.
            let _ = kill_process(getpid(), Signal::STOP);
        }
    }

    /// Does what a signal is for; `sent` is whether the program has not got it yet.
    fn pass_on(&mut self, origin: &Origin, sent: bool) {
        let Some(signal) = Signal::from_named_raw(origin.signal) else {
            return;
        };
        match signal {
            Signal::CHILD => {}
            Signal::CONT => {
                self.follow_stop = false;
                // A shell continues the whole group; then the program runs already.
                if std::mem::take(&mut self.stopped) {
                    self.send(Signal::CONT);
                }
            }
            Signal::TSTP => {
                self.follow_stop = true;
                if sent {
                    self.send(signal);
                }
            }
            _ if sent => self.send(signal),
            _ => {}
        }
    }

    fn send(&self, signal: Signal) {
        // The program has not been waited for, so the number is still its own.
        // That it may not be signalled (it changed its user) is its business.
        let _ = kill_process(self.program, signal);
    }

    /// Whether children are left: orphans of the program that we adopted.
    fn others_live_on(&self) -> anyhow::Result<bool> {
        let end = Instant::now() + GRACE;
        // Nearly always it is a helper, which is about to end.
        let mut turn = Duration::from_micros(100);
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Err(Errno::CHILD) => return Ok(false),
                Ok(None) if Instant::now() >= end => return Ok(true),
                Ok(None) => {
                    std::thread::sleep(turn);
                    turn = (2 * turn).min(Duration::from_millis(2));
                }
                Err(errno) => return Err(errno).context("orphans cannot be waited for"),
            }
        }
    }
}

/// The exit code a shell would give; `None` while it lives.
fn exit_code(status: WaitStatus) -> Option<u8> {
    if let Some(code) = status.exit_status() {
        return Some(u8::try_from(code & 0xff).unwrap_or(u8::MAX));
    }
    let signal = status.terminating_signal()?;
    Some(u8::try_from(128 + signal).unwrap_or(u8::MAX))
}
