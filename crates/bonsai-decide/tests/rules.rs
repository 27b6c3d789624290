//! The rules of division and payment, each call beside each kind of file, and the parts of calls under random results.

use std::cell::Cell;

use bonsai_calls::io_size::{IoSize, io_size};
use bonsai_calls::{self as calls, CALLS, CallId, Shape};
use bonsai_decide::charge::{self, Moved, Settlement};
use bonsai_decide::{
    Division, Extras, FileKind, OpenFile, PAGE, Parts, RECORD, SocketType, division, is_stream,
    may_be_shortened, part_length, quantum_length, read_division,
};
use proptest::prelude::*;

const O_APPEND: u32 = 0o2000;
const O_DSYNC: u32 = 0o10_000;
const O_DIRECT: u32 = 0o40_000;
const TCP: SocketType = SocketType {
    kind: 1,
    protocol: 6,
};

/// An open file that counts what it was asked.
struct File {
    kind: FileKind,
    status: Option<u32>,
    socket: SocketType,
    asked: Cell<u32>,
}

impl File {
    fn new(kind: FileKind, status: u32) -> Self {
        Self {
            kind,
            status: Some(status),
            socket: TCP,
            asked: Cell::new(0),
        }
    }

    fn socket(kind: u32, protocol: u32) -> Self {
        Self {
            socket: SocketType { kind, protocol },
            ..Self::new(FileKind::Socket, 2)
        }
    }
}

impl OpenFile for File {
    fn kind(&self) -> FileKind {
        self.asked.set(self.asked.get() + 1);
        self.kind
    }
    fn status(&self) -> Option<u32> {
        self.asked.set(self.asked.get() + 1);
        self.status
    }
    fn socket(&self) -> SocketType {
        self.asked.set(self.asked.get() + 1);
        self.socket
    }
}

const NONE: Extras = Extras {
    flags: 0,
    is_addressed: false,
};

fn outgoing() -> impl Iterator<Item = CallId> {
    let rows = (0..).zip(CALLS);
    rows.filter(|(_, row)| row.shape == Shape::Out)
        .map(|(call, _)| call)
}

#[test]
fn messages_are_one_whatever_they_go_to() {
    let kinds = [
        FileKind::File,
        FileKind::Socket,
        FileKind::Pipe,
        FileKind::Other,
    ];
    for call in [
        calls::SENDMMSG,
        calls::MQ_TIMEDSEND,
        calls::MSGSND,
        calls::TEE,
        calls::VMSPLICE,
        calls::PROCESS_VM_WRITEV,
    ] {
        for kind in kinds {
            let file = File::new(kind, 2);
            assert_eq!(division(call, NONE, &file), Division::Never, "{call}");
            assert_eq!(file.asked.get(), 0, "nothing is asked for them");
        }
    }
    for call in outgoing() {
        for file in [
            File::socket(2, 17),
            File::socket(5, 0),
            File::socket(1, 132),
            File::new(FileKind::Other, 2),
            File::new(FileKind::Pipe, O_DIRECT | 1),
        ] {
            assert_eq!(division(call, NONE, &file), Division::Never, "{call}");
            assert!(file.asked.get() <= 3);
        }
    }
}

#[test]
fn streams_take_anything_in_parts_unless_the_call_says_more() {
    for call in [
        calls::WRITE_SOCKET,
        calls::WRITEV_SOCKET,
        calls::SENDTO,
        calls::SENDMSG,
    ] {
        assert_eq!(division(call, NONE, &File::socket(1, 6)), Division::Any);
        assert_eq!(division(call, NONE, &File::socket(1, 0)), Division::Any);
    }
    assert_eq!(
        division(calls::WRITE_OTHER, NONE, &File::new(FileKind::Pipe, 1)),
        Division::Any
    );
    let to_all = |flags: u32| {
        let extras = Extras {
            flags,
            is_addressed: false,
        };
        [calls::SENDTO, calls::SENDMSG].map(|call| division(call, extras, &File::socket(1, 6)))
    };
    // MSG_OOB, MSG_ZEROCOPY, MSG_FASTOPEN; MSG_MORE and MSG_NOSIGNAL are of the bytes.
    for flags in [1, 0x400_0000, 0x2000_0000] {
        assert_eq!(to_all(flags), [Division::Never; 2], "{flags:x}");
    }
    assert_eq!(to_all(0x8000 | 0x4000), [Division::Any; 2]);
    let addressed = Extras {
        flags: 0,
        is_addressed: true,
    };
    let with = |call| division(call, addressed, &File::socket(1, 6));
    // A stream has no addresses, and control data goes once.
    assert_eq!(with(calls::SENDTO), Division::Any);
    assert_eq!(with(calls::SENDMSG), Division::Never);
}

