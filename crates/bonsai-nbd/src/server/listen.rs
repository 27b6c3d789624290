//! Sockets that are listened on, and a thread for each client. How they come to be is in [`super::sockets`].

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown, sockopt};

use super::connection::{House, negotiate};
use super::sockets::{Address, Listening, Sockets};
use super::{Event, OnEvent, Plan, ServeError, Stop, lock};
use crate::export::Export;

/// How often images are looked at.
const LOOKS: Duration = Duration::from_secs(1);
/// How long nobody is let in after somebody could not be, for want of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);
/// What clients get at the end, for what is under way.
const LAST: Duration = Duration::from_secs(10);

/// A server that listens, and does not serve yet.
pub struct Server {
    house: Arc<House>,
    listeners: Vec<Listening>,
    tls_on_unix: bool,
    most: usize,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}

/// The connections there are.
#[derive(Default)]
struct Open {
    sockets: Mutex<HashMap<u64, OwnedFd>>,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn bind(plan: Plan) -> Result<Self, ServeError> {
        Self::bind_with(plan, Sockets::default())
    }

    /// Listens, also on sockets that were passed on, with the access to a Unix socket that is said.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn bind_with(plan: Plan, sockets: Sockets) -> Result<Self, ServeError> {
        let unix = plan.unix.as_deref();
        let unix = unix.map(|path| Listening::unix(path, sockets.access));
        let tcp = plan.tcp.map(Listening::tcp);
        let passed = sockets.passed.into_iter().enumerate();
        let passed = passed.map(|(number, socket)| Listening::passed(number, socket));
        let listeners = unix.into_iter().chain(tcp).chain(passed);
        Ok(Self {
            listeners: listeners.collect::<Result<_, _>>()?,
            tls_on_unix: sockets.tls_on_unix,
            most: plan.connections,
            house: Arc::new(House {
                exports: plan.exports,
                tls: plan.tls,
                negotiation: plan.negotiation,
                rings: plan.rings,
            }),
        })
    }

    /// Where it listens on TCP, on the socket of its own if it has one.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        self.addresses().find_map(|address| match address {
            Address::Tcp(address) => Some(address),
            Address::Unix(_) => None,
        })
    }

    /// Where it listens, on sockets that were passed on as well.
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        self.listeners.iter().filter_map(Listening::address)
    }

    /// Serves until it is stopped; then everything is on the disks.
    ///
    /// # Errors
    /// An image that cannot be flushed at the end: by its export.
    pub fn run(self, stop: &Stop, on_event: &Arc<OnEvent>) -> Result<(), (String, io::Error)> {
        let open = Arc::new(Open::default());
        let mut looked = Instant::now();
        let mut said: HashMap<String, &'static str> = HashMap::new();
        let mut number = 0;
        while !stop.is_asked() {
            self.wait(stop);
            for listener in &self.listeners {
                match listener.accept() {
                    Ok((socket, peer, is_tcp)) => {
                        number += 1;
                        self.admit((number, socket, peer, is_tcp), &open, on_event);
                    }
                    // It stays in the line, and would wake this up again at once.
                    Err(error) if !is_of_one(&error) => thread::sleep(PAUSE),
                    Err(_) => {}
                }
            }
            if looked.elapsed() >= LOOKS {
                looked = Instant::now();
                look(&self.house.exports, &mut said, on_event);
            }
        }
        drop(self.listeners);
        end(&open);
        for export in &self.house.exports {
            if !export.image().is_read_only() {
                let flushed = export.image().flush();
                flushed.map_err(|error| (export.info().name.clone(), error))?;
            }
        }
        Ok(())
    }

    fn wait(&self, stop: &Stop) {
        let mut fds = vec![PollFd::new(&stop.0.wake, PollFlags::IN)];
        let listeners = self.listeners.iter();
        fds.extend(
            listeners.map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)),
        );
        let most = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        // A signal ends it early, as does whatever else: it is called again.
        let _ = poll(&mut fds, Some(&most));
    }

    fn admit(
        &self,
        (number, socket, peer, is_tcp): (u64, OwnedFd, String, bool),
        open: &Arc<Open>,
        on_event: &Arc<OnEvent>,
    ) {
        let most = self.most;
        if lock(&open.sockets).len() >= most {
            on_event(&Event::Full { most });
            return;
        }
        let Ok(second) = socket.try_clone() else {
            on_event(&Event::Full { most });
            return;
        };
        if is_tcp {
            // Small replies go at once; a client whose machine is gone is noticed some day.
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let _ = sockopt::set_socket_keepalive(&socket, true);
        }
        lock(&open.sockets).insert(number, second);
        let house = Arc::clone(&self.house);
        let is_secured = is_tcp || self.tls_on_unix;
        let (opened, tell) = (Arc::clone(open), Arc::clone(on_event));
        let thread = thread::Builder::new().name("nbd-client".to_owned());
        let started = thread.spawn(move || {
            // Nobody can listen in on a Unix socket, but a client can be asked who it is there as well.
            let plain = House {
                exports: house.exports.clone(),
                tls: None,
                negotiation: house.negotiation,
                rings: house.rings,
            };
            serve(
                socket,
                &peer,
                if is_secured { &house } else { &plain },
                &tell,
            );
            lock(&opened.sockets).remove(&number);
        });
        if started.is_err() {
            lock(&open.sockets).remove(&number);
            on_event(&Event::Full { most });
        }
    }
}

fn serve(socket: OwnedFd, peer: &str, house: &House, tell: &Arc<OnEvent>) {
    let mut name = String::new();
    let ended = match negotiate(socket, house) {
        Ok(None) => Ok(()),
        Err(error) => Err(error),
        Ok(Some(client)) => {
            name.clone_from(&client.link.export.info().name);
            let export = name.as_str();
            tell(&Event::Open { export, peer });
            client.serve()
        }
    };
    let why = ended.err().map(|error| error.to_string());
    let (export, why) = (name.as_str(), why.as_deref());
    tell(&Event::Closed { export, peer, why });
}

/// Lets clients have what is under way, and no more.
fn end(open: &Open) {
    for socket in lock(&open.sockets).values() {
        // It fails where the client has gone.
        let _ = shutdown(socket, Shutdown::Read);
    }
    let deadline = Instant::now() + LAST;
    while !lock(&open.sockets).is_empty() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(2));
    }
    for socket in lock(&open.sockets).values() {
        let _ = shutdown(socket, Shutdown::Both);
    }
}

fn look(exports: &[Arc<Export>], said: &mut HashMap<String, &'static str>, tell: &Arc<OnEvent>) {
    for export in exports {
        let name = &export.info().name;
        if export.look_outside() {
            let what = "another program may have written to the image, or a write is lost: its fingerprints are forgotten";
            tell(&Event::Image { export: name, what });
        }
        match export.condition() {
            Some(what) if said.get(name) != Some(&what) => {
                said.insert(name.clone(), what);
                let export = name;
                tell(&Event::Image { export, what });
            }
            Some(_) => {}
            None => drop(said.remove(name)),
        }
    }
}

/// Whether accepting failed for one client alone, or as there was none: the next one may be let in.
fn is_of_one(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    !matches!(
        number,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}
