//! Place of the number of bytes of a call among its arguments.

use crate::{self as calls, CallId};

/// Where a call says how many bytes it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoSize {
    /// In an argument.
    Arg(u8),
    /// In an array of `iovec`: the argument that points to it, and the one that counts it.
    Vec(u8, u8),
    /// In a `msghdr`, which argument 1 points to.
    Msg,
    /// In an array of `mmsghdr`: argument 1 points to it, argument 2 counts it.
    Messages,
    /// Nowhere: it moves no bytes.
    None,
}

/// The place of the number of bytes of an entry.
#[must_use]
pub const fn io_size(call: CallId) -> IoSize {
    match call {
        calls::READ_FILE | calls::READ_SOCKET | calls::READ_OTHER => IoSize::Arg(2),
        calls::WRITE_FILE | calls::WRITE_SOCKET | calls::WRITE_OTHER => IoSize::Arg(2),
        calls::PREAD64 | calls::PWRITE64 | calls::RECVFROM | calls::SENDTO => IoSize::Arg(2),
        calls::MQ_TIMEDSEND | calls::MQ_TIMEDRECEIVE | calls::MSGSND | calls::MSGRCV => {
            IoSize::Arg(2)
        }
        calls::SENDFILE_FILE | calls::SENDFILE_SOCKET | calls::SENDFILE_OTHER => IoSize::Arg(3),
        calls::TEE => IoSize::Arg(2),
        calls::SPLICE_FILE
        | calls::SPLICE_SOCKET
        | calls::SPLICE_OTHER
        | calls::COPY_FILE_RANGE => IoSize::Arg(4),
        calls::READV_FILE | calls::READV_SOCKET | calls::READV_OTHER => IoSize::Vec(1, 2),
        calls::WRITEV_FILE | calls::WRITEV_SOCKET | calls::WRITEV_OTHER => IoSize::Vec(1, 2),
        calls::PREADV | calls::PREADV2 | calls::PWRITEV | calls::PWRITEV2 => IoSize::Vec(1, 2),
        calls::VMSPLICE | calls::PROCESS_VM_READV | calls::PROCESS_VM_WRITEV => IoSize::Vec(1, 2),
        calls::SENDMSG | calls::RECVMSG => IoSize::Msg,
        calls::SENDMMSG | calls::RECVMMSG => IoSize::Messages,
        _ => IoSize::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CALLS;

    #[test]
    fn every_call_that_moves_bytes_says_how_many() {
        for (call, row) in (0..).zip(CALLS) {
            let says = io_size(call) != IoSize::None;
            assert_eq!(says, row.moves_bytes(), "{}", row.name);
        }
    }
}
