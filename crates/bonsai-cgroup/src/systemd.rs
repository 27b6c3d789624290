//! systemd, asked and told by D-Bus (org.freedesktop.systemd1(5)): what it has set on a unit it
//! writes again whenever it likes, so limits of units go through it.

use std::path::Path;
use std::time::Duration;

use zbus::zvariant::DynamicType;
use zbus::{Connection, OwnedObjectPath, OwnedVariant, Variant};

use crate::error::Error;

/// How long it is waited for an answer. systemd answers between two jobs.
const PATIENCE: Duration = Duration::from_secs(10);

const BUS_NAME: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";

/// Kinds of units that have control groups, and their interfaces.
const KINDS: [(&str, &str); 6] = [
    (".service", "org.freedesktop.systemd1.Service"),
    (".scope", "org.freedesktop.systemd1.Scope"),
    (".slice", "org.freedesktop.systemd1.Slice"),
    (".socket", "org.freedesktop.systemd1.Socket"),
    (".mount", "org.freedesktop.systemd1.Mount"),
    (".swap", "org.freedesktop.systemd1.Swap"),
];

/// Whether the last part of a path is named like a unit that has a control group.
#[must_use]
pub fn is_unit_name(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    kind(name).is_some_and(|(suffix, _)| name.len() > suffix.len())
}

fn kind(name: &str) -> Option<(&'static str, &'static str)> {
    KINDS.into_iter().find(|(suffix, _)| name.ends_with(suffix))
}

/// Whether systemd is the manager of this machine (sd_booted(3)).
#[must_use]
pub fn systemd_runs() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// A value of a property of a unit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Property {
    /// A number; `u64::MAX` is infinity.
    Number(u64),
    /// Numbers of devices, by a path of each.
    Devices(Vec<(String, u64)>),
}

impl Property {
    fn value(&self) -> Variant<'_> {
        match self {
            Self::Number(n) => Variant::from(*n),
            Self::Devices(list) => {
                let list: Vec<(&str, u64)> =
                    list.iter().map(|(path, n)| (path.as_str(), *n)).collect();
                Variant::from(list)
            }
        }
    }
}

/// A connection to systemd, over the system bus. (Its private socket, which systemctl uses as root,
/// names a sender that is none by the specification, so that the library refuses its messages.)
#[derive(Clone, Debug)]
pub(crate) struct Systemd {
    connection: Connection,
}

/// A unit that is known to systemd.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    systemd: Systemd,
    pub(crate) name: String,
    object: OwnedObjectPath,
    interface: &'static str,
}

impl Systemd {
    /// Connects.
    pub(crate) fn connect() -> Result<Self, Error> {
        let builder = zbus::connection::Builder::system().method_timeout(PATIENCE);
        let connection = zbus::block_on(builder.build());
        let connection = connection.map_err(|error| bus("anything", &error))?;
        Ok(Self { connection })
    }

    /// A unit by its name.
    pub(crate) fn unit(&self, name: &str) -> Result<Unit, Error> {
        let none = || Error::NoUnit { unit: name.into() };
        let (_, interface) = kind(name).ok_or_else(none)?;
        let loaded = self.call(MANAGER_PATH, MANAGER, "LoadUnit", &(name,));
        let body = loaded.map_err(|error| match error {
            // No name of a unit at all.
            zbus::Error::MethodError(..) => none(),
            error => bus(name, &error),
        })?;
        let object: OwnedObjectPath = body
            .body()
            .deserialize()
            .map_err(|error| bus(name, &error))?;
        let unit = Unit {
            systemd: self.clone(),
            name: name.to_owned(),
            object,
            interface,
        };
        let state: String = unit.get("org.freedesktop.systemd1.Unit", "LoadState")?;
        if state == "loaded" {
            Ok(unit)
        } else {
            Err(none())
        }
    }

