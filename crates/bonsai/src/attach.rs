//! `bonsai attach`: puts processes that run already under limits, stays beside them,
//! and takes the limits off at the end.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bonsai_host::proc::{self, Processes};
use bonsai_ledger::{EventLoops, Ledger, identity_of};
use bonsai_services::group;
use bonsai_services::initial::Provisional;
use bonsai_services::limits::{self, Limit};
use bonsai_services::observe::{self, monotonic_ns};
use bonsai_services::refusal::{Refusal, before_start};
use bonsai_services::service::{self, OwnService, Service, Services, Wanted, members};
use bonsai_services::{LEDGER_VARIABLE, harmless};
use bonsai_supervisor::{AttachError, Engine};
use bonsai_units::Setting;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::Attach;
use crate::detach::take_off;
use crate::library::{self, ENGINE_LINK};
use crate::output::say;
use crate::run::{
    Residence, STANDARD_LOADER, begin_with_limits, lift_without_daemon, merged, store_sites,
    wait_for_look,
};

/// How long between two looks whether anybody is left.
const LOOK: Duration = Duration::from_millis(100);

/// Between two comparisons with the kernel's counters there are so many of these.
const LOOKS_FOR_UNSEEN: u64 = 10;

/// The service that processes are put into.
enum Into {
    /// Made for them.
    New(OwnService),
    /// One that is running.
    Running(Service),
}

impl std::ops::Deref for Into {
    type Target = Service;

    fn deref(&self) -> &Service {
        match self {
            Self::New(service) => service,
            Self::Running(service) => service,
        }
    }
}

/// Puts processes under limits. Returns the exit code.
///
/// # Errors
/// Why one of them cannot be; then none is.
pub(crate) fn run(args: &Attach) -> anyhow::Result<u8> {
    let file = match &args.file {
        Some(path) => limits::read(path)?,
        None => limits::File::default(),
    };
    let given = args.limits.iter().map(|text| Limit::parse(text));
    let limits = merged(file.limits, &given.collect::<Result<Vec<_>, _>>()?)?;
    let name = args.name.clone().or(file.name);
    if let Some(name) = &name {
        service::check_name(name)?;
    }
    let library = library::find().map_err(before_start)?;
    let engine = library::engine_of(&library).ok_or_else(|| {
        let folder = library.parent().unwrap_or(Path::new("/"));
        Refusal::input(format!(
            "the engine that is put into processes (libbonsai_engine.so) is not in {}: install it \
             there (make build, make install)",
            folder.display()
        ))
    })?;
    let first = args.processes.first().copied().unwrap_or(0);
    // Before anything is made, so that a wrong number makes nothing.
    for pid in &args.processes {
        bonsai_supervisor::check(*pid).map_err(|error| refuse(*pid, &error))?;
    }
    // From here on, Ctrl-C takes off what is there by then.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals cannot be received")?;
    let service = find_or_make(name.as_deref(), first, &limits).map_err(before_start)?;
    let ledger = match &service {
        Into::New(own) => prepare(own, first, &limits, (&library, &engine)),
        Into::Running(service) => service.ledger().map(|ledger| (ledger, Vec::new())),
    };
    let entered = ledger.and_then(|(ledger, provisional)| {
        let ledger = Arc::new(ledger);
        let residence = match &service {
            Into::New(own) if !args.keep => {
                Some(Residence::open(own.ledger_path(), Arc::clone(&ledger))?)
            }
            _ => None,
        };
        let engine = Engine::read(&engine)?;
        let entered = enter_all(&args.processes, args.tree, &engine, &service)?;
        Ok((ledger, provisional, entered, residence))
    });
    // Until the end.
    let (ledger, provisional, entered, _residence) = match entered {
        Ok(entered) => entered,
        Err(error) => {
            if let Into::New(own) = service {
                own.remove()?;
            }
            return Err(before_start(error));
        }
    };
    say_holes(&ledger, &entered);
    if args.keep {
        wait_for_look(&service.name, provisional, &ledger);
        return Ok(0);
    }
    lift_without_daemon(provisional, Arc::clone(&ledger));
    say!(
        "bonsai: {} under limits as the service {}; Ctrl-C takes them off",
        described(&entered),
        service.name
    );
    let interrupted = stay(signals, &service, &ledger, &entered)?;
    if interrupted {
        match &service {
            Into::New(own) => take_off(own, &ledger)?,
            Into::Running(service) => leave(service, &entered)?,
        }
    }
    clean_up(service)
}

fn described(entered: &BTreeSet<i32>) -> String {
    match entered.len() {
        1 => entered.iter().map(|pid| shown(*pid)).collect::<String>() + " is",
        count => format!("{count} processes are"),
    }
}

/// `process 12 (nginx)`.
pub(crate) fn shown(pid: i32) -> String {
    let process = u32::try_from(pid).ok().map(proc::process);
    match process {
        Some(Ok(Some(process))) => format!("process {pid} ({})", harmless(&process.comm)),
        _ => format!("process {pid}"),
    }
}

