//! A runtime directory for each test.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use bonsai_ledger::Ledger;
use bonsai_services::service::{OwnService, Services, Wanted};

/// Set in the process that runs a test in its own runtime directory.
const WITHIN: &str = "BONSAI_TEST_WITHIN";

/// Runs a test of this name in a process of its own, with a runtime directory of its own:
/// the environment of a process that has threads must not be changed.
pub(crate) fn within(test: &str, body: impl FnOnce()) {
    if std::env::var_os(WITHIN).is_some() {
        body();
        return;
    }
    let mode = std::fs::Permissions::from_mode(0o700);
    let made = tempfile::Builder::new().permissions(mode).tempdir();
    let folder = made.expect("a folder");
    let own = std::env::current_exe().expect("this program");
    let output = Command::new(own)
        .args(["--exact", test, "--nocapture"])
        .env(WITHIN, "1")
        .env("BONSAI_RUNTIME_DIR", folder.path())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}{complained}");
    assert!(said.contains("1 passed"), "no test {test}: {said}");
    print!("{said}");
}

/// A service that this process keeps, and its ledger.
pub(crate) fn service(name: &str) -> (OwnService, Ledger) {
    let services = Services::open().expect("a runtime directory");
    let own = services.make(&Wanted::Exactly(name)).expect("a free name");
    let ledger = Ledger::create(&own.ledger_path(), name).expect("a ledger");
    // Where it is is for processes of the service: there are none.
    let extension = own.folder.join("libbonsai_extension.so");
    ledger.set_extension(&extension).expect("a short path");
    (own, ledger)
}
