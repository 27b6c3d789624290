//! The decoder against iced-x86, over the text of the machine's own libraries.

use std::vec::Vec;
use std::{eprintln, fs, string::String};

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess,
    Register,
};
use object::{Object, ObjectSection};

use super::{Eax, Flow, decode};
use crate::start::{Start, start};

/// Where distributions keep glibc. A second name for the same file does no harm.
const LIBRARIES: [&str; 6] = [
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "/lib/x86_64-linux-gnu/libm.so.6",
    "/lib64/libc.so.6",
    "/lib64/ld-linux-x86-64.so.2",
    "/lib64/libm.so.6",
];

fn texts() -> Vec<(&'static str, Vec<u8>)> {
    let read = |path| {
        let file = fs::read(path).ok()?;
        let object = object::File::parse(&*file).ok()?;
        let text = object.section_by_name(".text")?.data().ok()?.to_vec();
        Some((path, text))
    };
    LIBRARIES.into_iter().filter_map(read).collect()
}

fn writes_rax(factory: &mut InstructionInfoFactory, instruction: &Instruction) -> bool {
    factory.info(instruction).used_registers().iter().any(|r| {
        let read_only = matches!(r.access(), OpAccess::Read | OpAccess::CondRead);
        r.register().full_register() == Register::RAX && !read_only
    })
}

fn flow(instruction: &Instruction) -> Option<Flow> {
    if matches!(instruction.code(), Code::Syscall | Code::Hlt) {
        // A call and plain code to iced; here, plain code and a stop.
        return None;
    }
    Some(match instruction.flow_control() {
        FlowControl::Next => Flow::Next,
        FlowControl::ConditionalBranch => Flow::Branch,
        FlowControl::Call | FlowControl::IndirectCall => Flow::Call,
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return => {
            Flow::Stop
        }
        _ => return None,
    })
}

#[test]
fn agrees_with_iced_on_real_libraries() {
    let texts = texts();
    assert!(!texts.is_empty(), "this machine has no glibc to decode");
    let mut factory = InstructionInfoFactory::new();
    for (path, text) in texts {
        let (mut seen, mut refused, mut wrong) = (0_u32, 0_u32, Vec::<String>::new());
        let mut decoder = Decoder::new(64, &text, DecoderOptions::NONE);
        while decoder.can_decode() {
            let at = decoder.position();
            let truth = decoder.decode();
            seen += 1;
            let Some(ours) = decode(&text[at..]) else {
                refused += u32::from(!truth.is_invalid());
                continue;
            };
            let kept_but_written = ours.eax == Eax::Kept && writes_rax(&mut factory, &truth);
            let bound = truth.is_ip_rel_memory_operand() && !ours.relative;
            if truth.is_invalid()
                || bound
                || ours.len() != truth.len()
                || flow(&truth).is_some_and(|flow| flow != ours.flow)
                || kept_but_written
            {
                let bytes = &text[at..at + truth.len().max(1)];
                wrong.push(std::format!("{at:#x} {bytes:02x?} {truth:?} {ours:?}"));
            }
        }
        eprintln!(
            "{path}: {seen} instructions, {refused} refused, {} wrong",
            wrong.len()
        );
        assert!(
            wrong.is_empty(),
            "{path}: {:#?}",
            &wrong[..wrong.len().min(20)]
        );
        assert!(
            refused * 1000 <= seen,
            "{path}: {refused} of {seen} refused"
        );
    }
}

#[test]
fn start_is_never_wrong_on_real_libraries() {
    for (path, text) in texts() {
        let mut is_start = std::vec![false; text.len()];
        let mut decoder = Decoder::new(64, &text, DecoderOptions::NONE);
        while decoder.can_decode() {
            is_start[decoder.position()] = true;
            let _ = decoder.decode();
        }
        let (mut always, mut never, mut unsure) = (0_u32, 0_u32, 0_u32);
        // Every seventh offset meets all alignments and keeps the test short.
        for at in (0..text.len()).step_by(7) {
            match start(&text, at) {
                Start::Always => {
                    always += 1;
                    assert!(is_start[at], "{path}: no instruction starts at {at:#x}");
                }
                Start::Never => {
                    never += 1;
                    assert!(!is_start[at], "{path}: an instruction starts at {at:#x}");
                }
                Start::Unsure => unsure += 1,
            }
        }
        eprintln!("{path}: {always} starts, {never} not, {unsure} unsure");
        assert!(unsure * 10 < always + never, "{path}: too often unsure");
    }
}

