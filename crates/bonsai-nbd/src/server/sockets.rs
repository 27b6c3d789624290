//! Sockets to listen on: those that a server makes, and those that a service manager passes on.

use std::fs::{self, File, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, flock};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::ServeError;

/// Sockets beside those of a plan, and who may use them.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Who may connect to the Unix socket of the plan.
    pub access: Access,
    /// Listening sockets that somebody else has made, as `sd_listen_fds(3)` hands them over.
    pub passed: Vec<OwnedFd>,
    /// Whether Unix sockets have TLS as TCP has it.
    pub tls_on_unix: bool,
}

/// Who may connect to a Unix socket: those that may write to it (unix(7)).
#[derive(Clone, Copy, Debug, Default)]
pub struct Access {
    /// Its permissions; 0600 if nothing is said.
    pub mode: Option<u32>,
    /// The number of its group; that of the process if nothing is said.
    pub group: Option<u32>,
}

impl Access {
    /// Gives a socket its group and mode. Until then its owner alone can connect, so that nobody gets in who may not later.
    fn give(self, path: &Path) -> Result<(), ServeError> {
        if self.mode.is_none() && self.group.is_none() {
            return Ok(());
        }
        let failed = |what| {
            move |source| ServeError::Access {
                at: path.to_owned(),
                what,
                source,
            }
        };
        // The socket itself, whatever has its name by then: its folder may be one that others write to.
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let socket = File::options().read(true).custom_flags(flags).open(path);
        let socket = socket.map_err(failed("mode"))?;
        let meta = socket.metadata().map_err(failed("mode"))?;
        if !meta.file_type().is_socket() {
            return Err(ServeError::NoSocket {
                at: path.to_owned(),
            });
        }
        let own = format!("/proc/self/fd/{}", socket.as_raw_fd());
        if let Some(group) = self.group {
            chown(&own, None, Some(group)).map_err(failed("group"))?;
        }
        let mode = Permissions::from_mode(self.mode.unwrap_or(0o600));
        fs::set_permissions(&own, mode).map_err(failed("mode"))
    }
}

/// A socket that clients come to.
#[derive(Debug)]
pub(super) enum Listening {
    Unix {
        listener: UnixListener,
        /// Removed with it; one that was passed on is somebody else's.
        _name: Option<Socket>,
    },
    Tcp(TcpListener),
}

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum Address {
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// Of TCP.
    Tcp(SocketAddr),
}

/// A client's socket, who it is, and whether it came over TCP.
pub(super) type Accepted = io::Result<(OwnedFd, String, bool)>;

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix { listener, .. } => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Listening {
    pub(super) fn unix(path: &Path, access: Access) -> Result<Self, ServeError> {
        let (listener, socket) = bind_unix(path, access)?;
        Ok(Self::Unix {
            listener,
            _name: Some(socket),
        })
    }

    pub(super) fn tcp(at: SocketAddr) -> Result<Self, ServeError> {
        // It is asked whenever anything wakes the server, and must not wait for a client then.
        let bound = TcpListener::bind(at).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        bound.map(Self::Tcp).map_err(|source| ServeError::Listen {
            at: at.to_string(),
            source,
        })
    }

    /// One that was passed on.
    pub(super) fn passed(number: usize, socket: OwnedFd) -> Result<Self, ServeError> {
        let wrong = |what| ServeError::Passed { number, what };
        let is_stream = sockopt::socket_type(&socket).map_err(|_| wrong("no socket"))?
            == rustix::net::SocketType::STREAM;
        if !is_stream {
            return Err(wrong("no stream socket"));
        }
        if !sockopt::socket_acceptconn(&socket).unwrap_or(false) {
            return Err(wrong("connected already, or does not listen"));
        }
        let failed = |source: io::Error| ServeError::Listen {
            at: format!("socket {number} that was passed on"),
            source,
        };
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)
            .map_err(|error| failed(error.into()))?;
        match sockopt::socket_domain(&socket) {
            Ok(rustix::net::AddressFamily::UNIX) => {
                let listener = UnixListener::from(socket);
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Self::Unix {
                    listener,
                    _name: None,
                })
            }
            Ok(rustix::net::AddressFamily::INET | rustix::net::AddressFamily::INET6) => {
                let listener = TcpListener::from(socket);
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Self::Tcp(listener))
            }
            _ => Err(wrong("of another kind than Unix and TCP")),
        }
    }

    /// Where it listens; `None` of a Unix socket without a path.
    pub(super) fn address(&self) -> Option<Address> {
        match self {
            Self::Unix { listener, .. } => {
                let address = listener.local_addr().ok()?;
                Some(Address::Unix(address.as_pathname()?.to_owned()))
            }
            Self::Tcp(listener) => Some(Address::Tcp(listener.local_addr().ok()?)),
        }
    }

    pub(super) fn accept(&self) -> Accepted {
        match self {
            Self::Unix { listener, .. } => accept_unix(listener),
            Self::Tcp(listener) => accept_tcp(listener),
        }
    }
}

/// A name in the file system, and who may use it.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    /// Let go after the name has gone.
    _lock: Lock,
}

impl Drop for Socket {
    fn drop(&mut self) {
        // What cannot be removed is replaced by the next server, which finds nobody behind it.
        let _ = fs::remove_file(&self.path);
    }
}

/// A lock file, which goes with whoever holds it.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _held: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn accept_unix(listener: &UnixListener) -> Accepted {
    let (stream, _) = listener.accept()?;
    stream.set_nonblocking(false)?;
    let who = sockopt::socket_peercred(&stream).ok();
    let who = who.map_or_else(String::new, |of| {
        format!("process {}", of.pid.as_raw_nonzero())
    });
    Ok((stream.into(), who, false))
}

fn accept_tcp(listener: &TcpListener) -> Accepted {
    let (stream, from) = listener.accept()?;
    stream.set_nonblocking(false)?;
    Ok((stream.into(), from.to_string(), true))
}

/// Listens on a path. A socket that nobody listens on any more is replaced.
fn bind_unix(path: &Path, access: Access) -> Result<(UnixListener, Socket), ServeError> {
    let failed = |source: io::Error| ServeError::Listen {
        at: path.display().to_string(),
        source,
    };
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    let taken = || ServeError::Taken {
        at: path.to_owned(),
    };
    let lock = hold(lock.into()).map_err(failed)?.ok_or_else(taken)?;
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            return Err(ServeError::NoSocket {
                at: path.to_owned(),
            });
        }
        // A server of another kind may hold no lock, and listen.
        Ok(_) if UnixStream::connect(path).is_ok() => return Err(taken()),
        Ok(_) => fs::remove_file(path).map_err(failed)?,
        Err(_) => {}
    }
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = bound.map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    // From here on it is removed again if anything fails.
    let socket = Socket {
        path: path.to_owned(),
        _lock: lock,
    };
    access.give(path)?;
    Ok((listener, socket))
}

/// Holds a lock file; `None` where somebody else does.
fn hold(path: PathBuf) -> io::Result<Option<Lock>> {
    loop {
        // Whatever else has the name is not opened: a pipe would wait for a reader.
        let file = File::options()
            .create(true)
            .append(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)?;
        if !file.metadata()?.is_file() {
            let text = format!("{} is no regular file", path.display());
            return Err(io::Error::other(text));
        }
        match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // Whoever held it may have removed it before it was let go.
        use std::os::unix::fs::MetadataExt as _;
        let named = fs::metadata(&path).map(|meta| meta.ino()).ok();
        if named == Some(file.metadata()?.ino()) {
            return Ok(Some(Lock { path, _held: file }));
        }
    }
}
