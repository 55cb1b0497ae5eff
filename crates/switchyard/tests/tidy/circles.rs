//! Files of a crate that use each other in a circle, beyond a list that may only shrink.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::names::{Uses, uses};
use crate::{product, report, root};

/// Where the circles are that there still are.
const LIST: &str = "tests/tidy-circles.txt";

#[test]
fn files_of_a_crate_use_each_other_in_no_circle() {
    let texts: BTreeMap<_, _> = product().into_iter().collect();
    let read = |path: &str| texts.get(path).cloned();
    let listed = listed();
    let mut seen = vec![BTreeSet::new(); listed.len()];
    let mut problems = Vec::new();
    let roots = texts
        .keys()
        .filter(|path| path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs"));
    for crate_root in roots {
        let of = crate_root.split('/').nth(1).expect("product code is in crates");
        let uses = uses(crate_root, &read);
        for circle in circles(&uses) {
            let entry = listed.iter().position(|listed| circle.is_subset(listed));
            match entry {
                Some(entry) => seen[entry].extend(circle),
                None => problems.push(explain(of, &circle, &uses, &listed)),
            }
        }
    }
    for (listed, seen) in listed.iter().zip(&seen) {
        problems.extend(
            listed
                .difference(seen)
                .map(|file| format!("{file} is in no circle any more: take it out of {LIST}")),
        );
    }
    report(
        "files of a crate use each other in no circle; move what both need into a file below",
        &problems,
    );
}

/// The circles of the list, each as the paths of its files.
fn listed() -> Vec<BTreeSet<String>> {
    let text = fs::read_to_string(root().join(LIST)).expect("the list exists");
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let circle = |line: &str| {
        let (circle, reason) = line.split_once(" | ").expect("a line is a circle and its reason");
        assert!(reason.len() > 10, "a circle has a reason: {line}");
        let (of, files) = circle
            .split_once(": ")
            .expect("a circle is a crate and its files");
        files
            .split(' ')
            .map(|file| format!("crates/{of}/src/{file}"))
            .collect()
    };
    lines.map(circle).collect()
}

/// The circle as the list would have it, and the uses that make it larger than any circle of the list.
fn explain(of: &str, circle: &BTreeSet<String>, uses: &Uses, listed: &[BTreeSet<String>]) -> String {
    let short = |file: &String| file.rsplit_once("src/").expect("a file of a crate").1.to_string();
    let files: Vec<_> = circle.iter().map(short).collect();
    let mut text = format!("{of}: {}", files.join(" "));
    for file in circle {
        for (other, name) in uses[file].iter().filter(|(other, _)| circle.contains(*other)) {
            if listed
                .iter()
                .any(|listed| listed.contains(file) && listed.contains(other))
            {
                continue;
            }
            text.push_str(&format!(
                "\n      {} uses {} for {name}",
                short(file),
                short(other)
            ));
        }
    }
    text
}

/// The largest sets of files of which each uses each, by way of others of the set.
fn circles(uses: &Uses) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<_, _> = uses.keys().map(|file| (file, reach(file, uses))).collect();
    let mut circles = Vec::new();
    for (file, others) in &reached {
        let back = |other: &&&String| {
            reached
                .get(**other)
                .is_some_and(|of_other| of_other.contains(*file))
        };
        let circle: BTreeSet<_> = others.iter().filter(back).map(|other| (*other).clone()).collect();
        if !circle.is_empty() && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

/// Files that a file uses, itself or by way of others.
fn reach<'u>(file: &String, uses: &'u Uses) -> BTreeSet<&'u String> {
    let mut reached = BTreeSet::new();
    let mut ahead: Vec<_> = uses[file].keys().collect();
    while let Some(next) = ahead.pop() {
        if reached.insert(next) {
            ahead.extend(uses.get(next).into_iter().flat_map(|uses| uses.keys()));
        }
    }
    reached
}

/// The circles of a crate that is made of these files, as names without `.rs`.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let read = |path: &str| {
        let file = files.iter().find(|(name, _)| *name == path);
        file.map(|(_, text)| text.to_string())
    };
    let name = |circle: &BTreeSet<String>| {
        let names: Vec<_> = circle.iter().map(|file| file.trim_end_matches(".rs")).collect();
        names.join(" ")
    };
    circles(&uses("lib.rs", &read)).iter().map(name).collect()
}

