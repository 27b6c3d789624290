//! What is mapped in a process: objects, room for more, and bytes that nobody uses.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use object::Endianness;
use object::elf::{FileHeader64, PF_X, PT_INTERP, PT_LOAD, ProgramFlags, ProgramHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

const PAGE: u64 = 4096;

/// One line of `/proc/PID/maps`.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) at: Range<u64>,
    pub(crate) executable: bool,
    pub(crate) writable: bool,
    offset: u64,
    /// Device and inode; the kernel's own mappings have none.
    file: String,
    pub(crate) path: String,
}

impl Mapping {
    /// A line as the kernel writes it.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (from, to) = words.next()?.split_once('-')?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let rights = words.next()?;
        let offset = number(words.next()?)?;
        let device = words.next()?;
        let inode = words.next()?;
        Some(Self {
            at: number(from)?..number(to)?,
            executable: rights.contains('x'),
            writable: rights.contains('w'),
            offset,
            file: format!("{device} {inode}"),
            path: words.next().unwrap_or_default().trim_start().to_owned(),
        })
    }

    /// The name of its file, without the folder.
    pub(crate) fn name(&self) -> &str {
        let path = self.path.strip_suffix(" (deleted)").unwrap_or(&self.path);
        path.rsplit('/').next().unwrap_or_default()
    }
}

/// All mappings of a process, in ascending order.
pub(crate) fn of(pid: i32) -> std::io::Result<Vec<Mapping>> {
    let text = std::fs::read(format!("/proc/{pid}/maps"))?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().filter_map(Mapping::parse).collect())
}

/// An ELF file as it is mapped.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) name: String,
    /// What is added to the addresses in the file.
    pub(crate) base: u64,
    /// Where its program headers are, and how many.
    pub(crate) headers: u64,
    pub(crate) count: u64,
    /// Whether it names a loader.
    pub(crate) has_loader: bool,
    /// Where its code is, as its headers say.
    pub(crate) code: Vec<Range<u64>>,
}

/// The objects whose code is mapped, in ascending order.
pub(crate) fn objects(maps: &[Mapping], memory: &File) -> Vec<Object> {
    let first = maps
        .iter()
        .filter(|map| map.offset == 0 && (!map.file.ends_with(" 0") || map.path == "[vdso]"));
    let found = first.filter_map(|map| object(map, memory));
    found
        .filter(|object| {
            let mapped = |code: &Range<u64>| {
                maps.iter()
                    .any(|map| map.executable && map.at.contains(&code.start))
            };
            object.code.iter().any(mapped)
        })
        .collect()
}

fn object(map: &Mapping, memory: &File) -> Option<Object> {
    let mut bytes = vec![0; usize::try_from((map.at.end - map.at.start).min(PAGE)).ok()?];
    memory.read_exact_at(&mut bytes, map.at.start).ok()?;
    let header = FileHeader64::<Endianness>::parse(&*bytes).ok()?;
    let endian = header.endian().ok()?;
    let headers: &[ProgramHeader64<Endianness>] = header.program_headers(endian, &*bytes).ok()?;
    let loads = || headers.iter().filter(|h| h.p_type(endian) == PT_LOAD);
    let lowest = loads().map(|h| h.p_vaddr(endian)).min()? & !(PAGE - 1);
    let base = map.at.start.wrapping_sub(lowest);
    let code = loads()
        .filter(|h| h.p_flags(endian) & PF_X != ProgramFlags(0))
        .map(|h| {
            let from = base.wrapping_add(h.p_vaddr(endian));
            from..from.wrapping_add(h.p_filesz(endian))
        });
    Some(Object {
        name: map.name().to_owned(),
        base,
        headers: map.at.start.wrapping_add(header.e_phoff.get(endian)),
        count: headers.len() as u64,
        has_loader: headers.iter().any(|h| h.p_type(endian) == PT_INTERP),
        code: code.collect(),
    })
}