#[test]
fn writes_to_files_are_records_and_those_that_others_see_as_one_are_one() {
    let write = [
        calls::WRITE_FILE,
        calls::WRITEV_FILE,
        calls::PWRITE64,
        calls::PWRITEV,
        calls::PWRITEV2,
    ];
    for call in write {
        let on = |status| division(call, NONE, &File::new(FileKind::File, status));
        assert_eq!(on(1), Division::Records);
        for status in [O_APPEND, O_DSYNC, O_DIRECT] {
            assert_eq!(on(1 | status), Division::Never, "{status:o}");
        }
        let mut closed = File::new(FileKind::File, 1);
        closed.status = None;
        assert_eq!(division(call, NONE, &closed), Division::Never);
    }
    // RWF_HIPRI and RWF_NOWAIT are of the call's speed.
    for (flags, wanted) in [
        (0x2, Division::Never),
        (0x4, Division::Never),
        (0x10, Division::Never),
        (0x40, Division::Never),
        (0x1 | 0x8, Division::Records),
    ] {
        let extras = Extras {
            flags,
            is_addressed: false,
        };
        let file = File::new(FileKind::File, 1);
        assert_eq!(
            division(calls::PWRITEV2, extras, &file),
            wanted,
            "{flags:x}"
        );
        assert_eq!(division(calls::PWRITEV, extras, &file), Division::Records);
    }
    for call in [
        calls::SENDFILE_FILE,
        calls::SPLICE_FILE,
        calls::COPY_FILE_RANGE,
    ] {
        let file = File::new(FileKind::File, 1);
        assert_eq!(division(call, NONE, &file), Division::Any, "{call}");
    }
}

#[test]
fn reads_that_move_a_shared_position_are_records() {
    let file = || FileKind::File;
    assert_eq!(read_division(calls::READ_FILE, file), Division::Records);
    assert_eq!(read_division(calls::READV_FILE, file), Division::Records);
    assert_eq!(read_division(calls::PREAD64, file), Division::Any);
    let other = || FileKind::Other;
    assert_eq!(read_division(calls::PREAD64, other), Division::Never);
    for call in [
        calls::READ_SOCKET,
        calls::READ_OTHER,
        calls::RECVFROM,
        calls::RECVMSG,
    ] {
        let asked = || panic!("nothing depends on it");
        assert_eq!(read_division(call, asked), Division::Never, "{call}");
    }
}

#[test]
fn what_is_received_may_be_less_where_the_call_does_not_say_otherwise() {
    assert!(may_be_shortened(calls::RECVFROM, 0x40), "MSG_DONTWAIT");
    for flags in [0x1, 0x2, 0x20, 0x100, 0x2000] {
        assert!(!may_be_shortened(calls::RECVFROM, flags), "{flags:x}");
    }
    assert!(may_be_shortened(calls::READ_SOCKET, 0));
    for call in [
        calls::READ_FILE,
        calls::RECVMSG,
        calls::RECVMMSG,
        calls::PREAD64,
    ] {
        assert!(!may_be_shortened(call, 0), "{call}");
    }
    assert!(is_stream(&File::socket(1, 6)) && is_stream(&File::new(FileKind::Pipe, 0)));
    assert!(!is_stream(&File::socket(2, 17)) && !is_stream(&File::socket(1, 132)));
    assert!(!is_stream(&File::new(FileKind::File, 0)));
}

