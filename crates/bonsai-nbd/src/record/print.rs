//! Fingerprints of a recording.
//!
//! They are made in two steps. A *mark*, XXH3 with a random secret, tells contents apart: whoever did a request makes it, in hardly
//! more time than it takes to copy the block. Who knows blocks and their marks could find out the secret; so the trace has none of them,
//! but BLAKE3 with a random key of each, which is made once for a content. It says which contents are equal, and nothing else to
//! those who have not the key. Nobody has it: it ends with the recording.

use std::io;

use bonsai_trace::Digest;
use twox_hash::XxHash3_128;

/// As long as XXH3's own secret.
const SECRET: usize = 192;

/// The mark of a block of zeroes.
pub(super) const ZEROES: u128 = 0;

pub(super) struct Prints {
    secret: [u8; SECRET],
    key: [u8; blake3::KEY_LEN],
}

impl std::fmt::Debug for Prints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Prints")
    }
}

impl Prints {
    /// # Errors
    /// The system has no random bytes.
    pub(super) fn random() -> io::Result<Self> {
        let (mut secret, mut key) = ([0; SECRET], [0; blake3::KEY_LEN]);
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        Ok(Self { secret, key })
    }

    /// The mark of a block, for the recording's own use.
    pub(super) fn mark(&self, bytes: &[u8]) -> u128 {
        if bytes.iter().all(|byte| *byte == 0) {
            return ZEROES;
        }
        let mark = XxHash3_128::oneshot_with_secret(&self.secret, bytes);
        mark.expect("a secret of more than 136 bytes")
    }

    /// What the trace has for a mark.
    pub(super) fn digest(&self, mark: u128) -> Digest {
        if mark == ZEROES {
            return Digest([0; 16]);
        }
        let hash = blake3::keyed_hash(&self.key, &mark.to_le_bytes());
        let half = hash.as_bytes().first_chunk().copied();
        Digest(half.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_alone_have_equal_fingerprints_in_one_recording_alone() {
        let [one, other] = [(); 2].map(|()| Prints::random().expect("random bytes"));
        let block =
            |n: u64| -> Vec<u8> { (0..512).flat_map(|at| (at * n).to_le_bytes()).collect() };
        let prints = |of: &Prints| -> Vec<Digest> {
            (0..50).map(|n| of.digest(of.mark(&block(n)))).collect()
        };
        assert_eq!(prints(&one), prints(&one));
        let mut all = [prints(&one), prints(&other)].concat();
        assert_eq!((all[0], all[50]), (Digest([0; 16]), Digest([0; 16])));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 99);
    }
}
