//! `bonsai run`: checks everything, makes the service, starts the program, stays
//! beside it, and cleans up.

mod enforced;
mod helpers;
mod keeper;
mod program;
mod share;
mod sites;
mod summary;
mod trial;
pub(crate) mod unpatched;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{EventLoops, Ledger, flags};
use bonsai_services::group::{self, Wishes};
use bonsai_services::initial::{self, Applied, Provisional};
use bonsai_services::limits::{self, Limit};
use bonsai_services::observe::{Start, monotonic_ns, unseen_of_ended};
use bonsai_services::refusal::{Refusal, before_start};
use bonsai_services::service::{self, OwnService, Services, Wanted};
use bonsai_services::{LEDGER_VARIABLE, confinement};
use bonsai_units::Setting;
use rustix::process::{WaitOptions, wait};

pub(crate) use self::helpers::Residence;
use self::keeper::{Keeper, Ready};
use self::program::Program;
pub(crate) use self::program::STANDARD_LOADER;
pub(crate) use self::sites::{is_wanted, is_worth_entering, store as store_sites};
pub(crate) use self::trial::{Tried, trial};
use crate::cli::{Run, Unpatched, WhenDead};
use crate::library;
use crate::output::say;
use crate::stats;

/// Time up to the first look whether a daemon has taken a newcomer over, about its period. Each later look waits twice as long,
const FIRST_LOOK: Duration = Duration::from_millis(250);

/// and no longer.
const LAST_LOOK: Duration = Duration::from_secs(4);

/// The longest wait for that look in a command that does not stay: the longest period of a daemon.
const ANY_LOOK: Duration = Duration::from_secs(10);

/// Time between two of its looks.
const SOON: Duration = Duration::from_millis(20);

/// Everything that is known before anything is made.
#[derive(Debug)]
struct Plan {
    /// The name asked for, if any.
    name: Option<String>,
    limits: Vec<Limit>,
    /// The group that it joins, and what it wants of it.
    group: Option<(String, Wishes)>,
    program: Program,
    library: PathBuf,
    /// What programs without a loader are entered with; none where nothing is patched.
    engine: Option<PathBuf>,
    no_patch: bool,
    /// What cannot be covered is not run.
    strict: bool,
    unpatched: Unpatched,
    /// It ends with its supervisor.
    ends: bool,
    event_loops: EventLoops,
}

/// Runs a program as a service. Returns the exit code.
///
/// # Errors
/// Whatever keeps the program from being started.
pub(crate) fn run(args: &Run) -> anyhow::Result<u8> {
    if args.enforce {
        if args.unpatched != Unpatched::Leave && !args.guarded {
            let text = "--enforce decides on every call, patched or not: --unpatched says nothing \
                        more";
            return Err(Refusal::input(text));
        }
        return enforced::run(args);
    }
    if args.unpatched == Unpatched::Notify && unpatched::needs_supervisor(args)? {
        return enforced::run(args);
    }
    let ends = args.when_supervisor_dies == Some(WhenDead::End);
    if ends && !args.guarded {
        refuse_within_service()?;
        let program = Program::find(&args.program, true).map_err(before_start)?;
        return enforced::guard(&program, &[]);
    }
    let plan = Plan::check(args).map_err(before_start)?;
    refuse_within_service()?;
    if plan.unpatched == Unpatched::Trap {
        unpatched::say_price()?;
    }
    if let Some(warning) = &plan.program.warning {
        if args.strict {
            return Err(Refusal::input(format!("{warning}; --strict refuses that")));
        }
        say!("bonsai: {warning}");
    }
    // A signal ends nothing half-way from here on: it waits for the program.
    let ready = Ready::new().map_err(before_start)?;
    let service = plan.make().map_err(before_start)?;
    let started = share::within(
        args.cpu.as_ref(),
        &service.name,
        || plan.start(&service, ready),
        |(keeper, ledger)| {
            keeper.stop();
            group::leave_at_end(&ledger);
        },
    );
    let ((keeper, ledger), share) = match started {
        Ok(started) => started,
        Err(error) => {
            service.remove()?;
            return Err(before_start(error));
        }
    };
    let end = keeper.wait()?;
    let finish = || -> anyhow::Result<()> {
        let start = Start::of(&service, std::process::id());
        let unseen = start.and_then(|start| unseen_of_ended(&ledger, &start));
        let line = summary::line(
            &service.name,
            &ledger,
            (&plan.program, args.verbose),
            unseen,
        );
        if let Some(line) = line {
            say!("bonsai: {line}");
        }
        if summary::has_missed(&ledger)
            && let Some(line) = confinement::of_machine(&service)
        {
            say!("bonsai: {line}");
        }
        if args.json {
            say!(
                "{}",
                serde_json::to_string(&stats::document(&service.name, &ledger).with(unseen))?
            );
        }
        Ok(())
    };
    finish()?;
    if end.left_behind {
        say!(
            "bonsai: {} has ended, but processes that it started go on as the service {name}: \
             bonsai status {name} shows them",
            plan.program.shown(),
            name = service.name,
        );
        if ends {
            // As long as this is here, its guard is.
            while !matches!(wait(WaitOptions::empty()), Err(rustix::io::Errno::CHILD)) {}
        }
    } else {
        if let Some(share) = share {
            share.end();
        }
        group::leave_at_end(&ledger);
        remove(service);
    }
    Ok(end.code)
}

