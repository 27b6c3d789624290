//! Containers: which process belongs to which, and what it is called.
//!
//! A process says nothing of its container but the names of its control groups ([`super::groups`]).
//! What an ID is called stands in files of the engines. These are read and nothing else is: no
//! daemon is asked and no program is run, since an engine that hangs must not stop the limits.
//!
//! | engine | file | in it |
//! |---|---|---|
//! | Docker | `var/lib/docker/containers/ID/config.v2.json` (or `data-root` in `etc/docker/daemon.json`) | `Name`, `Config.Labels` |
//! | containerd | `run/{containerd,k3s/containerd}/io.containerd.runtime.v2.task/*/ID/config.json` | `annotations` |
//! | Podman, CRI-O | `{var/lib,run}/containers/storage/*-containers/{,volatile-}containers.json` | `id`, `names` |
//! | Podman, CRI-O | command line of its monitor, `conmon -c ID -n NAME` | also of other users |
//! | CRI-O | `run/containers/storage/*-containers/ID/userdata/config.json` | `annotations` |
//!
//! LXC and systemd-nspawn have names and no IDs. Annotations and labels of Kubernetes are those of
//! the CRI plugin of containerd (`io.kubernetes.cri.*`) and of the kubelet (`io.kubernetes.*`).

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;

use super::namespaces::NsId;
use super::roots::{Roots, names_in, read_json};

/// Largest description of one container that is read. Docker's are 5 KB, those of containerd 20 KB.
const LARGEST_CONTAINER: u64 = 4 << 20;

/// Largest list of containers that is read; each takes 0.4 KB.
const LARGEST_LIST: u64 = 32 << 20;

/// What runs containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Engine {
    /// Docker, Moby.
    Docker,
    /// Podman.
    Podman,
    /// containerd: Kubernetes, k3s, nerdctl.
    Containerd,
    /// CRI-O.
    CriO,
    /// LXC, LXD, Incus, Proxmox.
    Lxc,
    /// systemd-nspawn.
    Nspawn,
    /// The LXC driver of libvirt.
    LibvirtLxc,
    /// One that names groups by bare IDs.
    Unknown,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Containerd => "containerd",
            Self::CriO => "cri-o",
            Self::Lxc => "lxc",
            Self::Nspawn => "systemd-nspawn",
            Self::LibvirtLxc => "libvirt-lxc",
            Self::Unknown => "container engine",
        })
    }
}

/// The pod of Kubernetes that a container is part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace (of Kubernetes, not of the kernel).
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// What runs it.
    pub engine: Engine,
    /// 64 hexadecimal digits; `None` for engines without IDs.
    pub id: Option<String>,
    /// Its name, where it could be read. Any text.
    pub name: Option<String>,
    /// Its pod.
    pub pod: Option<Pod>,
    /// Whether it only holds the namespaces of its pod.
    pub sandbox: bool,
    /// Its first process.
    pub pid: u32,
    /// The network namespace of that process, where it could be read.
    pub netns: Option<NsId>,
}

/// What is known by an ID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) engine: Option<Engine>,
    pub(super) name: Option<String>,
    pub(super) pod: Option<Pod>,
    pub(super) sandbox: bool,
}

/// The state of all engines, each part read when it is first needed.
#[derive(Debug)]
pub(super) struct States<'a> {
    roots: &'a Roots,
    docker: Option<Vec<PathBuf>>,
    bundles: Option<Vec<PathBuf>>,
    storage: Option<Storage>,
}

