//! One part that fails takes no other with it: namespaces that cannot be entered, a kernel that shows no interfaces,
//! ledgers that cannot be read.

use std::process::Command;
use std::time::Instant;

use bonsai_api::LinkState;

use super::machine::{Machine, run, spawned};
use crate::support::{Place, compiled};

/// Runs a program to which the kernel refuses netlink sockets (`netlink`), or other namespaces (`setns`).
const REFUSES: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int all = argc > 1 && !strcmp(argv[1], "setns");
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, all ? SYS_setns : SYS_socket, 0, 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setns, 2, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog p = { sizeof f / sizeof *f, f };

    if (argc < 3 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p))
        return 1;
    execvp(argv[2], argv + 2);
    return 1;
}
"#;

fn has(text: &str, line: &str) -> bool {
    text.lines().any(|one| one == line)
}

#[test]
fn without_netlink_all_but_what_moves_through_interfaces_is_told() {
    let test = "without_netlink_all_but_what_moves_through_interfaces_is_told";
    let config = "[links.v1]\ntx = \"8Mbit/s\"\n[services.far]\ntarget = \"netns:no-such\"\n";
    let tools = Place::bare();
    let Some(refuses) = compiled(test, &tools, REFUSES, ".refuses", &[]) else {
        return;
    };
    let Some(mut machine) = Machine::new(test, config) else {
        return;
    };
    machine.until("the limit", || machine.has("v1", "8Mbit"));
    machine.until("it is scraped", || {
        has(&machine.metrics(), "bonsai_links_scrape_ok 1.0")
    });
    machine.kill();
    machine.start_by(&[refuses.to_str().expect("a path"), "netlink"]);
    let text = machine.metrics();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(has(&text, "bonsai_links_scrape_ok 0.0"), "{text}");
    assert!(!text.contains("link_moved"), "nothing was seen: {text}");
    let limit = "bonsai_link_limit_bytes_per_second{target=\"v1\",direction=\"tx\"} 1000000.0";
    assert!(has(&text, limit), "{text}");
    assert!(text.contains("bonsai_periods_total"), "{text}");
    let links = machine.client().links().expect("an answer");
    assert_eq!(links.problems.len(), 1, "{links:?}");
    assert!(links.problems[0].contains("netlink"), "{links:?}");
    assert_eq!(links.links.len(), 1, "{links:?}");
    assert_eq!(links.links[0].target.as_deref(), Some("v1"));
    assert_ne!(links.links[0].state, LinkState::InForce, "none is claimed");
    // A service that cannot be looked at takes no other answer with it.
    let services = machine.client().services().expect("an answer").services;
    let far = services.iter().find(|service| service.id == "far");
    assert!(
        !far.expect("it is told").problems.is_empty(),
        "{services:?}"
    );
    let said = machine.say(&["link", "ls"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(
        said.out.contains("v1") && said.out.contains("not seen"),
        "{said:?}"
    );
}

#[test]
fn a_namespace_that_cannot_be_entered_hides_no_other() {
    let test = "a_namespace_that_cannot_be_entered_hides_no_other";
    let tools = Place::bare();
    let Some(refuses) = compiled(test, &tools, REFUSES, ".refuses", &[]) else {
        return;
    };
    let Some(mut machine) = Machine::new(test, "[links.v1]\ntx = \"8Mbit/s\"\n") else {
        return;
    };
    machine.until("the limit", || machine.has("v1", "8Mbit"));
    let mut inside = spawned(&machine.guest, Command::new("sleep").arg("60"));
    let pid = inside.id().to_string();
    // One that has no other end here.
    run(&machine.guest, "ip link add d0 type veth peer name d1");
    run(&machine.guest, "ip link set d0 up");
    machine.kill();
    let said = machine.say(&["link", "set", "--pid", &pid, "d0", "tx=3Mbit/s"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    machine.start_by(&[refuses.to_str().expect("a path"), "setns"]);
    machine.until("the limit", || {
        machine.link("v1").state == LinkState::InForce
    });
    let links = machine.client().links().expect("an answer");
    assert_eq!(links.problems.len(), 1, "{links:?}");
    let there = |link: &&bonsai_api::LinkView| link.name == "d0";
    let d0 = links.links.iter().find(there).expect("by the record");
    assert_eq!(d0.tx_limit, Some(375_000));
    assert_eq!(d0.state, LinkState::Problem, "{d0:?}");
    machine.until("what is seen is scraped", || {
        let text = machine.metrics();
        has(&text, "bonsai_links_scrape_ok 0.0")
            && text.contains("bonsai_link_moved_bytes_per_second{target=\"v1\"")
    });
    inside.kill().expect("ended");
    inside.wait().expect("ended");
}

#[test]
fn scrapes_make_no_look_of_their_own() {
    let test = "scrapes_make_no_look_of_their_own";
    let Some(machine) = Machine::new(test, "[links.v1]\ntx = \"8Mbit/s\"\n") else {
        return;
    };
    let looks = |text: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with("bonsai_links_looks_total"));
        let number = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        number.expect("a number")
    };
    let start = Instant::now();
    let mut last = 0.0;
    for _ in 0..100 {
        let text = machine.metrics();
        assert!(has(&text, "bonsai_links_scrape_ok 1.0"), "{text}");
        assert!(
            text.contains("bonsai_link_moved_bytes_per_second"),
            "{text}"
        );
        last = looks(&text);
    }
    let most = start.elapsed().as_secs_f64() / 5.0 + 1.0;
    assert!((1.0..=most).contains(&last), "{last} looks, {most} at most");
}
