//! The structures and constants of `fuse::abi` are those of the kernel's header.
//!
//! `layout.txt` is what a C program says that includes `include/uapi/linux/fuse.h` of protocol 7.45 (Linux 6.18). To make it
//! anew: `FUSE_HEADER=/path/to/fuse.h cargo test -p switchyard-fuse --test abi`, which then compares with that header and
//! writes the table beside it, as `fuse.h.layout.txt`.

use fuse::abi::{CONSTANTS, LAYOUTS, Layout, protocol};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const TABLE: &str = include_str!("layout.txt");

/// A line for each size, each offset and each constant, as the C program says them.
fn lines_of(layouts: &[Layout], constants: &[(&str, u64)]) -> Vec<String> {
    let mut lines = Vec::new();
    for layout in layouts {
        lines.push(format!("{} {}", layout.name, layout.bytes));
        let fields = layout.fields.iter();
        lines.extend(
            fields.map(|field| format!("{}.{} {} {}", layout.name, field.name, field.offset, field.bytes)),
        );
    }
    lines.extend(constants.iter().map(|(name, value)| format!("{name} {value}")));
    lines
}

#[test]
fn structures_and_constants_are_those_of_the_table() {
    let own = lines_of(LAYOUTS, CONSTANTS);
    let table: Vec<_> = TABLE.lines().map(str::to_string).collect();
    for line in &own {
        assert!(table.contains(line), "the kernel's header does not have: {line}");
    }
    assert_eq!(own.len(), table.len(), "the table has more than the crate");
    assert!(own.len() > 400, "all of them are compared");
}

/// A part of a C header's text: the body of a structure.
fn body<'h>(header: &'h str, name: &str) -> Option<&'h str> {
    let (_, rest) = header.split_once(&format!("struct {name} {{"))?;
    rest.split_once("\n};").map(|(body, _)| body)
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|found| found == word)
}

/// What the compiler says of a header: the lines of all that the header has, and the names that it lacks.
fn said_by(header: &Path) -> Option<(String, BTreeSet<String>)> {
    let text = std::fs::read_to_string(header).ok()?;
    let mut lacks = BTreeSet::new();
    let minor = format!(
        "#define FUSE_KERNEL_MINOR_VERSION {}",
        protocol::KERNEL_MINOR_VERSION
    );
    let is_same = text.contains(&minor);
    let mut program = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"{}\"\nint main(void) {{\n",
        header.display()
    );
    let mut say = |line: String| writeln!(program, "{line}").expect("memory");
    for layout in LAYOUTS {
        let name = layout.name;
        let Some(body) = body(&text, name) else {
            lacks.insert(name.to_string());
            continue;
        };
        say(format!("printf(\"{name} %zu\\n\", sizeof(struct {name}) );"));
        for field in layout.fields {
            let field = field.name;
            // What is not used yet shrinks from version to version.
            let is_spare = ["unused", "padding", "spare"].contains(&field);
            if !has_word(body, field) || is_spare && !is_same {
                lacks.insert(format!("{name}.{field}"));
                continue;
            }
            say(format!(
                "printf(\"{name}.{field} %zu %zu\\n\", offsetof(struct {name}, {field}), sizeof(((struct {name} *)0)->{field}));"
            ));
        }
    }
    for (constant, _) in CONSTANTS {
        if !has_word(&text, constant) || *constant == "FUSE_KERNEL_MINOR_VERSION" && !is_same {
            lacks.insert(constant.to_string());
            continue;
        }
        say(format!(
            "printf(\"{constant} %llu\\n\", (unsigned long long)({constant}));"
        ));
    }
    say("return 0; }".into());
    let dir = tempfile::tempdir().expect("a directory");
    let (source, binary) = (dir.path().join("says.c"), dir.path().join("says"));
    std::fs::write(&source, program).expect("a file");
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&binary).output();
    let Ok(compiled) = compiled else {
        eprintln!("skipped: there is no C compiler");
        return None;
    };
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let output = Command::new(binary).output().expect("it was just made");
    Some((
        String::from_utf8(output.stdout).expect("it says plain text"),
        lacks,
    ))
}

#[test]
fn structures_and_constants_are_those_of_the_machines_header() {
    let asked = std::env::var_os("FUSE_HEADER").map(PathBuf::from);
    let header = asked
        .clone()
        .unwrap_or_else(|| "/usr/include/linux/fuse.h".into());
    let Some((said, lacks)) = said_by(&header) else {
        return eprintln!("skipped: {} cannot be read", header.display());
    };
    let own = lines_of(LAYOUTS, CONSTANTS);
    for line in said.lines() {
        assert!(
            own.contains(&line.to_string()),
            "{} says: {line}",
            header.display()
        );
    }
    let name = |line: &String| line.split(' ').next().unwrap_or_default().to_string();
    let is_lacking = |line: &&String| {
        let name = name(line);
        let structure = name.split('.').next().unwrap_or_default();
        lacks.contains(&name) || lacks.contains(structure)
    };
    let (left, compared): (Vec<_>, Vec<_>) = own.iter().partition(is_lacking);
    assert_eq!(
        compared.len(),
        said.lines().count(),
        "all that the header has was compared"
    );
    assert!(compared.len() > 300, "even the oldest header has most");
    if !lacks.is_empty() {
        let lacks: Vec<_> = lacks.into_iter().collect();
        eprintln!(
            "not compared with {}, which is older ({} lines): {}",
            header.display(),
            left.len(),
            lacks.join(" ")
        );
    }
    if asked.is_some() {
        std::fs::write(header.with_extension("h.layout.txt"), said).expect("a place beside the header");
    }
}
