//! `/proc/PID/cgroup`: the control groups of a process, and what their names tell of its tenant.
//!
//! Engines name groups after what runs in them; these names are all that a process says of its
//! container. The innermost one counts, since containers run in containers. Forms:
//!
//! | group | of |
//! |---|---|
//! | `docker-ID.scope`, `docker/ID` | Docker, with systemd and without |
//! | `libpod-ID.scope`, `libpod-ID`, `libpod-payload-ID` | Podman; the last in units of Quadlet |
//! | `cri-containerd-ID.scope`, `nerdctl-ID.scope`, `kubepods/…/podUID/ID` | containerd |
//! | `crio-ID.scope`, `crio-ID` | CRI-O |
//! | `lxc.payload.NAME`, `lxc.payload/NAME`, `lxc/NAME` | LXC, LXD, Incus |
//! | `machine-NAME.scope`, `systemd-nspawn@NAME.service` | systemd-nspawn |
//! | `machine-lxc\x2dN\x2dNAME.scope`, `NAME.libvirt-lxc` | libvirt's LXC driver |
//! | `machine-qemu\x2dN\x2dNAME.scope`, `NAME.libvirt-qemu` | a virtual machine of libvirt |
//!
//! IDs are 64 hexadecimal digits. Groups of an engine's own helpers (`libpod-conmon-ID.scope`,
//! `lxc.monitor.NAME`) are none of a container. Read from within a control group namespace, paths
//! start with `/..`, which changes nothing in these names (`cgroup_namespaces(7)`).

use super::containers::Engine;

/// The control groups of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Path in the hierarchy of version 2.
    pub v2: Option<String>,
    /// Controllers, separated by commas (or `name=...`), and path in each hierarchy of version 1.
    pub v1: Vec<(String, String)>,
}

/// The tenant that the name of a group tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A container that is known by an ID.
    Id(Engine, String),
    /// A container that is known by its name.
    Name(Engine, String),
    /// A virtual machine of libvirt, by its name.
    Guest(String),
}

/// Hierarchies that are read of a process; Linux has had 15 controllers, and `name=` are rare.
const MOST_HIERARCHIES: usize = 64;

/// Reads `/proc/PID/cgroup`. Lines that are not `number:controllers:path` are left out.
#[must_use]
pub fn parse(text: &[u8]) -> Groups {
    let text = String::from_utf8_lossy(text);
    let mut groups = Groups::default();
    for line in text.lines().take(MOST_HIERARCHIES) {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if number.parse::<u32>().is_err() || !path.starts_with('/') {
            continue;
        }
        let path = path.strip_suffix(" (deleted)").unwrap_or(path).to_owned();
        if controllers.is_empty() {
            groups.v2 = Some(path);
        } else {
            groups.v1.push((controllers.to_owned(), path));
        }
    }
    groups
}

impl Groups {
    /// The path that a user would name: that of version 2, that of systemd, or the longest; `None`
    /// if the process is in no group but the root of each hierarchy.
    #[must_use]
    pub fn main(&self) -> Option<&str> {
        let systemd = self.v1.iter().find(|(name, _)| name == "name=systemd");
        let systemd = systemd.map(|(_, path)| path.as_str());
        let first = [self.v2.as_deref(), systemd].into_iter().flatten();
        let longest = self.v1.iter().map(|(_, path)| path.as_str());
        first
            .chain(longest.max_by_key(|path| path.len()))
            .find(|path| *path != "/")
    }

