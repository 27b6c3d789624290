//! The tests of this crate on a kernel of their own, which has version 2 with all controllers.

use crate::version_two;

#[test]
fn all_of_it_holds_on_a_kernel_with_version_two() {
    version_two::run(
        "all_of_it_holds_on_a_kernel_with_version_two",
        "disk:: cpu:: systemd::",
        "SKIP: a_limit_is",
    );
}
