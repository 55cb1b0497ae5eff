//! Names the library for the dynamic linker: programs ask for `libswitchyard_store.so.0`, the ABI of today.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libswitchyard_store.so.0");
    // Threads of areas run its code: dlclose(3) must not take the code away.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
