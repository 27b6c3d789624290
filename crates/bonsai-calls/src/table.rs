//! The rows. Order is layout: append only (see the crate's documentation).

use crate::Class::*;
use crate::{Call, CallId, Class, ClassSet, Fd, ProcIo, Shape};

macro_rules! calls {
    ($($id:ident $name:literal $nr:literal $shape:ident $fd:ident [$($class:expr),*] $io:ident;)*) => {
        /// Every entry, in the order of its index.
        pub const CALLS: &[Call] = &[$(Call {
            name: $name,
            nr: $nr,
            shape: Shape::$shape,
            fd: Fd::$fd,
            classes: ClassSet::of(&[$($class as Class),*]),
            proc_io: ProcIo::$io,
        }),*];
        calls!(@ids 0; $($id $name;)*);
    };
    (@ids $n:expr; $id:ident $name:literal; $($rest:tt)*) => {
        #[doc = concat!("Index of an entry of `", $name, "`.")]
        pub const $id: CallId = $n;
        calls!(@ids $n + 1; $($rest)*);
    };
    (@ids $n:expr;) => {};
}

calls! {
    // Bytes in.
    READ_FILE "read" 0 In File [Read, Disk] Read;
    READ_SOCKET "read" 0 In Socket [Recv, Net] Read;
    READ_OTHER "read" 0 In Other [Read] Read;
    READV_FILE "readv" 19 In File [Read, Disk] Read;
    READV_SOCKET "readv" 19 In Socket [Recv, Net] Read;
    READV_OTHER "readv" 19 In Other [Read] Read;
    PREAD64 "pread64" 17 In Any [Read, Disk] Read;
    PREADV "preadv" 295 In Any [Read, Disk] Read;
    PREADV2 "preadv2" 327 In Any [Read, Disk] Read;
    RECVFROM "recvfrom" 45 In Any [Recv, Net] None;
    RECVMSG "recvmsg" 47 In Any [Recv, Net] None;
    RECVMMSG "recvmmsg" 299 In Any [Recv, Net] None;
    PROCESS_VM_READV "process_vm_readv" 310 In Any [Ipc] None;
    MQ_TIMEDRECEIVE "mq_timedreceive" 243 In Any [Ipc] None;
    MSGRCV "msgrcv" 70 In Any [Ipc] None;
    // Bytes out.
    WRITE_FILE "write" 1 Out File [Write, Disk] Write;
    WRITE_SOCKET "write" 1 Out Socket [Send, Net] Write;
    WRITE_OTHER "write" 1 Out Other [Write] Write;
    WRITEV_FILE "writev" 20 Out File [Write, Disk] Write;
    WRITEV_SOCKET "writev" 20 Out Socket [Send, Net] Write;
    WRITEV_OTHER "writev" 20 Out Other [Write] Write;
    PWRITE64 "pwrite64" 18 Out Any [Write, Disk] Write;
    PWRITEV "pwritev" 296 Out Any [Write, Disk] Write;
    PWRITEV2 "pwritev2" 328 Out Any [Write, Disk] Write;
    SENDTO "sendto" 44 Out Any [Send, Net] None;
    SENDMSG "sendmsg" 46 Out Any [Send, Net] None;
    SENDMMSG "sendmmsg" 307 Out Any [Send, Net] None;
    // By its destination; the source is always a file.
    SENDFILE_FILE "sendfile" 40 Out File [Read, Write, Disk] Both;
    SENDFILE_SOCKET "sendfile" 40 Out Socket [Read, Disk, Send, Net] Both;
    SENDFILE_OTHER "sendfile" 40 Out Other [Read, Disk, Write] Both;
    // By its end that is not the pipe; the direction decides read or write.
    SPLICE_FILE "splice" 275 Out File [Read, Write, Disk] None;
    SPLICE_SOCKET "splice" 275 Out Socket [Send, Recv, Net] None;
    SPLICE_OTHER "splice" 275 Out Other [Read, Write] None;
    TEE "tee" 276 Out Any [Write] None;
    VMSPLICE "vmsplice" 278 Out Any [Write] None;
    COPY_FILE_RANGE "copy_file_range" 326 Out Any [Read, Write, Disk] Both;
    PROCESS_VM_WRITEV "process_vm_writev" 311 Out Any [Ipc] None;
    MQ_TIMEDSEND "mq_timedsend" 242 Out Any [Ipc] None;
    MSGSND "msgsnd" 69 Out Any [Ipc] None;
    // Calls per second.
    OPEN "open" 2 Count Any [Open] None;
    OPENAT "openat" 257 Count Any [Open] None;
    OPENAT2 "openat2" 437 Count Any [Open] None;
    CREAT "creat" 85 Count Any [Open] None;
    CLOSE "close" 3 Count Any [Close] None;
    CLOSE_RANGE "close_range" 436 Count Any [Close] None;
    STAT "stat" 4 Count Any [Stat] None;
    FSTAT "fstat" 5 Count Any [Stat] None;
    LSTAT "lstat" 6 Count Any [Stat] None;
    NEWFSTATAT "newfstatat" 262 Count Any [Stat] None;
    STATX "statx" 332 Count Any [Stat] None;
    STATFS "statfs" 137 Count Any [Stat] None;
    FSTATFS "fstatfs" 138 Count Any [Stat] None;
    ACCESS "access" 21 Count Any [Access] None;
    FACCESSAT "faccessat" 269 Count Any [Access] None;
    FACCESSAT2 "faccessat2" 439 Count Any [Access] None;
    READLINK "readlink" 89 Count Any [Readlink] None;
    READLINKAT "readlinkat" 267 Count Any [Readlink] None;
    GETDENTS64 "getdents64" 217 Count Any [] None;
    RENAME "rename" 82 Count Any [Rename] None;
    RENAMEAT "renameat" 264 Count Any [Rename] None;
    RENAMEAT2 "renameat2" 316 Count Any [Rename] None;
    UNLINK "unlink" 87 Count Any [Unlink] None;
    UNLINKAT "unlinkat" 263 Count Any [Unlink] None;
    RMDIR "rmdir" 84 Count Any [Unlink] None;
    MKDIR "mkdir" 83 Count Any [Mkdir] None;
    MKDIRAT "mkdirat" 258 Count Any [Mkdir] None;
    LINK "link" 86 Count Any [Link] None;
    LINKAT "linkat" 265 Count Any [Link] None;
    SYMLINK "symlink" 88 Count Any [Link] None;
    SYMLINKAT "symlinkat" 266 Count Any [Link] None;
    CHMOD "chmod" 90 Count Any [Chmod] None;
    FCHMOD "fchmod" 91 Count Any [Chmod] None;
    FCHMODAT "fchmodat" 268 Count Any [Chmod] None;
    CHOWN "chown" 92 Count Any [Chmod] None;
    FCHOWN "fchown" 93 Count Any [Chmod] None;
    LCHOWN "lchown" 94 Count Any [Chmod] None;
    FCHOWNAT "fchownat" 260 Count Any [Chmod] None;
    UTIMENSAT "utimensat" 280 Count Any [] None;
    TRUNCATE "truncate" 76 Count Any [Truncate] None;
    FTRUNCATE "ftruncate" 77 Count Any [Truncate] None;
    FALLOCATE "fallocate" 285 Count Any [Truncate] None;
    FSYNC "fsync" 74 Count Any [Sync] None;
    FDATASYNC "fdatasync" 75 Count Any [Sync] None;
    SYNC "sync" 162 Count Any [Sync] None;
    SYNCFS "syncfs" 306 Count Any [Sync] None;
    SYNC_FILE_RANGE "sync_file_range" 277 Count Any [Sync] None;
    MSYNC "msync" 26 Count Any [Sync] None;
    READAHEAD "readahead" 187 Count Any [] None;
    GETRANDOM "getrandom" 318 Count Any [] None;
    IOCTL "ioctl" 16 Count Any [] None;
    FLOCK "flock" 73 Count Any [] None;
    LSEEK "lseek" 8 Count Any [] None;
    SOCKET "socket" 41 Count Any [Socket] None;
    SOCKETPAIR "socketpair" 53 Count Any [Socket] None;
    CONNECT "connect" 42 Count Any [Connect] None;
    BIND "bind" 49 Count Any [] None;
    LISTEN "listen" 50 Count Any [] None;
    ACCEPT "accept" 43 Count Any [Accept] None;
    ACCEPT4 "accept4" 288 Count Any [Accept] None;
    SHUTDOWN "shutdown" 48 Count Any [] None;
    PIPE "pipe" 22 Count Any [Pipe] None;
    PIPE2 "pipe2" 293 Count Any [Pipe] None;
    DUP "dup" 32 Count Any [Dup] None;
    DUP2 "dup2" 33 Count Any [Dup] None;
    DUP3 "dup3" 292 Count Any [Dup] None;
    POLL "poll" 7 Count Any [Poll] None;
    PPOLL "ppoll" 271 Count Any [Poll] None;
    SELECT "select" 23 Count Any [Poll] None;
    PSELECT6 "pselect6" 270 Count Any [Poll] None;
    EPOLL_WAIT "epoll_wait" 232 Count Any [Poll] None;
    EPOLL_PWAIT "epoll_pwait" 281 Count Any [Poll] None;
    EPOLL_PWAIT2 "epoll_pwait2" 441 Count Any [Poll] None;
    EPOLL_CTL "epoll_ctl" 233 Count Any [] None;
    IO_SUBMIT "io_submit" 209 Count Any [] None;
    IO_URING_ENTER "io_uring_enter" 426 Count Any [] None;
    GETPPID "getppid" 110 Count Any [] None;
    FORK "fork" 57 Count Any [Fork] None;
    VFORK "vfork" 58 Count Any [Fork] None;
    CLONE "clone" 56 Count Any [Fork] None;
    EXECVE "execve" 59 Count Any [Exec] None;
    EXECVEAT "execveat" 322 Count Any [Exec] None;
    IO_URING_SETUP "io_uring_setup" 425 Count Any [] None;
    IO_URING_REGISTER "io_uring_register" 427 Count Any [] None;
}
