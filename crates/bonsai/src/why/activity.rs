//! What a thread waits for, from what can be seen of it. Pure: no clock, no I/O.
//!
//! Numbers are those of x86-64's system calls.

use bonsai_host::sockets::{Kind, Tcp};
use bonsai_host::threads::Doing;

/// What a thread does or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// It runs, or could if it had a CPU.
    Running,
    /// It waits for a limit.
    Limit,
    /// It waits for a block device or a file system.
    Disk,
    /// It waits for a peer that does not take what was sent.
    PeerReads,
    /// It waits for an answer of a peer that it has connected to.
    PeerAnswers,
    /// It waits for its clients, or whoever else gives it work.
    Clients,
    /// It waits for another thread, a child, a timer or a pipe that nobody empties.
    Inside,
    /// It sleeps; for what may not be known.
    Unknown,
}

/// How many activities there are.
pub(crate) const ACTIVITIES: usize = 8;

/// The connections of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Connections {
    /// Bytes have lain in a send queue since the look before.
    pub(crate) stuck: bool,
    /// The service waits for connections, or this process has accepted some.
    pub(crate) serves: bool,
    /// It has connected to others.
    pub(crate) outgoing: bool,
}

/// A descriptor that a thread waits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// What it is.
    pub(crate) kind: Kind,
    /// What is known of it, if it is a TCP socket.
    pub(crate) tcp: Option<Tcp>,
    /// Whether somebody listens on its port: then a client has made the connection.
    pub(crate) accepted: bool,
}

/// Everything that is known of a thread at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// The state letter of proc(5).
    pub(crate) state: char,
    /// What it does.
    pub(crate) doing: Doing,
    /// Whether the ledger says that it waits for a limit.
    pub(crate) limited: bool,
    /// The descriptor that its call's first argument names, if it names one.
    pub(crate) descriptor: Option<Descriptor>,
    /// Its process's connections.
    pub(crate) connections: Connections,
}

/// Families of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Read,
    Write,
    Accept,
    Connect,
    Events,
    Sync,
    Child,
    Other,
}

const fn family(number: u32) -> Family {
    match number {
        // read, readv, pread64, preadv, preadv2, recvfrom, recvmsg, recvmmsg
        0 | 19 | 17 | 295 | 327 | 45 | 47 | 299 => Family::Read,
        // write, writev, pwrite64, pwritev, pwritev2, sendto, sendmsg, sendmmsg,
        // sendfile
        1 | 20 | 18 | 296 | 328 | 44 | 46 | 307 | 40 => Family::Write,
        // accept, accept4
        43 | 288 => Family::Accept,
        // connect
        42 => Family::Connect,
        // poll, ppoll, select, pselect6, epoll_wait, epoll_pwait, epoll_pwait2,
        // io_uring_enter
        7 | 271 | 23 | 270 | 232 | 281 | 441 | 426 => Family::Events,
        // fsync, fdatasync, sync, syncfs, msync, sync_file_range, io_getevents,
        // io_pgetevents
        74 | 75 | 162 | 306 | 26 | 277 | 208 | 333 => Family::Sync,
        // clone, vfork, clone3: the parent of a vforked child is in state D
        56 | 58 | 435 => Family::Child,
        _ => Family::Other,
    }
}

/// Whether the first argument of a call is a descriptor that it may wait on.
pub(crate) const fn waits_on_descriptor(number: u32) -> bool {
    matches!(family(number), Family::Read | Family::Write)
}

/// What a thread does or waits for.
pub(crate) fn classify(moment: &Moment) -> Activity {
    if moment.limited {
        return Activity::Limit;
    }
    let family = match moment.doing {
        Doing::Call(number, _) => Some(family(number)),
        _ => None,
    };
    match (moment.state, family) {
        ('D', Some(Family::Child)) => Activity::Inside,
        ('D', _) => Activity::Disk,
        // A thread that runs is in the call that it has just begun or ended.
        ('R', _) => Activity::Running,
        (_, Some(family)) => in_call(family, moment),
        (_, None) => match moment.doing {
            Doing::Running => Activity::Running,
            Doing::Unknown if moment.connections.stuck => Activity::PeerReads,
            Doing::Unknown => Activity::Unknown,
            // Stopped, or in a page fault that somebody else answers.
            Doing::Fault | Doing::Call(..) => Activity::Inside,
        },
    }
}

