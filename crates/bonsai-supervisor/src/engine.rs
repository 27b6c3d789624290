//! The engine's file: what is mapped where, and what has to be relocated.

use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{PF_X, PT_DYNAMIC, PT_LOAD, ProgramFlags, R_X86_64_RELATIVE};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, Rela, SectionHeader as _};

const PAGE: u64 = 4096;

/// What is wrong with an engine's file.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// It cannot be read.
    #[error("{path}: the engine for static programs cannot be read")]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is something else.
    #[error("{path}: not an engine for static programs: {what}")]
    Foreign {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// A part of the engine in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Its first page, from the engine's start.
    pub(crate) at: u64,
    /// Bytes that come from the file, from its first page on.
    pub(crate) file_len: u64,
    /// Bytes in all, whole pages.
    pub(crate) len: u64,
    /// Where they are in the file.
    pub(crate) offset: u64,
    /// Whether it is code; data otherwise.
    pub(crate) code: bool,
}

/// An engine that can be mapped.
#[derive(Debug)]
pub struct Engine {
    pub(crate) path: PathBuf,
    pub(crate) parts: Vec<Part>,
    /// Pages in all.
    pub(crate) len: u64,
    /// Where it is entered.
    pub(crate) entry: u64,
    /// Words that hold an address, and the address, both from the engine's start.
    pub(crate) relocations: Vec<(u64, u64)>,
}

impl Engine {
    /// Reads an engine.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn read(path: &Path) -> Result<Self, EngineError> {
        let bytes = std::fs::read(path).map_err(|source| EngineError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, &bytes).map_err(|what| EngineError::Foreign {
            path: path.to_owned(),
            what,
        })
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, String> {
        let file = ElfFile64::<Endianness>::parse(bytes).map_err(|error| error.to_string())?;
        let endian = file.endian();
        let mut parts = Vec::new();
        let mut dynamic = false;
        for header in file.elf_program_headers() {
            dynamic |= header.p_type(endian) == PT_DYNAMIC;
            if header.p_type(endian) != PT_LOAD {
                continue;
            }
            let (address, offset) = (header.p_vaddr(endian), header.p_offset(endian));
            let ahead = address % PAGE;
            if ahead != offset % PAGE {
                return Err("a segment that cannot be mapped".to_owned());
            }
            parts.push(Part {
                at: address - ahead,
                file_len: ahead + header.p_filesz(endian),
                len: (ahead + header.p_memsz(endian)).next_multiple_of(PAGE),
                offset: offset - ahead,
                code: header.p_flags(endian) & PF_X != ProgramFlags(0),
            });
        }
        let len = parts.iter().map(|part| part.at + part.len).max();
        let len = len.filter(|_| dynamic).ok_or("no segments")?;
        let mut relocations = Vec::new();
        for section in file.elf_section_table().iter() {
            let Ok(Some((table, _))) = section.rela(endian, bytes) else {
                continue;
            };
            for rela in table {
                if rela.r_type(endian, false) != R_X86_64_RELATIVE {
                    return Err("it refers to other libraries".to_owned());
                }
                let addend = u64::try_from(rela.r_addend(endian)).map_err(|e| e.to_string())?;
                relocations.push((rela.r_offset(endian), addend));
            }
        }
        Ok(Self {
            path: path.to_owned(),
            parts,
            len,
            entry: file.elf_header().e_entry(endian),
            relocations,
        })
    }
}
