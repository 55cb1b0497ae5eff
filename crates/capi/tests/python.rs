//! The Python package, installed beside the library and as a wheel, and used by programs of their own.

mod common;

use common::{Installed, here, libraries, succeeds};
use std::path::PathBuf;
use std::process::Command;

#[test]
fn a_python_program_makes_every_call() {
    Installed::new().python("tests/python/calls.py", &["area"]);
}

#[test]
fn values_of_other_types_are_refused() {
    Installed::new().python("tests/python/values.py", &["area"]);
}

#[test]
fn tasks_have_a_thousand_changes_in_flight() {
    Installed::new().python("tests/python/tasks.py", &["area"]);
}

#[test]
fn forked_python_processes_are_refused() {
    Installed::new().python("tests/python/fork.py", &["area", "child"]);
}

#[test]
fn what_tasks_were_told_is_there_after_a_kill() {
    Installed::new().python("tests/python/kill.py", &["area"]);
}

/// A virtual environment with the wheel, built without the network; its Python.
fn environment(installed: &Installed) -> PathBuf {
    let wheels = installed.path("wheels");
    let name = succeeds(
        Command::new("python3")
            .arg("-B")
            .arg(here("python/backend.py"))
            .arg(&wheels)
            .env(
                "SWITCHYARD_STORE_LIBRARY",
                libraries().join("libswitchyard_store.so"),
            ),
    );
    let environment = installed.path("environment");
    succeeds(Command::new("python3").args(["-m", "venv"]).arg(&environment));
    let python = environment.join("bin/python3");
    succeeds(
        Command::new(&python)
            .args(["-m", "pip", "install", "--no-index", "--quiet"])
            .arg(wheels.join(name.trim())),
    );
    python
}

fn has_venv() -> bool {
    let probe = Command::new("python3")
        .args(["-c", "import ensurepip, venv"])
        .output();
    let has_venv = probe.is_ok_and(|output| output.status.success());
    if !has_venv {
        eprintln!("skipped: this Python has no venv");
    }
    has_venv
}

#[test]
fn a_wheel_has_all_that_it_needs() {
    if !has_venv() {
        return;
    }
    let installed = Installed::new();
    let python = environment(&installed);
    let run = |program: &str| {
        succeeds(
            Command::new(&python)
                .args(["-B", "-I"])
                .arg(here(program))
                .arg(installed.path("wheel-area"))
                .env_remove("SWITCHYARD_STORE"),
        )
    };
    run("tests/python/calls.py");
    let where_from = "import switchyard_store, switchyard_store._library as it; print(switchyard_store.__file__, it._library._name)";
    let said = succeeds(Command::new(&python).args(["-I", "-c", where_from]));
    let parts: Vec<_> = said.split_whitespace().collect();
    let inside = |path: &str| path.starts_with(installed.path("environment").to_str().expect("plain names"));
    assert!(
        parts.len() == 2 && parts.iter().all(|path| inside(path)),
        "{said}"
    );
    let listed = succeeds(Command::new(&python).args(["-m", "pip", "show", "--files", "switchyard-store"]));
    assert!(
        listed.contains("py.typed") && listed.contains("libswitchyard_store.so.0"),
        "{listed}"
    );
}

/// Needs the network, or mypy: without both it is skipped.
#[test]
fn mypy_finds_nothing_in_the_package() {
    if !has_venv() {
        return;
    }
    let installed = Installed::new();
    let python = environment(&installed);
    let fetched = Command::new(&python)
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "mypy<3",
        ])
        .output();
    if !fetched.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: pip cannot install mypy");
        return;
    }
    let mypy = |what: PathBuf| {
        succeeds(
            Command::new(&python)
                .args(["-m", "mypy", "--strict", "--warn-unused-ignores", "--cache-dir"])
                .arg(installed.path("mypy-cache"))
                .arg(what)
                .current_dir(installed.directory.path()),
        )
    };
    mypy(here("python/switchyard_store"));
    mypy(here("tests/python/typed.py"));
}

/// bug: without the library the import ended with what the loader says, and not with what to do.
#[test]
fn a_missing_library_is_told_with_the_remedy() {
    let installed = Installed::new();
    let output = Command::new("python3")
        .args(["-B", "-c", "import switchyard_store"])
        .env("PYTHONPATH", installed.path("packages"))
        .env("SWITCHYARD_STORE", "/nosuch.so")
        .output()
        .expect("python3 starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("ImportError: /nosuch.so"), "{told}");
    assert!(told.contains("name its file in SWITCHYARD_STORE"), "{told}");
}
