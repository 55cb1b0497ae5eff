//! The C header and the Python package, installed, and used by programs of their own.

mod common;

use common::{Installed, here, libraries, succeeds};
use std::collections::BTreeSet;
use std::process::Command;

const C: &[&str] = &["-std=c11", "-D_GNU_SOURCE"];
const CXX: &[&str] = &["-x", "c++", "-std=c++11"];
const SANITIZED: &[&str] = &[
    "-std=c11",
    "-D_GNU_SOURCE",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
];

#[test]
fn a_c_program_makes_every_call() {
    let installed = Installed::new();
    installed.run(&installed.compile("cc", C, "tests/c/calls.c"), &["area"]);
}

#[test]
fn a_cxx_program_makes_every_call() {
    let installed = Installed::new();
    installed.run(&installed.compile("c++", CXX, "tests/c/calls.c"), &["area"]);
}

#[test]
fn sanitizers_find_nothing_in_c_programs() {
    let installed = Installed::new();
    let probe = installed.path("probe.c");
    std::fs::write(&probe, "int main(void) { return 0; }").expect("a file");
    let supported = Command::new("cc")
        .args(SANITIZED)
        .arg(&probe)
        .arg("-o")
        .arg(installed.path("probe"))
        .output()
        .is_ok_and(|output| output.status.success());
    if !supported {
        eprintln!("skipped: this compiler has no sanitizers");
        return;
    }
    let sources = ["calls", "threads", "failure", "chaos"];
    for source in sources.map(|name| format!("tests/c/{name}.c")) {
        installed.run(&installed.compile("cc", SANITIZED, &source), &["area"]);
    }
}

#[test]
fn threads_close_each_others_handles() {
    let installed = Installed::new();
    installed.run(&installed.compile("cc", C, "tests/c/chaos.c"), &["area"]);
}

#[test]
fn threads_and_a_thousand_changes_in_flight() {
    let installed = Installed::new();
    installed.run(&installed.compile("cc", C, "tests/c/threads.c"), &["area"]);
}

#[test]
fn a_forked_child_is_refused_and_its_parent_whole() {
    let installed = Installed::new();
    let program = installed.compile("cc", C, "tests/c/fork.c");
    installed.run(&program, &["area", "child"]);
}

#[test]
fn what_was_durable_is_there_after_a_kill() {
    let installed = Installed::new();
    installed.run(&installed.compile("cc", C, "tests/c/kill.c"), &["area"]);
}

#[test]
fn a_failed_write_is_told_to_all_who_wait() {
    let installed = Installed::new();
    installed.run(&installed.compile("cc", C, "tests/c/failure.c"), &["area"]);
}

/// Names of the header, and of the library's dynamic symbols.
#[test]
fn the_library_exports_what_the_header_declares() {
    let header = std::fs::read_to_string(here("include/switchyard_store.h")).expect("the header");
    let calls = header.lines().filter(|line| line.starts_with("SWY_API "));
    let name = |line: &str| {
        let end = line.find('(')?;
        let start = line[..end].rfind([' ', '*'])? + 1;
        Some(line[start..end].to_owned())
    };
    let declared: BTreeSet<String> = calls.filter_map(name).collect();
    let symbols = succeeds(
        Command::new("nm")
            .args(["-D", "--defined-only", "--format=just-symbols"])
            .arg(libraries().join("libswitchyard_store.so")),
    );
    let exported: BTreeSet<String> = symbols.lines().map(str::to_owned).collect();
    assert_eq!(declared, exported);
    assert!(declared.len() > 60);
}

#[test]
fn a_program_asks_for_the_soname() {
    let installed = Installed::new();
    let program = installed.compile("cc", C, "tests/c/calls.c");
    let asked = succeeds(Command::new("readelf").arg("-d").arg(program));
    assert!(asked.contains("[libswitchyard_store.so.0]"), "{asked}");
}

#[test]
fn a_program_links_the_archive() {
    let installed = Installed::new();
    let program = installed.path("static");
    succeeds(
        Command::new("cc")
            .args(C)
            .arg("-I")
            .arg(here("include"))
            .arg(here("tests/c/calls.c"))
            .arg(installed.path("prefix/lib/libswitchyard_store.a"))
            .args(["-lpthread", "-ldl", "-lm", "-o"])
            .arg(&program),
    );
    installed.run(&program, &["area"]);
}

/// bug: `cc -static` did not link with what pkg-config says. cause: libgcc_s was named, which is a shared library only. The compiler names
/// by itself what it needs of libgcc.
#[test]
fn a_program_is_linked_statically_as_pkg_config_says() {
    let installed = Installed::new();
    let program = installed.path("whole");
    let flags = succeeds(
        Command::new("pkg-config")
            .args(["--cflags", "--static", "--libs", "switchyard_store"])
            .env("PKG_CONFIG_PATH", installed.path("prefix/lib/pkgconfig")),
    );
    succeeds(
        Command::new("cc")
            .args(C)
            .arg("-static")
            .arg(here("tests/c/calls.c"))
            .args(flags.split_whitespace())
            .arg("-o")
            .arg(&program),
    );
    installed.run(&program, &["area"]);
}

/// The examples of docs/bindings.md, with what they print.
#[test]
fn examples_run() {
    let installed = Installed::new();
    let jobs = "job 0: resize cat.png\njob 1: resize dog.png\n";
    let range = "05-31T08:00 visitor\n05-31T17:30 visitor\nlast: 05-31T17:30\n";
    let completions = "100 appends are durable\n";
    for (name, said) in [("jobs", jobs), ("range", range), ("completions", completions)] {
        let program = installed.compile("cc", C, &format!("examples/{name}.c"));
        assert_eq!(installed.run(&program, &["area"]), said);
    }
    let jobs = "0 resize cat.png\n1 resize dog.png\n{b'resize cat.png': b'done', b'resize dog.png': b'done'}\n\
                05-31T08:00 ben\n05-31T17:30 eve\n";
    assert_eq!(installed.python("examples/jobs.py", &["area"]), jobs);
    assert_eq!(installed.python("examples/tasks.py", &["area"]), "100 100 100\n");
    let examples = std::fs::read_dir(here("examples")).expect("the examples");
    assert_eq!(examples.count(), 5, "each example is run above");
}
