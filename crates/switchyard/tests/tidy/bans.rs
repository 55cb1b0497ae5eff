//! Paths that code may not name, or only in some files: what is impure, and what there is one of.

use std::collections::BTreeSet;

use crate::crates::pure;
use crate::names::paths;
use crate::{product, report};

/// A rule: paths that the product may not name.
struct Ban {
    rule: &'static str,
    /// Beginnings of paths; a single name stands for itself in any path.
    names: &'static [&'static str],
    /// Where the rule holds; empty: in each pure crate.
    within: &'static [&'static str],
    /// Files that may. The list may only shrink.
    except: &'static [&'static str],
}

const BANS: &[Ban] = &[
    Ban {
        rule: "policy has no clock, socket, file or process",
        names: &["std::time", "std::net", "std::fs", "std::process", "std::env"],
        within: &[],
        except: &[],
    },
    Ban {
        rule: "policy has no threads",
        names: &["std::thread", "clippy::disallowed_methods"],
        within: &[],
        except: &["crates/sim/src/threads.rs"],
    },
    Ban {
        rule: "policy does not depend on hash order",
        names: &["HashMap", "HashSet", "clippy::disallowed_types"],
        within: &[],
        except: &["crates/base/src/map.rs"],
    },
    Ban {
        rule: "one file drives io_uring",
        names: &["io_uring"],
        within: &["crates/"],
        except: &[
            "crates/area/src/awake.rs",
            "crates/os/src/ring.rs",
            "crates/os/src/streams.rs",
            "crates/runtime/src/queue.rs",
        ],
    },
    Ban {
        rule: "the simulator drives the hosts that ship: it decides nothing a second time",
        names: &[
            "blockswitch::Balancer",
            "blockswitch::Charge",
            "blockswitch::Classifier",
            "blockswitch::Egress",
            "blockswitch::Loads",
            "blockswitch::Steering",
            "rack::exchange::Exchange",
            "rack::exchange::Next",
            "rack::lead::Next",
            "rack::lead::Watch",
        ],
        within: &["crates/sim/src/"],
        except: &[],
    },
];

#[test]
fn code_names_what_it_may() {
    let pure: Vec<_> = pure().iter().map(|name| format!("crates/{name}/src/")).collect();
    let mut problems = Vec::new();
    let mut excused = BTreeSet::new();
    for (path, text) in product() {
        let named = paths(&text);
        for ban in BANS {
            let holds = |within: &str| path.starts_with(within);
            let holds = match ban.within {
                [] => pure.iter().any(|within| holds(within)),
                within => within.iter().any(|within| holds(within)),
            };
            let found = named
                .iter()
                .find(|name| ban.names.iter().any(|banned| is_of(name, banned)));
            let Some(found) = found.filter(|_| holds) else {
                continue;
            };
            if ban.except.contains(&path.as_str()) {
                excused.insert((ban.rule, path.clone()));
            } else {
                problems.push(format!("{path} names {found}: {}", ban.rule));
            }
        }
    }
    for ban in BANS {
        let needless = ban
            .except
            .iter()
            .filter(|path| !excused.contains(&(ban.rule, path.to_string())));
        problems.extend(needless.map(|path| format!("{path} is no exception any more: {}", ban.rule)));
    }
    report("code names what it may", &problems);
}

/// Whether a path is the banned one or leads through it.
fn is_of(path: &str, banned: &str) -> bool {
    if banned.contains("::") || banned == "io_uring" {
        let rest = path.strip_prefix(banned);
        return rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    }
    path.split("::").any(|name| name == banned)
}

#[test]
fn paths_are_found_however_they_are_written() {
    let named = |text, banned| paths(text).iter().any(|path| is_of(path, banned));
    for text in [
        "use std::{\n    thread::{self, sleep},\n    net,\n};",
        "fn f() { std::thread::sleep(x) }",
        "use std as s; fn f() { assert!(s::thread::sleep(x)) }",
        "use std::thread as own; mod m { fn f() { own::sleep(x) } }",
        "fn f() { use ::std::thread::*; }",
    ] {
        assert!(named(text, "std::thread"), "{text}");
    }
    assert!(named(
        "#![allow(clippy::disallowed_types, reason = \"x\")]",
        "clippy::disallowed_types"
    ));
    assert!(named(
        "use std::collections as c; type M = c::HashMap<u8, u8>;",
        "HashMap"
    ));
    assert!(!named(
        "// std::thread\n/// std::thread\nfn f() { g(\"std::thread\") }",
        "std::thread"
    ));
    assert!(!named(
        "#[cfg(test)]\nmod tests { use std::thread; }",
        "std::thread"
    ));
    assert!(!named(
        "use own::std; fn f() { std::thread::sleep(x) }",
        "std::thread"
    ));
}