/// Why a process cannot be put under limits, or taken out of them.
pub(crate) fn refuse(pid: i32, error: &AttachError) -> anyhow::Error {
    if let (AttachError::Already(_), Some(name)) = (error, service_of(pid)) {
        return Refusal::input(format!(
            "{} is under limits already, in the service {name}: bonsai set {name} changes them",
            shown(pid)
        ));
    }
    Refusal::input(format!("{}: {}", shown(pid), bonsai_host::sentence(error)))
}

/// The service that a process belongs to.
pub(crate) fn service_of(pid: i32) -> Option<String> {
    let pid = u32::try_from(pid).ok()?;
    let all = Services::open().ok()?.all().ok()?;
    let found = all.into_iter().find(|service| {
        let path = service.ledger_path();
        let named = || members::variable(pid, LEDGER_VARIABLE).map(PathBuf::from);
        let in_table = || {
            let table = service.ledger().map(|ledger| ledger.process_table());
            let id = identity_of(pid);
            table.is_ok_and(|table| table.iter().any(|entry| Some(entry.id) == id))
        };
        matches!(proc::has_mapped(pid, &path), Ok(Some(true)))
            && (in_table() || named() == Some(path))
    });
    found.map(|service| service.name)
}

fn find_or_make(name: Option<&str>, first: i32, limits: &[Limit]) -> anyhow::Result<Into> {
    let services = Services::open()?;
    let Some(name) = name else {
        let process = u32::try_from(first).ok().map(proc::process);
        let like = match process {
            Some(Ok(Some(process))) => service::name_like(Path::new(&process.comm)),
            _ => "process".to_owned(),
        };
        return Ok(Into::New(services.make(&Wanted::Like(&like))?));
    };
    let running = services
        .live()?
        .into_iter()
        .find(|service| service.name == name);
    match running {
        Some(_) if !limits.is_empty() => Err(Refusal::input(format!(
            "the service {name:?} is running and has its limits: join it without --limit, and change \
             them by bonsai set {name}; or choose another name"
        ))),
        Some(service) => Ok(Into::Running(service)),
        None => Ok(Into::New(services.make(&Wanted::Exactly(name))?)),
    }
}

/// Fills the folder of a new service.
fn prepare(
    service: &OwnService,
    first: i32,
    limits: &[Limit],
    (library, engine): (&Path, &Path),
) -> anyhow::Result<(Ledger, Vec<Provisional>)> {
    let ledger = Ledger::create(&service.ledger_path(), &service.name)?;
    bonsai_supervisor::note_filter(&ledger);
    let runtime = service.folder.parent().unwrap_or(&service.folder);
    let exe = PathBuf::from(format!("/proc/{first}/exe"));
    let elf = bonsai_host::elf::inspect(&exe)
        .ok()
        .and_then(|program| program.elf);
    let loader = elf
        .and_then(|elf| elf.interpreter)
        .map(|loader| loader.path);
    let loader = loader.as_deref().unwrap_or(Path::new(STANDARD_LOADER));
    store_sites(&ledger, loader, Some(&exe), runtime);
    if let Some(extension) = library::extension_of(library) {
        ledger.set_extension(&extension)?;
    }
    let set: Vec<Limit> = limits
        .iter()
        .filter(|limit| limit.setting != Setting::Unlimited)
        .cloned()
        .collect();
    limits::apply(&ledger, &set, Some(EventLoops::Auto), monotonic_ns())?;
    let link = |to: &Path, at: &Path| {
        symlink(to, at).with_context(|| format!("{}: cannot be made", at.display()))
    };
    link(library, &service.preload_path())?;
    link(engine, &service.folder.join(ENGINE_LINK))?;
    let provisional = begin_with_limits(&service.name, &ledger);
    Ok((ledger, provisional))
}

/// Enters all of them, or none.
fn enter_all(
    processes: &[i32],
    tree: bool,
    engine: &Engine,
    service: &Service,
) -> anyhow::Result<BTreeSet<i32>> {
    let mut entered = BTreeSet::new();
    let mut looked = BTreeSet::new();
    let ledger = service.ledger()?;
    let enter = |pid: i32| {
        let done = bonsai_supervisor::attach(pid, engine, &service.ledger_path())?;
        note_before(&ledger, pid);
        Ok(done)
    };
    let result = (|| -> anyhow::Result<()> {
        for pid in processes {
            if looked.insert(*pid) {
                let done = enter(*pid).map_err(|error| refuse(*pid, &error))?;
                entered.insert(*pid);
                warn(*pid, done.reason);
            }
        }
        // Whoever is under limits already makes children that are.
        if !tree {
            return Ok(());
        }
        loop {
            let new: Vec<i32> = descendants(processes)?
                .into_iter()
                .filter(|pid| looked.insert(*pid))
                .collect();
            if new.is_empty() {
                return Ok(());
            }
            for pid in new {
                if bonsai_supervisor::is_attached(pid) {
                    continue;
                }
                match enter(pid) {
                    Ok(_) => drop(entered.insert(pid)),
                    // It was on its way out.
                    Err(AttachError::Gone | AttachError::Zombie) => {}
                    Err(error) => return Err(refuse(pid, &error)),
                }
            }
        }
    })();
    if let Err(error) = result {
        leave(service, &entered)?;
        return Err(error);
    }
    Ok(entered)
}

