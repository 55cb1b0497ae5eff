//! What commands print, and commands whose output cannot be written. Bug: `println!` panics then; cause: the standard library
//! ignores SIGPIPE and unwraps; fix: the macros of `out`.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::fs::File;
use std::process::{Command, Output, Stdio};

fn switchyard(words: &[&str], stdout: impl Into<Stdio>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_switchyard"))
        .args(words)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::piped())
        .output()
        .expect("it starts")
}

/// Commands that print: a table, JSON, and a result after some work.
const PRINTING: [&[&str]; 3] = [
    &["sim", "list"],
    &["sim", "list", "--json"],
    &["sim", "swarm", "--seed", "1"],
];

#[test]
fn a_reader_who_has_left_ends_a_command_quietly() {
    for words in PRINTING {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = switchyard(words, writer);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*text), (Some(0), ""), "{words:?}");
    }
}

#[test]
fn a_full_disk_is_told_once_and_in_the_exit_code() {
    for words in PRINTING {
        let full = File::options()
            .write(true)
            .open("/dev/full")
            .expect("Linux has it");
        let output = switchyard(words, full);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {text}");
        assert_eq!(
            text,
            "switchyard: cannot write standard output: No space left on device (os error 28)\n"
        );
    }
}

fn printed(words: &[&str]) -> String {
    let output = switchyard(words, Stdio::piped());
    assert_eq!(output.status.code(), Some(0), "{words:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn serve_and_the_simulator_print_the_same_configuration() {
    let serve = printed(&["serve", "--show-config"]);
    let simulated = printed(&["sim", "run", "switch-fig13"]);
    let header = format!("configuration that ships:\n{serve}\n");
    assert!(simulated.starts_with(&header), "{serve}\n{simulated}");
    assert!(simulated.contains("\nswitchyard: as it ships\n"), "{simulated}");

    let json = |text: &str| -> serde_json::Value { serde_json::from_str(text).expect("JSON") };
    let serve = json(&printed(&["serve", "--show-config", "--json"]));
    let simulated = json(&printed(&["sim", "run", "switch-fig13", "--json"]));
    assert_eq!(simulated["configurations"]["switchyard"], serve);

    let other = printed(&["serve", "--show-config", "--slice", "64KiB"]);
    assert!(other.contains("slice_bytes                 64 KiB\n"), "{other}");
}

#[test]
fn standard_error_that_cannot_be_written_ends_nothing() {
    let full = File::options()
        .write(true)
        .open("/dev/full")
        .expect("Linux has it");
    let status = Command::new(env!("CARGO_BIN_EXE_switchyard"))
        .args(["sim", "run", "none"])
        .stderr(full)
        .status()
        .expect("it starts");
    assert_eq!(status.code(), Some(2));
}
