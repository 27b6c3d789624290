//! Every site found in the machine's glibc and loader against a full disassembly of their text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use bonsai_sites::{SITE_LEN, Site, build_id, reject_branch_targets, scan};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess,
    OpKind, Register,
};
use object::{Object, ObjectSection, ObjectSegment, SegmentFlags};

/// `read`, `write`, `close`, `pread64`, `pwrite64`, `readv`, `writev`, `sendfile`, `connect`,
/// `accept`, `sendto`, `recvfrom`, `sendmsg`, `recvmsg`, `fsync`, `fdatasync`, `getdents64`,
/// `openat`, `splice`, `tee`, `sync_file_range`, `vmsplice`, `fallocate`, `accept4`, `preadv`,
/// `pwritev`, `recvmmsg`, `sendmmsg`, `getrandom`, `copy_file_range`, `preadv2`, `pwritev2`.
const IO_CALLS: [u16; 32] = [
    0, 1, 3, 17, 18, 19, 20, 40, 42, 43, 44, 45, 46, 47, 74, 75, 217, 257, 275, 276, 277, 278, 285,
    288, 295, 296, 299, 307, 318, 326, 327, 328,
];

pub(crate) const LIBC: [&str; 2] = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6"];
const LOADER: [&str; 1] = ["/lib64/ld-linux-x86-64.so.2"];

/// What a full disassembly knows about a text.
pub(crate) struct Truth {
    /// By offset.
    pub(crate) instructions: BTreeMap<u32, Instruction>,
    /// Targets of all direct branches and calls.
    pub(crate) targets: BTreeSet<u32>,
}

fn read(paths: &[&str]) -> Vec<u8> {
    let found = paths.iter().find_map(|path| fs::read(path).ok());
    found.unwrap_or_else(|| panic!("this machine has none of {paths:?}"))
}

fn is_executable(segment: &object::Segment<'_, '_>) -> bool {
    matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags.contains(object::elf::PF_X))
}

/// The executable segment, and the part of it that is `.text`.
pub(crate) fn text(file: &[u8]) -> (Vec<u8>, std::ops::Range<u32>) {
    let object = object::File::parse(file).expect("an ELF file");
    let segment = object.segments().find(is_executable).expect("code");
    let section = object.section_by_name(".text").expect("a .text");
    let start = u32::try_from(section.address() - segment.address()).expect("below 4 GiB");
    let end = start + u32::try_from(section.size()).expect("below 4 GiB");
    (segment.data().expect("bytes").to_vec(), start..end)
}

pub(crate) fn disassemble(text: &[u8], section: std::ops::Range<u32>) -> Truth {
    let mut truth = Truth {
        instructions: BTreeMap::new(),
        targets: BTreeSet::new(),
    };
    let code = &text[section.start as usize..section.end as usize];
    let mut decoder = Decoder::with_ip(64, code, u64::from(section.start), DecoderOptions::NONE);
    for instruction in &mut decoder {
        let at = u32::try_from(instruction.ip()).expect("below 4 GiB");
        if instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64 {
            truth
                .targets
                .extend(u32::try_from(instruction.near_branch_target()));
        }
        truth.instructions.insert(at, instruction);
    }
    truth
}

impl Truth {
    /// The constant that the last write to `rax` in the straight-line code before `at` brings.
    fn number(&self, at: u32) -> Option<u64> {
        let mut factory = InstructionInfoFactory::new();
        for (_, instruction) in self.instructions.range(..at).rev() {
            match instruction.flow_control() {
                FlowControl::Next | FlowControl::ConditionalBranch => {}
                _ => return None,
            }
            let info = factory.info(instruction);
            let mut writes = info.used_registers().iter().filter(|r| {
                let read_only = matches!(r.access(), OpAccess::Read | OpAccess::CondRead);
                r.register().full_register() == Register::RAX && !read_only
            });
            if writes.next().is_none() {
                continue;
            }
            let xor = matches!(instruction.code(), Code::Xor_rm32_r32 | Code::Xor_r32_rm32);
            return match instruction.code() {
                Code::Mov_r32_imm32 => Some(instruction.immediate(1)),
                _ if xor && instruction.op0_register() == instruction.op1_register() => Some(0),
                _ => None,
            };
        }
        None
    }

