//! On the real kernel: groups of whatever hierarchies are mounted, this machine's disk, processes
//! with threads, a systemd of our own. `machine` runs all of that again on a kernel that has version 2.

mod cpu;
mod disk;
mod machine;
mod manager;
mod support;
mod systemd;
mod tree;
mod uml;
mod version_two;
