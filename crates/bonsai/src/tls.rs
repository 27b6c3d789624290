//! Certificates and keys of servers, as the command line names them, and again when they are renewed.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use bonsai_services::refusal::Refusal;
use bonsai_tls::{Files, Look, Renewable};

/// Time between two looks at the files.
const LOOKS: Duration = Duration::from_secs(2);

/// Reads the files, and again for as long as there is a use for them. What is to be known of them is told.
///
/// # Errors
/// A file that cannot be used, or a key of another certificate.
pub(crate) fn open(files: Files, tell: fn(&str)) -> anyhow::Result<Arc<Renewable>> {
    let path = files.certificate.display().to_string();
    let key = files.key.display().to_string();
    let opened = Renewable::open(files, |_, _| Ok(()));
    let (renewable, tls) = opened.map_err(|error| Refusal::input(error.to_string()))?;
    if tls.exposed_key() {
        tell(&format!(
            "bonsai: {key}: every user of this machine can read this key: chmod o= keeps them from it"
        ));
    }
    let renewable = Arc::new(renewable);
    let followed = Arc::downgrade(&renewable);
    thread::Builder::new()
        .name("certificates".to_owned())
        .spawn(move || follow(&path, &followed, tell))?;
    Ok(renewable)
}

/// On a thread of its own, as a file system may hang.
fn follow(path: &str, renewable: &Weak<Renewable>, tell: fn(&str)) {
    loop {
        thread::sleep(LOOKS);
        let Some(renewable) = renewable.upgrade() else {
            return;
        };
        match renewable.look() {
            None => {}
            Some(Look::Renewed) => {
                tell(&format!("bonsai: {path}: the certificate is read again"));
            }
            Some(Look::Refused(why)) => tell(&format!(
                "bonsai: {why}: the certificate of before stays in use"
            )),
        }
    }
}
