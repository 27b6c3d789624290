//! Security modules that keep the library, or the ledger, from a program: what their rules have to allow.

use std::fs;
use std::path::Path;

use crate::harmless;
use crate::service::Service;

/// A confined process.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Label {
    /// By an AppArmor profile of that name, in force.
    Profile(String),
    /// By an SELinux domain.
    Domain(String),
}

impl Label {
    /// By the text of `/proc/PID/attr/current`; `None` of one that nothing confines.
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim_end_matches(['\0', '\n']);
        if let Some(profile) = text.strip_suffix(" (enforce)") {
            return Some(Self::Profile(harmless(profile)));
        }
        // USER:ROLE:TYPE:LEVEL
        let domain = text.split(':').nth(2)?;
        let is_confined = !domain.starts_with("unconfined") && domain != "kernel_t";
        is_confined.then(|| Self::Domain(harmless(domain)))
    }
}

/// Why the library may not have come up in a process of a service that lives: the security module, with the rule.
#[must_use]
pub fn of_process(service: &Service, pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/attr/current")).ok()?;
    Some(match Label::parse(&text)? {
        Label::Profile(name) => format!(
            "confined by the AppArmor profile {name}, which has to allow: {}",
            rules(service)
        ),
        Label::Domain(name) => {
            format!(
                "confined by the SELinux domain {name}: audit2allow(1) names the rule that it lacks"
            )
        }
    })
}

/// The same of a program that has ended: which rules matter on this machine, if any.
#[must_use]
pub fn of_machine(service: &Service) -> Option<String> {
    let is =
        |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    if is("/sys/module/apparmor/parameters/enabled", "Y") {
        return Some(format!(
            "where an AppArmor profile confines a program, it has to allow: {}",
            rules(service)
        ));
    }
    is("/sys/fs/selinux/enforce", "1").then(|| {
        "where SELinux confines a program, audit2allow(1) names the rule that its domain lacks"
            .to_owned()
    })
}

/// Rules of a profile (apparmor.d(5)): the library and what it maps beside itself are read and mapped, by their own paths, and the ledger
/// of any service is written.
fn rules(service: &Service) -> String {
    let link = service.preload_path();
    let library = fs::canonicalize(&link).unwrap_or(link);
    let name = library.file_name().unwrap_or_default();
    let libraries = match library.parent() {
        Some(folder) if name.as_encoded_bytes().starts_with(b"libbonsai_") => {
            folder.join("libbonsai_*.so")
        }
        _ => library,
    };
    let runtime = service.folder.parent().unwrap_or(Path::new("/"));
    format!(
        "{} mr, {}/*/ledger rw,",
        libraries.display(),
        runtime.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_told_apart() {
        let profile = |name: &str| Some(Label::Profile(name.to_owned()));
        assert_eq!(
            Label::parse("/usr/bin/man (enforce)\n"),
            profile("/usr/bin/man")
        );
        assert_eq!(Label::parse("/usr/bin/man (complain)\n"), None);
        assert_eq!(Label::parse("unconfined\n"), None);
        let domain = Label::parse("system_u:system_r:httpd_t:s0\0");
        assert_eq!(domain, Some(Label::Domain("httpd_t".to_owned())));
        assert_eq!(Label::parse("u:r:unconfined_t:s0-s0:c0.c1023\0"), None);
        assert_eq!(Label::parse("system_u:system_r:kernel_t:s0"), None);
    }

    #[test]
    fn rules_name_the_libraries_themselves_and_any_ledger() {
        let folder = tempfile::tempdir().expect("a folder");
        let service = Service {
            name: "a".to_owned(),
            folder: folder.path().join("a"),
        };
        fs::create_dir(&service.folder).expect("a folder");
        let library = folder.path().join("libbonsai_preload.so");
        fs::write(&library, "").expect("a file");
        std::os::unix::fs::symlink(&library, service.preload_path()).expect("a link");
        let folder_of = fs::canonicalize(folder.path()).expect("there");
        let wanted = format!(
            "{}/libbonsai_*.so mr, {}/*/ledger rw,",
            folder_of.display(),
            folder.path().display()
        );
        assert_eq!(rules(&service), wanted);
    }
}
