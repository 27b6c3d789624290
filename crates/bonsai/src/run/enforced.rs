//! `bonsai run --enforce`: the guard, and the supervisor below it.
//!
//! # Who outlives whom
//! - The supervisor ends (by a signal; it has no other way before the program): the guard
//!   adopts what is left of the service, which cannot make processes any more, and ends it.
//! - The guard ends: the supervisor goes on alone, and the limits hold.
//! - Both end: each call that was asked about fails with `ENOSYS`.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bonsai_host::proc::Processes;
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{EventLoops, Ledger, flags};
use bonsai_services::limits::{self, Limit};
use bonsai_services::observe::monotonic_ns;
use bonsai_services::refusal::{Refusal, before_start};
use bonsai_services::service::{self, Enforced, OwnService, Services, Wanted};
use bonsai_supervisor::enforce::{
    Enforcer, Reach, User, asked_about, listener_of, listening, price, probe, reach,
};
use bonsai_supervisor::{Way, is_allowed};
use bonsai_units::Setting;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

use super::keeper::{Keeper, Ready};
use super::program::Program;
use super::{asked_for, refuse_within_service, share};
use crate::cli::{Run, WhenDead};
use crate::output::say;
use crate::stats;

/// How long the guard may take to end a service whose supervisor has gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Everything that is known before anything is made.
#[derive(Debug)]
struct Plan {
    name: Option<String>,
    limits: Vec<Limit>,
    program: Program,
    user: Option<(String, User)>,
    reach: Reach,
}

/// Runs a program as an enforced service. Returns the exit code.
///
/// # Errors
/// Whatever keeps the program from being started.
pub(super) fn run(args: &Run) -> anyhow::Result<u8> {
    if args.when_supervisor_dies == Some(WhenDead::Through) {
        let text = "a service whose calls a supervisor decides cannot go on without it: with \
                    --enforce, --when-supervisor-dies is end";
        return Err(Refusal::input(text));
    }
    let plan = Plan::check(args).map_err(before_start)?;
    refuse_within_service()?;
    if args.guarded {
        supervise(&plan, args)
    } else {
        // Whatever has led here, it is enforced below.
        let as_asked = if args.enforce {
            &[] as &[&str]
        } else {
            &["--enforce"]
        };
        guard(&plan.program, as_asked)
    }
}

impl Plan {
    fn check(args: &Run) -> anyhow::Result<Self> {
        let (name, limits) = asked_for(args)?;
        if limits.is_empty() {
            return Err(Refusal::input(
                "--enforce without a limit would enforce nothing: give one, such as \
                 --limit write=1MB/s, or write=unlimited for one that is set later",
            ));
        }
        is_allowed(Way::Enforce).map_err(|denied| {
            Refusal::input(format!("limits cannot be enforced here: {denied}"))
        })?;
        probe().map_err(|error| {
            Refusal::input(format!(
                "limits cannot be enforced here: the kernel has no seccomp listener ({error}; \
                 Linux 5.5 and later have one)"
            ))
        })?;
        let is_root = rustix::process::geteuid().is_root();
        let user = args
            .user
            .as_deref()
            .map(|name| user(name, is_root))
            .transpose()?;
        let reach = reach();
        let is_other = user.as_ref().is_some_and(|(_, user)| user.uid != 0);
        if reach == Reach::All && !is_other {
            return Err(Refusal::input(
                "limits cannot be enforced on a program of your own user here: the kernel has no \
                 Landlock (version 2 or later), so it could change the supervisor; as root, \
                 --user runs it as another",
            ));
        }
        Ok(Self {
            name,
            limits,
            program: Program::find(&args.program, true)?,
            user,
            reach,
        })
    }

    fn make(&self) -> anyhow::Result<OwnService> {
        let like = service::name_like(&self.program.path);
        let wanted = match &self.name {
            Some(name) => Wanted::Exactly(name),
            None => Wanted::Like(&like),
        };
        Services::open()?.make(&wanted)
    }
}

