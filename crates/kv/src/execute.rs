//! Commands of one key, and of one shard, on its keyspace: Redis' replies and errors.

use crate::command::Command;
use crate::keyspace::{Keyspace, Lasts, Refused};
use crate::number::{self, Digits};
use crate::parse::Words;
use crate::pattern;
use crate::reply::{self, Protocol};

const NOT_A_NUMBER: &str = "ERR value is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";

/// What the sender of a command gets instead of a result. Its text begins with its code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed(pub std::borrow::Cow<'static, str>);

impl From<&'static str> for Failed {
    fn from(text: &'static str) -> Self {
        Self(text.into())
    }
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Memory => "OOM command not allowed when used memory > 'maxmemory'.".into(),
            Refused::Value => "ERR string exceeds maximum allowed size (proto-max-bulk-len)".into(),
            Refused::Key => "ERR key is longer than 65535 bytes".into(),
        }
    }
}

/// A word in an error: `most` bytes of it, and none from a zero on, as C's strings end there.
pub fn shown(word: &[u8], most: usize) -> String {
    let word = word.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(&word[..word.len().min(most)]).into_owned()
}

/// A command of one key, as it came and to be carried out.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Which.
    pub command: Command,
    /// Its words, without its name.
    pub words: Words<'a>,
    /// The hash of the first word.
    pub hash: u64,
    /// The sender's.
    pub protocol: Protocol,
}

/// Carries out a command of one key, and appends its reply.
pub fn on_key(keys: &mut Keyspace, call: &Call<'_>, out: &mut Vec<u8>) {
    let length = out.len();
    if let Err(Failed(text)) = carry_out(keys, call, out) {
        out.truncate(length);
        reply::error(out, text.as_bytes());
    }
}

fn carry_out(keys: &mut Keyspace, call: &Call<'_>, out: &mut Vec<u8>) -> Result<(), Failed> {
    let &Call {
        command,
        words,
        hash,
        protocol,
    } = call;
    let key = words.word(0);
    match command {
        Command::Get | Command::MGet => value(keys, hash, key, protocol, out),
        Command::Set | Command::MSet => set(keys, call, out)?,
        Command::SetNx => {
            let is_new = keys.look(hash, key).is_none();
            if is_new {
                keys.set(hash, key, words.word(1), Lasts::Ever)?;
            }
            reply::integer(out, i64::from(is_new));
        }
        Command::SetEx | Command::PSetEx => {
            let name = command.known().name;
            let until = end_of(keys, words.word(1), command == Command::SetEx, false, name)?;
            keys.set(hash, key, words.word(2), Lasts::Until(until))?;
            out.extend_from_slice(reply::OK);
        }
        Command::GetSet => {
            value(keys, hash, key, protocol, out);
            keys.set(hash, key, words.word(1), Lasts::Ever)?;
        }
        Command::GetDel => {
            value(keys, hash, key, protocol, out);
            keys.remove(hash, key);
        }
        Command::Del | Command::Unlink => reply::integer(out, i64::from(keys.remove(hash, key))),
        Command::Exists => reply::integer(out, i64::from(keys.read(hash, key).is_some())),
        Command::Incr => add(keys, hash, key, 1, out)?,
        Command::Decr => add(keys, hash, key, -1, out)?,
        Command::IncrBy => add(keys, hash, key, number_of(words.word(1))?, out)?,
        Command::DecrBy => {
            let by = number_of(words.word(1))?.checked_neg();
            add(keys, hash, key, by.ok_or("ERR decrement would overflow")?, out)?;
        }
        Command::Append => append(keys, hash, key, words.word(1), out)?,
        Command::StrLen => {
            let length = keys.read(hash, key).map_or(0, |entry| entry.value().len());
            reply::integer(out, length as i64);
        }
        Command::Expire | Command::PExpire | Command::ExpireAt | Command::PExpireAt => {
            expire(keys, call, out)?
        }
        Command::Ttl | Command::PTtl => time_left(keys, hash, key, command == Command::Ttl, out),
        Command::Persist => {
            let place = keys.look(hash, key);
            let place = place.filter(|place| keys.entry(*place).expires_ms != 0);
            place.into_iter().for_each(|place| keys.set_end(place, 0));
            reply::integer(out, i64::from(place.is_some()));
        }
        Command::Type => {
            let is_there = keys.look(hash, key).is_some();
            reply::status(out, if is_there { "string" } else { "none" });
        }
        other => unreachable!("{other:?} is no command of one key"),
    }
    Ok(())
}

fn number_of(word: &[u8]) -> Result<i64, Failed> {
    number::parse(word).ok_or_else(|| NOT_A_NUMBER.into())
}

fn value(keys: &mut Keyspace, hash: u64, key: &[u8], protocol: Protocol, out: &mut Vec<u8>) {
    match keys.read(hash, key) {
        Some(entry) => reply::bulk(out, entry.value()),
        None => reply::null(out, protocol),
    }
}

