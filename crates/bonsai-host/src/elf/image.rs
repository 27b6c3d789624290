//! How an ELF program is linked.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};
use object::read::{ReadCache, StringTable};
use object::{LittleEndian, ReadRef};

use crate::Error;

/// Word size of an ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// 32-bit addresses.
    Bits32,
    /// 64-bit addresses.
    Bits64,
}

/// What an ELF file is built for; `Display` names it for people, as in "64-bit ARM".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// The word size.
    pub class: Class,
    /// `e_machine` as in `elf.h`.
    pub machine: u16,
    /// The most significant byte of a number comes first.
    pub big_endian: bool,
}

impl Architecture {
    /// Whether it is 64-bit x86, the only architecture that Bonsai shapes.
    #[must_use]
    pub fn is_native(&self) -> bool {
        *self
            == Self {
                class: Class::Bits64,
                machine: elf::EM_X86_64.0,
                big_endian: false,
            }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = match self.class {
            Class::Bits32 => "32-bit",
            Class::Bits64 => "64-bit",
        };
        let name = match elf::Machine(self.machine) {
            elf::EM_X86_64 if self.class == Class::Bits32 => return f.write_str("x32"),
            elf::EM_386 | elf::EM_X86_64 => "x86",
            elf::EM_ARM | elf::EM_AARCH64 => "ARM",
            elf::EM_RISCV => "RISC-V",
            elf::EM_PPC | elf::EM_PPC64 => "PowerPC",
            elf::EM_MIPS => "MIPS",
            elf::EM_S390 => "IBM Z",
            elf::EM_LOONGARCH => "LoongArch",
            elf::EM_SPARC | elf::EM_SPARCV9 => "SPARC",
            elf::EM_IA_64 => "Itanium",
            elf::EM_BPF => "BPF",
            _ => return write!(f, "{bits} machine number {}", self.machine),
        };
        write!(f, "{bits} {name}")
    }
}

/// How a program gets its libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linkage {
    /// It has none and runs at a fixed address.
    Static,
    /// It has none and runs at any address.
    StaticPie,
    /// A loader, named in the file, maps them.
    Dynamic,
    /// It is itself a loader, which maps the program given as its argument.
    Loader,
}

/// Which C library a loader belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibcFlavour {
    /// The GNU C library.
    Glibc,
    /// musl.
    Musl,
    /// The loader's name is not a known one.
    Unknown,
}

/// The loader that a dynamically linked program names (`PT_INTERP`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// Its path.
    pub path: PathBuf,
    /// Whose loader it is, by its name.
    pub flavour: LibcFlavour,
    /// Whether the path exists on this machine.
    pub exists: bool,
}

/// A sanitizer runtime, which wants to be the first library or watches memory accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sanitizer {
    /// AddressSanitizer.
    Address,
    /// ThreadSanitizer.
    Thread,
}

/// How a program for this machine is linked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elf {
    /// How it gets its libraries.
    pub linkage: Linkage,
    /// Its loader, if it is [`Linkage::Dynamic`].
    pub interpreter: Option<Interpreter>,
    /// Libraries that it names (`DT_NEEDED`), in order.
    pub needed: Vec<String>,
    /// Whether the program itself, not one of its libraries, imports `pthread_cancel`. `true` as
    /// well if its section table is missing, which would tell.
    pub imports_pthread_cancel: bool,
    /// The sanitizer runtime it is linked against.
    pub sanitizer: Option<Sanitizer>,
    /// Whether it was built by the Go toolchain.
    pub go: bool,
    /// Whether it has no symbol table.
    pub stripped: bool,
}

pub(super) enum Format {
    NotElf,
    NotProgram(Architecture),
    Foreign(Architecture),
    Native(Architecture, Elf),
}

type Header = FileHeader64<LittleEndian>;
type Segment = elf::ProgramHeader64<LittleEndian>;
const LE: LittleEndian = LittleEndian;

pub(super) fn read(path: &Path, file: &File) -> Result<Format, Error> {
    let cache = ReadCache::new(file);
    let len = cache
        .len()
        .map_err(|()| Error::damaged(path, "its length is unknown"))?;
    let head = cache.read_bytes_at(0, len.min(20)).unwrap_or_default();
    if !head.starts_with(&elf::ELFMAG) {
        return Ok(Format::NotElf);
    }
    let (architecture, kind) = identify(path, head)?;
    if !matches!(kind, elf::ET_EXEC | elf::ET_DYN) {
        return Ok(Format::NotProgram(architecture));
    }
    if !architecture.is_native() {
        return Ok(Format::Foreign(architecture));
    }
    let image = Image::new(path, &cache, len)?;
    Ok(Format::Native(architecture, image.elf(kind)?))
}