/// Notes what a process has read and written up to now, after its first calls under limits: what is compared with the kernel later is
/// less by these.
fn note_before(ledger: &Ledger, pid: i32) {
    let Ok(pid) = u32::try_from(pid) else { return };
    if let (Some(id), Some(moved)) = (identity_of(pid), observe::moved_by(pid)) {
        ledger.note_before(id, [moved.read, moved.written]);
    }
}

/// Says what of it is not covered.
fn warn(pid: i32, reason: u32) {
    let reason = bonsai_ledger::Reason::from_u32(reason);
    if reason != bonsai_ledger::Reason::None {
        say!("bonsai: {}: {}", shown(pid), reason.about());
    }
}

/// Names the limited calls that a process makes by instructions which cannot be replaced.
fn say_holes(ledger: &Ledger, entered: &BTreeSet<i32>) {
    let table = ledger.process_table();
    for pid in entered {
        let id = u32::try_from(*pid).ok().and_then(identity_of);
        let entry = table.iter().find(|entry| Some(entry.id) == id);
        let unseen = entry.map_or([0, 0], |entry| entry.unseen);
        let names = observe::holes(ledger, unseen);
        if !names.is_empty() {
            say!(
                "bonsai: {}: not limited in part: made by instructions that cannot be replaced: {}",
                shown(*pid),
                names.join(", ")
            );
        }
    }
}

fn descendants(processes: &[i32]) -> anyhow::Result<Vec<i32>> {
    let all = Processes::read()?;
    let roots = processes.iter().filter_map(|pid| u32::try_from(*pid).ok());
    let found = roots.flat_map(|root| all.descendants(root));
    Ok(found
        .filter(|process| process.state != 'Z')
        .filter_map(|process| i32::try_from(process.pid).ok())
        .collect())
}

/// Waits until somebody interrupts us (true), or nobody is left.
fn stay(
    mut signals: Signals,
    service: &Service,
    ledger: &Ledger,
    entered: &BTreeSet<i32>,
) -> anyhow::Result<bool> {
    let mut unseen = None;
    for look in 1_u64.. {
        if signals.pending().next().is_some() {
            return Ok(true);
        }
        if unseen.is_none() && look.is_multiple_of(LOOKS_FOR_UNSEEN) {
            unseen = unseen_line(service, ledger)?;
            unseen.iter().for_each(|line| say!("bonsai: {line}"));
        }
        let table = ledger.process_table();
        let lives = |pid: &u32| std::fs::metadata(format!("/proc/{pid}/task")).is_ok();
        let is_left = |pid: i32| {
            u32::try_from(pid).is_ok_and(|pid| {
                let id = identity_of(pid);
                table.iter().any(|entry| Some(entry.id) == id) && lives(&pid)
            })
        };
        // The others are looked for only when these are gone: that costs more.
        if !entered.iter().any(|pid| is_left(*pid)) && !members::any(service)? {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
    }
    Ok(false)
}

/// Says that bytes went by calls which are not seen, where limits are on such calls.
fn unseen_line(service: &Service, ledger: &Ledger) -> anyhow::Result<Option<String>> {
    let members = members::all(service, ledger, None)?;
    let unseen = observe::unseen_of_processes(ledger, &members);
    Ok(unseen.and_then(|unseen| unseen.line(ledger)))
}

/// Takes processes, and what they have made, out of a service that goes on.
fn leave(service: &Service, entered: &BTreeSet<i32>) -> anyhow::Result<()> {
    let roots: Vec<i32> = entered.iter().copied().collect();
    for pid in descendants(&roots)?
        .into_iter()
        .chain(roots.iter().copied())
    {
        match bonsai_supervisor::detach(pid) {
            Ok(_) | Err(AttachError::Gone | AttachError::Zombie) => {}
            Err(error) => return Err(refuse(pid, &error)),
        }
    }
    bonsai_supervisor::wake(&service.ledger()?);
    Ok(())
}

fn clean_up(service: Into) -> anyhow::Result<u8> {
    let Into::New(own) = service else {
        return Ok(0);
    };
    if members::any(&own)? {
        say!(
            "bonsai: processes that were started meanwhile stay in the service {name}, without \
             limits: bonsai status {name} shows them",
            name = own.name
        );
    } else {
        if let Ok(ledger) = own.ledger() {
            group::leave_at_end(&ledger);
        }
        own.remove()?;
    }
    Ok(0)
}
