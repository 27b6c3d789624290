//! Every system call instruction that can be replaced by moving what stands before it, against a
//! full disassembly: of glibc, which has hundreds, and of liburing, where it is installed.

use std::fs;

use bonsai_sites::{ANY, Site, find_syscall, movable, moved_at, reject_branch_targets};
use iced_x86::{Code, FlowControl};

use crate::glibc::{LIBC, disassemble, text};

const LIBURING: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/liburing.so.2",
    "/usr/lib64/liburing.so.2",
    "/usr/lib/liburing.so.2",
];

/// Checks all that is found in a library: sites that can be entered, those that cannot, and all
/// system call instructions that are there.
fn check(path: &str, file: &[u8]) -> (Vec<Site>, Vec<Site>, usize) {
    let (text, section) = text(file);
    let truth = disassemble(&text, section.clone());
    let mut sites = Vec::new();
    let mut at = 0;
    while let Some(found) = find_syscall(&text, at) {
        sites.push(moved_at(&text, found));
        at = found + 2;
    }
    reject_branch_targets(&text, &mut sites);
    let inside = |site: &Site| section.contains(&site.offset);
    let sites: Vec<Site> = sites.into_iter().flatten().filter(inside).collect();
    let (entered, left): (Vec<Site>, Vec<Site>) = sites.into_iter().partition(|site| site.back > 0);
    for site in &entered {
        let (at, first) = (site.offset, site.offset - u32::from(site.back));
        assert_eq!(truth.instruction(at), Some(Code::Syscall), "{path}+{at:#x}");
        assert!(
            truth.instruction(first).is_some(),
            "{path}+{first:#x}: no instruction starts there"
        );
        assert!(site.back >= 3, "{path}+{at:#x}: no room for a jump");
        assert!(movable(&text[first as usize..at as usize]));
        for (before, instruction) in truth.instructions.range(first..at) {
            assert!(
                instruction.flow_control() == FlowControl::Next
                    && !instruction.is_ip_rel_memory_operand()
                    && instruction.code() != Code::Syscall,
                "{path}+{before:#x}: {instruction:?}"
            );
        }
        let into: Vec<&u32> = truth.targets.range(first + 1..at + 2).collect();
        assert!(into.is_empty(), "{path}+{at:#x}: branches to {into:x?}");
    }
    let mut all = truth.instructions.values();
    let all = all.by_ref().filter(|i| i.code() == Code::Syscall).count();
    println!(
        "{path}: {all} system calls, {} can be entered, {} cannot",
        entered.len(),
        left.len()
    );
    (entered, left, all)
}

#[test]
fn what_is_found_in_libc_is_real() {
    let file = LIBC.iter().find_map(|path| fs::read(path).ok());
    let (entered, _, all) = check("libc.so.6", &file.expect("a libc"));
    assert!(entered.len() * 2 > all, "{} of {all}", entered.len());
}

#[test]
fn liburing_can_be_entered_everywhere() {
    let found = LIBURING
        .iter()
        .find_map(|path| Some((path, fs::read(path).ok()?)));
    let Some((path, file)) = found else {
        println!("liburing.so.2 is not installed");
        return;
    };
    let (entered, left, all) = check(path, &file);
    assert_eq!(entered.len() + left.len(), all);
    assert_eq!(left, [], "left alone");
    // io_uring_setup, io_uring_enter, io_uring_register
    for nr in 425..=427 {
        assert!(entered.iter().any(|site| site.nr == nr), "no site of {nr}");
    }
    // The loop that submits and waits keeps its number in a register.
    assert!(entered.iter().any(|site| site.nr == ANY));
}
