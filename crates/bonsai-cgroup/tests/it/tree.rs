//! Files of version 2 as the kernel lays them out, in a folder: what is written where, and what is
//! said of a tree that lacks something. Values in force are tested on kernels, in `disk`.

use std::fs;

use bonsai_cgroup::{Controller, Device, DeviceNumber, Disk, Error, Hierarchies, Target, Version};
use bonsai_units::DiskTerms;
use tempfile::TempDir;

struct Tree {
    folder: TempDir,
    hierarchies: Hierarchies,
}

impl Tree {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let root = folder.path();
        fs::write(
            root.join("cgroup.controllers"),
            "cpuset cpu io memory pids\n",
        )
        .expect("made");
        fs::write(root.join("cgroup.subtree_control"), "cpu io\n").expect("made");
        let line = format!(
            "35 24 0:30 / {} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
            root.display()
        );
        let hierarchies = Hierarchies::parse(&line);
        Self {
            folder,
            hierarchies,
        }
    }

    /// A group with the files of its controllers.
    fn group(&self, path: &str, files: &[(&str, &str)]) {
        let folder = self.folder.path().join(path);
        fs::create_dir_all(&folder).expect("made");
        fs::write(folder.join("cgroup.subtree_control"), "\n").expect("made");
        fs::write(folder.join("cgroup.procs"), "").expect("made");
        for (name, text) in files {
            fs::write(folder.join(name), text).expect("made");
        }
    }

    fn disk(&self) -> Disk {
        let held = self.folder.path().join("held");
        Disk::open(self.hierarchies.clone(), &held).expect("records")
    }
}

fn device() -> Device {
    Device {
        number: DeviceNumber {
            major: 8,
            minor: 16,
        },
        name: "sdb".to_owned(),
    }
}

fn set(tree: &Tree, path: &str) -> Result<bonsai_cgroup::disk::InForce, Error> {
    let terms = DiskTerms::parse(["read=50MB/s", "write=1000/s"]).expect("terms");
    tree.disk()
        .set(&Target::Cgroup(path.to_owned()), &[device()], &terms)
}

#[test]
fn a_line_for_each_device_is_written_to_io_max() {
    let tree = Tree::new();
    tree.group("a/db", &[("io.max", ""), ("memory.current", "0\n")]);
    let done = set(&tree, "/a/db").expect("written");
    assert_eq!(done.version, Some(Version::V2));
    assert_eq!(done.escapes, []);
    let text = fs::read_to_string(tree.folder.path().join("a/db/io.max")).expect("a file");
    assert_eq!(text, "8:16 rbps=50000000 wbps=max riops=max wiops=1000");
    tree.group("b", &[("io.max", "")]);
    let done = set(&tree, "/b").expect("written");
    assert!(done.escapes[0].words().contains("controller memory"));
}

#[test]
fn what_a_tree_lacks_is_said() {
    let tree = Tree::new();
    tree.group("a", &[]);
    tree.group("a/db", &[]);
    let error = set(&tree, "/a/db").expect_err("io is not enabled");
    let text = error.to_string();
    assert!(text.contains("+io has to be written to"), "{text}");
    assert!(text.contains("a/cgroup.subtree_control"), "{text}");
    let error = set(&tree, "/").expect_err("the root");
    assert!(matches!(error, Error::Root), "{error}");
    let error = set(&tree, "/a/none").expect_err("no group");
    assert!(matches!(error, Error::NoGroup { .. }), "{error}");
    fs::write(tree.folder.path().join("cgroup.controllers"), "pids\n").expect("written");
    let line = format!(
        "1 1 0:30 / {} rw - cgroup2 x rw\n",
        tree.folder.path().display()
    );
    let error = Hierarchies::parse(&line).group(Controller::Io, "/a/db");
    let error = error.expect_err("no controller");
    assert!(matches!(error, Error::NoController { .. }), "{error}");
}

#[test]
fn a_value_that_is_not_taken_is_an_error() {
    let tree = Tree::new();
    tree.group("a", &[("io.max", "")]);
    // What is written there, nobody reads back.
    let max = tree.folder.path().join("a/io.max");
    fs::remove_file(&max).expect("removed");
    std::os::unix::fs::symlink("/dev/null", &max).expect("made");
    let error = set(&tree, "/a").expect_err("not taken");
    assert!(matches!(error, Error::NotTaken { .. }), "{error}");
}
