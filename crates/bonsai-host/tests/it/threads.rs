//! What threads do, and the queues of connections, on this machine.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_host::sockets::{self, Kind};
use bonsai_host::threads::{Doing, thread, threads};

use crate::skip;

#[test]
fn a_thread_is_seen_in_its_call() {
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("cat");
    let pid = child.id();
    let end = Instant::now() + Duration::from_secs(20);
    let seen = loop {
        let seen = thread(pid, pid).expect("it lives");
        if seen.state == 'S' && seen.doing != Doing::Running {
            break seen;
        }
        assert!(Instant::now() < end, "cat never read: {seen:?}");
    };
    match seen.doing {
        Doing::Call(number, fd) => {
            assert_eq!((number, fd), (0, 0), "read(2) of standard input");
            assert_eq!(sockets::descriptor(pid, fd), Some(Kind::Pipe));
        }
        _ => skip(
            "a_thread_is_seen_in_its_call",
            "the calls of children may not be read here",
        ),
    }
    assert_eq!(threads(pid).len(), 1);
    drop(child.stdin.take());
    child.wait().expect("ended");
    assert_eq!(thread(pid, pid), None);
    assert_eq!(threads(pid), []);
}

#[test]
fn what_nobody_reads_lies_in_a_queue() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let mut sender = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    let (reader, _) = listener.accept().expect("accepted");
    sender.set_nonblocking(true).expect("set");
    let piece = [0_u8; 65_536];
    while sender.write(&piece).is_ok() {}

    let me = std::process::id();
    let table = sockets::tcp(me).expect("a table");
    let of = |fd: i32| match sockets::descriptor(me, u64::try_from(fd).expect("a descriptor")) {
        Some(Kind::Socket(inode)) => {
            assert!(sockets::sockets(me).expect("readable").contains(&inode));
            table[&inode]
        }
        other => panic!("{other:?}"),
    };
    assert!(of(listener.as_raw_fd()).listens);
    assert_eq!(of(listener.as_raw_fd()).port, port);
    let (out, inward) = (of(sender.as_raw_fd()), of(reader.as_raw_fd()));
    assert!(out.connected && out.unsent > 0, "{out:?}");
    // The reader's window is shut; without sock_diag that is not known.
    assert!(
        out.notsent
            .is_none_or(|bytes| bytes > 0 && bytes <= out.unsent),
        "{out:?}"
    );
    assert!(inward.unread > 0 && inward.port == port, "{inward:?}");
}
