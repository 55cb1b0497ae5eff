//! The house rules that a program can check: crate arrows, purity, circles, sizes, leftovers, links.

#[path = "tidy/bans.rs"]
mod bans;
#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/crates.rs"]
mod crates;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/shares.rs"]
mod shares;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a file, tests aside.
const FILE_LINES_MAX: usize = 1000;
/// Lines of a function, tests aside.
const FUNCTION_LINES_MAX: usize = 70;
/// Words of the pages that each newcomer reads. What is longer has a page under `docs`.
const WORDS_MAX: [(&str, usize); 2] = [("README.md", 1200), ("ARCHITECTURE.md", 1500)];
/// Where the exceptions are.
const RATCHET: &str = "tests/tidy-ratchet.txt";

/// Directories that are not the project's: made by tools, or running racks.
const SKIPPED: &[&str] = &["target", ".git", "rack-data", "__pycache__"];

fn root() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = crate_dir.ancestors().nth(2);
    root.expect("the crate is two below the root").to_path_buf()
}

/// Every text file of the project with its path from the root.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    walk(&root(), &root(), &mut found);
    found.sort();
    assert!(found.len() > 50, "the walk finds the project");
    found
}

fn walk(root: &Path, dir: &Path, found: &mut Vec<(String, String)>) {
    let known = ["rs", "toml", "md", "sh", "py", "txt", "yml", "yaml", "service"];
    for entry in fs::read_dir(dir).expect("the project can be read") {
        let path = entry.expect("the project can be read").path();
        let text_of =
            |part: Option<&std::ffi::OsStr>| part.and_then(|part| part.to_str()).unwrap_or("").to_string();
        let (name, extension) = (text_of(path.file_name()), text_of(path.extension()));
        if path.is_dir() {
            // What builds make is never among sources.
            let is_source = dir.ends_with("src");
            if is_source || !SKIPPED.contains(&name.as_str()) {
                walk(root, &path, found);
            }
            continue;
        }
        let relative = path.strip_prefix(root).expect("below the root");
        let relative = relative.to_str().expect("plain names").to_string();
        if known.contains(&extension.as_str()) || name == "Makefile" || relative == ".ci/run" {
            found.push((relative, fs::read_to_string(&path).expect("text is UTF-8")));
        }
    }
}

/// Rust sources of the crates, tests aside: path and text up to the module of tests.
fn product() -> Vec<(String, String)> {
    let mut files = sources();
    files.retain(|(path, _)| {
        let test = path.contains("/tests/") || path.ends_with("tests.rs");
        path.starts_with("crates/") && path.ends_with(".rs") && !test
    });
    for (_, text) in &mut files {
        if let Some(at) = text.find("\n#[cfg(test)]\nmod tests {") {
            text.truncate(at + 1);
        }
    }
    files
}

fn report(rule: &str, problems: &[String]) {
    assert!(problems.is_empty(), "{rule}:\n  {}", problems.join("\n  "));
}

#[test]
fn files_and_functions_stay_small() {
    let ratchet = ratchet();
    let mut problems = Vec::new();
    let mut needed = BTreeSet::new();
    for (path, text) in product() {
        let mut sizes = vec![(path.clone(), text.lines().count(), FILE_LINES_MAX)];
        for (name, lines) in function_lines(&text) {
            sizes.push((format!("{path}::{name}"), lines, FUNCTION_LINES_MAX));
        }
        for (what, lines, limit) in sizes.into_iter().filter(|(_, lines, limit)| lines > limit) {
            let allowed = ratchet.get(&what).copied().unwrap_or(limit);
            if lines > allowed {
                problems.push(format!(
                    "{what} has {lines} lines, {allowed} are allowed: split it"
                ));
            }
            needed.insert(what);
        }
    }
    for what in ratchet.keys().filter(|what| !needed.contains(*what)) {
        problems.push(format!(
            "{what} is within the limit or gone: take its line out of {RATCHET}"
        ));
    }
    report("files and functions stay small", &problems);
}

fn ratchet() -> BTreeMap<String, usize> {
    let text = fs::read_to_string(root().join(RATCHET)).expect("the ratchet exists");
    let entries = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parse = |line: &str| {
        let (what, lines) = line.rsplit_once(' ').expect("a line is a name and a number");
        (
            what.to_string(),
            lines.parse().expect("a line ends with a number"),
        )
    };
    entries.map(parse).collect()
}

/// Name and length of every function of a formatted file: from its first line to the brace at the same indentation.
fn function_lines(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<_> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else {
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = format!("{indent}}}");
        // A declaration without a body ends with a semicolon, on its own line or at its indentation.
        let declaration = format!("{indent})");
        let stops = |line: &&str| **line == end || (line.starts_with(&declaration) && line.ends_with(';'));
        if line.ends_with('}') || line.ends_with(';') {
            continue;
        }
        if let Some(length) = lines[start + 1..].iter().position(stops) {
            found.push((name.to_string(), length + 2));
        }
    }
    found
}

