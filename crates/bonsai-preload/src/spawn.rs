//! `posix_spawn`, `system`, `popen`: libc makes the new process and runs the program in it. For the first, the
//! environment is set right beforehand.

use crate::environment::{Strings, with_environment};
use crate::exec::functions::deciding;
use crate::exec::path;
use crate::state::PATCHED;
use crate::uncovered::{note_child, refuses_child};
use crate::{elf, slow, sys};
use bonsai_calls as calls;
use core::sync::atomic::Ordering;

/// # Safety
/// As `posix_spawn(3)`.
pub(crate) unsafe extern "C" fn bonsai_own_posix_spawn(
    pid: *mut u32,
    path: usize,
    actions: usize,
    attributes: usize,
    argv: usize,
    env: usize,
) -> isize {
    let a = [path, actions, attributes, argv];
    // SAFETY: by the caller.
    unsafe { spawn(b"posix_spawn", pid, a, env as Strings, true) }
}

/// # Safety
/// As `posix_spawnp(3)`.
pub(crate) unsafe extern "C" fn bonsai_own_posix_spawnp(
    pid: *mut u32,
    file: usize,
    actions: usize,
    attributes: usize,
    argv: usize,
    env: usize,
) -> isize {
    let a = [file, actions, attributes, argv];
    // SAFETY: by the caller.
    unsafe { spawn(b"posix_spawnp", pid, a, env as Strings, false) }
}

/// # Safety
/// As `system(3)`.
pub(crate) unsafe extern "C" fn bonsai_own_system(command: usize) -> isize {
    if command != 0 {
        starts();
    }
    let Some((at, _)) = elf::next_definition(b"system") else {
        return -1;
    };
    // SAFETY: libc's function with the program's argument.
    unsafe { core::mem::transmute::<usize, unsafe extern "C" fn(usize) -> i32>(at)(command) as isize }
}

/// # Safety
/// As `popen(3)`.
pub(crate) unsafe extern "C" fn bonsai_own_popen(command: usize, kind: usize) -> usize {
    starts();
    let Some((at, _)) = elf::next_definition(b"popen") else {
        return 0;
    };
    // SAFETY: libc's function with the program's arguments.
    unsafe { core::mem::transmute::<usize, unsafe extern "C" fn(usize, usize) -> usize>(at)(command, kind) }
}

/// Charges a process start that libc makes internally, on a separate stack, where system calls are not patched.
fn starts() {
    deciding(&mut |segment, own| slow::control(segment, own, calls::VFORK));
}

/// # Safety
/// As the function of that name.
unsafe fn spawn(name: &[u8], pid: *mut u32, a: [usize; 4], env: Strings, is_path: bool) -> isize {
    type Function = unsafe extern "C" fn(*mut u32, usize, usize, usize, usize, Strings) -> i32;
    const ENOSYS: isize = 38;
    let Some((at, _)) = elf::next_definition(name) else {
        return ENOSYS;
    };
    let unseen = !PATCHED.load(Ordering::Relaxed);
    let mut is_refused = false;
    if unseen {
        see(a[0], is_path, &mut |path| is_refused = refuses_child(path));
    }
    if is_refused {
        return -sys::EPERM;
    }
    starts();
    let mut ours = 0;
    let child = if pid.is_null() { &raw mut ours } else { pid };
    // SAFETY: libc's function with the program's arguments.
    let result = unsafe {
        let function = core::mem::transmute::<usize, Function>(at);
        with_environment(env, &mut |environment| {
            function(child, a[0], a[1], a[2], a[3], environment) as isize
        })
    };
    // Patched, the child has named itself.
    if result == 0 && unseen {
        // SAFETY: written by posix_spawn.
        let child = unsafe { *child };
        see(a[0], is_path, &mut |path| note_child(child, path));
    }
    result
}

/// Calls `then` with the file that libc runs: the one given, or the one that it finds along `PATH`.
fn see(file: usize, is_path: bool, then: &mut dyn FnMut(*const u8)) {
    let file = file as *const u8;
    if is_path {
        then(file);
    } else {
        // SAFETY: the program's own string.
        unsafe { path::found(file, then) };
    }
}
