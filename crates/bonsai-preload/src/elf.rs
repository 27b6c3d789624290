//! The objects that the loader has mapped, and symbols in them, without the
//! loader's functions: those take locks.

use crate::headers::{PT_DYNAMIC, PT_LOAD, Phdr};
use crate::slots::Early;
use core::arch::asm;
use core::ffi::{c_char, c_int, c_void};
use core::ops::Range;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

/// `struct dl_phdr_info`, the part that every libc has.
#[repr(C)]
struct Info {
    base: usize,
    name: *const c_char,
    headers: *const Phdr,
    count: u16,
}

unsafe extern "C" {
    fn dl_iterate_phdr(
        each: unsafe extern "C" fn(*const Info, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
}

/// One mapped object.
#[derive(Clone, Copy)]
pub(crate) struct Object {
    pub(crate) base: usize,
    pub(crate) name: *const u8,
    headers: *const Phdr,
    count: usize,
    hash: *const u32,
    symbols: *const Sym,
    strings: *const u8,
    versions: *const u16,
}

/// `Elf64_Sym`.
#[repr(C)]
struct Sym {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: u64,
}

/// Objects looked at: a program with more has those beyond unsearched.
const MOST: usize = 96;

#[unsafe(link_section = ".bss.bonsai_objects")]
static OBJECTS: Early<[Option<Object>; MOST]> = Early::new([None; MOST]);
#[unsafe(link_section = ".bss.bonsai_early")]
static COUNT: AtomicUsize = AtomicUsize::new(0);
static OURS: AtomicUsize = AtomicUsize::new(usize::MAX);

impl Object {
    const fn without_symbols(headers: *const Phdr, count: usize, base: usize) -> Self {
        Self {
            base,
            name: null(),
            headers,
            count,
            hash: null(),
            symbols: null(),
            strings: null(),
            versions: null(),
        }
    }

    /// Its program headers.
    pub(crate) fn headers(&self) -> &[Phdr] {
        // SAFETY: as the loader describes the object.
        unsafe { core::slice::from_raw_parts(self.headers, self.count) }
    }

    /// Its file name as the loader knows it.
    #[inline(never)]
    pub(crate) fn name(&self) -> &[u8] {
        if self.name.is_null() {
            return &[];
        }
        // SAFETY: a C string of the loader.
        unsafe { core::slice::from_raw_parts(self.name, crate::sys::strlen(self.name)) }
    }

    /// Its file name without the folder.
    pub(crate) fn file(&self) -> &[u8] {
        let name = self.name();
        name.rsplit(|b| *b == b'/').next().unwrap_or_default()
    }

    /// Where its lowest page is mapped.
    pub(crate) fn start(&self) -> usize {
        let loaded = self.headers().iter().filter(|h| h.kind == PT_LOAD);
        let lowest = loaded.map(|h| h.address).min().unwrap_or(0);
        self.base.wrapping_add(lowest & !4095)
    }

    /// The next segment of that kind, with one of these flags, from the number `i` on.
    #[inline(never)]
    fn part(&self, i: &mut usize, kind: u32, flags: u32) -> Option<&[u8]> {
        loop {
            let h = self.headers().get(*i)?;
            *i += 1;
            if h.kind == kind && h.flags & flags != 0 {
                let at = self.base.wrapping_add(h.address);
                // SAFETY: a mapped segment of the object.
                return Some(unsafe { core::slice::from_raw_parts(at as *const u8, h.len) });
            }
        }
    }

    /// Its executable parts.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        let mut i = 0;
        core::iter::from_fn(move || self.part(&mut i, PT_LOAD, 1))
    }

    /// Where its executable parts are, and how the loader protects them.
    pub(crate) fn codes(&self) -> impl Iterator<Item = (Range<usize>, usize)> {
        let parts = self.headers().iter();
        let parts = parts.filter(|h| h.kind == PT_LOAD && h.flags & 1 != 0);
        parts.map(|h| {
            let start = self.base.wrapping_add(h.address);
            // Execute, write and read are 1, 2 and 4 there, and 4, 2 and 1 here (elf(5), mprotect(2)).
            let protection = 4 | h.flags & 2 | h.flags >> 2 & 1;
            (start..start.wrapping_add(h.len), protection as usize)
        })
    }

    /// The contents of its notes.
    pub(crate) fn notes(&self) -> impl Iterator<Item = &[u8]> {
        let mut i = 0;
        core::iter::from_fn(move || self.part(&mut i, PT_NOTE, 4))
    }

    /// Whether the Go toolchain has made it.
    #[inline(never)]
    pub(crate) fn is_go(&self) -> bool {
        self.notes().any(bonsai_sites::is_go)
    }

    pub(crate) fn contains(&self, address: usize) -> bool {
        self.headers().iter().any(|h| {
            let start = self.base.wrapping_add(h.address);
            h.kind == PT_LOAD && (start..start.wrapping_add(h.len)).contains(&address)
        })
    }

    /// Whether its symbols can be looked up.
    pub(crate) fn has_hash(&self) -> bool {
        !self.hash.is_null()
    }

    /// The address of a symbol that it defines in its default version.
    pub(crate) fn find(&self, name: &[u8]) -> Option<usize> {
        let symbol = self.lookup(gnu_hash(name), Some(name))?;
        Some(self.base.wrapping_add(symbol.value))
    }

    /// The name of the symbol that it defines whose name has this hash; there is no
    /// other one with it.
    pub(crate) fn name_of(&self, hash: u32) -> Option<&[u8]> {
        self.lookup(hash, None).map(|symbol| self.text(symbol))
    }

    fn text(&self, symbol: &Sym) -> &[u8] {
        // SAFETY: a C string of the object.
        unsafe {
            let name = self.strings.add(symbol.name as usize);
            core::slice::from_raw_parts(name, crate::sys::strlen(name))
        }
    }

    #[inline(never)]
    fn lookup(&self, hash: u32, name: Option<&[u8]>) -> Option<&Sym> {
        if self.hash.is_null() || self.symbols.is_null() || self.strings.is_null() {
            return None;
        }
        // SAFETY: the layout of a DT_GNU_HASH section, followed within its own
        // bounds; the loader has used it already.
        unsafe {
            let [buckets, first, bloom, shift] = *self.hash.cast::<[u32; 4]>();
            let filter = self.hash.add(4).cast::<u64>();
            let word = *filter.add((hash as usize / 64) % (bloom.max(1) as usize));
            let mask = 1_u64 << (hash % 64) | 1_u64 << ((hash >> (shift & 31)) % 64);
            if word & mask != mask {
                return None;
            }
            let chains = filter.add(bloom as usize).cast::<u32>();
            let mut i = *chains.add((hash % buckets.max(1)) as usize);
            if i < first {
                return None;
            }
            let values = chains.add(buckets as usize);
            loop {
                let value = *values.add((i - first) as usize);
                if value | 1 == hash | 1 {
                    let symbol = &*self.symbols.add(i as usize);
                    let same = match name {
                        Some(name) => self.is(i, name),
                        None => gnu_hash(self.text(symbol)) == hash,
                    };
                    if same {
                        return Some(symbol);
                    }
                }
                if value & 1 != 0 {
                    return None;
                }
                i += 1;
            }
        }
    }

    /// # Safety
    /// `i` is the index of a symbol.
    unsafe fn is(&self, i: u32, name: &[u8]) -> bool {
        // SAFETY: by the caller.
        unsafe {
            let symbol = &*self.symbols.add(i as usize);
            let hidden = !self.versions.is_null() && *self.versions.add(i as usize) & 0x8000 != 0;
            let known = self.strings.add(symbol.name as usize);
            symbol.section != 0
                && !hidden
                && name.iter().enumerate().all(|(i, b)| *known.add(i) == *b)
                && *known.add(name.len()) == 0
        }
    }
}

fn gnu_hash(name: &[u8]) -> u32 {
    name.iter()
        .fold(5381, |h, b| h.wrapping_mul(33).wrapping_add(u32::from(*b)))
}

/// The value of an entry of the auxiliary vector; 0 without it.
///
/// # Safety
/// `vector` is the kernel's.
pub(crate) unsafe fn auxiliary(mut vector: *const [usize; 2], kind: usize) -> usize {
    // SAFETY: by the caller: it ends with an entry of kind 0.
    unsafe {
        while (*vector)[0] != 0 {
            if (*vector)[0] == kind {
                return (*vector)[1];
            }
            vector = vector.add(1);
        }
    }
    0
}

/// Takes note of the program, the only object there is. Whether it is one.
///
/// # Safety
/// `vector` is the kernel's.
#[cfg(feature = "alone")]
pub(crate) unsafe fn survey_alone(vector: *const [usize; 2]) -> bool {
    const AT_PHDR: usize = 3;
    const AT_PHNUM: usize = 5;
    const PT_PHDR: u32 = 6;
    // SAFETY: by the caller, and by the kernel.
    unsafe {
        let headers = auxiliary(vector, AT_PHDR);
        let count = auxiliary(vector, AT_PHNUM);
        if headers == 0 {
            return false;
        }
        let object = Object::without_symbols(headers as *const Phdr, count, 0);
        // Where it says that they are, or else where the first segment brings them.
        let said = object.headers().iter().find(|h| h.kind == PT_PHDR);
        let first = object.headers().iter().find(|h| h.kind == PT_LOAD);
        let base = match (said, first) {
            (Some(said), _) => headers.wrapping_sub(said.address),
            (None, Some(first)) if first.address == 0 => headers & !4095,
            _ => 0,
        };
        (*OBJECTS.get())[0] = Some(Object { base, ..object });
    }
    COUNT.store(1, Ordering::Release);
    true
}

/// Takes note of an object that somebody else has found; false if there are too many.
///
/// # Safety
/// It is mapped, as its headers say, and stays so; `name` is a C string.
#[cfg(feature = "alone")]
pub(crate) unsafe fn add(base: usize, headers: usize, count: usize, name: *const u8) -> bool {
    let i = COUNT.load(Ordering::Relaxed);
    // SAFETY: by the caller; there is no other thread.
    let Some(slot) = (unsafe { &mut *OBJECTS.get() }).get_mut(i) else {
        return false;
    };
    *slot = Some(Object {
        base,
        name,
        headers: headers as *const Phdr,
        count,
        hash: core::ptr::null(),
        symbols: core::ptr::null(),
        strings: core::ptr::null(),
        versions: core::ptr::null(),
    });
    COUNT.store(i + 1, Ordering::Release);
    true
}

/// Looks at what is mapped. At start-up only. Nothing is found without libc: Go's linker
/// makes programs that have a loader and no libraries, so that what we want of libc is
/// wanted weakly.
pub(crate) fn survey() {
    if COUNT.load(Ordering::Acquire) > 0 {
        return;
    }
    let function: usize;
    // SAFETY: reads the address that the loader has found. `note` keeps the contract of
    // the callback.
    unsafe {
        asm!(".weak dl_iterate_phdr, environ, __errno_location",
            "mov {}, qword ptr [rip + dl_iterate_phdr@GOTPCREL]", out(reg) function,
            options(nostack, readonly, preserves_flags));
        if function != 0 {
            dl_iterate_phdr(note, null_mut());
        }
    }
}

/// What libc's `environ` points at, if there is libc, and it has set it. glibc hands the
/// environment to constructors, and has not set it yet when the first of them runs; musl has, and
/// hands over nothing.
#[cfg(not(feature = "alone"))]
pub(crate) fn environment() -> Option<*const *const u8> {
    let variable: *const *const *const u8;
    // SAFETY: reads the address that the loader has found.
    unsafe {
        asm!("mov {}, qword ptr [rip + environ@GOTPCREL]", out(reg) variable,
            options(nostack, readonly, preserves_flags));
        variable.as_ref().copied().filter(|at| !at.is_null())
    }
}

/// The loader's rendezvous with debuggers, as the program's `DT_DEBUG` names it; 0
/// without.
static DEBUG: AtomicUsize = AtomicUsize::new(0);

/// The address of the loader's `struct r_debug`.
pub(crate) fn rendezvous() -> usize {
    DEBUG.load(Ordering::Relaxed)
}

/// What [`visit`] looks for.
struct Visit<'a> {
    bases: &'a [usize],
    each: &'a mut dyn FnMut(&Object),
}

