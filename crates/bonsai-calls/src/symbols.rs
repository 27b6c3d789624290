//! The exported libc symbols that the interposer puts itself in front of, and
//! the entry each of them counts as.
//!
//! `plain`: same arguments as the system call (the fourth moves from `rcx` to
//! `r10`). `zero`: `send` and `recv`, which are `sendto` and `recvfrom` without
//! an address. `v2`: `preadv2` and `pwritev2`. `chk`: fortified names, checked and passed on to the plain one.
//! `tail`: the limit is applied, then libc's own function runs unchanged.
//! `own`: written out by hand in `bonsai-preload` (`exec`, `posix_spawn`,
//! `syscall`, `prctl`, `mmap`, `fopen`).

use crate::CallId;

/// How the interposer enters for a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thunk {
    /// Same arguments as the system call.
    Plain,
    /// The system call's fifth and sixth argument are zero.
    Zero,
    /// A fortified name: its extra length argument is checked first.
    Chk,
    /// `preadv2`, `pwritev2`: the flags move to the sixth argument.
    FlagsLast,
    /// Decide, then run libc's own function.
    Tail,
    /// Hand-written.
    Own,
}

/// One exported symbol.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    /// The name in libc's dynamic symbol table.
    pub name: &'static str,
    /// The first table entry it counts as.
    pub call: CallId,
    /// How it is entered.
    pub thunk: Thunk,
}

