//! Commands that concern the connection, and no key.

use crate::command::{self, ALL, Command, Known, Way};
use crate::execute::{Failed, shown};
use crate::info::About;
use crate::number;
use crate::parse::Words;
use crate::pattern;
use crate::reply::{self, Protocol};
use crate::session::Session;

/// Settings that CONFIG GET tells.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// Of the process.
    pub about: &'a About,
    /// Memory of all shards.
    pub memory_max: u64,
    /// Bytes of a value.
    pub value_bytes_max: usize,
}

/// Carries one out, and appends its reply. `words` has no name.
pub fn run(
    command: Command,
    words: Words<'_>,
    session: &mut Session,
    settings: Settings<'_>,
    out: &mut Vec<u8>,
) {
    if let Err(Failed(text)) = carry_out(command, words, session, settings, out) {
        reply::error(out, text.as_bytes());
    }
}

fn carry_out(
    command: Command,
    words: Words<'_>,
    session: &mut Session,
    settings: Settings<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Failed> {
    match command {
        Command::Ping if words.count() > 1 => return Err(wrong_count("ping")),
        Command::Ping if words.count() == 1 => reply::bulk(out, words.word(0)),
        Command::Ping => reply::status(out, "PONG"),
        Command::Echo => reply::bulk(out, words.word(0)),
        Command::Select => match number::parse(words.word(0)) {
            Some(0) => out.extend_from_slice(reply::OK),
            Some(_) => return Err("ERR DB index is out of range".into()),
            None => return Err("ERR value is not an integer or out of range".into()),
        },
        Command::Quit => {
            session.is_closing = true;
            out.extend_from_slice(reply::OK);
        }
        Command::Hello => hello(words, session, out)?,
        Command::Client => client(words, session, out)?,
        Command::Config => config(words, session, settings, out)?,
        Command::Command => commands(words, session.protocol, out)?,
        other => unreachable!("{other:?} goes to a shard"),
    }
    Ok(())
}

/// The error of a command with too few or too many words.
pub fn wrong_count(name: &str) -> Failed {
    Failed(format!("ERR wrong number of arguments for '{name}' command").into())
}

fn unknown_part(words: Words<'_>, of: &str) -> Failed {
    let word = shown(words.word(0), 128);
    Failed(format!("ERR unknown subcommand '{word}'. Try {of} HELP.").into())
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

fn hello(words: Words<'_>, session: &mut Session, out: &mut Vec<u8>) -> Result<(), Failed> {
    let mut protocol = session.protocol;
    let mut name = None;
    if words.count() > 0 {
        let version = number::parse(words.word(0));
        protocol = match version.ok_or("ERR Protocol version is not an integer or out of range")? {
            2 => Protocol::Two,
            3 => Protocol::Three,
            _ => return Err("NOPROTO unsupported protocol version".into()),
        };
        let mut rest = words.from(1);
        while let Some(word) = rest.next() {
            if is(word, "auth") && rest.len() >= 2 {
                // As with Redis without a password, any is right for the user `default`.
                let is_default = rest.next() == Some(b"default");
                rest.next();
                if !is_default {
                    return Err("WRONGPASS invalid username-password pair or user is disabled.".into());
                }
            } else if is(word, "setname") && rest.len() >= 1 {
                name = rest.next();
            } else {
                let word = shown(word, usize::MAX);
                return Err(Failed(
                    format!("ERR Syntax error in HELLO option '{word}'").into(),
                ));
            }
        }
    }
    if let Some(name) = name {
        set_name(name, session)?;
    }
    session.protocol = protocol;
    reply::map(out, 7, protocol);
    for (key, value) in [("server", "redis"), ("version", "7.0.0")] {
        reply::bulk(out, key.as_bytes());
        reply::bulk(out, value.as_bytes());
    }
    reply::bulk(out, b"proto");
    reply::integer(out, if protocol == Protocol::Three { 3 } else { 2 });
    reply::bulk(out, b"id");
    reply::integer(out, session.id as i64);
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        reply::bulk(out, key.as_bytes());
        reply::bulk(out, value.as_bytes());
    }
    reply::bulk(out, b"modules");
    reply::array(out, 0);
    Ok(())
}

fn set_name(name: &[u8], session: &mut Session) -> Result<(), Failed> {
    if !name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Err("ERR Client names cannot contain spaces, newlines or special characters.".into());
    }
    session.name = name.to_vec();
    Ok(())
}

