//! The crates: what ARCHITECTURE says of them is what their manifests say.
//!
//! Its diagram is the law: a crate may depend on those from which lines lead to it, from left to right. There is no other
//! list of the arrows. A crate is pure if its manifest says so (`package.metadata.pure`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::{report, root, sources};

/// What pure crates may take from others: these have no clock, thread, socket or file.
const PURE_FOREIGN: &[&str] = &[
    "bytes",
    "crc32c",
    "hdrhistogram",
    "serde",
    "serde_json",
    "smallvec",
    "thiserror",
    "toml",
    "twox-hash",
    "uuid",
];

#[test]
fn crates_depend_on_what_the_diagram_shows() {
    let architecture = architecture();
    let arrows = arrows(diagram(&architecture));
    let mut problems = Vec::new();
    for (name, manifest) in manifests() {
        let Some(shown) = arrows.get(&name) else {
            problems.push(format!("{name} is not in the diagram"));
            continue;
        };
        let used = dependencies(&manifest, Section::All);
        let own = used.iter().filter(|used| arrows.contains_key(*used));
        let hidden = own.filter(|used| !shown.contains(*used));
        problems
            .extend(hidden.map(|used| format!("{name} must not depend on {used}: no line leads from it")));
        if !architecture.contains(&format!("\n| `{name}` | ")) {
            problems.push(format!("{name} has no line in the table of crates"));
        }
    }
    report("crates depend on what ARCHITECTURE's diagram shows", &problems);
}

#[test]
fn pure_crates_depend_on_pure_crates() {
    let architecture = architecture();
    let diagram = diagram(&architecture);
    let worlds = diagram.lines().next().and_then(|tiers| tiers.find("worlds"));
    let worlds = worlds.expect("the diagram has its tiers above it");
    let places = places(diagram);
    let pure = pure();
    let mut problems = Vec::new();
    for (name, manifest) in manifests() {
        let is_policy = places.get(&name).is_some_and(|(_, column)| *column < worlds);
        if is_policy && !pure.contains(&name) {
            problems.push(format!(
                "{name} has its place among the pure crates, and its manifest does not say so"
            ));
        }
        if !pure.contains(&name) {
            continue;
        }
        let allowed = |used: &String| pure.contains(used) || PURE_FOREIGN.contains(&used.as_str());
        let used = dependencies(&manifest, Section::Product);
        problems.extend(
            used.into_iter()
                .filter(|used| !allowed(used))
                .map(|used| format!("{name} is pure and depends on {used}")),
        );
        let library = fs::read_to_string(root().join(format!("crates/{name}/src/lib.rs")));
        if !library.is_ok_and(|text| text.contains("#![forbid(unsafe_code)]")) {
            problems.push(format!("{name} is pure and does not forbid unsafe code"));
        }
    }
    report("pure crates depend on pure crates", &problems);
}

/// The crates whose manifest says that they are pure.
pub fn pure() -> BTreeSet<String> {
    let manifests = manifests().into_iter();
    let pure = manifests.filter(|(_, text)| text.contains("\n[package.metadata]\npure = true\n"));
    pure.map(|(name, _)| name).collect()
}

/// Each crate's manifest by the name of its directory.
fn manifests() -> BTreeMap<String, String> {
    let crate_of = |path: &str| {
        let name = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
        Some(name.to_string())
    };
    let files = sources().into_iter();
    files
        .filter_map(|(path, text)| Some((crate_of(&path)?, text)))
        .collect()
}

fn architecture() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the overview exists")
}

/// The first block of code in the section of the crates.
fn diagram(architecture: &str) -> &str {
    let section = architecture.split("\n## Crates\n").nth(1);
    let block = section.and_then(|section| section.split("```").nth(1));
    block
        .expect("the section of the crates begins with its diagram")
        .trim_start_matches('\n')
}

#[derive(PartialEq)]
enum Section {
    /// Tests and build scripts, too.
    All,
    Product,
}

/// Everything that a manifest depends on, the project's own without their prefix.
fn dependencies(manifest: &str, of: Section) -> Vec<String> {
    let is_name = |c: &char| c.is_alphanumeric() || *c == '-' || *c == '_';
    let own = |name: &str| name.trim_start_matches("switchyard-").to_string();
    let mut inside = false;
    let mut names = Vec::new();
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            let counts = of == Section::All || !section.contains("dev-");
            inside = counts && section.ends_with("dependencies");
            let named = section.rsplit_once("dependencies.").filter(|_| counts);
            names.extend(named.map(|(_, name)| own(name)));
        } else if inside && line.starts_with(|c: char| c.is_alphabetic()) {
            names.push(own(&line.chars().take_while(is_name).collect::<String>()));
        }
    }
    names
}

/// A place in a drawing: its line and its column.
type Place = (usize, usize);