/// Reads the fields that lie at the same place in all ELF files.
fn identify(path: &Path, head: &[u8]) -> Result<(Architecture, elf::FileType), Error> {
    let [_, _, _, _, class, data, .., t0, t1, m0, m1] = head else {
        return Err(Error::damaged(path, "its header is cut off"));
    };
    if head.len() < 20 {
        return Err(Error::damaged(path, "its header is cut off"));
    }
    let class = match *class {
        1 => Class::Bits32,
        2 => Class::Bits64,
        other => return Err(Error::damaged(path, format!("class {other} is unknown"))),
    };
    let (number, big_endian): (fn([u8; 2]) -> u16, bool) = match *data {
        1 => (u16::from_le_bytes, false),
        2 => (u16::from_be_bytes, true),
        other => {
            return Err(Error::damaged(
                path,
                format!("byte order {other} is unknown"),
            ));
        }
    };
    let architecture = Architecture {
        class,
        machine: number([*m0, *m1]),
        big_endian,
    };
    Ok((architecture, elf::FileType(number([*t0, *t1]))))
}

/// A 64-bit little-endian file with its segments checked.
struct Image<'a> {
    path: &'a Path,
    data: &'a ReadCache<&'a File>,
    header: &'a Header,
    segments: &'a [Segment],
}

impl<'a> Image<'a> {
    fn new(path: &'a Path, data: &'a ReadCache<&'a File>, len: u64) -> Result<Self, Error> {
        let damaged = |error: object::Error| Error::damaged(path, error.to_string());
        let header = Header::parse(data).map_err(damaged)?;
        let segments = header.program_headers(LE, data).map_err(damaged)?;
        if !segments
            .iter()
            .any(|segment| segment.p_type(LE) == elf::PT_LOAD)
        {
            return Err(Error::damaged(path, "it has nothing to load"));
        }
        for segment in segments {
            // The kernel needs no other kinds.
            if !matches!(segment.p_type(LE), elf::PT_LOAD | elf::PT_INTERP) {
                continue;
            }
            let end = segment.p_offset(LE).checked_add(segment.p_filesz(LE));
            if end.is_none_or(|end| end > len) {
                let what = format!("it is cut off: {len} bytes, but a segment ends behind them");
                return Err(Error::damaged(path, what));
            }
        }
        Ok(Self {
            path,
            data,
            header,
            segments,
        })
    }

    fn damaged(&self, error: object::Error) -> Error {
        Error::damaged(self.path, error.to_string())
    }

    fn elf(&self, kind: elf::FileType) -> Result<Elf, Error> {
        let interpreter = self.interpreter()?;
        let needed = self.dynamic_strings(elf::DT_NEEDED)?;
        let linkage = match &interpreter {
            Some(_) => Linkage::Dynamic,
            None if kind == elf::ET_EXEC => Linkage::Static,
            None if self.is_loader()? => Linkage::Loader,
            None => Linkage::StaticPie,
        };
        let mut elf = Elf {
            linkage,
            interpreter,
            sanitizer: needed.iter().find_map(|name| sanitizer_library(name)),
            needed,
            imports_pthread_cancel: linkage == Linkage::Dynamic,
            go: self.has_go_note(),
            stripped: true,
        };
        // The kernel does not look at the section table, so a damaged one is like none.
        let _ = self.look_at_sections(&mut elf);
        Ok(elf)
    }

    fn interpreter(&self) -> Result<Option<Interpreter>, Error> {
        for segment in self.segments {
            let name = segment.interpreter(LE, self.data);
            if let Some(name) = name.map_err(|error| self.damaged(error))? {
                let path = PathBuf::from(OsStr::from_bytes(name));
                return Ok(Some(Interpreter {
                    flavour: flavour(&path),
                    exists: path.exists(),
                    path,
                }));
            }
        }
        Ok(None)
    }

