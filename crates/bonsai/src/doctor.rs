//! `bonsai doctor`: what can and cannot be shaped, here or of a program, and why.

pub(crate) mod coverage;
pub(crate) mod libcs;
mod program;

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use bonsai_host::sys::{Capability, State, capabilities};
use bonsai_ledger::{Reason, coverage as bits};
use bonsai_services::observe::{Covered, Head};
use bonsai_supervisor::enforce::{Reach, confinable, price, reach};
use bonsai_supervisor::{Way, is_allowed, trap_price};
use bonsai_units::format_duration_ns;
use serde::Serialize;

use self::coverage::{Allowed, Need};
use self::libcs::{LibcView, Where};
use self::program::ProgramView;
use crate::cli::Doctor;
use crate::library;
use crate::output::{Ink, Paint, finish, print, print_json, table};
use crate::run::unpatched::price_of;
use crate::run::{STANDARD_LOADER, trial};

/// The program that is tried out.
const TRIED: &str = "/bin/true";

/// Longest time that it may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What `bonsai doctor --json` prints.
#[derive(Debug, Serialize)]
struct Document {
    #[serde(flatten)]
    head: Head,
    /// Whether anything can be shaped.
    ok: bool,
    machine: Option<Machine>,
    program: Option<ProgramView>,
    /// C libraries that were asked about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    libcs: Vec<LibcView>,
}

/// This machine.
#[derive(Debug, Serialize)]
struct Machine {
    /// The library's file.
    library: Option<String>,
    /// Why there is none.
    library_error: Option<String>,
    trial: Trial,
    /// C libraries of this host.
    libcs: Vec<LibcView>,
    capabilities: Vec<CapabilityView>,
    /// What of which program is limited.
    coverage: Vec<coverage::Cell>,
}

/// What happened when a program was run under the library.
#[derive(Debug, Default, Serialize)]
struct Trial {
    program: &'static str,
    /// How far it was covered; `null` if not at all.
    covered: Option<Covered>,
    /// Why not further.
    reason: Option<String>,
    /// System call sites patched.
    sites: u32,
    /// What entering it took, ns.
    attach_cost_ns: u64,
    /// Whether it could be run at all.
    #[serde(skip)]
    has_run: bool,
}

#[derive(Debug, Serialize)]
struct CapabilityView {
    name: &'static str,
    /// `yes`, `no` or `unknown`.
    state: &'static str,
    detail: String,
}

/// Looks at the machine or at a program. Returns 1 if nothing can be shaped.
///
/// # Errors
/// The program cannot be found or read.
pub(crate) fn run(args: &Doctor) -> anyhow::Result<u8> {
    // It makes files to try things out, and runs no program of others.
    bonsai_host::ignore_file_size_signal();
    let document = match (&args.program, &args.libc) {
        (_, Some(path)) => {
            let libcs = libcs::look(Where::At(path))?;
            Document {
                head: Head::now(),
                ok: libcs.iter().all(LibcView::is_seen),
                machine: None,
                program: None,
                libcs,
            }
        }
        (Some(name), None) => {
            let program = program::look_at(name)?;
            Document {
                head: Head::now(),
                ok: program.ok,
                machine: None,
                program: Some(program),
                libcs: Vec::new(),
            }
        }
        (None, None) => {
            let machine = look_at_machine()?;
            let ok = machine.trial.covered.is_some();
            Document {
                head: Head::now(),
                ok,
                machine: Some(machine),
                program: None,
                libcs: Vec::new(),
            }
        }
    };
    if args.json {
        print_json(&document, false)?;
    } else {
        let paint = Paint::stdout();
        let machine = document
            .machine
            .as_ref()
            .map(|machine| machine_text(machine, paint));
        let program = document
            .program
            .as_ref()
            .map(|program| program::text(program, paint));
        let libcs = libcs_text(&document.libcs);
        print(
            &machine
                .into_iter()
                .chain(program)
                .chain(libcs)
                .collect::<String>(),
        )?;
    }
    Ok(u8::from(!document.ok))
}

/// The C libraries that were asked about, a line each.
fn libcs_text(libcs: &[LibcView]) -> Option<String> {
    let mut rows = table(&["", "libc"], &[]);
    for libc in libcs {
        let (state, detail) = libc.row();
        rows.add_row([state.to_owned(), detail]);
    }
    (!libcs.is_empty()).then(|| finish(&rows))
}