/// Looks up a user.
fn user(name: &str, is_root: bool) -> anyhow::Result<(String, User)> {
    if !is_root {
        return Err(Refusal::input(
            "--user needs root: only root can run programs as others",
        ));
    }
    let found = bonsai_supervisor::enforce::user(name)
        .ok_or_else(|| Refusal::input(format!("there is no user {name:?}")))?;
    Ok((name.to_owned(), found))
}

/// Stays above the supervisor, which is started as we were, with `more`.
pub(super) fn guard(program: &Program, more: &[&str]) -> anyhow::Result<u8> {
    let own = std::env::current_exe().context("cannot tell where bonsai itself is")?;
    let mut command = Command::new(own);
    command
        .args(["run", "--guarded"])
        .args(more)
        .args(std::env::args_os().skip(2));
    let end = Ready::new()?
        .start(&mut command, program, None, || ())?
        .wait()?;
    if end.by_signal {
        let ended = end_the_rest()?;
        let processes = if ended == 1 { "process" } else { "processes" };
        say!(
            "bonsai: the supervisor was ended by signal {}: {ended} {processes} that it had \
             limited went with it",
            end.code.saturating_sub(128)
        );
    }
    Ok(end.code)
}

/// Ends all that the supervisor has left to us. There are no new ones: to make a
/// process, the supervisor has to be asked. Returns how many there were.
fn end_the_rest() -> anyhow::Result<usize> {
    let own = std::process::id();
    let (mut seen, start) = (std::collections::BTreeSet::new(), Instant::now());
    while start.elapsed() < PATIENCE {
        for process in Processes::read()?.descendants(own) {
            if process.state != 'Z'
                && let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw)
            {
                seen.insert(process.pid);
                // Gone, or another user's and we are not root: it can do nothing any more.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => return Ok(seen.len()),
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(seen.len())
}

/// Makes the service, starts the program below itself, and decides its calls.
fn supervise(plan: &Plan, args: &Run) -> anyhow::Result<u8> {
    if plan.user.is_none() && rustix::process::geteuid().is_root() {
        say!(
            "bonsai: {} runs as root, which has other ways around limits: --user runs it as \
             somebody else",
            plan.program.shown()
        );
    }
    // As without enforcement: a signal waits for the program.
    let ready = Ready::new().map_err(before_start)?;
    let service = plan.make().map_err(before_start)?;
    let started = share::within(
        args.cpu.as_ref(),
        &service.name,
        || start(plan, &service, ready),
        |(keeper, ..)| keeper.stop(),
    );
    let ((keeper, ledger, enforcer), share) = match started {
        Ok(started) => started,
        Err(error) => {
            service.remove()?;
            return Err(before_start(error));
        }
    };
    let end = keeper.wait()?;
    if end.left_behind {
        say!(
            "bonsai: {} has ended, but processes that it started go on as the service {name}, \
             and this stays with them",
            plan.program.shown(),
            name = service.name,
        );
        while !matches!(wait(WaitOptions::empty()), Err(rustix::io::Errno::CHILD)) {}
    }
    if args.json {
        if let Some(enforcer) = enforcer {
            enforcer.settle();
        }
        say!(
            "{}",
            serde_json::to_string(&stats::document(&service.name, &ledger))?
        );
    }
    if let Some(share) = share {
        share.end();
    }
    super::remove(service);
    Ok(end.code)
}

fn start(
    plan: &Plan,
    service: &OwnService,
    ready: Ready,
) -> anyhow::Result<(Keeper, Arc<Ledger>, Option<Arc<Enforcer>>)> {
    let ledger = Arc::new(Ledger::create_unnamed(&service.name)?);
    ledger
        .header
        .flags
        .fetch_or(flags::ENFORCED, Ordering::Relaxed);
    let selections: Vec<_> = plan.limits.iter().map(|limit| limit.selection).collect();
    let set: Vec<Limit> = plan
        .limits
        .iter()
        .filter(|limit| limit.setting != Setting::Unlimited)
        .cloned()
        .collect();
    limits::apply(&ledger, &set, Some(EventLoops::Off), monotonic_ns())?;
    let provisional = super::begin_with_limits(&service.name, &ledger);
    let asked = asked_about(&selections);
    let said = Enforced {
        supervisor: std::process::id(),
        ledger: ledger.number(),
        asked: asked.clone(),
        price_ns: price().map_or(0, |price| u64::try_from(price.as_nanos()).unwrap_or(0)),
        user: plan.user.as_ref().map(|(name, _)| name.clone()),
        reach: (plan.reach != Reach::None && plan.user.is_none())
            .then(|| "its processes can end this supervisor, and themselves with it".to_owned()),
        refused: BTreeMap::new(),
    };
    say(&said, &service.enforced_path())?;
    let (ours, theirs) = UnixStream::pair().context("no socket")?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).context("no socket")?;
    let mut command = command(plan, &asked, theirs.as_raw_fd())?;
    let keeper = ready.start(&mut command, &plan.program, None, || ())?;
    super::lift_without_daemon(provisional, Arc::clone(&ledger));
    drop(theirs);
    more_descriptors();
    // Without one, the program has ended already, and has said why.
    let enforcer = match listener_of(&ours).context("no listener")? {
        None => None,
        Some(listener) => {
            let enforcer = Enforcer::start(Arc::clone(&ledger), listener)
                .context("no threads for the supervisor")?;
            // If it has ended meanwhile, the keeper sees that.
            let _ = listening(&ours);
            report(Arc::clone(&enforcer), said, service.enforced_path())?;
            Some(enforcer)
        }
    };
    Ok((keeper, ledger, enforcer))
}

/// What starts the program: ourselves, to be put under the filter first.
fn command(plan: &Plan, asked: &[u32], socket: i32) -> anyhow::Result<Command> {
    let own = std::env::current_exe().context("cannot tell where bonsai itself is")?;
    let list = |numbers: &[u32]| {
        let words: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        words.join(",")
    };
    let mut command = Command::new(own);
    command.arg("confine");
    command.args(["--socket", &socket.to_string(), "--asked", &list(asked)]);
    if let Some((name, user)) = &plan.user {
        let ids: Vec<u32> = [user.uid, user.gid]
            .iter()
            .chain(&user.groups)
            .copied()
            .collect();
        command.args(["--user", &list(&ids)]);
        command
            .env("USER", name)
            .env("LOGNAME", name)
            .env("HOME", &user.home);
    }
    command
        .arg("--")
        .arg(&plan.program.path)
        .args(&plan.program.argv);
    Ok(command)
}

fn say(said: &Enforced, path: &std::path::Path) -> anyhow::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(said)?)
        .and_then(|()| std::fs::rename(&new, path))
        .with_context(|| format!("{}: cannot be written", path.display()))
}

/// Tells from time to time what was refused.
fn report(enforcer: Arc<Enforcer>, mut said: Enforced, path: PathBuf) -> anyhow::Result<()> {
    let tell = move || loop {
        std::thread::sleep(Duration::from_millis(200));
        let refused = enforcer.refused().into_iter();
        let refused: BTreeMap<String, u64> = refused
            .map(|(why, count)| (why.about().to_owned(), count))
            .collect();
        if refused != said.refused {
            said.refused = refused;
            // It is tried again when more is refused.
            let _ = say(&said, &path);
        }
    };
    let thread = std::thread::Builder::new().name("report".to_owned());
    thread.spawn(tell).context("no thread for reports")?;
    Ok(())
}

/// As many descriptors as we may have: threads of the service take two each. After the
/// program has been started, which inherits them otherwise.
fn more_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With fewer, bytes are paid for in advance and in full.
    let _ = setrlimit(Resource::Nofile, limit);
}
