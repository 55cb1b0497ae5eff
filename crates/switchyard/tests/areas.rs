//! What `run`, `export` and `store` say to people who hold them wrong: by their exit code, and in words that tell what to do.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A program with a library beside it that nobody loads, in a directory of this name.
fn installed(directory: &TempDir, name: &str) -> PathBuf {
    let place = directory.path().join(name);
    fs::create_dir(&place).expect("a new directory");
    let program = place.join("switchyard");
    let built = env!("CARGO_BIN_EXE_switchyard");
    fs::hard_link(built, &program)
        .or_else(|_| fs::copy(built, &program).map(drop))
        .expect("room for the program");
    File::create(place.join("libswitchyard_preload.so")).expect("room for a file");
    program
}

fn says(program: &Path, directory: &TempDir, words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(program)
        .args(words)
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    (
        output.status.code(),
        String::from_utf8(output.stderr).expect("text"),
    )
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// bug: below a directory with a blank `run` followed nothing, and said that no file had a fitting name. cause: the loader takes LD_PRELOAD
/// apart at blanks and colons. fix: `run` refuses.
#[test]
fn a_library_that_the_loader_cannot_find_is_refused() {
    let directory = directory();
    for name in ["two words", "a:b"] {
        let program = installed(&directory, name);
        let (code, text) = says(&program, &directory, &["run", "--nvm", "--", "true"]);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("move `switchyard`"), "{text}");
    }
}

/// bug: `--match ./a.log` followed nothing, and a server ran without ever saying so. cause: the paths that patterns are compared with have no
/// part `.`. fix: a pattern that no path matches is refused.
#[test]
fn a_pattern_that_matches_no_path_is_refused() {
    let directory = directory();
    let program = installed(&directory, "bin");
    for pattern in ["./a.log", "logs/./*", "/srv/./a.log"] {
        let words = ["run", "--nvm", "--match", pattern, "--", "true"];
        let (code, text) = says(&program, &directory, &words);
        assert_eq!(code, Some(2), "{pattern}: {text}");
        assert!(text.contains("without `.`"), "{text}");
    }
}

/// bug: `run` said that a file system has no room for an area, and not what to do.
#[test]
fn an_area_without_room_is_told_with_the_remedy() {
    let directory = directory();
    let program = installed(&directory, "bin");
    let words = ["run", "--area", "a.area", "--size", "4096TiB", "--", "true"];
    let (code, text) = says(&program, &directory, &words);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("has no room") && text.contains("smaller --size"),
        "{text}"
    );
}

/// bug: `export AREA DIR` beside an idle program made no copy, printed nothing, and succeeded.
#[test]
fn an_export_without_copies_says_so() {
    let directory = directory();
    let program = installed(&directory, "bin");
    empty_file(&directory, "a.area", 8 << 20);
    assert_eq!(
        says(&program, &directory, &["store", "format", "a.area"]).0,
        Some(0)
    );
    let (code, text) = says(&program, &directory, &["export", "a.area", "copies"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("no copies: a.area has nothing of any file"),
        "{text}"
    );
}

fn empty_file(directory: &TempDir, name: &str, bytes: u64) {
    let file = File::create(directory.path().join(name)).expect("room for a file");
    file.set_len(bytes).expect("room for holes");
}

/// bug: `store format --size 20MiB` made an area of 10 MiB of a file of 10 MiB, and succeeded.
#[test]
fn an_area_larger_than_its_file_is_refused() {
    let directory = directory();
    let program = installed(&directory, "bin");
    empty_file(&directory, "a.area", 10 << 20);
    let (code, text) = says(
        &program,
        &directory,
        &["store", "format", "a.area", "--size", "20MiB"],
    );
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("a.area has 10 MiB, and not 20 MiB"), "{text}");
    assert_eq!(
        says(&program, &directory, &["store", "verify", "a.area"]).0,
        Some(2),
        "it is no area yet"
    );
}

/// bug: `store grow` did not say of which file it spoke.
#[test]
fn a_file_that_is_no_area_is_named() {
    let directory = directory();
    let program = installed(&directory, "bin");
    fs::write(directory.path().join("text"), "a text, and no area").expect("room");
    let (code, text) = says(&program, &directory, &["store", "grow", "text"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.starts_with("switchyard: text: "), "{text}");
}
