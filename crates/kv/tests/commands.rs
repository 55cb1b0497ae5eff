//! Commands on several shards, as a client sees them.

use crate::rack::{Rack, keys};
use kv::{KeyspaceOptions, SessionId};

fn racks() -> impl Iterator<Item = (Rack, SessionId)> {
    [(1, false), (1, true), (3, false), (3, true)]
        .into_iter()
        .map(|(shards, keeps)| {
            let mut rack = Rack::new(shards, keys(keeps));
            let session = rack.shards[0].open();
            (rack, session)
        })
}

#[test]
fn commands_answer_as_redis_does_on_any_number_of_shards() {
    for (mut rack, session) in racks() {
        for (line, reply) in [
            ("set a 1", "+OK\r\n"),
            ("get a", "$1\r\n1\r\n"),
            ("get none", "$-1\r\n"),
            ("set a 2 nx", "$-1\r\n"),
            ("set a 2 xx get", "$1\r\n1\r\n"),
            ("incrby a 40", ":42\r\n"),
            ("decr a", ":41\r\n"),
            ("append a 0", ":3\r\n"),
            ("strlen a", ":3\r\n"),
            ("mset b 1 c 2 d 3 e 4", "+OK\r\n"),
            (
                "mget b none c d e",
                "*5\r\n$1\r\n1\r\n$-1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n",
            ),
            ("exists a b c none", ":3\r\n"),
            ("dbsize", ":5\r\n"),
            ("del b c none", ":2\r\n"),
            ("expire d 100", ":1\r\n"),
            ("ttl d", ":100\r\n"),
            ("pttl d", ":100000\r\n"),
            ("persist d", ":1\r\n"),
            ("ttl d", ":-1\r\n"),
            ("ttl none", ":-2\r\n"),
            ("expire d -1", ":1\r\n"),
            ("type d", "+none\r\n"),
            ("type a", "+string\r\n"),
            ("getdel e", "$1\r\n4\r\n"),
            ("keys *", "*1\r\n$1\r\na\r\n"),
            (
                "incr a x",
                "-ERR wrong number of arguments for 'incr' command\r\n",
            ),
            ("set a b ex 0", "-ERR invalid expire time in 'set' command\r\n"),
            ("set a b ex", "-ERR syntax error\r\n"),
            (
                "nosuch a b",
                "-ERR unknown command 'nosuch', with args beginning with: 'a' 'b' \r\n",
            ),
            ("select 1", "-ERR DB index is out of range\r\n"),
            ("scan x", "-ERR invalid cursor\r\n"),
            ("flushall", "+OK\r\n"),
            ("dbsize", ":0\r\n"),
            ("hello 4", "-NOPROTO unsupported protocol version\r\n"),
        ] {
            assert_eq!(
                rack.ask(0, session, line),
                reply,
                "{line}, {} shards",
                rack.shards.len()
            );
        }
        rack.ask(0, session, "hello 3");
        assert_eq!(rack.ask(0, session, "get none"), "_\r\n");
        assert!(rack.ask(0, session, "info").contains("keyspace_hits:"));
    }
}

#[test]
fn replies_come_in_the_order_of_requests_whoever_gives_them() {
    for (mut rack, session) in racks() {
        let mut lines = String::new();
        let mut expected = String::new();
        for key in 0..300 {
            lines.push_str(&format!(
                "set k{key} {key}\r\nincr k{key}\r\nping\r\nget k{key}\r\n"
            ));
            let next = (key + 1).to_string();
            expected.push_str(&format!(
                "+OK\r\n:{next}\r\n+PONG\r\n${}\r\n{next}\r\n",
                next.len()
            ));
        }
        let (mut sent, mut got) = (0, Vec::new());
        while sent < lines.len() {
            sent += rack.shards[0]
                .receive(session, &lines.as_bytes()[sent..])
                .consumed;
            rack.settle();
            got.extend(rack.replies(0, session));
        }
        assert_eq!(String::from_utf8_lossy(&got), expected);
    }
}

#[test]
fn a_scan_sees_every_key_of_every_shard_once() {
    for (mut rack, session) in racks() {
        for key in 0..500 {
            rack.ask(0, session, &format!("set k{key} 1"));
        }
        let (mut cursor, mut seen) = ("0".to_owned(), Vec::new());
        loop {
            let reply = rack.ask(0, session, &format!("scan {cursor} count 7"));
            let words: Vec<&str> = reply.split("\r\n").collect();
            cursor = words[2].to_owned();
            seen.extend(
                words[4..]
                    .iter()
                    .skip(1)
                    .step_by(2)
                    .map(|word| (*word).to_owned()),
            );
            if cursor == "0" {
                break;
            }
        }
        seen.sort();
        let mut expected: Vec<String> = (0..500).map(|key| format!("k{key}")).collect();
        expected.sort();
        assert_eq!(seen, expected);
    }
}

