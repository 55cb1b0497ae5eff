//! The C header and the Python module, used by programs of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that cargo built for this test lies beside it.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("it runs");
    test.parent().expect("a file is in a directory").to_path_buf()
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn succeeds(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

#[test]
fn a_c_program_uses_an_area() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("clients");
    succeeds(
        Command::new("cc")
            .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
            .arg(here("include"))
            .arg(here("tests/clients.c"))
            .arg("-L")
            .arg(libraries())
            .args(["-lswitchyard_store", "-o"])
            .arg(&program),
    );
    succeeds(
        Command::new(&program)
            .arg(directory.path().join("it.area"))
            .env("LD_LIBRARY_PATH", libraries()),
    );
}

#[test]
fn a_python_program_uses_an_area() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    succeeds(
        Command::new("python3")
            .arg("-B")
            .arg(here("tests/clients.py"))
            .arg(directory.path().join("it.area"))
            .env("PYTHONPATH", here("python"))
            .env("SWITCHYARD_STORE", libraries().join("libswitchyard_store.so")),
    );
}
