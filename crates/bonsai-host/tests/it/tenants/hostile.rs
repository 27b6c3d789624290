//! State that nobody should trust.

use std::process::Command;

use bonsai_host::tenants::Who;

use super::{PLAIN, Process, Tree, described, found, refusal};

const ID: &str = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";

#[test]
fn damaged_state_of_an_engine_is_no_name() {
    let deep = "[".repeat(200_000);
    let long = format!(r#"{{"Name":"/web"}}{}"#, " ".repeat(5 << 20));
    let number = r#"{"Name":7}"#;
    let labels = r#"{"Name":"/web","Config":{"Labels":[1]}}"#;
    let zero = [0_u8; 4096];
    let contents: [&[u8]; 7] = [
        b"",
        b"{\"Name\":\"/we",
        deep.as_bytes(),
        long.as_bytes(),
        number.as_bytes(),
        labels.as_bytes(),
        &zero,
    ];
    let groups = format!("0::/docker/{ID}\n");
    for contents in contents {
        let tree = Tree::new();
        tree.write(
            &format!("var/lib/docker/containers/{ID}/config.v2.json"),
            contents,
        );
        tree.process(
            70,
            Process {
                groups: &groups,
                netns: "web",
                ..PLAIN
            },
        );
        let tenants = tree.look();
        let text = described(tenants.behind_process(70));
        assert_eq!(text, "container 9ec39b91f3d7 (docker)");
        refusal(&tenants, Who::Container("web"));
    }
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_not_waited_for() {
    let tree = Tree::new();
    let path = format!("var/lib/docker/containers/{ID}/config.v2.json");
    tree.write(&path, "");
    std::fs::remove_file(tree.path(&path)).expect("writable");
    let done = Command::new("mkfifo").arg(tree.path(&path)).status();
    assert!(done.is_ok_and(|status| status.success()), "mkfifo");
    let groups = format!("0::/docker/{ID}\n");
    tree.process(
        70,
        Process {
            groups: &groups,
            netns: "web",
            ..PLAIN
        },
    );
    assert_eq!(
        described(tree.look().behind_process(70)),
        "container 9ec39b91f3d7 (docker)"
    );
}

#[test]
fn no_name_reaches_a_terminal_as_it_is() {
    let tree = Tree::new();
    let name = r"/w\u001b]0;x\u0007\n\u202eb";
    let text = format!(r#"{{"Name":"{name}"}}"#);
    tree.write(
        &format!("var/lib/docker/containers/{ID}/config.v2.json"),
        text,
    );
    let groups = format!("0::/docker/{ID}\n");
    tree.process(
        70,
        Process {
            groups: &groups,
            netns: "a",
            ..PLAIN
        },
    );
    let words = ["-name", "\u{1b}[2J\rguest"];
    tree.process(
        71,
        Process {
            program: "qemu-system-x86_64",
            words: &words,
            ..PLAIN
        },
    );
    tree.process(
        72,
        Process {
            program: "sh\u{1b}[31m",
            groups: "0::/\u{1b}c.service\n",
            ..PLAIN
        },
    );
    tree.link_netns("n", "run/netns/n\u{1b}[5m");
    tree.process(
        73,
        Process {
            netns: "n",
            ..PLAIN
        },
    );
    let long = format!("0::/lxc.payload.{}\n", "x".repeat(3000));
    tree.process(
        74,
        Process {
            groups: &long,
            netns: "l",
            ..PLAIN
        },
    );
    let tenants = tree.look();
    assert_eq!(
        described(tenants.behind_process(70)),
        "container w�]0;x���b (docker)"
    );
    for pid in 70..=74 {
        let netns = tenants.processes[&pid].netns.expect("readable");
        let all = [tenants.behind_process(pid), tenants.behind_netns(netns)];
        for text in all.into_iter().flatten().map(|behind| behind.describe()) {
            assert!(
                !text.contains(char::is_control) && text.len() < 400,
                "{text:?}"
            );
        }
    }
    // And is found by what it really is.
    assert_eq!(
        found(&tenants, Who::Machine("\u{1b}[2J\rguest")).behind.pid,
        Some(71)
    );
    refusal(&tenants, Who::Machine("\u{1b}"));
    refusal(&tenants, Who::Container("\u{1b}"));
    refusal(&tenants, Who::Netns("\u{1b}"));
    refusal(&tenants, Who::Group("/\u{1b}"));
}

#[test]
fn a_process_that_ends_in_between_is_left_out() {
    let tree = Tree::new();
    tree.process(70, PLAIN);
    for (pid, file) in [(71, "stat"), (72, "cgroup")] {
        tree.process(pid, PLAIN);
        std::fs::remove_file(tree.path(&format!("proc/{pid}/{file}"))).expect("writable");
    }
    tree.process(73, PLAIN);
    std::fs::remove_file(tree.path("proc/73/ns/net")).expect("writable");
    std::fs::create_dir(tree.path("proc/74")).expect("writable");
    let tenants = tree.look();
    assert_eq!(
        tenants.processes.keys().copied().collect::<Vec<_>>(),
        [1, 70, 73]
    );
    assert_eq!(tenants.hidden, 1);
    let text = found(&tenants, Who::Pid(73))
        .network()
        .expect_err("hidden")
        .to_string();
    assert!(text.contains("may not be read"), "{text}");
}
