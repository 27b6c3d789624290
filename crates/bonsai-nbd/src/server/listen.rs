//! Sockets that are listened on, and a thread for each client. How they come to be is in [`super::sockets`].

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};

use super::budget::{Budget, Own, smallest};
use super::connection::{House, negotiate};
use super::failures::Failures;
use super::look::Look;
use super::places::{Place, Places};
use super::sockets::{Address, Listening, Sockets};
use super::{EndError, Ended, Event, OnEvent, Plan, ServeError, Stop};
use crate::export::Export;

/// How often failures that were counted are told.
const LOOKS: Duration = Duration::from_secs(1);
/// How long nobody is let in after somebody could not be, for want of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);
/// How often it is said that clients are turned away.
const SAID: Duration = Duration::from_secs(10);
/// The largest budget, in bytes: more than any machine has, and few enough blocks to count.
const MOST_BUFFERS: usize = 1 << 40;
/// What clients get at the end, for what is under way.
const LAST: Duration = Duration::from_secs(10);

/// A server that listens, and does not serve yet.
pub struct Server {
    house: House,
    budget: Arc<Budget>,
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
        let budget = budget(&plan)?;
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
            budget,
            house: House {
                exports: plan.exports,
                failures: Vec::new(),
                tls: plan.tls,
                negotiation: plan.negotiation,
                rings: plan.rings,
            },
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
    /// Images that could not be flushed at the end; all others were.
    pub fn run(mut self, stop: &Stop, on_event: &Arc<OnEvent>) -> Result<(), EndError> {
        let exports = self.house.exports.clone();
        let of = |export: &Arc<Export>| Failures::new(&export.info().name, on_event);
        self.house.failures = exports.iter().map(of).collect();
        let failures = self.house.failures.clone();
        let mut clients = Clients::new(&self, on_event);
        let mut looked = Instant::now();
        let looks: Vec<Look> = exports
            .iter()
            .filter_map(|export| Look::start(export, on_event))
            .collect();
        while !stop.is_asked() {
            self.wait(stop);
            for (number, listener) in self.listeners.iter().enumerate() {
                match listener.accept() {
                    Ok(accepted) => clients.admit(number, accepted),
                    // It stays in the line, and would wake this up again at once.
                    Err(error) if !is_of_one(&error) => {
                        clients.exhausted(&error);
                        thread::sleep(PAUSE);
                    }
                    Err(_) => {}
                }
            }
            if looked.elapsed() >= LOOKS {
                looked = Instant::now();
                failures.iter().for_each(|of| of.settle(false));
            }
        }
        // No new client finds the server, and those that are there are let go.
        drop(self.listeners);
        end(&clients.places);
        failures.iter().for_each(|of| of.settle(true));
        drop(looks);
        flush(&exports)
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
}

/// The memory of a server, if it is enough for its connections.
fn budget(plan: &Plan) -> Result<Arc<Budget>, ServeError> {
    let (bytes, connections) = (plan.buffer_bytes, plan.connections);
    let tls = plan.tls.is_some();
    let smallest = smallest(connections, tls);
    if bytes < smallest {
        return Err(ServeError::Buffers {
            bytes,
            connections,
            smallest,
        });
    }
    let failed = |source| ServeError::Memory { bytes, source };
    if bytes > MOST_BUFFERS {
        return Err(failed(io::ErrorKind::OutOfMemory.into()));
    }
    Budget::new(bytes, connections, tls).map_err(failed)
}

/// Flushes every image, also where one fails or hangs.
fn flush(exports: &[Arc<Export>]) -> Result<(), EndError> {
    let flush = |export: &Arc<Export>| {
        let error = export.image().flush().err()?;
        export.lost();
        Some((export.info().name.clone(), error))
    };
    let failures: Vec<_> = thread::scope(|scope| {
        let changed = exports.iter().filter(|of| !of.image().is_read_only());
        let threads: Vec<_> = changed
            .map(|export| {
                let thread = thread::Builder::new().name("nbd-flush".to_owned());
                let started = thread.spawn_scoped(scope, move || flush(export));
                started.map_err(|_| export)
            })
            .collect();
        let ends = threads.into_iter().filter_map(|started| match started {
            Ok(thread) => thread.join().ok().flatten(),
            // Without a thread, in turn.
            Err(export) => flush(export),
        });
        ends.collect()
    });
    match failures.is_empty() {
        true => Ok(()),
        false => Err(EndError(failures)),
    }
}

/// Lets clients in, each with a thread of its own.
struct Clients {
    house: Arc<House>,
    /// Over a Unix socket nobody listens in.
    plain: Arc<House>,
    budget: Arc<Budget>,
    places: Arc<Places>,
    on_event: Arc<OnEvent>,
    most: usize,
    tls_on_unix: bool,
    /// When it was said that the system has nothing left.
    exhausted: Rarely,
    /// When it was said that there are as many as there may be.
    full: Rarely,
}

/// What may happen often, and is said now and then: whoever connects again and again is not to fill the log.
#[derive(Default)]
struct Rarely(Option<Instant>);

impl Rarely {
    fn say(&mut self, say: impl FnOnce()) {
        if self.0.is_none_or(|at| at.elapsed() >= SAID) {
            self.0 = Some(Instant::now());
            say();
        }
    }
}

impl Clients {
    fn new(server: &Server, on_event: &Arc<OnEvent>) -> Self {
        let house = server.house.clone();
        Self {
            plain: Arc::new(House {
                tls: None,
                ..house.clone()
            }),
            house: Arc::new(house),
            budget: Arc::clone(&server.budget),
            places: Places::new(server.most, server.house.exports.len()),
            on_event: Arc::clone(on_event),
            most: server.most,
            tls_on_unix: server.tls_on_unix,
            exhausted: Rarely::default(),
            full: Rarely::default(),
        }
    }