/// The name of the function that a line starts.
fn function_name(line: &str) -> Option<&str> {
    let modifiers = ["pub", "const", "async", "unsafe", "extern", "\"C\""];
    let mut words = line.trim_start().split(' ');
    let first = words.find(|word| !modifiers.contains(word) && !word.starts_with("pub("))?;
    let name = words.next().filter(|_| first == "fn")?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[test]
fn nothing_is_left_to_be_done_later() {
    let words = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let macros = [concat!("to", "do!("), concat!("unimple", "mented!(")];
    let mut problems = Vec::new();
    for (path, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            let mut parts = line.split(|c: char| !c.is_alphanumeric());
            if parts.any(|part| words.contains(&part)) || macros.iter().any(|call| line.contains(call)) {
                problems.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    report("what is to be done is an issue, not a comment", &problems);
}

#[test]
fn one_file_has_the_ring() {
    let others: Vec<String> = product()
        .into_iter()
        .filter(|(path, text)| path != "crates/os/src/ring.rs" && text.contains(concat!("Io", "Uring")))
        .map(|(path, _)| path)
        .collect();
    report("a ring of its own: use os::Ring", &others);
}

#[test]
fn no_line_ends_with_a_blank() {
    let mut problems = Vec::new();
    for (path, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            if line.ends_with([' ', '\t', '\r']) {
                problems.push(format!("{path}:{}", number + 1));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            problems.push(format!("{path}: the last line has no end"));
        }
    }
    report("no blank at the end of a line", &problems);
}

#[test]
fn every_format_is_in_the_index() {
    let index = fs::read_to_string(root().join("docs/format/README.md")).expect("the index exists");
    let mut problems = Vec::new();
    for (path, _) in sources() {
        let page = path
            .strip_prefix("docs/format/")
            .filter(|page| *page != "README.md");
        problems.extend(
            page.filter(|page| !index.contains(&format!("]({page})")))
                .map(str::to_string),
        );
    }
    report("every page of docs/format is in its README", &problems);
}

#[test]
fn first_pages_are_short() {
    let mut problems = Vec::new();
    for (page, limit) in WORDS_MAX {
        let text = fs::read_to_string(root().join(page)).expect("the page exists");
        let words = text.split_whitespace().count();
        if words > limit {
            problems.push(format!("{page} has {words} words, {limit} are allowed"));
        }
    }
    report("README and ARCHITECTURE are short", &problems);
}

#[test]
fn a_term_has_one_meaning_and_an_owner() {
    let glossary = fs::read_to_string(root().join("docs/glossary.md")).expect("the glossary exists");
    let rows = glossary.lines().filter(|line| line.starts_with("| ")).skip(2);
    let mut problems = Vec::new();
    let mut last = String::new();
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [term, meaning, owner] = cells[..] else {
            problems.push(format!("a row is a term, its meaning and its owner: {row}"));
            continue;
        };
        if term.to_lowercase() <= last {
            problems.push(format!("{term} is not in its place, or there twice"));
        }
        last = term.to_lowercase();
        let dir = root().join("crates").join(owner.trim_matches('`'));
        if meaning.is_empty() || !dir.is_dir() {
            problems.push(format!("{term} lacks a meaning or an owner"));
        }
    }
    assert!(!last.is_empty(), "the glossary has rows");
    report("a term has one meaning and an owner", &problems);
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut problems = Vec::new();
    for (path, text) in sources().into_iter().filter(|(path, _)| path.ends_with(".md")) {
        let dir = Path::new(&path).parent().expect("a file is in a directory");
        for link in links(&text) {
            let target = link.split('#').next().unwrap_or_default();
            let foreign = target.contains("://") || target.starts_with("mailto:") || target.is_empty();
            if !foreign && !root().join(dir).join(target).exists() {
                problems.push(format!("{path} links to {target}"));
            }
        }
    }
    report("links lead somewhere", &problems);
}

/// Targets of the inline links of a Markdown text, code aside.
fn links(text: &str) -> Vec<&str> {
    let mut fenced = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let prose = line.split('`').step_by(2);
            let parts = prose.flat_map(|part| part.split("](").skip(1));
            found.extend(parts.filter_map(|part| part.split(')').next()));
        }
    }
    found
}

#[test]
fn the_checks_see_what_they_are_to_see() {
    let text = "pub fn short() {\n    x();\n}\nimpl A {\n    pub(crate) const fn long(\n        a: u8,\n    ) -> u8 {\n        \
                a\n    }\n    fn one() {}\n    fn none(\n        a: u8,\n    );\n}\n";
    let expected = [("short", 3), ("long", 5), ("none", 3)];
    let expected = expected.map(|(name, lines)| (name.to_string(), lines));
    assert_eq!(function_lines(text), expected);
    let markdown = "see [a](b.md#c) and [`d`](e.md)\n```\n[no](no)\n```\n";
    assert_eq!(links(markdown), ["b.md#c", "e.md"]);
}
