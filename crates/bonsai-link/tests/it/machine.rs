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
    if std::env::var_os(INSIDE).is_some() {
        return;
    }
    for tool in ["linux.uml", "busybox"] {
        if Command::new(tool).arg("--help").output().is_err() {
            return skip(
                name,
                &format!("{tool} is not installed (user-mode-linux, busybox-static)"),
            );
        }
    }
    if !rustix::process::geteuid().is_root() {
        return skip(name, "only root sees all of its files in it");
    }
    let _alone = alone();
    let ready = format!(
        "export {INSIDE}=1; ip link set lo up\n\
         for of in {needed}; do busybox insmod {MODULES}/$of.ko; done",
        needed = NEEDED.join(" "),
    );
    let kernel = Kernel {
        memory: "256M",
        has_disk: false,
        ready: &ready,
        tests: "faults:: queues:: without::",
    };
    match kernel.run() {
        Ok(said) => assert!(!said.contains("SKIP:"), "not all of it was run: {said}"),
        Err(console) => skip(name, &format!("it does not boot here: {console}")),
    }
}