    /// All paths: version 2 first.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let old = self.v1.iter().map(|(_, path)| path.as_str());
        self.v2.as_deref().into_iter().chain(old)
    }

    /// Whether one of them is `group` or below it.
    #[must_use]
    pub fn are_in(&self, group: &str) -> bool {
        self.paths().any(|path| {
            let rest = path.strip_prefix(group);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// The tenant that the first telling path names, and whether the process is the supervisor
    /// that systemd-nspawn keeps beside the payload.
    #[must_use]
    pub fn mark(&self) -> Option<(Mark, bool)> {
        self.paths().find_map(mark)
    }

    /// Those of the tenant that they name, without what is below them and without hierarchies where
    /// it has none. The same groups if they name no tenant.
    #[must_use]
    pub fn of_tenant(&self) -> Self {
        let own = |path: &str| marked(path).map(|(_, own)| own.to_owned());
        let old = self.v1.iter();
        let tenant = Self {
            v2: self.v2.as_deref().and_then(own),
            v1: old
                .filter_map(|(name, path)| Some((name.clone(), own(path)?)))
                .collect(),
        };
        if tenant == Self::default() {
            self.clone()
        } else {
            tenant
        }
    }

    /// The unit of systemd: the innermost service or scope.
    #[must_use]
    pub fn unit(&self) -> Option<&str> {
        let is_unit = |name: &&str| name.ends_with(".service") || name.ends_with(".scope");
        self.paths().find_map(|path| path.rsplit('/').find(is_unit))
    }
}

/// The tenant that the path of a control group names, and whether what is there is not the tenant
/// but its supervisor.
#[must_use]
pub fn mark(path: &str) -> Option<(Mark, bool)> {
    marked(path).map(|(mark, own)| (mark, path[own.len()..].starts_with("/supervisor")))
}

/// The tenant that a path names, and the path of the tenant's own group.
fn marked(path: &str) -> Option<(Mark, &str)> {
    let mut own = path;
    while let Some((outside, segment)) = own.rsplit_once('/') {
        let outer = outside.rsplit('/').next().unwrap_or_default();
        if let Some(mark) = mark_of_segment(outer, segment) {
            return Some((mark, own));
        }
        own = outside;
    }
    None
}

fn mark_of_segment(outer: &str, segment: &str) -> Option<Mark> {
    if is_id(segment) {
        let engine = match outer {
            "docker" => Engine::Docker,
            pod if pod.starts_with("pod") || pod.contains("-pod") => Engine::Containerd,
            _ => Engine::Unknown,
        };
        return Some(Mark::Id(engine, segment.to_owned()));
    }
    let base = segment.strip_suffix(".scope").unwrap_or(segment);
    if let Some((prefix, id)) = base.rsplit_once('-')
        && is_id(id)
    {
        let engine = match prefix {
            "docker" => Engine::Docker,
            "libpod" | "libpod-payload" => Engine::Podman,
            "cri-containerd" | "nerdctl" => Engine::Containerd,
            "crio" => Engine::CriO,
            _ => return None,
        };
        return Some(Mark::Id(engine, id.to_owned()));
    }
    let named =
        |engine, name: &str| (!name.is_empty()).then(|| Mark::Name(engine, name.to_owned()));
    if let Some(name) = segment.strip_prefix("lxc.payload.") {
        return named(Engine::Lxc, name);
    }
    if matches!(outer, "lxc" | "lxc.payload") {
        return named(Engine::Lxc, segment);
    }
    if let Some(name) = segment.strip_suffix(".libvirt-qemu") {
        return Some(Mark::Guest(
            after_number("qemu-", name).unwrap_or(name).to_owned(),
        ));
    }
    if let Some(name) = segment.strip_suffix(".libvirt-lxc") {
        return named(
            Engine::LibvirtLxc,
            after_number("lxc-", name).unwrap_or(name),
        );
    }
    let machine = segment
        .strip_prefix("machine-")
        .and_then(|rest| rest.strip_suffix(".scope"));
    if let Some(machine) = machine {
        let machine = unescape(machine);
        return match (
            after_number("qemu-", &machine),
            after_number("lxc-", &machine),
        ) {
            (Some(name), _) => Some(Mark::Guest(name.to_owned())),
            (_, Some(name)) => named(Engine::LibvirtLxc, name),
            _ => named(Engine::Nspawn, &machine),
        };
    }
    let unit = segment
        .strip_prefix("systemd-nspawn@")?
        .strip_suffix(".service")?;
    named(Engine::Nspawn, &unescape(unit))
}

/// `NAME` of `PREFIXnumber-NAME`, as libvirt makes names of machines (`virDomainGenerateMachineName`).
fn after_number<'a>(prefix: &str, name: &'a str) -> Option<&'a str> {
    let (number, name) = name.strip_prefix(prefix)?.split_once('-')?;
    (!name.is_empty() && number.parse::<u32>().is_ok()).then_some(name)
}

