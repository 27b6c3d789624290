//! The program headers of an object file (System V ABI, chapter 5).

/// `Elf64_Phdr`.
#[repr(C)]
pub(crate) struct Phdr {
    pub(crate) kind: u32,
    pub(crate) flags: u32,
    pub(crate) offset: u64,
    pub(crate) address: usize,
    _physical: u64,
    pub(crate) file_len: u64,
    pub(crate) len: usize,
    _align: u64,
}

pub(crate) const PT_LOAD: u32 = 1;
pub(crate) const PT_DYNAMIC: u32 = 2;