    /// Puts a process into a scope of its own (systemd.scope(5)), which ends with the last process
    /// in it. It is made when this has returned, and the process in it a moment later.
    pub(crate) fn start_scope(
        &self,
        name: &str,
        pid: u32,
        properties: &[(&str, Property)],
    ) -> Result<(), Error> {
        let mut all: Vec<(&str, Variant<'_>)> = vec![
            ("PIDs", Variant::from(vec![pid])),
            ("Description", Variant::from("Started by bonsai run --cpu")),
        ];
        all.extend(
            properties
                .iter()
                .map(|(name, value)| (*name, value.value())),
        );
        let none: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
        let body = (name, "fail", all, none);
        let told = self.call(MANAGER_PATH, MANAGER, "StartTransientUnit", &body);
        told.map(drop).map_err(|error| told_off(name, &error))
    }

    fn call<B>(
        &self,
        path: &str,
        interface: &str,
        method: &str,
        body: &B,
    ) -> Result<zbus::Message, zbus::Error>
    where
        B: serde::Serialize + DynamicType,
    {
        let call = self
            .connection
            .call_method(Some(BUS_NAME), path, Some(interface), method, body);
        zbus::block_on(call)
    }
}

impl Unit {
    /// The path of its control group; none while it has none.
    pub(crate) fn group(&self) -> Result<Option<String>, Error> {
        let path: String = self.get(self.interface, "ControlGroup")?;
        Ok(Some(path).filter(|path| !path.is_empty()))
    }

    /// The slice that it is or will be in.
    pub(crate) fn slice(&self) -> Result<String, Error> {
        self.get(self.interface, "Slice")
    }

    /// A property that is a number.
    pub(crate) fn number(&self, property: &str) -> Result<u64, Error> {
        self.get(self.interface, property)
    }

    /// A property that is a list of devices, each by a path.
    pub(crate) fn devices(&self, property: &str) -> Result<Vec<(String, u64)>, Error> {
        self.get(self.interface, property)
    }

    /// Sets properties together, until the next boot.
    pub(crate) fn set(&self, properties: &[(&str, Property)]) -> Result<(), Error> {
        let all: Vec<(&str, Variant<'_>)> = properties
            .iter()
            .map(|(name, value)| (*name, value.value()))
            .collect();
        let body = (self.name.as_str(), true, all);
        let told = self
            .systemd
            .call(MANAGER_PATH, MANAGER, "SetUnitProperties", &body);
        told.map(drop).map_err(|error| told_off(&self.name, &error))
    }

    fn get<T>(&self, interface: &str, property: &str) -> Result<T, Error>
    where
        T: TryFrom<OwnedVariant>,
        T::Error: std::fmt::Display,
    {
        let failed = |error: &dyn std::fmt::Display| bus(&self.name, error);
        let properties = "org.freedesktop.DBus.Properties";
        let body = (interface, property);
        let answer = self
            .systemd
            .call(self.object.as_str(), properties, "Get", &body);
        let answer = answer.map_err(|error| failed(&error))?;
        let value: OwnedVariant = answer
            .body()
            .deserialize()
            .map_err(|error| failed(&error))?;
        T::try_from(value).map_err(|error| failed(&error))
    }
}

/// systemd was told something and said no.
fn told_off(unit: &str, error: &zbus::Error) -> Error {
    match error {
        zbus::Error::MethodError(name, text, _) => Error::Refused {
            what: "this".to_owned(),
            target: unit.to_owned(),
            source: std::io::Error::other(format!(
                "systemd says {:?} ({})",
                text.as_deref().unwrap_or("no"),
                name.as_str()
            )),
        },
        error => bus(unit, error),
    }
}

fn bus(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Bus {
        what: what.to_owned(),
        why: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::is_unit_name;

    #[test]
    fn units_are_told_by_their_names() {
        for name in [
            "/system.slice/db.service",
            "a.scope",
            "/user.slice",
            "x.mount",
        ] {
            assert!(is_unit_name(name), "{name}");
        }
        for name in [
            "/",
            "",
            "/docker/abc",
            ".service",
            "/a.service/b",
            "x.timer",
        ] {
            assert!(!is_unit_name(name), "{name}");
        }
    }
}
