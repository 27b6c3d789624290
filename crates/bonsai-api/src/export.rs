//! Exports of block servers: what was asked of them, and what they share.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// All exports that whoever asks may see.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Exports {
    /// When it was asked, ms since 1970.
    pub unix_ms: u64,
    /// By server, in the server's order.
    pub exports: Vec<Export>,
    /// What exports of one group have in common, by server. Nothing is counted across groups.
    pub groups: Vec<ExportGroup>,
    /// Which servers do not answer, in words.
    pub problems: Vec<String>,
}

/// An image under a name. What is counted is from the server's start on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// What clients ask for.
    pub name: String,
    /// The id of the service that it is: limits, rates and waits are that one's.
    pub service: Option<String>,
    /// The process that serves it.
    pub server: u32,
    /// Its user's number.
    pub uid: u32,
    /// The path of its image.
    pub image: String,
    /// In bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Clients now.
    pub connections: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Reads that the page cache had, in their own place or another one.
    pub at_once: u64,
    /// Writes, zeroes and trims.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Flushes, and writes that had to be on the disk.
    pub flushes: u64,
    /// Requests that made no sense.
    pub refused: u64,
    /// Requests that failed below.
    pub failed: u64,
    /// What it shares; `null` for one that learns nothing.
    pub sharing: Option<ExportSharing>,
    /// Who is charged for its reads, and for the memory of the page cache, in words.
    pub charged: String,
    /// What is wrong with its image, in words.
    pub wrong: Option<String>,
}

/// What an export shares with others of its group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExportSharing {
    /// Its group, among those of its server.
    pub group: String,
    /// Reads that needed no disk, as their blocks were elsewhere or zero.
    pub reads_saved: u64,
    /// Bytes that came from the page cache in another block's place.
    pub redirected_bytes: u64,
    /// Bytes that were answered as zeroes.
    pub zero_bytes: u64,
    /// Why blocks of 4 KiB were not redirected.
    pub not_redirected: NotRedirected,
    /// Blocks that were not learned, as there was too much to learn.
    pub not_learned: u64,
    /// How often somebody else wrote to the image, and all of it was forgotten.
    pub outside_writes: u64,
    /// Of all images of the server: blocks whose content is known.
    pub known_blocks: u64,
    /// Of all images of the server: different contents of these, zeroes aside.
    pub contents: u64,
    /// Of all images of the server: known blocks for each content; `null` where nothing is known.
    pub dedup_factor: Option<f64>,
    /// Of all images of the server: bytes of the map.
    pub metadata_bytes: u64,
    /// The most that it may take.
    pub metadata_limit: u64,
}

/// Blocks that were read where they are, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotRedirected {
    /// Nothing is known of them.
    pub not_known: u64,
    /// Others go to them, or nobody has the same.
    pub leads: u64,
    /// The page cache has none with that content.
    pub cold: u64,
    /// The read would have become too many.
    pub split: u64,
    /// Somebody wrote meanwhile.
    pub raced: u64,
    /// The content was another than was known.
    pub wrong: u64,
}

/// What exports of one group have in common, in blocks of 4 KiB that are known and not of zeroes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExportGroup {
    /// Its name.
    pub group: String,
    /// The process that serves it.
    pub server: u32,
    /// Its user's number.
    pub uid: u32,
    /// How long ago it was counted, ms.
    pub age_ms: u64,
    /// Its exports: rows and columns of `shared_blocks`.
    pub exports: Vec<String>,
    /// Known blocks of each.
    pub known_blocks: Vec<u64>,
    /// Different contents of these.
    pub contents: u64,
    /// How many blocks of an export (row) have the content of a block of another one (column); with itself, of
    /// another block of its own. Empty where there are more than 64 exports.
    pub shared_blocks: Vec<Vec<u64>>,
    /// One content in so many was looked at; numbers are estimates if it is more than 1.
    pub one_in: u32,
    /// What of it the page cache has; `null` where the kernel does not say.
    pub cache: Option<ExportCache>,
}

/// What the page cache has of known blocks, by a sample of contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExportCache {
    /// Blocks that are resident.
    pub resident_blocks: u64,
    /// Different contents of these.
    pub contents: u64,
    /// Resident blocks for each content of these; `null` if nothing is resident.
    pub dedup_factor: Option<f64>,
    /// With 95 % the factor is no further away than this; 0 if everything was looked at.
    pub error: f64,
    /// Contents that were looked at: one in `one_in`.
    pub sampled: u64,
    /// See there.
    pub one_in: u32,
}