    pub(crate) fn instruction(&self, at: u32) -> Option<Code> {
        self.instructions.get(&at).map(Instruction::code)
    }

    /// All `syscall` instructions followed by the comparison, with their number if it is known.
    fn sites(&self) -> BTreeMap<u32, Option<u64>> {
        let mut sites = BTreeMap::new();
        for (at, instruction) in &self.instructions {
            let next = self.instructions.get(&(at + 2));
            let compared = next.is_some_and(|next| {
                next.code() == Code::Cmp_RAX_imm32
                    && matches!(next.immediate(1).cast_signed(), -4096 | -4095)
            });
            if instruction.code() == Code::Syscall && compared {
                sites.insert(*at, self.number(*at));
            }
        }
        sites
    }
}

fn is_io(nr: u64) -> bool {
    IO_CALLS.iter().any(|io| u64::from(*io) == nr)
}

/// Checks all that is found in one library, and returns how many I/O sites are found of how many.
fn check(name: &str, paths: &[&str]) -> (usize, usize) {
    let file = read(paths);
    let (text, section) = text(&file);
    let truth = disassemble(&text, section);
    let all = truth.sites();

    let candidates: Vec<Site> = scan(&text).collect();
    let mut slots: Vec<Option<Site>> = candidates.iter().copied().map(Some).collect();
    reject_branch_targets(&text, &mut slots);
    let kept: Vec<Site> = slots.into_iter().flatten().collect();

    for site in &kept {
        let at = site.offset;
        assert_eq!(truth.instruction(at), Some(Code::Syscall), "{name}+{at:#x}");
        assert_eq!(
            truth.instruction(at + 2),
            Some(Code::Cmp_RAX_imm32),
            "{name}+{at:#x}"
        );
        let cmp = truth.instructions[&(at + 2)].immediate(1);
        assert_eq!(cmp.cast_signed(), i64::from(site.cmp), "{name}+{at:#x}");
        assert_eq!(truth.number(at), Some(u64::from(site.nr)), "{name}+{at:#x}");
        let lo = at - u32::from(site.back) + 1;
        let hi = at + u32::try_from(SITE_LEN).expect("8");
        let into: Vec<&u32> = truth.targets.range(lo..hi).collect();
        assert!(into.is_empty(), "{name}+{at:#x}: branches to {into:x?}");
    }

    let found: BTreeSet<u32> = kept.iter().map(|site| site.offset).collect();
    let known = all.values().flatten().count();
    let io: Vec<(u32, u64)> = all
        .iter()
        .filter_map(|(at, nr)| nr.filter(|nr| is_io(*nr)).map(|nr| (*at, nr)))
        .collect();
    let missed: Vec<&(u32, u64)> = io.iter().filter(|(at, _)| !found.contains(at)).collect();
    println!(
        "{name}: {} sites, {known} with a plain number; {} candidates, {} kept; I/O: {} of {}, \
         missed (offset, number): {missed:x?}",
        all.len(),
        candidates.len(),
        kept.len(),
        io.len() - missed.len(),
        io.len()
    );
    (io.len() - missed.len(), io.len())
}

#[test]
fn libc_sites_are_real_and_nearly_complete() {
    let (found, all) = check("libc.so.6", &LIBC);
    assert!(all >= 40, "only {all} I/O sites: is this glibc?");
    assert!(found * 10 >= all * 9, "{found} of {all} I/O sites found");
}

#[test]
fn loader_sites_are_real() {
    let (found, all) = check("ld.so", &LOADER);
    assert!(found * 10 >= all * 9, "{found} of {all} I/O sites found");
}

#[test]
fn build_id_is_the_one_in_the_section() {
    let file = read(&LIBC);
    let object = object::File::parse(&*file).expect("an ELF file");
    let section = object
        .section_by_name(".note.gnu.build-id")
        .expect("a build-id");
    let id = build_id(section.data().expect("bytes"));
    assert_eq!(id, object.build_id().expect("readable notes"));
    assert_eq!(id.map(<[u8]>::len), Some(20));
}
