//! Classes: the names under which calls are limited together.

/// A set of classes, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSet(pub(crate) u32);

impl ClassSet {
    /// Whether the set has the class.
    #[must_use]
    pub const fn contains(self, class: Class) -> bool {
        self.0 & (1 << class as u32) != 0
    }

    /// The classes in the set.
    pub fn iter(self) -> impl Iterator<Item = Class> {
        CLASSES
            .iter()
            .map(|(class, _, _)| *class)
            .filter(move |class| self.contains(*class))
    }

    pub(crate) const fn of(classes: &[Class]) -> Self {
        let mut bits = 1 << Class::All as u32;
        let mut i = 0;
        while i < classes.len() {
            bits |= 1 << classes[i] as u32;
            i += 1;
        }
        Self(bits)
    }
}

macro_rules! classes {
    ($($class:ident $name:literal $what:literal;)*) => {
        /// A class of calls.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Class {
            $(#[doc = $what] $class,)*
        }

        /// Every class: itself, its name on the command line, and what is in it.
        pub const CLASSES: &[(Class, &str, &str)] = &[$((Class::$class, $name, $what)),*];
    };
}

classes! {
    All "all" "Every call of the table; in bytes/s: every call that moves bytes.";
    Read "read" "Bytes read from files, pipes, terminals and devices, also by sendfile and copy_file_range.";
    Write "write" "Bytes written to files, pipes, terminals and devices.";
    Send "send" "Bytes sent on sockets of any family, also by write, writev and sendfile.";
    Recv "recv" "Bytes received on sockets of any family, also by read and readv.";
    Disk "disk" "Bytes read from and written to regular files and block devices.";
    Net "net" "Bytes sent and received on sockets.";
    Ipc "ipc" "Bytes through message queues and other processes' memory.";
    Open "open" "open, openat, openat2, creat.";
    Close "close" "close, close_range.";
    Stat "stat" "stat, fstat, lstat, newfstatat, statx, statfs, fstatfs.";
    Access "access" "access, faccessat, faccessat2.";
    Readlink "readlink" "readlink, readlinkat.";
    Rename "rename" "rename, renameat, renameat2.";
    Unlink "unlink" "unlink, unlinkat, rmdir.";
    Mkdir "mkdir" "mkdir, mkdirat.";
    Link "link" "link, linkat, symlink, symlinkat.";
    Chmod "chmod" "chmod, fchmod, fchmodat, chown, fchown, lchown, fchownat.";
    Truncate "truncate" "truncate, ftruncate, fallocate.";
    Sync "sync" "sync, syncfs, fsync, fdatasync, sync_file_range, msync.";
    Accept "accept" "accept, accept4.";
    Connect "connect" "connect.";
    Socket "socket" "socket, socketpair.";
    Poll "poll" "poll, ppoll, select, pselect6, epoll_wait, epoll_pwait, epoll_pwait2.";
    Dup "dup" "dup, dup2, dup3.";
    Pipe "pipe" "pipe, pipe2.";
    Fork "fork" "fork, vfork, clone, clone3, where they go through libc's fork, vfork, posix_spawn, system or popen.";
    Exec "exec" "execve, execveat.";
}

impl Class {
    /// The class of that name on the command line.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        CLASSES
            .iter()
            .find(|(_, known, _)| *known == name)
            .map(|(class, _, _)| *class)
    }

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        CLASSES[self as usize].1
    }

    /// What is in it, in words.
    #[must_use]
    pub const fn about(self) -> &'static str {
        CLASSES[self as usize].2
    }
}