#[test]
fn bytes_that_have_moved_are_those_of_the_manual() {
    for (call, row) in (0..).zip(CALLS) {
        for error in [-1, -4, -11, -4095] {
            assert_eq!(
                charge::moved(call, 0, error),
                Moved::Bytes(0),
                "{}",
                row.name
            );
        }
        let moved = charge::moved(call, 0, 7);
        let by_result = match io_size(call) {
            IoSize::None => Moved::Bytes(0),
            IoSize::Messages => Moved::Messages,
            _ if matches!(call, calls::MQ_TIMEDSEND | calls::MSGSND) => Moved::All,
            _ if call == calls::RECVFROM => Moved::WithinRoom,
            _ => Moved::Bytes(7),
        };
        assert_eq!(moved, by_result, "{}", row.name);
    }
    for call in [calls::RECVFROM, calls::RECVMSG, calls::RECVMMSG] {
        assert_eq!(charge::moved(call, 0x2, 7), Moved::Bytes(0), "MSG_PEEK");
    }
    assert_eq!(charge::moved(calls::RECVMSG, 0x20, 7), Moved::WithinRoom);
    assert!(charge::did_nothing(-4) && charge::did_nothing(-11));
    assert!(!charge::did_nothing(0) && !charge::did_nothing(-32));
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 2_000 })
    })]

    /// Parts are disjoint, in order, and together the call; the result is what they moved, or the first one's error.
    #[test]
    fn parts_are_the_call(
        asked in 1..20_000_000_usize, first in 1..4_000_000_usize, further in 1..4_000_000_usize,
        which in 0..3_usize, results in prop::collection::vec((0..8_u32, 0.0..1.0_f64), 40),
    ) {
        let divides = [Division::Any, Division::Records, Division::Never][which];
        let Some(mut parts) = Parts::plan(asked, (first, further), || divides) else {
            prop_assert!(asked <= first.max(divides.shortest()));
            return Ok(());
        };
        let (mut at, mut end) = (0, None);
        for (kind, part_of) in results {
            let part = parts.next();
            prop_assert_eq!(parts.done(), at);
            prop_assert_eq!(parts.is_first(), at == 0);
            prop_assert!(part > 0 && at + part <= asked);
            let most = if at == 0 { first } else { further };
            prop_assert!(part <= most.max(divides.shortest()));
            prop_assert!(at + part == asked || part >= divides.shortest());
            #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a part of a part")]
            let result = match kind {
                0 => -11,
                1 => (part as f64 * part_of) as isize,
                _ => part.cast_signed(),
            };
            let got = usize::try_from(result).unwrap_or(0);
            at += got;
            let all = parts.made(part, result);
            if got < part || at == asked {
                let wanted = if at == 0 { result } else { at.cast_signed() };
                prop_assert_eq!(all, Some(wanted));
                end = all;
                break;
            }
            prop_assert_eq!(all, None);
        }
        prop_assert!(end.is_some() || at < asked);
    }

    /// All parts of a call are alike, whole pages, and between two thirds of what the buckets give in a quantum and one and a half of it.
    #[test]
    fn parts_are_alike_and_about_a_quantum(asked in 1..u32::MAX as usize, quantum in 1..100_000_000_u64) {
        let quantum = quantum_length(quantum) as usize;
        let part = part_length(asked, quantum);
        prop_assert_eq!(part % PAGE, 0);
        prop_assert!(part <= quantum + quantum / 2 + PAGE, "{part} of {quantum}");
        if asked > quantum + quantum / 2 {
            prop_assert!(part >= quantum * 2 / 3, "{part} of {quantum}");
            let last = asked % part;
            let count = asked.div_ceil(part);
            prop_assert!(last == 0 || part - last <= count * PAGE, "{last} of {part}");
        }
    }

    #[test]
    fn what_is_paid_and_what_has_moved_meet(paid in 0..1_usize << 40, moved in 0..1_usize << 40) {
        let (back, owed) = match charge::settle(paid, moved) {
            Settlement::Even => (0, 0),
            Settlement::Refund(bytes) => (bytes, 0),
            Settlement::Owe(bytes) => (0, bytes),
        };
        prop_assert_eq!(paid + owed, moved + back);
        prop_assert!(back == 0 || owed == 0);
        prop_assert!(charge::before(paid) <= RECORD);
        prop_assert!(charge::before(paid) == paid || paid > charge::MOST_BEFORE);
    }
}
