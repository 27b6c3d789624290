//! `bonsai detach`: takes the limits off processes that were put under them as they
//! ran.

use bonsai_ledger::Ledger;
use bonsai_services::group;
use bonsai_services::observe::{SCHEMA, monotonic_ns};
use bonsai_services::refusal::Refusal;
use bonsai_services::service::{Service, Services, members};
use bonsai_supervisor::AttachError;
use serde_json::json;

use crate::attach::{refuse, service_of, shown};
use crate::cli::Detach;
use crate::output::print_json;

/// Takes the limits off.
///
/// # Errors
/// Who is not under any, or why they cannot be taken off.
pub(crate) fn run(args: &Detach) -> anyhow::Result<u8> {
    for target in &args.targets {
        if let Ok(pid) = target.parse::<i32>() {
            one(pid)?;
        } else {
            all(target)?;
        }
    }
    if args.json {
        print_json(&json!({"schema": SCHEMA, "detached": args.targets}), false)?;
    }
    Ok(0)
}

fn one(pid: i32) -> anyhow::Result<()> {
    let name = service_of(pid);
    let is_off = bonsai_supervisor::detach(pid).map_err(|error| refuse(pid, &error))?;
    let service = name.as_deref().map(|name| Services::open()?.find(name));
    // Another one may have taken them off meanwhile.
    let stays = name.filter(|_| is_off || service_of(pid).is_some());
    match (is_off, stays) {
        (true, _) => {
            if let Some(Ok(service)) = service {
                bonsai_supervisor::wake(&service.ledger()?);
            }
            Ok(())
        }
        (false, Some(name)) => Err(Refusal::input(format!(
            "{} was started in the service {name}, and stays there: bonsai set {name} NAME=unlimited \
             lifts a limit",
            shown(pid)
        ))),
        (false, None) => Err(Refusal::input(format!(
            "{} is not under limits (bonsai status says what is)",
            shown(pid)
        ))),
    }
}

/// All processes of a service that were put into it as they ran.
fn all(name: &str) -> anyhow::Result<()> {
    let service = Services::open()?.find(name)?;
    let ledger = service.ledger()?;
    let entered = entered(&service, &ledger)?;
    if entered.is_empty() {
        return Err(Refusal::input(format!(
            "all processes of the service {name} were started in it, and stay there: bonsai set \
             {name} NAME=unlimited lifts a limit"
        )));
    }
    leave(&ledger, entered)
}

fn entered(service: &Service, ledger: &Ledger) -> anyhow::Result<Vec<i32>> {
    let members = members::all(service, ledger, None)?;
    let pids = members
        .iter()
        .filter_map(|member| i32::try_from(member.process.pid).ok());
    Ok(pids
        .filter(|pid| bonsai_supervisor::is_attached(*pid))
        .collect())
}

fn leave(ledger: &Ledger, processes: Vec<i32>) -> anyhow::Result<()> {
    let mut problem = Ok(());
    for pid in processes {
        match bonsai_supervisor::detach(pid) {
            Ok(_) | Err(AttachError::Gone | AttachError::Zombie) => {}
            Err(error) => problem = Err(refuse(pid, &error)),
        }
    }
    bonsai_supervisor::wake(ledger);
    problem
}

/// Ends a service: lifts its limits, so that nobody waits any more, and takes them off
/// all processes that were put under them as they ran.
pub(crate) fn take_off(service: &Service, ledger: &Ledger) -> anyhow::Result<()> {
    let now = monotonic_ns();
    let names: Vec<String> = ledger
        .limits(now)
        .into_iter()
        .map(|limit| limit.name)
        .collect();
    let mut editor = ledger.edit(now)?;
    for name in names {
        editor.clear(&name);
    }
    editor.commit();
    group::leave_at_end(ledger);
    // Some may just have been made by others.
    for _ in 0..3 {
        let entered = entered(service, ledger)?;
        if entered.is_empty() {
            break;
        }
        leave(ledger, entered)?;
    }
    Ok(())
}
