//! The block server.

use std::path::PathBuf;

use clap::{Args, Subcommand};

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
  bonsai drive status
  qemu-system-x86_64 -drive file=nbd+unix:///web?socket=/run/user/1000/disks.sock,format=raw";

/// Serve raw images or block devices, until Ctrl-C.
///
/// Each image is an export with the name of its file, without `.raw` and `.img`. It is locked as QEMU
/// does it. Reads of blocks that are known to have the same content as others go to the one that the page cache has,
/// inside of a group of images, and never between groups. Each export is a service: `bonsai status` shows what it does, and
/// `bonsai set` limits it.
#[derive(Args, Debug)]
pub(crate) struct DriveServe {
    /// Raw images, or block devices.
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<PathBuf>,

    /// Listen on this Unix socket, which only its owner may connect to; if nothing is said, on one below
    /// the runtime directory.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Listen on TCP: ADDRESS:PORT, or :PORT for this machine alone.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,

    /// Certificates for TLS over TCP, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_key", requires = "listen")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Listen beyond this machine without TLS: whoever reaches the port has the images.
    #[arg(long, requires = "listen")]
    pub(crate) insecure: bool,

    /// All images are of this group: what they have in common is shared. If nothing is said, each is of a group of
    /// its own.
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,

    /// Refuse writes. Several servers may have an image then.
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Read the images at the start, to know what they have in common before it is asked for.
    #[arg(long)]
    pub(crate) scan: bool,

    /// Compare each block that is read in another's place with its fingerprint.
    #[arg(long)]
    pub(crate) verify: bool,

    /// Learn nothing of contents: a plain server.
    #[arg(long, conflicts_with_all = ["group", "scan", "verify"])]
    pub(crate) plain: bool,

    /// Memory for what is known of contents, of all images, in MiB.
    #[arg(long, value_name = "MIB", default_value = "256",
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) memory: u32,

    /// A limit of each export, such as read=50MB/s or write=200/s; may be repeated. Each export is a service with
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

    /// Tell of each client.
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

/// Show what servers of this user do: reads, those saved, what is known, and why reads were not redirected.
#[derive(Args, Debug)]
pub(crate) struct DriveStatus {
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