/// Unix time in ms that a command gives, in seconds or ms, from now on or from 1970 on. It may have passed.
fn moment(
    keys: &Keyspace,
    given: i64,
    in_seconds: bool,
    is_absolute: bool,
    name: &str,
) -> Result<i64, Failed> {
    let bad = || Failed(format!("ERR invalid expire time in '{name}' command").into());
    let ms = if in_seconds {
        given.checked_mul(1000)
    } else {
        Some(given)
    };
    let from = if is_absolute { 0 } else { keys.now_ms() as i64 };
    ms.and_then(|ms| ms.checked_add(from)).ok_or_else(bad)
}

/// The same for SET, where it is above zero.
fn end_of(
    keys: &Keyspace,
    word: &[u8],
    in_seconds: bool,
    is_absolute: bool,
    name: &str,
) -> Result<u64, Failed> {
    let given = number_of(word)?;
    let until = moment(keys, given, in_seconds, is_absolute, name)?;
    if given <= 0 || until <= 0 {
        return Err(Failed(
            format!("ERR invalid expire time in '{name}' command").into(),
        ));
    }
    Ok(until as u64)
}

/// Options of SET.
#[derive(Default)]
struct SetOptions<'a> {
    if_new: bool,
    if_there: bool,
    gets: bool,
    keeps_end: bool,
    /// The time, whether it is in seconds, and whether it is from 1970 on.
    end: Option<(&'a [u8], bool, bool)>,
}

impl<'a> SetOptions<'a> {
    fn read(words: Words<'a>) -> Result<Self, Failed> {
        let mut options = Self::default();
        let mut rest = words.from(2);
        while let Some(word) = rest.next() {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            let has_end = options.end.is_some() || options.keeps_end;
            if is("nx") && !options.if_there {
                options.if_new = true;
            } else if is("xx") && !options.if_new {
                options.if_there = true;
            } else if is("get") {
                options.gets = true;
            } else if is("keepttl") && options.end.is_none() {
                options.keeps_end = true;
            } else if (is("ex") || is("px") || is("exat") || is("pxat")) && !has_end {
                let time = rest.next().ok_or(SYNTAX)?;
                options.end = Some((time, is("ex") || is("exat"), is("exat") || is("pxat")));
            } else {
                return Err(SYNTAX.into());
            }
        }
        Ok(options)
    }
}

fn set(keys: &mut Keyspace, call: &Call<'_>, out: &mut Vec<u8>) -> Result<(), Failed> {
    let &Call {
        words,
        hash,
        protocol,
        ..
    } = call;
    let (key, data) = (words.word(0), words.word(1));
    if words.count() == 2 {
        keys.set(hash, key, data, Lasts::Ever)?;
        out.extend_from_slice(reply::OK);
        return Ok(());
    }
    let options = SetOptions::read(words)?;
    let lasts = match options.end {
        Some((time, in_seconds, is_absolute)) => {
            Lasts::Until(end_of(keys, time, in_seconds, is_absolute, "set")?)
        }
        None if options.keeps_end => Lasts::AsBefore,
        None => Lasts::Ever,
    };
    if options.gets {
        value(keys, hash, key, protocol, out);
    }
    let is_there = (options.if_new || options.if_there) && keys.look(hash, key).is_some();
    if options.if_new && is_there || options.if_there && !is_there {
        if !options.gets {
            reply::null(out, protocol);
        }
        return Ok(());
    }
    keys.set(hash, key, data, lasts)?;
    if let Lasts::Until(until) = lasts
        && until <= keys.now_ms()
    {
        keys.remove(hash, key);
    }
    if !options.gets {
        out.extend_from_slice(reply::OK);
    }
    Ok(())
}

fn add(keys: &mut Keyspace, hash: u64, key: &[u8], by: i64, out: &mut Vec<u8>) -> Result<(), Failed> {
    let before = match keys.look(hash, key) {
        Some(place) => number_of(keys.entry(place).value())?,
        None => 0,
    };
    let after = before
        .checked_add(by)
        .ok_or("ERR increment or decrement would overflow")?;
    keys.set(hash, key, Digits::new(after).text(), Lasts::AsBefore)?;
    reply::integer(out, after);
    Ok(())
}

fn append(keys: &mut Keyspace, hash: u64, key: &[u8], more: &[u8], out: &mut Vec<u8>) -> Result<(), Failed> {
    let length = match keys.look(hash, key) {
        Some(place) => keys.append(place, more)?,
        None => {
            keys.set(hash, key, more, Lasts::Ever)?;
            more.len()
        }
    };
    reply::integer(out, length as i64);
    Ok(())
}