#[test]
fn lengths_effects_and_flow_by_hand() {
    let cases: [(&[u8], usize, Flow, Eax); 22] = [
        (&[0xb8, 1, 0, 0, 0], 5, Flow::Next, Eax::Set(1)),
        (&[0x41, 0xb8, 1, 0, 0, 0], 6, Flow::Next, Eax::Kept),
        (
            &[0x48, 0xb8, 1, 0, 0, 0, 0, 0, 0, 0],
            10,
            Flow::Next,
            Eax::Lost,
        ),
        (&[0x66, 0xb8, 1, 0], 4, Flow::Next, Eax::Lost),
        (&[0x31, 0xc0], 2, Flow::Next, Eax::Set(0)),
        (&[0x33, 0xc0], 2, Flow::Next, Eax::Set(0)),
        (&[0x66, 0x31, 0xc0], 3, Flow::Next, Eax::Lost),
        (&[0x45, 0x31, 0xc0], 3, Flow::Next, Eax::Kept),
        (&[0x31, 0xd2], 2, Flow::Next, Eax::Kept),
        (&[0x89, 0xc0], 2, Flow::Next, Eax::Lost),
        (&[0x8b, 0x44, 0x24, 8], 4, Flow::Next, Eax::Lost),
        (&[0x88, 0xdc], 2, Flow::Next, Eax::Lost),
        (&[0x0f, 0x05], 2, Flow::Next, Eax::Lost),
        (&[0xf3, 0x0f, 0x1e, 0xfa], 4, Flow::Next, Eax::Kept),
        (&[0xf3, 0x48, 0x0f, 0x1e, 0xc8], 5, Flow::Next, Eax::Lost),
        (&[0xe8, 0, 0, 0, 0], 5, Flow::Call, Eax::Lost),
        (&[0xff, 0xd0], 2, Flow::Call, Eax::Lost),
        (&[0xff, 0xe0], 2, Flow::Stop, Eax::Lost),
        (&[0xc3], 1, Flow::Stop, Eax::Lost),
        (&[0x74, 5], 2, Flow::Branch, Eax::Kept),
        (&[0x0f, 0x84, 0, 0, 0, 0], 6, Flow::Branch, Eax::Kept),
        (&[0xc5, 0xf8, 0x77], 3, Flow::Next, Eax::Kept),
    ];
    for (bytes, len, flow, eax) in cases {
        let insn = decode(bytes).unwrap_or_else(|| panic!("{bytes:02x?} is refused"));
        assert_eq!(
            (insn.len(), insn.flow, insn.eax),
            (len, flow, eax),
            "{bytes:02x?}"
        );
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None, "{bytes:02x?} cut to {cut}");
        }
    }
}

#[test]
fn invalid_and_overlong_instructions_are_refused() {
    for bytes in [
        &[0x06][..],
        &[0x82, 0, 0],
        &[0xea, 0, 0, 0, 0, 0, 0],
        &[0x48, 0x48, 0x90],
    ] {
        assert_eq!(decode(bytes), None, "{bytes:02x?}");
    }
    assert_eq!(decode(&[0x66; 64]), None);
    let mut padded = [0x2e; 16];
    padded[15] = 0x90;
    assert_eq!(decode(&padded), None, "16 bytes are too long");
    assert_eq!(decode(&padded[1..]).map(super::Insn::len), Some(15));
}

/// From every byte of real libraries on, and of noise: the tables say what the decoder says.
#[test]
fn lengths_by_table_are_those_of_the_decoder() {
    let agrees = |code: &[u8]| {
        let want = decode(code).map(|insn| (insn.len(), !insn.relative));
        assert_eq!(
            super::length(code),
            want,
            "{:02x?}",
            &code[..code.len().min(16)]
        );
    };
    for (_, text) in texts() {
        for at in 0..text.len() {
            agrees(&text[at..text.len().min(at + 16)]);
        }
    }
    // Each pair of bytes behind each prefix that matters, with every third byte that matters.
    let prefixes: [&[u8]; 8] = [
        &[],
        &[0x66],
        &[0x67],
        &[0x48],
        &[0x41],
        &[0x66, 0x48],
        &[0x0f],
        &[0x66, 0x0f],
    ];
    for prefix in prefixes {
        for first in 0..=255 {
            for second in 0..=255 {
                for third in [0x05, 0x25, 0x44, 0x84, 0xc0, 0xf8] {
                    let mut code = prefix.to_vec();
                    code.extend([first, second, third, 0x25, 0x05]);
                    code.resize(24, 0x90);
                    agrees(&code);
                    agrees(&code[..prefix.len() + 3]);
                }
            }
        }
    }
}