/// What the library `containers/storage` keeps.
#[derive(Debug, Default)]
struct Storage {
    folders: Vec<PathBuf>,
    names: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct DaemonFile {
    data_root: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerContainer {
    name: Option<String>,
    config: Option<DockerConfig>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerConfig {
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Bundle {
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Stored {
    id: String,
    names: Option<Vec<String>>,
}

impl<'a> States<'a> {
    pub(super) const fn new(roots: &'a Roots) -> Self {
        Self {
            roots,
            docker: None,
            bundles: None,
            storage: None,
        }
    }

    /// What the engine's files say of `id`, 64 hexadecimal digits. Of an unknown engine, the first
    /// one that knows the ID.
    pub(super) fn known(&mut self, engine: Engine, id: &str) -> Known {
        match engine {
            Engine::Docker => self.of_docker(id),
            Engine::Containerd => self.of_containerd(id).or_else(|| self.of_docker(id)),
            Engine::Podman | Engine::CriO => self.of_storage(engine, id),
            _ => {
                let found = self.of_docker(id).or_else(|| self.of_containerd(id));
                found.or_else(|| self.of_storage(Engine::Podman, id))
            }
        }
        .unwrap_or_default()
    }

    /// Whether an engine knows a container `name` or an ID that starts so, running or not.
    pub(super) fn has(&mut self, name: &str) -> bool {
        let is = |id: &str, known: Option<String>| {
            known.as_deref() == Some(name)
                || (name.len() >= super::SHORTEST_ID && id.starts_with(name))
        };
        let stored = self.storage().names.iter();
        if stored
            .into_iter()
            .any(|(id, known)| is(id, Some(known.clone())))
        {
            return true;
        }
        let folders = self.docker_folders().to_vec();
        let mut ids = folders.iter().flat_map(|folder| names_in(folder));
        ids.any(|id| {
            let known = self.of_docker(&id).and_then(|known| known.name);
            is(&id, known)
        })
    }

    fn docker_folders(&mut self) -> &[PathBuf] {
        let roots = self.roots;
        self.docker.get_or_insert_with(|| {
            let file: Option<DaemonFile> =
                read_json(&roots.etc.join("docker/daemon.json"), 1 << 20);
            let other = file.and_then(|file| file.data_root);
            let usual = roots.var.join("lib/docker");
            other
                .into_iter()
                .chain([usual])
                .map(|root| root.join("containers"))
                .collect()
        })
    }

    fn of_docker(&mut self, id: &str) -> Option<Known> {
        let mut folders = self.docker_folders().iter();
        let found: DockerContainer = folders.find_map(|folder| {
            read_json(&folder.join(id).join("config.v2.json"), LARGEST_CONTAINER)
        })?;
        let labels = found
            .config
            .and_then(|config| config.labels)
            .unwrap_or_default();
        let mut known = of_kubernetes(&labels);
        known.engine = Some(Engine::Docker);
        // A name starts with a slash, since it once was a path of links.
        let name = found
            .name
            .map(|name| name.strip_prefix('/').unwrap_or(&name).to_owned());
        known.name = known.name.or(name);
        Some(known)
    }

    fn of_containerd(&mut self, id: &str) -> Option<Known> {
        let roots = self.roots;
        let bundles = self.bundles.get_or_insert_with(|| {
            let states = ["containerd", "k3s/containerd"];
            let tasks =
                states.map(|state| roots.run.join(state).join("io.containerd.runtime.v2.task"));
            // One folder for each namespace of containerd: `k8s.io`, `default`.
            let namespaces = tasks
                .iter()
                .flat_map(|task| names_in(task).into_iter().map(move |name| task.join(name)));
            namespaces.collect()
        });
        let found: Bundle = bundles.iter().find_map(|folder| {
            read_json(&folder.join(id).join("config.json"), LARGEST_CONTAINER)
        })?;
        let mut known = of_kubernetes(&found.annotations.unwrap_or_default());
        known.engine = Some(Engine::Containerd);
        Some(known)
    }

    fn of_storage(&mut self, engine: Engine, id: &str) -> Option<Known> {
        let storage = self.storage();
        let name = storage.names.get(id).cloned();
        let bundle: Option<Bundle> = storage.folders.iter().find_map(|folder| {
            read_json(
                &folder.join(id).join("userdata/config.json"),
                LARGEST_CONTAINER,
            )
        });
        if name.is_none() && bundle.is_none() {
            return None;
        }
        let annotations = bundle
            .and_then(|bundle| bundle.annotations)
            .unwrap_or_default();
        let mut known = of_kubernetes(&annotations);
        known.engine = Some(engine);
        known.name = known.name.or(name);
        Some(known)
    }

    fn storage(&mut self) -> &Storage {
        let roots = self.roots;
        self.storage.get_or_insert_with(|| {
            let places = [roots.var.join("lib"), roots.run.clone()];
            let mut storage = Storage::default();
            for place in places.map(|place| place.join("containers/storage")) {
                // One for each driver of file systems: `overlay-containers`, `vfs-containers`.
                let drivers = names_in(&place)
                    .into_iter()
                    .filter(|name| name.ends_with("-containers"));
                storage.folders.extend(drivers.map(|name| place.join(name)));
            }
            for folder in &storage.folders {
                for file in ["containers.json", "volatile-containers.json"] {
                    let list: Option<Vec<Stored>> = read_json(&folder.join(file), LARGEST_LIST);
                    let named = list
                        .into_iter()
                        .flatten()
                        .filter_map(|stored| Some((stored.id, stored.names?.into_iter().next()?)));
                    storage.names.extend(named);
                }
            }
            storage
        })
    }
}

/// What annotations or labels of Kubernetes and nerdctl say.
fn of_kubernetes(labels: &BTreeMap<String, String>) -> Known {
    let first = |keys: &[&str]| keys.iter().find_map(|key| labels.get(*key).cloned());
    let name = first(&[
        "io.kubernetes.cri.container-name",
        "io.kubernetes.container.name",
        "nerdctl/name",
    ]);
    let pod_name = first(&["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"]);
    let namespace = first(&[
        "io.kubernetes.cri.sandbox-namespace",
        "io.kubernetes.pod.namespace",
    ]);
    let kind = first(&[
        "io.kubernetes.cri.container-type",
        "io.kubernetes.cri-o.ContainerType",
        "io.kubernetes.docker.type",
    ]);
    Known {
        engine: None,
        name,
        pod: pod_name.map(|name| Pod {
            namespace: namespace.unwrap_or_default(),
            name,
        }),
        sandbox: matches!(kind.as_deref(), Some("sandbox" | "podsandbox")),
    }
}

/// ID and name from the command line of `conmon`, the monitor that Podman and CRI-O start beside
/// each container (conmon(8): `-c`, `--cid`; `-n`, `--name`).
#[must_use]
pub fn of_monitor(command_line: &[u8]) -> Option<(String, String)> {
    let mut id = None;
    let mut name = None;
    let mut words = command_line.split(|byte| *byte == 0).skip(1);
    while let Some(word) = words.next() {
        // Behind these come arguments of another program.
        let slot = match word {
            b"-c" | b"--cid" => &mut id,
            b"-n" | b"--name" => &mut name,
            b"--exit-command-arg" | b"--runtime-arg" => {
                words.next();
                continue;
            }
            _ => continue,
        };
        *slot = words
            .next()
            .map(|value| String::from_utf8_lossy(value).into_owned());
    }
    let id = id.filter(|id| super::groups::is_id(id))?;
    Some((id, name.filter(|name| !name.is_empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "db26258349440d011bb6af4ccc73cbd492d2527b0b2248b4a3d09326a6b99340";

    #[test]
    fn a_monitor_names_its_container() {
        // As Podman 4.3 starts it.
        let line = format!(
            "/usr/bin/conmon\0--api-version\01\0-c\0{ID}\0-u\0{ID}\0-r\0/usr/bin/runc\0-b\0/var/x/userdata\0\
             -p\0/run/x/pidfile\0-n\0web2\0--exit-dir\0/run/libpod/exits\0--runtime-arg\0--log\0\
             --exit-command\0/usr/bin/podman\0--exit-command-arg\0-n\0--exit-command-arg\0other\0"
        );
        assert_eq!(
            of_monitor(line.as_bytes()),
            Some((ID.to_owned(), "web2".to_owned()))
        );
        assert_eq!(of_monitor(b"conmon\0-c\0short\0-n\0web\0"), None);
        assert_eq!(of_monitor(b"conmon\0-c"), None);
        assert_eq!(of_monitor(b""), None);
    }
}
