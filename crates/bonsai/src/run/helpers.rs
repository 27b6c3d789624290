//! Helpers (`bonsai enter`) of a service, which put the engine into programs without a loader.
//!
//! One is resident: started for the first question, it takes those that follow by itself, until its standard input is closed,
//! which also the end of this process does. It is not in our process group, so that what the terminal sends (Ctrl-C,
//! Ctrl-Z) does not reach it. A question that it leaves gets a helper of its own.

use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use bonsai_ledger::Ledger;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time that the resident helper gets to take a question: an idle one needs some tens of microseconds.
const TAKES: Duration = Duration::from_millis(10);

/// The same while it starts.
const STARTS: Duration = Duration::from_millis(100);

/// Hold on the resident helper, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Residence {
    ledger: Arc<Ledger>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
enum State {
    /// The other end of the standard input of the resident helper, if one has been started.
    Open(Option<ChildStdin>),
    /// No resident helper is started any more.
    Closed,
}

impl Residence {
    /// Starts the thread that answers the questions of a service.
    ///
    /// # Errors
    /// There is no thread, or it is not known where this program is.
    pub(crate) fn open(path: PathBuf, ledger: Arc<Ledger>) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot tell where bonsai itself is")?;
        bonsai_supervisor::keep(&ledger);
        let state = Arc::new(Mutex::new(State::Open(None)));
        let helpers = Helpers {
            program,
            path,
            state: Arc::clone(&state),
        };
        let kept = Arc::clone(&ledger);
        let answer = move || bonsai_supervisor::answer(&kept, helpers);
        let thread = std::thread::Builder::new().name("answer".to_owned());
        thread.spawn(answer).context("no thread for questions")?;
        Ok(Self { ledger, state })
    }
}

impl Drop for Residence {
    fn drop(&mut self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Closed;
        bonsai_supervisor::ring(&self.ledger);
    }
}

/// Starter of helpers.
struct Helpers {
    program: PathBuf,
    /// The ledger.
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

impl Helpers {
    fn command(&self) -> Command {
        let mut helper = Command::new(&self.program);
        helper.arg("enter").arg(&self.path).stdout(Stdio::null());
        helper
    }
}

impl bonsai_supervisor::Helpers for Helpers {
    fn resident(&mut self) -> Duration {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State::Open(input) = &mut *state else {
            return Duration::ZERO;
        };
        if input.as_ref().is_some_and(has_reader) {
            return TAKES;
        }
        // The helper ends by itself, and the keeper reaps it.
        let started = self
            .command()
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn();
        *input = started.ok().and_then(|mut helper| helper.stdin.take());
        if input.is_some() {
            STARTS
        } else {
            Duration::ZERO
        }
    }

    fn start(&mut self, number: usize) -> bool {
        let mut helper = self.command();
        let helper = helper.arg(number.to_string()).stdin(Stdio::null()).spawn();
        helper.is_ok()
    }
}

/// True while the helper that reads from the pipe lives.
fn has_reader(input: &ChildStdin) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::empty())];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&at_once)).is_ok() && fds[0].revents().is_empty()
}