#[test]
fn a_circle_is_found_whichever_way_it_is_named() {
    let lib = ("lib.rs", "mod a; mod b; mod c;");
    let c = ("c.rs", "pub fn end() {}");
    let b = ("b.rs", "use crate::a::A; pub struct B(A);");
    for a in [
        "use crate::b::B; pub struct A;",
        "use super::{b::{self as other, B as Same}, c}; pub struct A;",
        "use crate::b; pub struct A; fn f() -> b::B { c() }",
        "pub struct A; fn f(b: &crate::b::B) {}",
        "pub struct A; fn f() { assert!(matches!(1, super::b::B(_))); }",
        "pub struct A; impl A { fn f(&self) { use crate::b::*; let _: B; } }",
    ] {
        assert_eq!(circles_of(&[lib, ("a.rs", a), b, c]), ["a b"], "{a}");
    }
}

#[test]
fn a_circle_is_found_through_re_exports_parents_and_methods() {
    let facade = [
        ("lib.rs", "mod a; mod d; pub use d::*;"),
        ("a.rs", "use crate::Inner as I; pub struct A(I);"),
        ("d/mod.rs", "mod e; pub(crate) use self::e::Inner;"),
        ("d/e.rs", "pub struct Inner; fn f() -> crate::a::A { x() }"),
    ];
    assert_eq!(circles_of(&facade), ["a d/e"]);
    let parent = [
        ("lib.rs", "mod d;"),
        ("d/mod.rs", "mod e; pub struct D; fn f() { e::g(1) }"),
        ("d/e.rs", "use super::*; pub fn g(d: D) {}"),
    ];
    assert_eq!(circles_of(&parent), ["d/e d/mod"]);
    let method = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "pub struct A; impl A { fn f(&self) { self.g() } }"),
        ("b.rs", "use crate::a::A; impl A { pub fn g(&self) {} }"),
    ];
    assert_eq!(circles_of(&method), ["a b"]);
    let three = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "use crate::c::C; pub struct B;"),
        ("c.rs", "use crate::a::A; pub struct C;"),
    ];
    assert_eq!(circles_of(&three), ["a b c"]);
}

#[test]
fn no_circle_is_invented() {
    let none: [&[(&str, &str)]; 6] = [
        // A parent that only shows what its children have.
        &[
            ("lib.rs", "mod d;"),
            ("d/mod.rs", "mod e; pub use e::E; pub struct D;"),
            ("d/e.rs", "use super::D; pub struct E(D);"),
        ],
        // Tests may look back.
        &[
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "pub struct A; #[cfg(test)] mod tests { use crate::b::B; } #[cfg(test)] use crate::b;",
            ),
            ("b.rs", "use crate::a::A; pub struct B(A); #[test] fn f() {}"),
        ],
        // Another crate, and a variable, of the same name.
        &[
            ("lib.rs", "mod store; mod b; fn run() { b::x() }"),
            (
                "store.rs",
                "use store::Area; use std::run; fn f(run: u8) { g(run); v.run() }",
            ),
            (
                "b.rs",
                "pub fn x() {} fn f(store: u8) { assert!(a.run(), 1..run, store) }",
            ),
        ],
        // What was moved down is shown where it was.
        &[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "pub use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; impl B { fn a(&self) { self.a() } }"),
        ],
        // A function that is called like a module.
        &[
            ("lib.rs", "mod d;"),
            ("d/mod.rs", "mod e; pub mod page; fn page() { e::f() }"),
            (
                "d/e.rs",
                "use super::page::escape; pub fn f() { super::page::escape() }",
            ),
            ("d/page.rs", "pub fn escape() {}"),
        ],
        // Imports that lead to each other.
        &[
            ("lib.rs", "mod a; mod b; pub use a::*;"),
            ("a.rs", "pub use crate::b::*; fn f() -> Unknown { x() }"),
            ("b.rs", "pub use crate::a::*; fn f() -> Unknown { x() }"),
        ],
    ];
    for files in none {
        assert_eq!(circles_of(files), Vec::<String>::new(), "{files:?}");
    }
}