/// Where each crate's name begins. Remarks in brackets are no names, nor are the tiers in the first line.
fn places(diagram: &str) -> BTreeMap<String, Place> {
    let mut places = BTreeMap::new();
    for (row, line) in diagram.lines().enumerate().skip(1) {
        let mut name = String::new();
        let mut remarks = 0;
        for (column, c) in line.chars().chain([' ']).enumerate() {
            remarks += i32::from(c == '(');
            if c.is_ascii_alphanumeric() && remarks == 0 {
                name.push(c);
            } else if !name.is_empty() {
                let at = (row, column - name.len());
                let twice = places.insert(std::mem::take(&mut name), at);
                assert!(twice.is_none(), "the diagram has each crate once: {line}");
            }
            remarks -= i32::from(c == ')');
        }
    }
    places
}

/// For each crate in the diagram those from which lines lead to it.
fn arrows(diagram: &str) -> BTreeMap<String, BTreeSet<String>> {
    let grid: Vec<Vec<char>> = diagram.lines().map(|line| line.chars().collect()).collect();
    let places = places(diagram);
    let starts: BTreeMap<Place, &String> = places.iter().map(|(name, at)| (*at, name)).collect();
    let empty = || (BTreeSet::new(), BTreeSet::new());
    let mut arrows: BTreeMap<String, BTreeSet<String>> =
        places.keys().map(|name| (name.clone(), empty().1)).collect();
    for (name, (row, column)) in &places {
        let (mut seen, mut reached): (BTreeSet<Place>, BTreeSet<String>) = empty();
        let mut ahead = vec![(*row, column + name.len() + 1)];
        while let Some((row, column)) = ahead.pop() {
            let Some(sides) = grid
                .get(row)
                .and_then(|line| line.get(column))
                .and_then(|c| sides(*c))
            else {
                continue;
            };
            if !seen.insert((row, column)) {
                continue;
            }
            let [left, right, up, down] = sides;
            ahead.extend(left.then(|| (row, column - 1)));
            ahead.extend(up.then(|| (row - 1, column)));
            ahead.extend(down.then(|| (row + 1, column)));
            if right {
                ahead.push((row, column + 1));
                // A blank is between a line and the name to which it leads. Lines go on behind the name.
                if let Some(next) = starts.get(&(row, column + 2)) {
                    reached.insert(next.to_string());
                    ahead.push((row, column + 2 + next.len() + 1));
                }
            }
        }
        for next in reached {
            arrows
                .get_mut(&next)
                .expect("it has its place")
                .insert(name.clone());
        }
    }
    arrows
}

/// To which sides a sign of a drawing leads: left, right, up, down. `▲` is a line that leads upwards only.
fn sides(sign: char) -> Option<[bool; 4]> {
    let sides = match sign {
        '─' => "lr",
        '│' => "ud",
        '┌' => "rd",
        '┐' => "ld",
        '└' => "ru",
        '┘' => "lu",
        '├' => "rud",
        '┤' => "lud",
        '┬' => "lrd",
        '┴' => "lru",
        '┼' => "lrud",
        '▲' => "u",
        _ => return None,
    };
    Some(['l', 'r', 'u', 'd'].map(|side| sides.contains(side)))
}

#[test]
fn a_diagram_is_read_as_it_is_drawn() {
    let drawn = "\
 pure                  worlds
 a ─┬─ b ── c ─┐
    ├─ d ──────┼─ e ─┬─ f (not g) ─┐
    └─ h                ├─ i ──────▲
                        k ─────────┼─ j
";
    let expected = [
        ("a", ""),
        ("b", "a"),
        ("c", "ab"),
        ("d", "a"),
        ("e", "abcd"),
        ("f", "abcde"),
        ("h", "a"),
        ("i", ""),
        ("j", "k"),
        ("k", ""),
    ];
    let text = |used: &BTreeSet<String>| used.iter().map(String::as_str).collect::<String>();
    let found: Vec<_> = arrows(drawn)
        .iter()
        .map(|(name, used)| (name.clone(), text(used)))
        .collect();
    assert_eq!(
        found,
        expected.map(|(name, used)| (name.to_string(), used.to_string()))
    );
    assert_eq!(places(drawn)["e"], (2, 18));
    assert_eq!(diagram(&format!("x\n## Crates\n\n```\n{drawn}```\n")), drawn);
}

#[test]
fn dependencies_are_read_from_every_section() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\nbase.workspace = true\n# no\nserde = \"1\"\n\
                    [dev-dependencies]\nswitchyard-sim = { path = \"\" }\n[build-dependencies.runtime]\npath = \"\"\n";
    assert_eq!(
        dependencies(manifest, Section::All),
        ["base", "serde", "sim", "runtime"]
    );
    assert_eq!(
        dependencies(manifest, Section::Product),
        ["base", "serde", "runtime"]
    );
}