/// Runs `$callback! { plain { (symbol ENTRY) ... } zero { ... } chk { (symbol ENTRY target) ... } v2 { ... } tail { ... } own { ... } }`.
#[macro_export]
macro_rules! for_each_symbol {
    ($callback:ident) => {
        $callback! {
            plain {
                (read READ_FILE) (__read READ_FILE) (pread PREAD64) (pread64 PREAD64) (__pread64 PREAD64)
                (readv READV_FILE) (preadv PREADV) (preadv64 PREADV) (recvfrom RECVFROM) (recvmsg RECVMSG)
                (recvmmsg RECVMMSG) (process_vm_readv PROCESS_VM_READV)
                (mq_timedreceive MQ_TIMEDRECEIVE) (msgrcv MSGRCV)
                (write WRITE_FILE) (__write WRITE_FILE) (pwrite PWRITE64) (pwrite64 PWRITE64) (__pwrite64 PWRITE64)
                (writev WRITEV_FILE) (pwritev PWRITEV) (pwritev64 PWRITEV) (sendto SENDTO) (sendmsg SENDMSG)
                (sendmmsg SENDMMSG) (__sendmmsg SENDMMSG) (sendfile SENDFILE_FILE) (sendfile64 SENDFILE_FILE)
                (splice SPLICE_FILE) (tee TEE) (vmsplice VMSPLICE) (copy_file_range COPY_FILE_RANGE)
                (process_vm_writev PROCESS_VM_WRITEV) (mq_timedsend MQ_TIMEDSEND) (msgsnd MSGSND)
                (open OPEN) (open64 OPEN) (__open OPEN) (__open64 OPEN) (openat OPENAT) (openat64 OPENAT)
                (creat CREAT) (creat64 CREAT) (close CLOSE) (__close CLOSE) (close_range CLOSE_RANGE)
                (access ACCESS) (readlink READLINK) (readlinkat READLINKAT) (getdents64 GETDENTS64)
                (rename RENAME) (renameat RENAMEAT) (renameat2 RENAMEAT2) (unlink UNLINK) (unlinkat UNLINKAT)
                (rmdir RMDIR) (mkdir MKDIR) (mkdirat MKDIRAT) (link LINK) (linkat LINKAT) (symlink SYMLINK)
                (symlinkat SYMLINKAT) (chmod CHMOD) (fchmod FCHMOD) (chown CHOWN) (fchown FCHOWN)
                (lchown LCHOWN) (fchownat FCHOWNAT) (truncate TRUNCATE) (truncate64 TRUNCATE)
                (ftruncate FTRUNCATE) (ftruncate64 FTRUNCATE) (fallocate FALLOCATE) (fallocate64 FALLOCATE)
                (fsync FSYNC) (fdatasync FDATASYNC) (syncfs SYNCFS) (sync_file_range SYNC_FILE_RANGE)
                (msync MSYNC) (readahead READAHEAD) (getrandom GETRANDOM) (ioctl IOCTL) (flock FLOCK)
                (lseek LSEEK) (lseek64 LSEEK) (socket SOCKET) (socketpair SOCKETPAIR) (connect CONNECT)
                (__connect CONNECT) (bind BIND) (listen LISTEN) (accept ACCEPT) (accept4 ACCEPT4)
                (shutdown SHUTDOWN) (pipe PIPE) (pipe2 PIPE2) (dup DUP) (dup2 DUP2) (dup3 DUP3)
                (poll POLL) (__poll POLL) (epoll_wait EPOLL_WAIT) (epoll_ctl EPOLL_CTL) (getppid GETPPID)
            }
            zero {
                (recv RECVFROM) (__recv RECVFROM) (send SENDTO) (__send SENDTO)
            }
            chk {
                (__read_chk READ_FILE read) (__pread_chk PREAD64 pread) (__pread64_chk PREAD64 pread64)
                (__recv_chk RECVFROM recv) (__recvfrom_chk RECVFROM recvfrom)
            }
            v2 {
                (preadv2 PREADV2) (preadv64v2 PREADV2) (pwritev2 PWRITEV2) (pwritev64v2 PWRITEV2)
            }
            tail {
                (stat STAT) (stat64 STAT) (fstat FSTAT) (fstat64 FSTAT) (lstat LSTAT) (lstat64 LSTAT)
                (fstatat NEWFSTATAT) (fstatat64 NEWFSTATAT) (statx STATX) (faccessat FACCESSAT)
                (statfs STATFS) (statfs64 STATFS) (fstatfs FSTATFS) (fstatfs64 FSTATFS)
                (fchmodat FCHMODAT) (utimensat UTIMENSAT)
                (posix_fallocate FALLOCATE) (posix_fallocate64 FALLOCATE) (sync SYNC) (getentropy GETRANDOM)
                (ppoll PPOLL) (select SELECT) (pselect PSELECT6) (epoll_pwait EPOLL_PWAIT)
                (epoll_pwait2 EPOLL_PWAIT2) (closefrom CLOSE_RANGE)
                (fork FORK) (__fork FORK) (_Fork FORK) (vfork VFORK) (__vfork VFORK)
            }
            own {
                (syscall GETPPID)
                (execve EXECVE) (execv EXECVE) (execvp EXECVE) (execvpe EXECVE) (fexecve EXECVEAT)
                (execveat EXECVEAT) (execl EXECVE) (execlp EXECVE) (execle EXECVE)
                (posix_spawn VFORK) (posix_spawnp VFORK) (system VFORK) (popen VFORK) (prctl GETPPID)
                (mmap GETPPID) (mmap64 GETPPID) (fopen GETPPID) (fopen64 GETPPID)
            }
        }
    };
}

macro_rules! list {
    (plain { $(($p:ident $pc:ident))* } zero { $(($z:ident $zc:ident))* }
     chk { $(($k:ident $kc:ident $kt:ident))* } v2 { $(($v:ident $vc:ident))* } tail { $(($t:ident $tc:ident))* }
     own { $(($o:ident $oc:ident))* }) => {
        /// Every exported symbol.
        pub const SYMBOLS: &[Symbol] = &[
            $(Symbol { name: stringify!($p), call: crate::$pc, thunk: Thunk::Plain },)*
            $(Symbol { name: stringify!($z), call: crate::$zc, thunk: Thunk::Zero },)*
            $(Symbol { name: stringify!($k), call: crate::$kc, thunk: Thunk::Chk },)*
            $(Symbol { name: stringify!($v), call: crate::$vc, thunk: Thunk::FlagsLast },)*
            $(Symbol { name: stringify!($t), call: crate::$tc, thunk: Thunk::Tail },)*
            $(Symbol { name: stringify!($o), call: crate::$oc, thunk: Thunk::Own },)*
        ];
    };
}
for_each_symbol!(list);
