//! The commands: their names, how many words they take, and which shard carries them out.

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "Redis' names")]
pub enum Command {
    Append,
    Client,
    Command,
    Config,
    DbSize,
    Decr,
    DecrBy,
    Del,
    Echo,
    Exists,
    Expire,
    ExpireAt,
    FlushAll,
    FlushDb,
    Get,
    GetDel,
    GetSet,
    Hello,
    Incr,
    IncrBy,
    Info,
    Keys,
    MGet,
    MSet,
    Persist,
    PExpire,
    PExpireAt,
    Ping,
    PSetEx,
    PTtl,
    Quit,
    Scan,
    Select,
    Set,
    SetEx,
    SetNx,
    StrLen,
    Ttl,
    Type,
    Unlink,
}

/// Which shards carry a command out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// None: the connection's own.
    Here,
    /// That of the first word.
    Key,
    /// Those of all words, each a command of one key: the numbers are added, or the values put in a row.
    Keys,
    /// Those of every other word, each with the word behind.
    Pairs,
    /// The one that the cursor names.
    Cursor,
    /// All.
    All,
}

/// What is known of a command.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Which.
    pub command: Command,
    /// In small letters.
    pub name: &'static str,
    /// Its words, the name included; below zero: at least so many.
    pub arity: i32,
    /// Where it goes.
    pub way: Way,
    /// It changes keys.
    pub writes: bool,
}

const fn known(command: Command, name: &'static str, arity: i32, way: Way, writes: bool) -> Known {
    Known {
        command,
        name,
        arity,
        way,
        writes,
    }
}

/// All commands, in the order of their numbers.
pub const ALL: &[Known] = &[
    known(Command::Append, "append", 3, Way::Key, true),
    known(Command::Client, "client", -2, Way::Here, false),
    known(Command::Command, "command", -1, Way::Here, false),
    known(Command::Config, "config", -2, Way::Here, false),
    known(Command::DbSize, "dbsize", 1, Way::All, false),
    known(Command::Decr, "decr", 2, Way::Key, true),
    known(Command::DecrBy, "decrby", 3, Way::Key, true),
    known(Command::Del, "del", -2, Way::Keys, true),
    known(Command::Echo, "echo", 2, Way::Here, false),
    known(Command::Exists, "exists", -2, Way::Keys, false),
    known(Command::Expire, "expire", -3, Way::Key, true),
    known(Command::ExpireAt, "expireat", -3, Way::Key, true),
    known(Command::FlushAll, "flushall", -1, Way::All, true),
    known(Command::FlushDb, "flushdb", -1, Way::All, true),
    known(Command::Get, "get", 2, Way::Key, false),
    known(Command::GetDel, "getdel", 2, Way::Key, true),
    known(Command::GetSet, "getset", 3, Way::Key, true),
    known(Command::Hello, "hello", -1, Way::Here, false),
    known(Command::Incr, "incr", 2, Way::Key, true),
    known(Command::IncrBy, "incrby", 3, Way::Key, true),
    known(Command::Info, "info", -1, Way::All, false),
    known(Command::Keys, "keys", 2, Way::All, false),
    known(Command::MGet, "mget", -2, Way::Keys, false),
    known(Command::MSet, "mset", -3, Way::Pairs, true),
    known(Command::Persist, "persist", 2, Way::Key, true),
    known(Command::PExpire, "pexpire", -3, Way::Key, true),
    known(Command::PExpireAt, "pexpireat", -3, Way::Key, true),
    known(Command::Ping, "ping", -1, Way::Here, false),
    known(Command::PSetEx, "psetex", 4, Way::Key, true),
    known(Command::PTtl, "pttl", 2, Way::Key, false),
    known(Command::Quit, "quit", -1, Way::Here, false),
    known(Command::Scan, "scan", -2, Way::Cursor, false),
    known(Command::Select, "select", 2, Way::Here, false),
    known(Command::Set, "set", -3, Way::Key, true),
    known(Command::SetEx, "setex", 4, Way::Key, true),
    known(Command::SetNx, "setnx", 3, Way::Key, true),
    known(Command::StrLen, "strlen", 2, Way::Key, false),
    known(Command::Ttl, "ttl", 2, Way::Key, false),
    known(Command::Type, "type", 2, Way::Key, false),
    known(Command::Unlink, "unlink", -2, Way::Keys, true),
];

/// The longest name.
const NAME_BYTES_MAX: usize = 16;

impl Command {
    /// What is known of it.
    pub fn known(self) -> &'static Known {
        &ALL[self as usize]
    }

    /// The command with this number.
    pub fn of_number(number: u8) -> Self {
        ALL[number as usize].command
    }
}

/// The command of a name, in whichever letters.
pub fn find(name: &[u8]) -> Option<&'static Known> {
    // The most frequent ones need no search.
    match name {
        b"GET" | b"get" => return Some(Command::Get.known()),
        b"SET" | b"set" => return Some(Command::Set.known()),
        _ => {}
    }
    let mut small = [0; NAME_BYTES_MAX];
    let small = small.get_mut(..name.len())?;
    small.copy_from_slice(name);
    small.make_ascii_lowercase();
    let found = ALL
        .binary_search_by(|known| known.name.as_bytes().cmp(small))
        .ok()?;
    Some(&ALL[found])
}

impl Known {
    /// True if it takes so many words.
    pub fn takes(&self, words: usize) -> bool {
        match self.arity {
            arity if arity < 0 => words >= arity.unsigned_abs() as usize,
            arity => words == arity as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_by_its_name_and_its_number() {
        for (index, known) in ALL.iter().enumerate() {
            assert_eq!(known.command as usize, index, "{}", known.name);
            let found = find(known.name.to_uppercase().as_bytes()).expect("it is there");
            assert_eq!(found.command, known.command);
            assert_eq!(Command::of_number(index as u8), known.command);
        }
        assert!(find(b"").is_none() && find(b"nosuch").is_none() && find(&[b'a'; 400]).is_none());
    }
}
