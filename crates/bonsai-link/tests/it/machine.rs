//! Those tests of this crate that ask for no speed, on a kernel of their own, which has other queueing
//! disciplines.

use std::process::Command;

use crate::room::{alone, skip};
use crate::uml::Kernel;

/// Set within it.
pub(crate) const INSIDE: &str = "BONSAI_LINK_MACHINE";

/// Where Debian's package has the modules of its kernel, and those that are needed, in order.
pub(crate) const MODULES: &str = "/usr/lib/uml/modules/*/kernel";
const NEEDED: [&str; 14] = [
    "lib/crc-ccitt",
    "net/ipv6/ipv6",
    "net/llc/llc",
    "net/802/stp",
    "net/bridge/bridge",
    "drivers/net/veth",
    "drivers/net/ifb",
    "net/sched/sch_ingress",
    "net/sched/cls_bpf",
    "net/sched/cls_u32",
    "net/sched/act_mirred",
    "net/sched/sch_htb",
    "net/sched/sch_tbf",
    "net/sched/sch_fq_codel",
];

#[test]
fn all_of_it_holds_on_a_kernel_with_other_queues() {
    let name = "all_of_it_holds_on_a_kernel_with_other_queues";
    run_there(name, "true", "faults:: queues:: without::");
}

#[test]
fn each_kind_of_a_kernel_with_all_of_them_comes_back_or_is_not_taken_over() {
    let name = "each_kind_of_a_kernel_with_all_of_them_comes_back_or_is_not_taken_over";
    // Twice, since some need others; those that need more than these stay out.
    let all = format!(
        "for turn in 1 2; do for of in {MODULES}/net/sched/*.ko; do \
         busybox insmod $of 2>/dev/null; done; done; true"
    );
    // One kernel for each half: an emulated one takes its time.
    let mut back = String::new();
    for half in ["adopted::each_kind_that", "adopted::each_kind_of"] {
        let Some(said) = run_there(name, &all, half) else {
            return;
        };
        let lists = ["came back: ", "not taken over: ", "not on this machine: "];
        for line in said.lines() {
            if lists.iter().any(|list| line.contains(list)) {
                println!("{line}");
            }
            back.extend(line.split_once("came back: ").map(|(_, list)| list));
        }
    }
    for kind in [
        "sfq",
        "netem",
        "hfsc",
        "qfq",
        "cake",
        "chains",
        "filters of classes",
    ] {
        assert!(back.contains(&format!("\"{kind}\"")), "{kind}: {back}");
    }
}

/// Runs some of these tests on that kernel, after lines of a shell; what they said. `None`, with the reason said, where that
/// cannot be, or it is that kernel.
fn run_there(name: &str, first: &str, tests: &str) -> Option<String> {
    if std::env::var_os(INSIDE).is_some() {
        return None;
    }
    for tool in ["linux.uml", "busybox"] {
        if Command::new(tool).arg("--help").output().is_err() {
            skip(
                name,
                &format!("{tool} is not installed (user-mode-linux, busybox-static)"),
            );
            return None;
        }
    }
    if !rustix::process::geteuid().is_root() {
        skip(name, "only root sees all of its files in it");
        return None;
    }
    let _alone = alone();
    let ready = format!(
        "export {INSIDE}=1; ip link set lo up\n\
         for of in {needed}; do busybox insmod {MODULES}/$of.ko; done\n\
         {first}",
        needed = NEEDED.join(" "),
    );
    let kernel = Kernel {
        memory: "256M",
        has_disk: false,
        ready: &ready,
        tests,
    };
    match kernel.run() {
        Ok(said) => {
            assert!(!said.contains("SKIP:"), "not all of it was run: {said}");
            Some(said)
        }
        Err(console) => {
            skip(name, &format!("it does not boot here: {console}"));
            None
        }
    }
}