    /// True of glibc's loader, by its name for others (`DT_SONAME`), and of musl's, which is a library without one: linkers mark programs
    /// (`DT_DEBUG`, `DF_1_PIE`).
    fn is_loader(&self) -> Result<bool, Error> {
        let names = self.dynamic_strings(elf::DT_SONAME)?;
        let is_loader = |name: &String| {
            ["ld-linux", "ld-musl", "ld.so", "libc.musl"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        };
        let entries = self.dynamic()?;
        let is_program = |entry: &elf::Dyn64<LittleEndian>| {
            let (tag, value) = (entry.d_tag.get(LE), entry.d_val.get(LE));
            elf::DT_DEBUG == tag || elf::DT_FLAGS_1 == tag && value & elf::DF_1_PIE.0 != 0
        };
        let is_musl = || !entries.is_empty() && !entries.iter().any(is_program);
        Ok(names.iter().any(is_loader) || names.is_empty() && is_musl())
    }

    /// The dynamic section; empty without one.
    fn dynamic(&self) -> Result<&'a [elf::Dyn64<LittleEndian>], Error> {
        let mut entries: &[elf::Dyn64<LittleEndian>] = &[];
        for segment in self.segments {
            let found = segment.dynamic(LE, self.data);
            if let Some(found) = found.map_err(|error| self.damaged(error))? {
                entries = found;
            }
        }
        Ok(entries)
    }

    /// The strings of all entries `tag` in the dynamic section.
    fn dynamic_strings(&self, tag: elf::DynamicTag) -> Result<Vec<String>, Error> {
        let entries = self.dynamic()?;
        let value = |tag: elf::DynamicTag| {
            let entry = entries.iter().find(|entry| tag == entry.d_tag.get(LE));
            entry.map(|entry| entry.d_val.get(LE))
        };
        let (Some(address), Some(size)) = (value(elf::DT_STRTAB), value(elf::DT_STRSZ)) else {
            return Ok(Vec::new());
        };
        let start = self.file_offset(address).ok_or_else(|| {
            Error::damaged(self.path, "its dynamic string table is in no segment")
        })?;
        let strings = StringTable::new(self.data, start, start.saturating_add(size));
        let mut found = Vec::new();
        for entry in entries.iter().filter(|entry| tag == entry.d_tag.get(LE)) {
            let offset = u32::try_from(entry.d_val.get(LE)).unwrap_or(u32::MAX);
            let name = strings
                .get(offset)
                .map_err(|()| Error::damaged(self.path, "a dynamic entry names no string"))?;
            found.push(String::from_utf8_lossy(name).into_owned());
        }
        Ok(found)
    }

    fn file_offset(&self, address: u64) -> Option<u64> {
        let loaded = |segment: &&Segment| segment.p_type(LE) == elf::PT_LOAD;
        self.segments.iter().filter(loaded).find_map(|segment| {
            let within = address.checked_sub(segment.p_vaddr(LE))?;
            (within < segment.p_filesz(LE)).then(|| segment.p_offset(LE) + within)
        })
    }

    fn has_go_note(&self) -> bool {
        self.segments.iter().any(|segment| {
            let Ok(Some(mut notes)) = segment.notes(LE, self.data) else {
                return false;
            };
            while let Ok(Some(note)) = notes.next() {
                if note.name() == b"Go" {
                    return true;
                }
            }
            false
        })
    }

    fn look_at_sections(&self, elf: &mut Elf) -> object::Result<()> {
        let sections = self.header.sections(LE, self.data)?;
        if sections.is_empty() {
            return Ok(());
        }
        for section in sections.iter() {
            let name = sections.section_name(LE, section).unwrap_or_default();
            elf.go |= matches!(name, b".go.buildinfo" | b".note.go.buildid");
            elf.stripped &= section.sh_type(LE) != elf::SHT_SYMTAB;
        }
        let symbols = sections.symbols(LE, self.data, elf::SHT_DYNSYM)?;
        elf.imports_pthread_cancel = false;
        for symbol in symbols.iter() {
            match symbol.name(LE, symbols.strings()).unwrap_or_default() {
                b"pthread_cancel" => elf.imports_pthread_cancel |= symbol.is_undefined(LE),
                b"__asan_init" => elf.sanitizer = Some(Sanitizer::Address),
                b"__tsan_init" => elf.sanitizer = Some(Sanitizer::Thread),
                _ => {}
            }
        }
        Ok(())
    }
}

fn flavour(loader: &Path) -> LibcFlavour {
    let name = loader.file_name().unwrap_or_default().as_bytes();
    if name.starts_with(b"ld-linux") || name.starts_with(b"ld64.so") {
        LibcFlavour::Glibc
    } else if name.starts_with(b"ld-musl") {
        LibcFlavour::Musl
    } else {
        LibcFlavour::Unknown
    }
}

fn sanitizer_library(name: &str) -> Option<Sanitizer> {
    if name.starts_with("libasan.so") || name.starts_with("libclang_rt.asan") {
        Some(Sanitizer::Address)
    } else if name.starts_with("libtsan.so") || name.starts_with("libclang_rt.tsan") {
        Some(Sanitizer::Thread)
    } else {
        None
    }
}