/// Conditions of EXPIRE.
#[derive(Default)]
struct ExpireOptions {
    if_endless: bool,
    if_mortal: bool,
    if_later: bool,
    if_earlier: bool,
}

impl ExpireOptions {
    fn read(words: Words<'_>) -> Result<Self, Failed> {
        let mut options = Self::default();
        for word in words.from(2) {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            match () {
                () if is("nx") => options.if_endless = true,
                () if is("xx") => options.if_mortal = true,
                () if is("gt") => options.if_later = true,
                () if is("lt") => options.if_earlier = true,
                () => {
                    let word = shown(word, usize::MAX);
                    return Err(Failed(format!("ERR Unsupported option {word}").into()));
                }
            }
        }
        if options.if_endless && (options.if_mortal || options.if_later || options.if_earlier) {
            return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
        }
        if options.if_later && options.if_earlier {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(options)
    }

    /// True if an end at `until` may replace this one; 0: there is none.
    fn allow(&self, expires_ms: u64, until: i64) -> bool {
        let is_endless = expires_ms == 0;
        let before = if is_endless { i64::MAX } else { expires_ms as i64 };
        !(self.if_endless && !is_endless
            || self.if_mortal && is_endless
            || self.if_later && (is_endless || until <= before)
            || self.if_earlier && until >= before)
    }
}

fn expire(keys: &mut Keyspace, call: &Call<'_>, out: &mut Vec<u8>) -> Result<(), Failed> {
    let &Call {
        command, words, hash, ..
    } = call;
    let key = words.word(0);
    let options = ExpireOptions::read(words)?;
    let given = number_of(words.word(1))?;
    let in_seconds = matches!(command, Command::Expire | Command::ExpireAt);
    let is_absolute = matches!(command, Command::ExpireAt | Command::PExpireAt);
    let until = moment(keys, given, in_seconds, is_absolute, command.known().name)?;
    let place = keys.look(hash, key);
    let place = place.filter(|place| options.allow(keys.entry(*place).expires_ms, until));
    if let Some(place) = place {
        match until > keys.now_ms() as i64 {
            true => keys.set_end(place, until as u64),
            false => drop(keys.remove(hash, key)),
        }
    }
    reply::integer(out, i64::from(place.is_some()));
    Ok(())
}

fn time_left(keys: &mut Keyspace, hash: u64, key: &[u8], in_seconds: bool, out: &mut Vec<u8>) {
    let left = match keys.look(hash, key).map(|place| keys.entry(place).expires_ms) {
        None => -2,
        Some(0) => -1,
        Some(end) => {
            let ms = end.saturating_sub(keys.now_ms()) as i64;
            if in_seconds { (ms + 500) / 1000 } else { ms }
        }
    };
    reply::integer(out, left);
}

/// Keys that match, as an array without its head; answers how many.
pub fn keys_like(keys: &mut Keyspace, like: &[u8], out: &mut Vec<u8>) -> usize {
    keys.needs_all();
    let mut count = 0;
    keys.walk(0, usize::MAX, |entry| {
        if pattern::matches(like, entry.key()) {
            reply::bulk(out, entry.key());
            count += 1;
        }
    });
    count
}

/// Options of SCAN, and the bucket from which it goes on.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    pattern: Option<&'a [u8]>,
    count: usize,
    of_strings: bool,
}

impl<'a> Scan<'a> {
    /// As the words behind the cursor say.
    ///
    /// # Errors
    /// They say something else.
    pub fn read(words: Words<'a>) -> Result<Self, Failed> {
        let mut scan = Self {
            pattern: None,
            count: 10,
            of_strings: true,
        };
        let mut rest = words.from(1);
        while let Some(word) = rest.next() {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            let argument = rest.next().ok_or(SYNTAX)?;
            if is("count") {
                let count = number_of(argument)?;
                scan.count = usize::try_from(count)
                    .ok()
                    .filter(|count| *count > 0)
                    .ok_or(SYNTAX)?;
            } else if is("match") {
                scan.pattern = Some(argument);
            } else if is("type") {
                scan.of_strings = argument.eq_ignore_ascii_case(b"string");
            } else {
                return Err(SYNTAX.into());
            }
        }
        Ok(scan)
    }

    /// The keys from `bucket` on, as an array; answers where the next scan begins.
    pub fn run(&self, keys: &mut Keyspace, bucket: usize, out: &mut Vec<u8>) -> Option<usize> {
        keys.needs_all();
        let (mut found, mut count) = (Vec::new(), 0);
        let next = keys.walk(bucket, self.count, |entry| {
            if self.of_strings
                && self
                    .pattern
                    .is_none_or(|like| pattern::matches(like, entry.key()))
            {
                reply::bulk(&mut found, entry.key());
                count += 1;
            }
        });
        reply::array(out, count);
        out.extend_from_slice(&found);
        next
    }
}