/// Whether this is the ID of a container: 64 hexadecimal digits.
pub(super) fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What a part of a unit's name stands for: `\xNN` is a byte, `-` stays (systemd.unit(5)).
fn unescape(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = rest.strip_prefix(b"\\x").and_then(|code| {
            let code = std::str::from_utf8(code.get(..2)?).ok()?;
            u8::from_str_radix(code, 16).ok()
        });
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &rest[4..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";

    fn of(path: &str) -> Option<Mark> {
        mark(&path.replace("ID", ID)).map(|(mark, _)| mark)
    }

    #[test]
    fn each_engine_is_known_by_its_groups() {
        let id = |engine| Some(Mark::Id(engine, ID.to_owned()));
        for (path, engine) in [
            ("/docker/ID", Engine::Docker),
            ("/system.slice/docker-ID.scope", Engine::Docker),
            ("/../../docker-ID.scope", Engine::Docker),
            (
                "/user.slice/user-1000.slice/user@1000.service/user.slice/docker-ID.scope",
                Engine::Docker,
            ),
            ("/libpod_parent/libpod-ID", Engine::Podman),
            ("/machine.slice/libpod-ID.scope/container", Engine::Podman),
            (
                "/machine.slice/machine-libpod_pod_ID.slice/libpod-ID.scope",
                Engine::Podman,
            ),
            (
                "/system.slice/nginx.service/libpod-payload-ID",
                Engine::Podman,
            ),
            (
                "/kubepods/burstable/pod0a1b2c3d-1111-2222-3333-444455556666/ID",
                Engine::Containerd,
            ),
            (
                "/kubepods.slice/kubepods-pod0a1b2c3d_1111.slice/cri-containerd-ID.scope",
                Engine::Containerd,
            ),
            ("/system.slice/nerdctl-ID.scope", Engine::Containerd),
            (
                "/kubepods.slice/kubepods-besteffort.slice/crio-ID.scope",
                Engine::CriO,
            ),
            ("/kubepods/besteffort/pod0a1b/crio-ID", Engine::CriO),
            ("/ID", Engine::Unknown),
            // A node of kind, itself a container of Docker, with a container in it.
            (
                "/docker/ID/kubelet.slice/kubelet-kubepods.slice/cri-containerd-ID.scope",
                Engine::Containerd,
            ),
        ] {
            assert_eq!(of(path), id(engine), "{path}");
        }
        let name = |engine, name: &str| Some(Mark::Name(engine, name.to_owned()));
        for (path, engine, wanted) in [
            (
                "/lxc.payload.web/system.slice/nginx.service",
                Engine::Lxc,
                "web",
            ),
            ("/lxc.payload/web", Engine::Lxc, "web"),
            ("/lxc/101/ns/init.scope", Engine::Lxc, "101"),
            (
                r"/machine.slice/machine-web\x2d1.scope/payload",
                Engine::Nspawn,
                "web-1",
            ),
            (
                "/machine.slice/systemd-nspawn@web.service/payload",
                Engine::Nspawn,
                "web",
            ),
            (
                r"/machine.slice/machine-lxc\x2d4711\x2dweb.scope",
                Engine::LibvirtLxc,
                "web",
            ),
            (
                "/machine/lxc-4711-web.libvirt-lxc",
                Engine::LibvirtLxc,
                "web",
            ),
        ] {
            assert_eq!(of(path), name(engine, wanted), "{path}");
        }
        for path in [
            r"/machine.slice/machine-qemu\x2d3\x2dguest\x2d1.scope/libvirt/emulator",
            "/machine/qemu-3-guest-1.libvirt-qemu/vcpu0",
        ] {
            assert_eq!(of(path), Some(Mark::Guest("guest-1".to_owned())), "{path}");
        }
    }

    #[test]
    fn helpers_and_strangers_are_no_containers() {
        for path in [
            "/",
            "/system.slice/nginx.service",
            "/machine.slice/libpod-conmon-ID.scope",
            "/crio-conmon-ID.scope",
            "/lxc.monitor.web",
            "/lxc.payload.",
            "/machine-.scope",
            "/docker/short",
            "/system.slice/docker.service",
            "/user.slice/session-1.scope",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
        let (_, supervisor) = mark("/machine.slice/machine-web.scope/supervisor").expect("a mark");
        assert!(supervisor);
        let (_, supervisor) = mark("/machine.slice/machine-web.scope/payload").expect("a mark");
        assert!(!supervisor);
    }

    #[test]
    fn both_versions_at_once() {
        let text =
            "9:name=systemd:/system.slice/db.service\n7:cpu,cpuacct:/db\n0::/\nx\n:\n1:a:b\n";
        let groups = parse(text.as_bytes());
        assert_eq!(groups.v2.as_deref(), Some("/"));
        assert_eq!(groups.v1.len(), 2);
        assert_eq!(groups.main(), Some("/system.slice/db.service"));
        assert_eq!(groups.unit(), Some("db.service"));
        assert!(groups.are_in("/db") && groups.are_in("/system.slice"));
        assert!(!groups.are_in("/d") && !groups.are_in("/system.slice/db"));
        let gone = parse(b"0::/a/x.scope (deleted)\n");
        assert_eq!(gone.main(), Some("/a/x.scope"));
        assert_eq!(parse(b"3:cpu:/\n0::/\n").main(), None);
        assert_eq!(parse(b"\xff\xfe:\0"), Groups::default());
    }

    #[test]
    fn a_tenant_has_the_group_around_all_that_is_in_it() {
        let groups = parse(
            b"5:memory:/lxc.payload.web/init.scope\n4:cpu:/\n0::/lxc.payload.web/system.slice/x.service\n",
        );
        let tenant = groups.of_tenant();
        assert_eq!(tenant.v2.as_deref(), Some("/lxc.payload.web"));
        assert_eq!(
            tenant.v1,
            [("memory".to_owned(), "/lxc.payload.web".to_owned())]
        );
        assert_eq!(tenant.unit(), None);
        let plain = parse(b"0::/system.slice/x.service/a\n");
        assert_eq!(plain.of_tenant(), plain);
    }

    #[test]
    fn escapes_of_units_that_are_cut_short_stay() {
        assert_eq!(unescape(r"a\x2db\x2"), r"a-b\x2");
        assert_eq!(unescape(r"\xzz\"), r"\xzz\");
    }
}