/// Calls `each` for the objects that are mapped at `bases`. Takes glibc's lock of
/// its list of objects, which whoever maps them takes as well.
pub(crate) fn visit(bases: &[usize], each: &mut dyn FnMut(&Object)) {
    let mut visit = Visit { bases, each };
    // SAFETY: `visited` keeps the contract of the callback.
    unsafe { dl_iterate_phdr(visited, (&raw mut visit).cast()) };
}

unsafe extern "C" fn visited(info: *const Info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader's description and our own data, valid during the call.
    let (info, visit) = unsafe { (&*info, &mut *data.cast::<Visit<'_>>()) };
    if visit.bases.contains(&info.base) {
        (visit.each)(&bare(info));
    }
    0
}

/// An object without its symbols.
fn bare(info: &Info) -> Object {
    Object {
        name: info.name.cast(),
        ..Object::without_symbols(info.headers, usize::from(info.count), info.base)
    }
}

/// An object that the kernel has mapped there, from its first byte on.
///
/// # Safety
/// There is one, and it stays.
pub(crate) unsafe fn mapped_at(at: usize) -> Object {
    // SAFETY: an ELF header (`e_phoff`, `e_phnum`).
    let (headers, count) = unsafe {
        let headers = at + *((at + 32) as *const usize);
        (headers, usize::from(*((at + 56) as *const u16)))
    };
    let object = Object::without_symbols(headers as *const Phdr, count, 0);
    let first = object.headers().iter().find(|h| h.kind == PT_LOAD);
    let base = at.wrapping_sub(first.map_or(0, |first| first.address));
    // SAFETY: mapped as it says.
    unsafe { Object { base, ..object }.with_symbols() }
}

impl Object {
    /// The same, with what its dynamic section tells of symbols.
    ///
    /// # Safety
    /// It is mapped as it says.
    unsafe fn with_symbols(self) -> Self {
        let mut object = self;
        let dynamic = object
            .headers()
            .iter()
            .find(|h| h.kind == PT_DYNAMIC)
            .map(|h| h.address);
        if let Some(dynamic) = dynamic {
            let mut entry = object.base.wrapping_add(dynamic) as *const [usize; 2];
            // SAFETY: by contract: it ends with an entry of kind 0.
            while let [tag, value] = unsafe { *entry }
                && tag != 0
            {
                // glibc relocates these in place, musl does not.
                let at = if value < object.base {
                    object.base.wrapping_add(value)
                } else {
                    value
                };
                match tag {
                    5 => object.strings = at as *const u8,
                    // The program's only; other objects have none.
                    21 if value != 0 => DEBUG.store(value, Ordering::Relaxed),
                    6 => object.symbols = at as *const Sym,
                    0x6fff_fef5 => object.hash = at as *const u32,
                    0x6fff_fff0 => object.versions = at as *const u16,
                    _ => {}
                }
                entry = entry.wrapping_add(1);
            }
        }
        object
    }
}

unsafe extern "C" fn note(info: *const Info, _: usize, _: *mut c_void) -> c_int {
    let i = COUNT.load(Ordering::Relaxed);
    // SAFETY: the loader's description, valid during the call; the array is
    // written by this thread only.
    unsafe {
        let object = bare(&*info).with_symbols();
        if object.contains(note as *const () as usize) {
            OURS.store(i, Ordering::Relaxed);
        }
        let objects = &mut *OBJECTS.get();
        if let Some(slot) = objects.get_mut(i) {
            *slot = Some(object);
            COUNT.store(i + 1, Ordering::Release);
        }
    }
    0
}

/// The objects found at start-up, in the order of symbol resolution.
pub(crate) fn objects() -> impl Iterator<Item = &'static Object> {
    // SAFETY: written at start-up only, complete up to COUNT.
    let objects = unsafe { &*OBJECTS.get() };
    objects.iter().take(COUNT.load(Ordering::Acquire)).flatten()
}

/// Our own object.
pub(crate) fn ours() -> Option<&'static Object> {
    objects().nth(OURS.load(Ordering::Relaxed))
}

/// The next definition of a symbol behind ours, as `dlsym(RTLD_NEXT)` finds it.
pub(crate) fn next_definition(name: &[u8]) -> Option<(usize, &'static Object)> {
    let ours = OURS.load(Ordering::Relaxed);
    objects()
        .skip(ours.wrapping_add(1))
        .find_map(|object| object.find(name).map(|at| (at, object)))
}

/// The first definition of a symbol, ours included.
pub(crate) fn first_definition(name: &[u8]) -> Option<usize> {
    objects().find_map(|object| object.find(name))
}

/// Whether the object is libc itself.
pub(crate) fn is_libc(object: &Object) -> bool {
    let file = object.file();
    file.starts_with(b"libc.so") || file.starts_with(b"ld-musl") || file.starts_with(b"libc-2.")
}