fn look_at_machine() -> anyhow::Result<Machine> {
    let (library, library_error) = match library::find() {
        Ok(path) => (Some(path.display().to_string()), None),
        Err(error) => (None, Some(bonsai_host::sentence(error.as_ref()))),
    };
    let trial = try_out();
    let mut found: Vec<CapabilityView> = capabilities().into_iter().map(capability).collect();
    if let Err(error) = bonsai_supervisor::may_trace() {
        for capability in found
            .iter_mut()
            .filter(|found| TRACING.contains(&found.name))
        {
            capability.state = "no";
            capability.detail = format!("ptrace is refused: {error}");
        }
    }
    found.extend([trap(), enforced_mode(), interfaces(), recording()]);
    found.extend(bonsai_nbd::image::abilities().into_iter().map(of_images));
    let coverage = coverage::cells(&allowed(&trial, &found));
    Ok(Machine {
        library,
        library_error,
        libcs: libcs::look(Where::Host {
            is_run: trial.has_run,
        })?,
        trial,
        capabilities: found,
        coverage,
    })
}

/// The capabilities that need `ptrace(2)`.
const TRACING: [&str; 3] = ["ptrace", "attach", "attach_other_users"];

/// `EPERM`.
const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();

const ENFORCED: &str = "enforced mode";
const TRAPPED: &str = "trap (--unpatched)";

/// What of the table's needs is there.
fn allowed(trial: &Trial, found: &[CapabilityView]) -> Allowed {
    let has = |name: &str| {
        let mut named = found.iter().filter(|found| found.name == name);
        named.any(|found| matches!(found.state, "yes" | "unknown"))
    };
    Allowed::new([
        (Need::Services, trial.has_run),
        (Need::Library, trial.covered.is_some()),
        (Need::Patching, trial.covered == Some(Covered::Patched)),
        (Need::Unfiltered, has("unfiltered")),
        (Need::Tracing, has("ptrace")),
        (Need::Attaching, has("attach")),
        (Need::OtherUsers, has("attach_other_users")),
        (Need::Enforcing, has(ENFORCED)),
        (Need::Trapping, has(TRAPPED)),
    ])
}

/// What `bonsai link` can do here: tried in a network namespace that is gone afterwards.
fn interfaces() -> CapabilityView {
    let (state, detail) = match bonsai_link::abilities() {
        Err(error) if error.errno() == Some(EPERM) => (
            "unknown",
            "only root can try; paces of one's own processes need nothing (bonsai link pace)"
                .to_owned(),
        ),
        Err(error) => ("no", bonsai_host::sentence(&error)),
        Ok(all) => {
            let is_there = |name: &str| all.iter().any(|of| of.name == name && of.fault.is_none());
            let (whole, programs) = (is_there("link"), is_there("cls_bpf"));
            let works = |of: &&bonsai_link::Ability| of.fault.is_none();
            let (has, lacks): (Vec<_>, Vec<_>) = all.iter().partition(works);
            let names = |of: &[&bonsai_link::Ability]| {
                let names: Vec<&str> = of.iter().map(|one| one.name).collect();
                names.join(", ")
            };
            let mut detail = match (whole, programs) {
                (true, true) => "plan bpf: limits, guarantees, weights, units and control groups",
                (true, false) => "plan u32: limits alone, no shares of uplinks",
                (false, _) => "no limits",
            }
            .to_owned();
            detail.push_str(&format!("; there are {}", names(&has)));
            if !lacks.is_empty() {
                detail.push_str(&format!(", not {}", names(&lacks)));
            }
            let needed = |of: &&bonsai_link::Ability| !whole || of.name == "cls_bpf";
            let faults = lacks.into_iter().filter(needed);
            if let Some(error) = faults.filter_map(|of| of.fault.as_ref()).next() {
                detail.push_str(&format!(": {}", bonsai_host::sentence(error)));
            }
            (if whole { "yes" } else { "no" }, detail)
        }
    };
    CapabilityView {
        name: "interfaces",
        state,
        detail,
    }
}

/// Whether `bonsai trace record --device` can be used here.
fn recording() -> CapabilityView {
    let (state, detail) = crate::trace::available();
    CapabilityView {
        name: "recording of disks",
        state,
        detail,
    }
}

/// What `bonsai drive serve` can use here.
fn of_images(found: bonsai_nbd::image::Ability) -> CapabilityView {
    let (state, detail) = match found.fault {
        None => ("yes", format!("drive serve: {}", found.used)),
        Some(error) => ("no", format!("drive serve: {}: {error}", found.lost)),
    };
    CapabilityView {
        name: found.name,
        state,
        detail,
    }
}

/// What `bonsai run --unpatched trap` costs here.
fn trap() -> CapabilityView {
    let (state, detail) = match is_allowed(Way::Trap).map(|()| trap_price()) {
        Ok(Ok(price)) => ("yes", price_of(&price)),
        Ok(Err(error)) => ("no", format!("no seccomp filters: {error}")),
        Err(denied) => ("no", denied.to_string()),
    };
    CapabilityView {
        name: TRAPPED,
        state,
        detail,
    }
}

