//! Tenants in trees laid out as the engines do it, and (in `live`) on this machine.

mod engines;
mod hostile;
mod live;
mod machines;
mod pods;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bonsai_host::tenants::{Behind, Roots, Target, TenantError, Tenants, Who};
use tempfile::{TempDir, tempdir};

/// A tree with a `/proc` and state of engines.
struct Tree {
    root: TempDir,
}

/// A process of a tree; what is not set is that of a plain process of the machine.
#[derive(Clone, Copy)]
struct Process<'a> {
    ppid: u32,
    program: &'a str,
    words: &'a [&'a str],
    start: u64,
    netns: &'a str,
    groups: &'a str,
    /// Number, target of the link, and fdinfo.
    descriptors: &'a [(u32, &'a str, &'a str)],
}

const PLAIN: Process<'static> = Process {
    ppid: 1,
    program: "worker",
    words: &[],
    start: 1000,
    netns: "host",
    groups: "0::/\n",
    descriptors: &[
        (0, "/dev/null", "pos:\t0\n"),
        (1, "socket:[77]", "pos:\t0\n"),
    ],
};

impl Tree {
    fn new() -> Self {
        let tree = Self {
            root: tempdir().expect("a directory"),
        };
        tree.write("proc/self/mounts", "");
        tree.write("proc/self/mountinfo", "");
        tree.link_netns("host", "proc/self/ns/net");
        tree.process(
            1,
            Process {
                ppid: 0,
                program: "systemd",
                start: 1,
                ..PLAIN
            },
        );
        tree
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn write(&self, path: &str, contents: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        fs::write(path, contents).expect("writable");
    }

    /// A file whose device and inode stand for those of a namespace.
    fn link_netns(&self, name: &str, path: &str) {
        let (file, path) = (self.path("namespaces").join(name), self.path(path));
        for path in [&file, &path] {
            fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        }
        if !file.exists() {
            fs::write(&file, "").expect("writable");
        }
        fs::hard_link(&file, path).expect("writable");
    }

    fn process(&self, pid: u32, process: Process<'_>) {
        let folder = format!("proc/{pid}");
        let Process {
            ppid,
            program,
            start,
            ..
        } = process;
        let stat = format!(
            "{pid} ({program}) S {ppid} 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 {start} 1 1\n"
        );
        self.write(&format!("{folder}/stat"), stat);
        self.write(&format!("{folder}/cgroup"), process.groups);
        let words: Vec<&str> = [program]
            .into_iter()
            .chain(process.words.iter().copied())
            .collect();
        self.write(&format!("{folder}/cmdline"), words.join("\0") + "\0");
        self.link_netns(process.netns, &format!("{folder}/ns/net"));
        let executable = format!("/usr/bin/{program}");
        symlink(executable, self.path(&format!("{folder}/exe"))).expect("writable");
        fs::create_dir_all(self.path(&format!("{folder}/fd"))).expect("writable");
        for (number, target, info) in process.descriptors {
            symlink(target, self.path(&format!("{folder}/fd/{number}"))).expect("writable");
            self.write(&format!("{folder}/fdinfo/{number}"), info);
        }
    }

    fn look(&self) -> Tenants {
        Tenants::look(&Roots::below(self.root.path())).expect("a tree")
    }
}

fn found(tenants: &Tenants, who: Who<'_>) -> Target {
    tenants
        .find(who)
        .unwrap_or_else(|error| panic!("{who:?}: {error}"))
}

/// What the one is told who looks for a tenant in vain.
fn refusal(tenants: &Tenants, who: Who<'_>) -> String {
    let error = tenants
        .find(who)
        .expect_err("nothing to be found")
        .to_string();
    assert!(!error.contains(char::is_control), "{error:?}");
    error
}

fn described(behind: Option<Behind>) -> String {
    behind.expect("somebody").describe()
}

#[test]
fn a_namespace_is_known_by_name_file_and_process() {
    let tree = Tree::new();
    tree.link_netns("vod", "run/netns/vod");
    tree.link_netns("empty", "var/run/netns/empty");
    tree.process(
        50,
        Process {
            netns: "vod",
            start: 60,
            program: "nginx",
            ..PLAIN
        },
    );
    tree.process(
        40,
        Process {
            netns: "vod",
            start: 70,
            ..PLAIN
        },
    );
    tree.process(
        45,
        Process {
            netns: "unnamed",
            ..PLAIN
        },
    );
    let tenants = tree.look();
    let of = |pid: u32| tenants.processes[&pid].netns.expect("readable");
    let vod = &tenants.namespaces[&of(40)];
    assert_eq!((vod.processes, vod.first, vod.own), (2, Some(50), false));
    assert_eq!(vod.names, [("vod".to_owned(), tree.path("run/netns/vod"))]);
    assert_eq!(
        described(tenants.behind_netns(vod.id)),
        "namespace vod (nginx, PID 50)"
    );
    assert_eq!(described(tenants.behind_netns(of(45))), "worker (PID 45)");
    assert!(tenants.namespaces[&tenants.own].own && tenants.behind_netns(tenants.own).is_none());
    let mut others = tenants.namespaces.values().filter(|one| one.processes == 0);
    let empty = others.next().and_then(|one| tenants.behind_netns(one.id));
    assert_eq!(described(empty), "namespace empty");
    assert!(others.next().is_none());
    assert_eq!(found(&tenants, Who::Pid(45)).behind.netns, Some(of(45)));
    assert_eq!(refusal(&tenants, Who::Pid(46)), "there is no process 46");
}

#[test]
fn what_is_no_name_of_a_namespace_is_refused() {
    let tree = Tree::new();
    tree.link_netns("vod", "run/netns/vod");
    let tenants = tree.look();
    for name in ["", ".", "..", "../vod", "a/b", "/run/netns/../vod", "a\0b"] {
        let text = refusal(&tenants, Who::Netns(name));
        assert!(
            text.contains("is not the name of a network namespace"),
            "{text}"
        );
    }
    let text = refusal(&tenants, Who::Netns("iptv"));
    assert_eq!(
        text,
        "there is no network namespace `iptv` (there are: vod)"
    );
    // A file of this name that is no namespace.
    let text = refusal(&tenants, Who::Netns("vod"));
    assert!(text.ends_with("vod` is not a network namespace"), "{text}");
    let text = refusal(&tenants, Who::Netns("/dev/null"));
    assert_eq!(text, "`/dev/null` is not a network namespace");
    assert_eq!(
        refusal(&tenants, Who::Netns("77")),
        "there is no process 77"
    );
}

#[test]
fn a_control_group_is_known_by_path_and_by_folder() {
    let tree = Tree::new();
    let mounts = |path: &str| tree.path(path).display().to_string();
    tree.write(
        "proc/self/mounts",
        format!(
            "tmpfs {} tmpfs ro 0 0\ncgroup {} cgroup rw,relatime,cpu,cpuacct 0 0\ncgroup2 {} cgroup2 rw 0 0\n",
            mounts("fs"),
            mounts("fs/cpu"),
            mounts("fs/unified")
        ),
    );
    tree.write("fs/unified/system.slice/db.service/cgroup.procs", "");
    tree.write("fs/cpu/system.slice/db.service/cgroup.procs", "");
    let groups = "4:cpu,cpuacct:/system.slice/db.service\n0::/system.slice/db.service/main\n";
    tree.process(
        60,
        Process {
            groups,
            program: "db",
            ..PLAIN
        },
    );
    let tenants = tree.look();
    let folder = mounts("fs/unified/system.slice/db.service/");
    for path in [
        "/system.slice/db.service",
        "/system.slice//db.service/",
        &folder,
    ] {
        let target = found(&tenants, Who::Group(path));
        assert_eq!(target.behind.describe(), "unit db.service");
        assert_eq!((target.behind.pid, target.groups.len()), (Some(60), 2));
        assert_eq!(target.groups[0].v1, None);
        assert_eq!(
            target.groups[0].path,
            Path::new(folder.trim_end_matches('/'))
        );
    }
    let process = found(&tenants, Who::Pid(60));
    assert_eq!(process.behind.describe(), "db (PID 60) of db.service");
    let folders: Vec<PathBuf> = process.groups.into_iter().map(|group| group.path).collect();
    let wanted = [
        "fs/unified/system.slice/db.service/main",
        "fs/cpu/system.slice/db.service",
    ];
    assert_eq!(folders, wanted.map(|path| tree.path(path)));
    let alone = found(&tenants, Who::Group("/system.slice/db.service")).network();
    assert!(
        alone
            .expect_err("ours")
            .to_string()
            .contains("shares the machine's network namespace")
    );
    tree.process(
        61,
        Process {
            groups,
            netns: "other",
            ..PLAIN
        },
    );
    tree.write("fs/unified/empty/cgroup.procs", "");
    let several = found(&tree.look(), Who::Group("/system.slice/db.service")).network();
    assert_eq!(
        several.expect_err("two").to_string(),
        "unit db.service has no network namespace of its own: its processes are in several: name one of these"
    );
    let empty = found(&tree.look(), Who::Group("/empty")).network();
    assert_eq!(
        empty.expect_err("none").to_string(),
        "control group /empty has no network namespace of its own: no process is in it"
    );
    for path in ["", "/", "db.service", "/a/../b", "/../x"] {
        let text = refusal(&tenants, Who::Group(path));
        assert!(text.contains("is not a control group"), "{text}");
    }
    let text = refusal(&tenants, Who::Group("/system.slice/web.service"));
    assert_eq!(
        text,
        "there is no control group `/system.slice/web.service`"
    );
}

#[test]
fn without_procfs_there_is_an_error() {
    let root = tempdir().expect("a directory");
    let error = Tenants::look(&Roots::below(root.path())).expect_err("no procfs");
    assert!(error.to_string().contains("proc/self/ns/net"), "{error}");
}