    fn exhausted(&mut self, error: &io::Error) {
        let tell = &self.on_event;
        self.exhausted.say(|| tell(&Event::Exhausted { error }));
    }

    fn admit(&mut self, listener: usize, accepted: Admitted) {
        let second = match accepted.0.try_clone() {
            Ok(second) => second,
            Err(error) => return self.exhausted(&error),
        };
        let place = self.places.take(second, listener).map(Arc::new);
        let Some((place, own)) = place.zip(self.budget.connect()) else {
            let (tell, most) = (&self.on_event, self.most);
            self.full.say(|| tell(&Event::Full { most }));
            return;
        };
        if let Err(error) = self.start(accepted, place, own) {
            self.exhausted(&error);
        }
    }

    fn start(
        &self,
        (socket, peer, is_tcp): Admitted,
        place: Arc<Place>,
        own: Own,
    ) -> io::Result<()> {
        if is_tcp {
            // Small replies go at once; a client whose machine is gone is noticed some day.
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let _ = sockopt::set_socket_keepalive(&socket, true);
        }
        let house = match is_tcp || self.tls_on_unix {
            true => Arc::clone(&self.house),
            false => Arc::clone(&self.plain),
        };
        let tell = Arc::clone(&self.on_event);
        let thread = thread::Builder::new().name("nbd-client".to_owned());
        let serving = move || serve((socket, own), &place, (&peer, &house), &tell);
        thread.spawn(serving).map(drop)
    }
}

fn serve(
    (socket, own): (OwnedFd, Own),
    place: &Arc<Place>,
    (peer, house): (&str, &House),
    tell: &Arc<OnEvent>,
) {
    let mut name = String::new();
    let ended = match negotiate(socket, house, (own, place)) {
        Ok(None) => Ok(()),
        Err(_) if place.is_lost() => Err(Ended::Crowded),
        Err(error) => Err(error),
        Ok(Some(client)) if !place.has(&client.link.export.info().name) => Err(Ended::Crowded),
        Ok(Some(client)) => {
            name.clone_from(&client.link.export.info().name);
            let export = name.as_str();
            tell(&Event::Open { export, peer });
            client.serve(place)
        }
    };
    let why = ended.err().map(|error| error.to_string());
    let (export, why) = (name.as_str(), why.as_deref());
    tell(&Event::Closed { export, peer, why });
}

/// Lets clients have what is under way, and no more.
fn end(places: &Places) {
    places.shut(Shutdown::Read);
    let deadline = Instant::now() + LAST;
    while !places.are_empty() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(2));
    }
    places.shut(Shutdown::Both);
}

/// A client's socket, who it is, and whether it came over TCP.
type Admitted = (OwnedFd, String, bool);

/// Whether accepting failed for one client alone, or as there was none: the next one may be let in.
fn is_of_one(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    !matches!(
        number,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}
