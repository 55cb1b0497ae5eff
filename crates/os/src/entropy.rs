//! Seeds from the operating system: session numbers and the hosts' generators must differ after each start.

use std::io;

/// 64 bits from the kernel's generator. Waits at most until the machine has gathered its first entropy after boot.
///
/// # Panics
/// If the kernel has no `getrandom` (before Linux 3.17).
pub fn seed() -> u64 {
    let mut bytes = [0u8; 8];
    loop {
        // SAFETY: the kernel writes at most `bytes.len()` bytes into `bytes`.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if got == bytes.len() as isize {
            return u64::from_ne_bytes(bytes);
        }
        let error = io::Error::last_os_error();
        assert!(
            got < 0 && error.kind() == io::ErrorKind::Interrupted,
            "8 bytes are never short, and only a signal interrupts: {error}"
        );
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_seeds_differ() {
        assert_ne!(super::seed(), super::seed());
    }
}