#[test]
fn keys_end_at_their_time_and_are_swept() {
    for (mut rack, session) in racks() {
        for key in 0..100 {
            rack.ask(0, session, &format!("set k{key} 1 px 1000"));
        }
        rack.ask(0, session, "set stays 1");
        rack.shards.iter_mut().for_each(|shard| shard.set_now(1_001_000));
        assert_eq!(rack.ask(0, session, "get k7"), "$-1\r\n");
        rack.shards.iter_mut().for_each(kv::Shard::tick);
        assert_eq!(rack.ask(0, session, "dbsize"), ":1\r\n");
    }
}

#[test]
fn memory_has_its_limit_and_the_keys_used_longest_ago_go() {
    let options = KeyspaceOptions {
        memory_max: 200_000,
        ..keys(true)
    };
    let mut rack = Rack::new(1, options);
    let session = rack.shards[0].open();
    for key in 0..1000 {
        let value = "x".repeat(1000);
        assert_eq!(rack.ask(0, session, &format!("set k{key} {value}")), "+OK\r\n");
        assert!(
            rack.ask(0, session, "get k0").starts_with("$1000"),
            "it is used all the time"
        );
        assert!(rack.shards[0].keys().memory() <= 200_000);
    }
    assert_eq!(rack.ask(0, session, "get k1"), "$-1\r\n");
    assert!(rack.shards[0].counters().evicted > 800);
    let value = "x".repeat(300_000);
    let reply = rack.ask(
        0,
        session,
        &format!("*3\r\n$3\r\nset\r\n$1\r\na\r\n${}\r\n{value}", value.len()),
    );
    assert_eq!(
        reply,
        "-OOM command not allowed when used memory > 'maxmemory'.\r\n"
    );
}

#[test]
fn a_reply_waits_for_its_own_change_and_reads_of_others_for_nothing() {
    let mut rack = Rack::new(1, keys(true));
    let [writer, reader] = [(); 2].map(|()| rack.shards[0].open());
    rack.ask(0, writer, "set old 1");
    rack.shards[0].receive(writer, b"set new 1\r\n");
    rack.shards[0].receive(reader, b"get old\r\nget new\r\nget none\r\n");
    assert!(rack.shards[0].wants_commit());
    assert_eq!(rack.replies(0, writer), b"");
    assert_eq!(rack.replies(0, reader), b"$1\r\n1\r\n");
    rack.commit(0);
    assert_eq!(rack.replies(0, writer), b"+OK\r\n");
    assert_eq!(rack.replies(0, reader), b"$1\r\n1\r\n$-1\r\n");
    rack.shards[0].receive(writer, b"del new\r\n");
    rack.shards[0].receive(reader, b"get new\r\n");
    assert_eq!(rack.replies(0, reader), b"", "a crash could bring it back");
    rack.settle();
    assert_eq!(rack.replies(0, reader), b"$-1\r\n");
}

#[test]
fn changes_name_each_key_and_what_it_has_become() {
    let mut rack = Rack::new(1, keys(true));
    let session = rack.shards[0].open();
    rack.ask(0, session, "mset a 1 b 2 c 3");
    rack.shards[0].receive(
        session,
        b"set a 9\r\ndel b\r\nset b 8\r\ndel c\r\nset d 1 px 5\r\n",
    );
    let mut changes = std::collections::BTreeMap::new();
    rack.shards[0].keys().each_change(|key, entry| {
        let value = entry.map(|entry| (entry.value().to_vec(), entry.expires_ms));
        changes.insert(key.to_vec(), value);
    });
    let has = |key: &[u8], value: Option<(&[u8], u64)>| {
        assert_eq!(changes[key], value.map(|(value, end)| (value.to_vec(), end)));
    };
    has(b"a", Some((b"9", 0)));
    has(b"b", Some((b"8", 0)));
    has(b"c", None);
    has(b"d", Some((b"1", 1_000_005)));
}

#[test]
fn a_connection_that_does_not_read_holds_a_limited_number_of_replies() {
    let mut rack = Rack::new(1, keys(false));
    let session = rack.shards[0].open();
    rack.ask(0, session, &format!("set a {}", "x".repeat(10_000)));
    let lines = b"get a\r\n".repeat(10_000);
    let received = rack.shards[0].receive(session, &lines);
    assert!(received.is_stalled && received.consumed < lines.len() / 10);
    let mut sent = received.consumed;
    while sent < lines.len() {
        rack.replies(0, session);
        sent += rack.shards[0].receive(session, &lines[sent..]).consumed;
    }
}

#[test]
fn a_protocol_error_is_told_and_ends_the_connection() {
    let mut rack = Rack::new(1, keys(false));
    let session = rack.shards[0].open();
    rack.shards[0].receive(session, b"ping\r\n*1\r\n:1\r\nping\r\n");
    let told = rack.replies(0, session);
    assert_eq!(told, b"+PONG\r\n-ERR Protocol error: expected '$', got ':'\r\n");
    assert!(rack.shards[0].is_over(session));
}
