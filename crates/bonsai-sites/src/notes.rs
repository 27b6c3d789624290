//! ELF notes: the build identifier of a library.

/// `n_type` of the note that names the oldest kernel (`elf.h`).
const NT_GNU_ABI_TAG: u32 = 1;
/// Linux 2.4.0: in the start files of Free Pascal (`rtl/linux/x86_64/cprt0.as`, `si_c.inc`), and of no C library that runs today.
const PASCAL: [u8; 16] = [0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
/// `n_type` of the note that holds the build identifier (`elf.h`).
const NT_GNU_BUILD_ID: u32 = 3;
/// `n_type` of the note that the Go linker writes.
const NT_GO_BUILD_ID: u32 = 4;
/// `n_namesz`, `n_descsz` and `n_type`, each 4 bytes.
const HEADER: usize = 12;

/// Finds the GNU build identifier in the contents of a `PT_NOTE` segment (little-endian).
///
/// Returns its bytes, usually 20. `None` if there is no such note, if it is empty, or if the notes
/// before it are damaged.
#[must_use]
pub fn build_id(notes: &[u8]) -> Option<&[u8]> {
    find(notes, NT_GNU_BUILD_ID, b"GNU\0", |_| true).filter(|id| !id.is_empty())
}

/// Whether the contents of a `PT_NOTE` segment say that the Go toolchain made it: code that runs on
/// stacks of a few kilobytes, with no room for anybody else.
#[must_use]
pub fn is_go(notes: &[u8]) -> bool {
    find(notes, NT_GO_BUILD_ID, b"Go\0\0", |_| true).is_some()
}

/// True where the contents of a `PT_NOTE` segment say that Free Pascal made the program: it makes system calls by instructions of its own,
/// also where it has a loader and libc.
#[must_use]
pub fn is_pascal(notes: &[u8]) -> bool {
    find(notes, NT_GNU_ABI_TAG, b"GNU\0", |desc| *desc == PASCAL).is_some()
}

fn find<'a>(
    notes: &'a [u8],
    kind: u32,
    name: &[u8; 4],
    wanted: impl Fn(&[u8]) -> bool,
) -> Option<&'a [u8]> {
    let mut rest = notes;
    loop {
        let name_len = word(rest, 0)?;
        let desc_len = word(rest, 4)?;
        let found = word(rest, 8)?;
        let name_end = HEADER.checked_add(name_len)?;
        let desc_start = pad(name_end)?;
        let desc_end = desc_start.checked_add(desc_len)?;
        let its_name = rest.get(HEADER..name_end)?;
        let desc = rest.get(desc_start..desc_end)?;
        if found == kind as usize && its_name == name && wanted(desc) {
            return Some(desc);
        }
        rest = rest.get(pad(desc_end)?..)?;
    }
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..)?.first_chunk::<4>()?;
    usize::try_from(u32::from_le_bytes(*word)).ok()
}

/// Name and description are padded to 4 bytes. (Segments aligned to 8 hold only property notes,
/// whose parts are multiples of 8.)
fn pad(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::build_id;

    fn note(name: &[u8], kind: u32, desc: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for len in [name.len(), desc.len()] {
            out.extend(u32::try_from(len).expect("a short note").to_le_bytes());
        }
        out.extend(kind.to_le_bytes());
        for part in [name, desc] {
            out.extend(part);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        out
    }

    #[test]
    fn finds_the_identifier_behind_other_notes() {
        let mut notes = note(b"GNU\0", 5, &[0; 16]);
        notes.extend(note(b"stapsdt\0", 3, b"x"));
        notes.extend(note(b"GNU\0", 3, &[1, 2, 3, 4, 5]));
        assert_eq!(build_id(&notes), Some(&[1, 2, 3, 4, 5][..]));
    }

    #[test]
    fn other_vendors_and_types_do_not_count() {
        assert_eq!(build_id(&note(b"Go\0\0", 4, b"id")), None);
        assert!(super::is_go(&note(b"Go\0\0", 4, b"id")));
        assert!(!super::is_go(&note(b"GNU\0", 3, b"id")));
        assert_eq!(build_id(&note(b"Go\0\0", 3, b"id")), None);
        assert_eq!(build_id(&note(b"GNU\0", 3, b"")), None);
    }

    #[test]
    fn start_files_of_free_pascal_are_known_beside_others() {
        let tag = |minor: u8, patch: u8| {
            let words = [0, 2, minor, patch];
            let desc: Vec<u8> = words.iter().flat_map(|word| [*word, 0, 0, 0]).collect();
            note(b"GNU\0", 1, &desc)
        };
        assert!(super::is_pascal(&tag(4, 0)));
        assert!(super::is_pascal(&[tag(6, 32), tag(4, 0)].concat()));
        assert!(!super::is_pascal(&tag(6, 32)));
        assert!(!super::is_pascal(&note(b"GNU\0", 3, &super::PASCAL)));
    }

    #[test]
    fn truncated_and_absurd_notes_give_none() {
        let whole = note(b"GNU\0", 3, &[7; 20]);
        for end in 0..whole.len() {
            assert_eq!(build_id(&whole[..end]), None, "cut at {end}");
        }
        assert_eq!(build_id(&[0xff; 64]), None);
        assert_eq!(build_id(&[0; 64]), None);
    }
}
