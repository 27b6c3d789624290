//! The tests of groups on a kernel of their own, which has version 2 with all controllers.

use crate::version_two;

#[test]
fn groups_are_services_on_a_kernel_with_version_two() {
    version_two::run(
        "groups_are_services_on_a_kernel_with_version_two",
        "groups:: units:: whose::a_machine",
        "SKIP: a_disk_limit",
    );
}