/// Removes the folder of a service whose program has ended: what is wrong there does not change how that has ended.
fn remove(service: OwnService) {
    if let Err(error) = service.remove() {
        say!("bonsai: {error:#}");
    }
}

impl Plan {
    fn check(args: &Run) -> anyhow::Result<Self> {
        let (name, limits) = asked_for(args)?;
        let wishes = args.group.member.wishes()?;
        if args.group.name.is_none() && !wishes.is_empty() {
            let text = "a guarantee, a ceiling or a weight is about a group: name it with --group";
            return Err(Refusal::input(text));
        }
        let library = library::find()?;
        if args.group.name.is_some() && library::extension_of(&library).is_none() {
            let text = "groups need libbonsai_extension.so beside libbonsai_preload.so: install it \
                        there (make build, make install)";
            return Err(Refusal::input(text));
        }
        let engine = library::engine_of(&library).filter(|_| !args.no_patch);
        let program = Program::find(&args.program, engine.is_some())?;
        Ok(Self {
            name,
            limits,
            group: args.group.name.clone().map(|name| (name, wishes)),
            program,
            library,
            engine,
            no_patch: args.no_patch,
            strict: args.strict,
            unpatched: args.unpatched,
            ends: args.when_supervisor_dies == Some(WhenDead::End),
            event_loops: args.event_loops.into(),
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

    /// Fills the service's folder and starts the program.
    fn start(&self, service: &OwnService, ready: Ready) -> anyhow::Result<(Keeper, Arc<Ledger>)> {
        let (ledger, provisional, command) = self.prepare(service)?;
        let ledger = Arc::new(ledger);
        let started = self.start_with(service, &ledger, command, ready);
        if started.is_err() {
            group::leave_at_end(&ledger);
        }
        let keeper = started?;
        lift_without_daemon(provisional, Arc::clone(&ledger));
        Ok((keeper, ledger))
    }

    fn start_with(
        &self,
        service: &OwnService,
        ledger: &Arc<Ledger>,
        mut command: Command,
        ready: Ready,
    ) -> anyhow::Result<Keeper> {
        write_start(service)?;
        if self.program.is_expected() {
            bonsai_supervisor::expect_before_exec(&mut command, Arc::clone(ledger));
        }
        let mut residence = None;
        if self.engine.is_some() {
            residence = Some(Residence::open(service.ledger_path(), Arc::clone(ledger))?);
            if self.program.is_entered {
                bonsai_supervisor::ask_before_exec(&mut command, Arc::clone(ledger));
            }
        }
        ready.start(&mut command, &self.program, residence, || {
            bonsai_supervisor::expect_nothing(ledger);
        })
    }

    /// Fills the service's folder; what starts the program then.
    fn prepare(&self, service: &OwnService) -> anyhow::Result<(Ledger, Vec<Provisional>, Command)> {
        let ledger = Ledger::create(&service.ledger_path(), &service.name)?;
        // First: `bonsai set` finds the service from here on, and the search for sites in a large program takes seconds.
        if let Some(extension) = library::extension_of(&self.library) {
            ledger.set_extension(&extension)?;
        }
        if self.strict {
            ledger
                .header
                .flags
                .fetch_or(flags::STRICT, Ordering::Relaxed);
        }
        bonsai_supervisor::note_filter(&ledger);
        if self.ends {
            let flags = &ledger.header.flags;
            flags.fetch_or(flags::ENDS, Ordering::Relaxed);
        }
        if self.unpatched == Unpatched::Trap {
            // A process that changes its user later could not map the extension any more.
            ledger
                .header
                .flags
                .fetch_or(flags::TRAP | flags::EXTENDED, Ordering::Relaxed);
        }
        if self.no_patch {
            ledger
                .header
                .flags
                .fetch_or(flags::NO_PATCH, Ordering::Relaxed);
        } else {
            let runtime = service.folder.parent().unwrap_or(&service.folder);
            let (loader, file) = (self.program.loader(), self.program.file());
            sites::store(&ledger, loader, file, runtime);
        }
        let set: Vec<Limit> = self
            .limits
            .iter()
            .filter(|limit| limit.setting != Setting::Unlimited)
            .cloned()
            .collect();
        limits::apply(&ledger, &set, Some(self.event_loops), monotonic_ns())?;
        if set.iter().any(Limit::is_narrow) || self.event_loops == EventLoops::On {
            // A process that changes its user later could not map it any more.
            let flags = &ledger.header.flags;
            flags.fetch_or(flags::EXTENDED, Ordering::Relaxed);
        }
        let link = |to: &Path, at: &Path| {
            std::os::unix::fs::symlink(to, at)
                .with_context(|| format!("{}: cannot be made", at.display()))
        };
        link(&self.library, &service.preload_path())?;
        if let Some(engine) = &self.engine {
            link(engine, &service.folder.join(library::ENGINE_LINK))?;
        }
        // Last: from here on it has something to give back.
        if let Some((group, wishes)) = &self.group {
            // A daemon may have seen it already.
            initial::join_out_of_pool(&service.name, &ledger, || {
                group::join_at_start(&ledger, &service.name, group, wishes)
            })?
            .0?;
        }
        let provisional = begin_with_limits(&service.name, &ledger);
        Ok((ledger, provisional, self.command(service)))
    }

    fn command(&self, service: &OwnService) -> Command {
        let existing = std::env::var_os("LD_PRELOAD");
        let mut command = Command::new(&self.program.path);
        command
            .arg0(&self.program.argv[0])
            .args(&self.program.argv[1..])
            .env(
                "LD_PRELOAD",
                library::appended(existing.as_deref(), &service.preload_path()),
            )
            .env(LEDGER_VARIABLE, service.ledger_path())
            .env(
                "ASAN_OPTIONS",
                sanitizer_options(std::env::var_os("ASAN_OPTIONS")),
            );
        command
    }
}

/// Puts into force what a daemon lets a service have that it has not seen yet. Returns what is for the time up to then.
pub(crate) fn begin_with_limits(service: &str, ledger: &Ledger) -> Vec<Provisional> {
    // With a daemon that cannot be asked or a ledger that has no room for more, the program runs as it does without one.
    let applied = initial::apply(service, ledger).unwrap_or_else(|error| Applied {
        missing: vec![bonsai_host::sentence(error.as_ref())],
        ..Applied::default()
    });
    for why in applied.missing {
        say!("bonsai: {service} has no limit of the daemon's before that looks at it: {why}");
    }
    applied.provisional
}

/// Lifts limits for the time up to the daemon's first look, if the daemon ends before that: on a thread that ends as soon as the
/// daemon has looked, a period later. Started after the program, which is forked from this process.
pub(crate) fn lift_without_daemon(mut provisional: Vec<Provisional>, ledger: Arc<Ledger>) {
    if provisional.is_empty() {
        return;
    }
    let look = move || {
        let mut wait = FIRST_LOOK;
        while !provisional.is_empty() {
            std::thread::sleep(wait);
            wait = (2 * wait).min(LAST_LOOK);
            // A ledger that is locked is asked again.
            provisional.retain(|provisional| !provisional.look(&ledger).unwrap_or(false));
        }
    };
    let thread = std::thread::Builder::new().name("initial".to_owned());
    if let Err(error) = thread.spawn(look) {
        say!("bonsai: limits up to the daemon's first look stay if that never comes: {error}");
    }
}

/// The same where this process does not stay: waits until the daemon has looked or has ended, a period of the daemon in most
/// cases. One that hangs is waited for until [`ANY_LOOK`].
pub(crate) fn wait_for_look(service: &str, mut provisional: Vec<Provisional>, ledger: &Ledger) {
    let start = Instant::now();
    loop {
        provisional.retain(|provisional| !provisional.look(ledger).unwrap_or(false));
        if provisional.is_empty() {
            return;
        }
        if start.elapsed() > ANY_LOOK {
            say!(
                "bonsai: {service} has a newcomer's limit still, {} s after the daemon should have looked: it stays if the \
                 daemon ends before it does",
                ANY_LOOK.as_secs()
            );
            return;
        }
        std::thread::sleep(SOON);
    }
}

/// The ledger of the service that this process is of.
pub(crate) fn own_ledger() -> Option<PathBuf> {
    // As the kernel knows it: the library takes out of our own what was added to it.
    let named = service::members::variable(std::process::id(), LEDGER_VARIABLE);
    let ledger = named.map(PathBuf::from)?;
    // The variable alone may be left over.
    let is_member = bonsai_host::proc::has_mapped(std::process::id(), &ledger);
    is_member
        .is_ok_and(|mapped| mapped == Some(true))
        .then_some(ledger)
}

/// A process of a service stays in it, with all that it starts: another service
/// would be empty, and its limits would hold for nobody.
fn refuse_within_service() -> anyhow::Result<()> {
    let Some(ledger) = own_ledger() else {
        return Ok(());
    };
    let folder = ledger
        .parent()
        .and_then(Path::file_name)
        .unwrap_or_default();
    let name = folder.to_string_lossy();
    let text = format!(
        "this is a process of the service {name:?} already, whose limits hold for all that it \
         starts: a service within a service is not possible (bonsai set {name} changes its limits)"
    );
    Err(Refusal::input(text))
}

/// AddressSanitizer ends a program whose first library is another one, unless it
/// is told not to look; nothing else reads this variable.
fn sanitizer_options(existing: Option<OsString>) -> OsString {
    let mut options = OsString::from("verify_asan_link_order=0");
    if let Some(existing) = existing.filter(|value| !value.is_empty()) {
        // The last of two settings holds, so that the user's own has its way.
        options.push(":");
        options.push(existing);
    }
    options
}

/// The name and the limits that the command line and its file ask for.
fn asked_for(args: &Run) -> anyhow::Result<(Option<String>, Vec<Limit>)> {
    let file = match &args.file {
        Some(path) => limits::read(path)?,
        None => limits::File::default(),
    };
    let given = args.limits.iter().map(|text| Limit::parse(text));
    let given: Vec<Limit> = given.collect::<Result<_, _>>()?;
    let limits = merged(file.limits, &given)?;
    let name = args.name.clone().or(file.name);
    if let Some(name) = &name {
        service::check_name(name)?;
    }
    Ok((name, limits))
}

/// Limits of the file, and those of the command line that replace them by name.
pub(crate) fn merged(file: Vec<Limit>, given: &[Limit]) -> anyhow::Result<Vec<Limit>> {
    let refuse = |problem: limits::LimitProblem| Refusal::input(problem.to_string());
    limits::check_together(given).map_err(refuse)?;
    let replaced = |limit: &Limit| given.iter().any(|new| new.name == limit.name);
    let kept = file.into_iter().filter(|limit| !replaced(limit));
    let all: Vec<Limit> = kept.chain(given.iter().cloned()).collect();
    limits::check_together(&all).map_err(refuse)?;
    Ok(all)
}

fn write_start(service: &OwnService) -> anyhow::Result<()> {
    // Without these counters the audit says less; nothing else depends on them.
    let Some(mut start) = Start::now() else {
        return Ok(());
    };
    // The file itself is written before the start, too.
    start.wchar += serde_json::to_vec(&start)?.len() as u64;
    let path = service.start_path();
    std::fs::write(&path, serde_json::to_vec(&start)?)
        .with_context(|| format!("{}: cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(texts: &[&str]) -> Vec<Limit> {
        texts
            .iter()
            .map(|text| Limit::parse(text).expect(text))
            .collect()
    }

    #[test]
    fn the_command_line_replaces_the_file_by_name() {
        let file = limits(&["read=1MB/s", "read=100/s", "send=1MB/s"]);
        let all = merged(file, &limits(&["read=2MB/s", "open=5/s"])).expect("limits");
        assert_eq!(all, limits(&["send=1MB/s", "read=2MB/s", "open=5/s"]));
        merged(Vec::new(), &limits(&["read=2MB/s", "read=3MB/s"])).expect_err("twice");
    }

    #[test]
    fn the_users_sanitizer_options_win() {
        let options = |existing: &str| sanitizer_options(Some(existing.into()));
        assert_eq!(options("a=1"), "verify_asan_link_order=0:a=1");
        assert_eq!(options(""), "verify_asan_link_order=0");
        assert_eq!(sanitizer_options(None), "verify_asan_link_order=0");
    }
}
