//! Which programs are served.

use libc::{c_int, c_void, dl_phdr_info, rlimit};
use std::{fs, mem, slice};

/// Capabilities of capabilities(7) that decide about files: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID. The library takes it that
/// root has them, and nobody else any.
const CAPABILITIES: u64 = 0b1_1111;
/// The name of its notes in a program of Go.
const GO: &[u8] = b"Go\0\0";

/// The umask, if the library decides for this process as the kernel does: its capabilities are root's or nobody's, and its files may have any
/// size.
pub(crate) fn umask() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim())
    };
    let capabilities = u64::from_str_radix(value("CapEff:")?, 16).ok()? & CAPABILITIES;
    // SAFETY: no memory is involved.
    let is_root = unsafe { libc::geteuid() } == 0;
    let has = if is_root { CAPABILITIES } else { 0 };
    // SAFETY: zeros are a valid `rlimit`, which the call fills.
    let limit = unsafe {
        let mut limit: rlimit = mem::zeroed();
        libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit);
        limit.rlim_cur
    };
    let is_usual = capabilities == has && limit == libc::RLIM_INFINITY;
    u32::from_str_radix(value("Umask:")?, 8).ok().filter(|_| is_usual)
}

/// True for a program of Go. Its runtime makes all its system calls itself, on stacks that have no room for a handler of signals.
pub(crate) fn is_go() -> bool {
    let mut is_go = false;
    // SAFETY: the place is there during the call.
    unsafe { libc::dl_iterate_phdr(Some(look_at_program), (&raw mut is_go).cast()) };
    is_go
}

/// The first object is the program.
unsafe extern "C" fn look_at_program(program: *mut dl_phdr_info, _bytes: usize, is_go: *mut c_void) -> c_int {
    // SAFETY: the loader's list, and what the caller has given.
    unsafe {
        let program = &*program;
        let parts = slice::from_raw_parts(program.dlpi_phdr, usize::from(program.dlpi_phnum));
        *is_go.cast::<bool>() = parts
            .iter()
            .filter(|part| part.p_type == libc::PT_NOTE)
            .any(|part| {
                let notes = (program.dlpi_addr + part.p_vaddr) as *const u8;
                has_note_of_go(slice::from_raw_parts(notes, part.p_memsz as usize))
            });
    }
    1
}

/// Notes have the lengths of their name and content, a type, the name and the content (elf(5)).
fn has_note_of_go(mut notes: &[u8]) -> bool {
    let word = |at: &[u8]| at.first_chunk().map(|word| u32::from_ne_bytes(*word) as usize);
    while let (Some(name), Some(content)) = (word(notes), notes.get(4..).and_then(word)) {
        if notes.get(12..).is_some_and(|rest| rest.starts_with(GO)) {
            return true;
        }
        let bytes = 12 + name.next_multiple_of(4) + content.next_multiple_of(4);
        notes = notes.get(bytes..).unwrap_or_default();
    }
    false
}
