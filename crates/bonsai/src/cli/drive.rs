//! The block server.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Serve disk images to guests over NBD, and share what they read.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum DriveCommand {
    Serve(Box<DriveServe>),
    Status(DriveStatus),
}

const EXAMPLES: &str = "\
Examples:
  bonsai drive serve web.raw dev.raw --socket /run/user/1000/disks.sock
  bonsai drive serve base.raw --read-only --listen :10809
  bonsai drive serve a.raw b.raw --group lab --scan
  bonsai drive serve web=vm1/disk.raw mail=vm2/disk.raw,group=lab,discard=off --keep-going
  bonsai drive serve web.raw --socket /run/disks.sock --socket-group kvm
  bonsai drive status
  qemu-system-x86_64 -drive file=nbd+unix:///web?socket=/run/user/1000/disks.sock,format=raw";

/// Serve raw images or block devices, until Ctrl-C.
///
/// Each image is an export; its name is that of its file, without `.raw` and `.img`, if none is given. It is locked as QEMU
/// does it. Reads of blocks that are known to have the same content as others go to the one that the page cache has,
/// inside of a group of images, and never between groups. Each export is a service: `bonsai status` shows what it does, and
/// `bonsai set` limits it. A service manager may pass sockets on (systemd.socket(5)), and is told when images are served.
#[derive(Args, Clone, Debug)]
pub(crate) struct DriveServe {
    /// Raw images, or block devices: `[NAME=]PATH[,OPTION...]`. Options of one image: ro, rw, group=NAME, format=raw,
    /// limit=NAME=RATE, discard=on|off, scan=on|off. A comma of the path is written twice.
    #[arg(required_unless_present = "exports", value_name = "IMAGE")]
    pub(crate) images: Vec<PathBuf>,

    /// File of exports (TOML): `[[export]]` with path, and name, read_only, group, format, limits, discard, scan.
    #[arg(long, value_name = "FILE")]
    pub(crate) exports: Option<PathBuf>,

    /// Format of all images. Without it, other formats are recognised and refused; an image that was served
    /// before is raw.
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,

    /// Serve the others where an image cannot be served.
    #[arg(long)]
    pub(crate) keep_going: bool,

    /// Discard blocks that guests trim or fill with zeroes; off keeps preallocated images allocated.
    #[arg(long, value_enum, default_value = "on", value_name = "WHEN")]
    pub(crate) discard: Discard,

    /// Unix socket to listen on, which only its owner may connect to; if nothing is said, one below
    /// the runtime directory.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Permissions of the Unix socket, in octal, such as 0660.
    #[arg(long, value_name = "MODE", requires = "socket", value_parser = socket_mode)]
    pub(crate) socket_mode: Option<u32>,

    /// Group of the Unix socket, by name or number, whose members may connect as well.
    #[arg(long, value_name = "GROUP", requires = "socket")]
    pub(crate) socket_group: Option<String>,

    /// Listen on TCP: ADDRESS:PORT, or :PORT for this machine alone.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,

    /// Certificates for TLS over TCP, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Certificates of authorities, in PEM: clients need a certificate that one of them has signed.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_client_ca: Option<PathBuf>,

    /// TLS over Unix sockets as well.
    #[arg(long, requires = "tls_cert")]
    pub(crate) tls_unix: bool,

    /// Listen beyond this machine without TLS: whoever reaches the port has the images.
    #[arg(long)]
    pub(crate) insecure: bool,

    /// All images are of this group: what they have in common is shared. If nothing is said, each is of a group of
    /// its own.
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,

    /// Refuse writes. Several servers may have an image then.
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Read the images while they are served, so that what they have in common is known before it is asked for. What is found is
    /// kept beside each image (IMAGE.drive) for the next time.
    #[arg(long)]
    pub(crate) scan: bool,

    /// Share images of which the kernel grants no lease as well: block devices, and files on network and FUSE file systems.
    /// Nothing else may write to the images then: such a write can show up in reads of another image.
    #[arg(long, conflicts_with = "plain")]
    pub(crate) trust: bool,

    /// Compare each block that is read in another's place with its fingerprint.
    #[arg(long)]
    pub(crate) verify: bool,

    /// Disable deduplication.
    #[arg(long, conflicts_with_all = ["group", "scan", "verify"])]
    pub(crate) plain: bool,

    /// Memory for what is known of contents, of all images, in MiB.
    #[arg(long, value_name = "MIB", default_value = "256",
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) memory: u32,

    /// A limit of each export on read, write, disk or all, such as read=50MB/s or write=200/s; may be repeated. Each export is a service with
    /// its name, whose limits `bonsai set` changes; that name must be free then.
    #[arg(long = "limit", short, value_name = "NAME=RATE[:burst=B]")]
    pub(crate) limits: Vec<String>,

    /// Clients at a time.
    #[arg(long, value_name = "N", default_value = "256",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) connections: u32,

    /// Memory for what is held for clients, all together, such as 512MiB; by default 1 MiB for each of --connections, and at
    /// least 256 MiB.
    #[arg(long, value_name = "SIZE")]
    pub(crate) buffers: Option<bonsai_units::Bytes>,

    /// Workers of each export for what waits for the disk.
    #[arg(long, value_name = "N", default_value = "16",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) workers: u32,

    /// Ask the disk by threads instead of io_uring, which some machines forbid; where it is not there,
    /// that is done anyway.
    #[arg(long)]
    pub(crate) no_io_uring: bool,

    /// Write a trace of what is asked for, with fingerprints of what blocks hold, into a new file (.btr).
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// Metrics over HTTP (OpenMetrics) at ADDRESS:PORT, or :PORT for this machine alone.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<String>,

    /// File for the number of the process, while images are served.
    #[arg(long, value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,

    /// Log client connections.
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

/// Formats of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// The bytes of a disk, one after the other.
    Raw,
}

/// Whether blocks are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Discard {
    /// Trims and zeroes punch holes.
    On,
    /// Trims are ignored, and zeroes are allocated.
    Off,
}

impl Discard {
    pub(crate) fn is_on(self) -> bool {
        self == Self::On
    }
}

fn socket_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok();
    mode.filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "it is an octal number such as 0660".to_owned())
}

/// Show what servers of this user do: reads, those saved, what is known, and why reads were not redirected.
#[derive(Args, Debug)]
pub(crate) struct DriveStatus {
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