fn in_call(family: Family, moment: &Moment) -> Activity {
    let kind = moment.descriptor.map(|descriptor| descriptor.kind);
    match (family, kind) {
        (Family::Sync, _) | (Family::Read | Family::Write, Some(Kind::File)) => Activity::Disk,
        (Family::Write, Some(Kind::Socket(_))) => Activity::PeerReads,
        (Family::Read, Some(Kind::Socket(_))) => answers_or_clients(moment),
        (Family::Read, Some(Kind::Pipe | Kind::Device)) | (Family::Accept, _) => Activity::Clients,
        (Family::Connect, _) => Activity::PeerAnswers,
        (Family::Events, _) => {
            let Connections {
                stuck,
                serves,
                outgoing,
            } = moment.connections;
            if stuck {
                Activity::PeerReads
            } else if outgoing && !serves {
                Activity::PeerAnswers
            } else {
                Activity::Clients
            }
        }
        _ => Activity::Inside,
    }
}

fn answers_or_clients(moment: &Moment) -> Activity {
    let outgoing = moment
        .descriptor
        .is_some_and(|d| !d.accepted && d.tcp.is_some_and(|tcp| tcp.connected));
    if outgoing {
        Activity::PeerAnswers
    } else {
        Activity::Clients
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(state: char, doing: Doing) -> Moment {
        Moment {
            state,
            doing,
            limited: false,
            descriptor: None,
            connections: Connections::default(),
        }
    }

    fn on(kind: Kind, connected: bool, accepted: bool) -> Option<Descriptor> {
        let tcp = Tcp {
            listens: false,
            connected,
            port: 1,
            unsent: 0,
            unread: 0,
            notsent: None,
        };
        Some(Descriptor {
            kind,
            tcp: connected.then_some(tcp),
            accepted,
        })
    }

    #[test]
    fn states_without_a_descriptor() {
        let call = |number| Doing::Call(number, 3);
        for (state, doing, wanted) in [
            ('R', Doing::Running, Activity::Running),
            ('R', call(0), Activity::Running),
            ('S', Doing::Running, Activity::Running),
            ('D', call(0), Activity::Disk),
            ('D', Doing::Fault, Activity::Disk),
            ('D', Doing::Unknown, Activity::Disk),
            ('D', call(58), Activity::Inside),
            ('S', call(74), Activity::Disk),
            ('S', call(202), Activity::Inside),
            ('S', call(230), Activity::Inside),
            ('S', call(61), Activity::Inside),
            ('S', call(288), Activity::Clients),
            ('S', call(42), Activity::PeerAnswers),
            ('S', call(232), Activity::Clients),
            ('S', Doing::Unknown, Activity::Unknown),
            ('T', Doing::Fault, Activity::Inside),
        ] {
            assert_eq!(classify(&moment(state, doing)), wanted, "{state} {doing:?}");
        }
    }

    #[test]
    fn calls_on_descriptors() {
        let socket = Kind::Socket(9);
        for (number, descriptor, wanted) in [
            (1, on(socket, true, true), Activity::PeerReads),
            (44, on(socket, false, false), Activity::PeerReads),
            (40, on(socket, true, true), Activity::PeerReads),
            (0, on(socket, true, true), Activity::Clients),
            (45, on(socket, true, false), Activity::PeerAnswers),
            // Of a Unix socket nobody knows who has made the connection.
            (47, on(socket, false, false), Activity::Clients),
            (0, on(Kind::Pipe, false, false), Activity::Clients),
            (1, on(Kind::Pipe, false, false), Activity::Inside),
            (0, on(Kind::Device, false, false), Activity::Clients),
            (17, on(Kind::File, false, false), Activity::Disk),
            (0, on(Kind::Other, false, false), Activity::Inside),
            (0, None, Activity::Inside),
        ] {
            let mut moment = moment('S', Doing::Call(number, 3));
            moment.descriptor = descriptor;
            assert_eq!(classify(&moment), wanted, "{number} {descriptor:?}");
            moment.limited = true;
            assert_eq!(classify(&moment), Activity::Limit);
        }
    }

    #[test]
    fn events_are_judged_by_the_connections() {
        for (stuck, serves, outgoing, wanted) in [
            (false, false, false, Activity::Clients),
            (false, true, true, Activity::Clients),
            (false, false, true, Activity::PeerAnswers),
            (true, true, false, Activity::PeerReads),
        ] {
            let mut moment = moment('S', Doing::Call(232, 3));
            moment.connections = Connections {
                stuck,
                serves,
                outgoing,
            };
            assert_eq!(classify(&moment), wanted, "{:?}", moment.connections);
        }
        let mut unknown = moment('S', Doing::Unknown);
        unknown.connections.stuck = true;
        assert_eq!(classify(&unknown), Activity::PeerReads);
    }
}