/// What `bonsai run --enforce` can do here, and what it costs.
fn enforced_mode() -> CapabilityView {
    if let Err(denied) = is_allowed(Way::Enforce) {
        return CapabilityView {
            name: ENFORCED,
            state: "no",
            detail: denied.to_string(),
        };
    }
    let (state, detail) = match (price(), confinable()) {
        (Err(error), _) => ("no", format!("no seccomp listener: {error}")),
        (_, Err(error)) => ("no", format!("no Landlock domain can be entered: {error}")),
        (Ok(price), _) => {
            let price = u64::try_from(price.as_nanos()).unwrap_or(u64::MAX);
            let cost = format!("+{} for each call asked about", format_duration_ns(price));
            match reach() {
                Reach::None => ("yes", cost),
                Reach::Signals => (
                    "yes",
                    format!(
                        "{cost}; without --user, programs can end their supervisor (and \
                             themselves): Landlock is older than version 6"
                    ),
                ),
                Reach::All => (
                    "part",
                    format!("{cost}; only as root, with --user: no Landlock"),
                ),
            }
        }
    };
    CapabilityView {
        name: ENFORCED,
        state,
        detail,
    }
}

fn capability(found: Capability) -> CapabilityView {
    let state = match found.state {
        State::Yes => "yes",
        State::No => "no",
        State::Unknown => "unknown",
    };
    CapabilityView {
        name: found.name,
        state,
        detail: found.detail,
    }
}

fn try_out() -> Trial {
    let nothing = |reason: String| Trial {
        program: TRIED,
        reason: Some(reason),
        ..Trial::default()
    };
    let loader = Path::new(STANDARD_LOADER);
    let table = match trial(OsStr::new(TRIED), loader, PATIENCE, |_, _| {}) {
        Ok(tried) => tried.processes,
        Err(error) => return nothing(bonsai_host::sentence(error.as_ref())),
    };
    let attached = table
        .into_iter()
        .find(|entry| entry.coverage & bits::ATTACHED != 0);
    let Some(entry) = attached else {
        let reason = "the library was not loaded, or could not open the ledger";
        return Trial {
            has_run: true,
            ..nothing(reason.to_owned())
        };
    };
    let patched = entry.coverage & bits::PATCHED != 0;
    Trial {
        program: TRIED,
        covered: Some(if patched {
            Covered::Patched
        } else {
            Covered::SymbolsOnly
        }),
        reason: (entry.reason != Reason::None).then(|| entry.reason.about().to_owned()),
        sites: entry.sites,
        attach_cost_ns: entry.attach_cost_ns,
        has_run: true,
    }
}

fn machine_text(machine: &Machine, paint: Paint) -> String {
    let mut rows = table(&["", "what", "detail"], &[]);
    let mut add = |state: &str, name: &str, detail: String| {
        rows.add_row([state.to_owned(), name.to_owned(), detail]);
    };
    match (&machine.library, &machine.library_error) {
        (Some(path), _) => add("yes", "library", path.clone()),
        (None, error) => add("no", "library", error.clone().unwrap_or_default()),
    }
    let trial = &machine.trial;
    let reason = trial.reason.clone().unwrap_or_default();
    match trial.covered {
        Some(Covered::Patched) => {
            let cost = format_duration_ns(trial.attach_cost_ns);
            let detail = format!(
                "{}: {} of libc's system calls patched, in {cost}",
                trial.program, trial.sites
            );
            add("yes", "covered", detail);
        }
        Some(_) => add(
            "part",
            "covered",
            format!("{}: exported symbols only, {reason}", trial.program),
        ),
        None => add("no", "covered", format!("{}: {reason}", trial.program)),
    }
    for libc in &machine.libcs {
        let (state, detail) = libc.row();
        add(state, "libc", detail);
    }
    for found in &machine.capabilities {
        let state = if found.state == "unknown" {
            "?"
        } else {
            found.state
        };
        add(state, found.name, found.detail.clone());
    }
    let title = match trial.covered {
        Some(Covered::Patched) => {
            "Programs that load libraries can be shaped here, with all that libc does."
        }
        Some(_) => {
            "Programs that load libraries can be shaped here, apart from what libc does inside itself."
        }
        None => "Nothing can be shaped here.",
    };
    format!(
        "{}\n{}\n{}\n{}",
        paint.ink(Ink::Bold, title),
        finish(&rows),
        coverage::text(&machine.coverage),
        coverage::legend(),
    )
}