/// Bytes behind the code of objects that are executable and belong to nobody, as many as
/// `len` each: the rests of last pages.
pub(crate) fn idle_code(
    maps: &[Mapping],
    objects: &[Object],
    len: u64,
) -> impl Iterator<Item = u64> {
    let ends = objects.iter().flat_map(|object| &object.code);
    ends.filter_map(move |code| {
        let at = (code.end + 15) & !15;
        let end = code.end.next_multiple_of(PAGE);
        let inside = |map: &&Mapping| {
            map.executable && !map.writable && map.at.contains(&at) && map.at.contains(&(end - 1))
        };
        (at + len <= end && maps.iter().any(|map| inside(&map))).then_some(at)
    })
}

/// The lowest address that anybody may map (`vm.mmap_min_addr` is below).
const LOWEST: u64 = 0x4_0000;

/// What stays free beside a place that is taken: a heap or a stack may grow there, and
/// entries of moved sites come there.
const BESIDE: u64 = 0x8_0000;

/// How far from code jumps certainly reach.
const REACH: u64 = 0x6000_0000;

/// A free place of that length from which jumps reach all of `code`, the nearest one.
pub(crate) fn place(maps: &[Mapping], code: &Range<u64>, len: u64) -> Option<u64> {
    let lowest = code.end.saturating_sub(REACH).max(LOWEST);
    let highest = code.start.saturating_add(REACH);
    let mut from = LOWEST;
    let mut best: Option<u64> = None;
    let ends = maps.iter().map(|map| (map.at.start, map.at.end));
    for (start, end) in ends.chain([(0x7fff_ffff_f000, u64::MAX)]) {
        let gap = (from + BESIDE).max(lowest)..start.saturating_sub(BESIDE).min(highest);
        from = end;
        if gap.end.saturating_sub(gap.start) < len {
            continue;
        }
        // At the end of the gap that is nearer to the code.
        let at = if gap.end <= code.start {
            gap.end - len
        } else {
            gap.start
        } & !(PAGE - 1);
        let distance = |at: u64| at.abs_diff(code.start);
        if at >= gap.start && best.is_none_or(|best| distance(at) < distance(best)) {
            best = Some(at);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(at: Range<u64>) -> Mapping {
        Mapping {
            at,
            executable: true,
            writable: false,
            offset: 0,
            file: "08:01 1".to_owned(),
            path: String::new(),
        }
    }

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let line = "7f5f5c000000-7f5f5c021000 r-xp 00001000 fe:00 123   /a b/libc.so.6 (deleted)";
        let map = Mapping::parse(line).expect("a line");
        assert_eq!(map.at, 0x7f5f_5c00_0000..0x7f5f_5c02_1000);
        assert!(map.executable && !map.writable);
        assert_eq!((map.offset, map.name()), (0x1000, "libc.so.6"));
        assert!(Mapping::parse("nothing").is_none());
    }

    #[test]
    fn a_place_is_free_near_and_not_beside_others() {
        let code = 0x7000_0000_0000..0x7000_0010_0000;
        let maps = [
            mapping(0x6fff_ff00_0000..0x6fff_fff0_0000),
            mapping(code.clone()),
            mapping(0x7000_0100_0000..0x7000_0200_0000),
        ];
        let at = place(&maps, &code, 0x2_0000).expect("room");
        assert_eq!(at, 0x7000_0010_0000 + BESIDE);
        // What does not fit between goes beside all of them, where that is nearer.
        let at = place(&maps, &code, 0x200_0000).expect("room");
        assert_eq!(at, 0x7000_0200_0000 + BESIDE);
    }

    #[test]
    fn out_of_reach_is_no_place() {
        let code = 0x7000_0000_0000..0x7000_0010_0000;
        let all = [mapping(0x6fff_0000_0000..0x7000_f000_0000)];
        assert_eq!(place(&all, &code, PAGE), None);
    }

    #[test]
    fn this_process_has_objects_and_idle_code() {
        let maps = of(i32::try_from(std::process::id()).expect("a pid")).expect("maps");
        let memory = File::open("/proc/self/mem").expect("memory");
        let objects = objects(&maps, &memory);
        assert!(objects.iter().any(|o| o.name.starts_with("libc.so")));
        assert!(objects.iter().any(|o| o.has_loader));
        assert!(idle_code(&maps, &objects, 256).next().is_some());
    }
}