fn client(words: Words<'_>, session: &mut Session, out: &mut Vec<u8>) -> Result<(), Failed> {
    let part = words.word(0);
    let count = |wanted: usize, name: &str| match words.count() == wanted {
        true => Ok(()),
        false => Err(wrong_count(name)),
    };
    if is(part, "setname") {
        count(2, "client|setname")?;
        set_name(words.word(1), session)?;
        out.extend_from_slice(reply::OK);
    } else if is(part, "getname") {
        count(1, "client|getname")?;
        match session.name.is_empty() {
            true => reply::null(out, session.protocol),
            false => reply::bulk(out, &session.name),
        }
    } else if is(part, "id") {
        count(1, "client|id")?;
        reply::integer(out, session.id as i64);
    } else if is(part, "setinfo") {
        count(3, "client|setinfo")?;
        out.extend_from_slice(reply::OK);
    } else {
        return Err(unknown_part(words, "CLIENT"));
    }
    Ok(())
}

fn config(
    words: Words<'_>,
    session: &Session,
    settings: Settings<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Failed> {
    if !is(words.word(0), "get") {
        return Err(unknown_part(words, "CONFIG"));
    }
    if words.count() < 2 {
        return Err(wrong_count("config|get"));
    }
    let durability = &settings.about.durability;
    let keeps = durability != "none";
    let all = [
        (
            "appendfsync",
            if keeps { durability.clone() } else { "no".into() },
        ),
        ("appendonly", if keeps { "yes" } else { "no" }.into()),
        ("databases", "1".into()),
        ("maxmemory", settings.memory_max.to_string()),
        ("maxmemory-policy", "allkeys-lru".into()),
        ("proto-max-bulk-len", settings.value_bytes_max.to_string()),
        ("save", String::new()),
    ];
    let is_asked = |name: &str| {
        let mut patterns = words.from(1);
        patterns.any(|pattern| pattern::matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
    };
    let asked: Vec<_> = all.iter().filter(|(name, _)| is_asked(name)).collect();
    reply::map(out, asked.len(), session.protocol);
    for (name, value) in asked {
        reply::bulk(out, name.as_bytes());
        reply::bulk(out, value.as_bytes());
    }
    Ok(())
}

fn commands(words: Words<'_>, protocol: Protocol, out: &mut Vec<u8>) -> Result<(), Failed> {
    if words.count() == 0 {
        reply::array(out, ALL.len());
        ALL.iter().for_each(|known| describe(known, out));
    } else if is(words.word(0), "count") {
        reply::integer(out, ALL.len() as i64);
    } else if is(words.word(0), "docs") {
        reply::map(out, 0, protocol);
    } else if is(words.word(0), "info") {
        reply::array(out, words.count() - 1);
        for name in words.from(1) {
            match command::find(name) {
                Some(known) => describe(known, out),
                None => reply::null(out, protocol),
            }
        }
    } else {
        return Err(unknown_part(words, "COMMAND"));
    }
    Ok(())
}

fn describe(known: &Known, out: &mut Vec<u8>) {
    let (first, last, step) = match known.way {
        Way::Key => (1, 1, 1),
        Way::Keys => (1, -1, 1),
        Way::Pairs => (1, -1, 2),
        Way::Here | Way::Cursor | Way::All => (0, 0, 0),
    };
    reply::array(out, 6);
    reply::bulk(out, known.name.as_bytes());
    reply::integer(out, i64::from(known.arity));
    reply::array(out, 1);
    reply::status(out, if known.writes { "write" } else { "readonly" });
    [first, last, step]
        .iter()
        .for_each(|place| reply::integer(out, *place));
}
