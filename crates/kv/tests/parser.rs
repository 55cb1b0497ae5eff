//! The parser takes a stream however it is cut, and nothing makes it panic.

use kv::parse::{Parsed, Parser, ProtocolError, RequestLimits};
use proptest::prelude::*;

/// All requests of a stream that comes in pieces of these lengths, and the error at its end.
fn requests(stream: &[u8], cuts: &[usize]) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    let mut parser = Parser::new(RequestLimits {
        words_max: 1000,
        word_bytes_max: 1000,
    });
    let (mut all, mut have, mut begin) = (Vec::new(), 0, 0);
    let mut cuts = cuts.iter().copied().cycle();
    loop {
        match parser.parse(&stream[begin..have]) {
            Ok(Parsed::Request(length)) => {
                let words = parser.words(&stream[begin..have]);
                all.push(words.from(0).map(<[u8]>::to_vec).collect());
                begin += length;
            }
            Ok(Parsed::Nothing(length)) => begin += length,
            Ok(Parsed::Partial) if have == stream.len() => return (all, None),
            Ok(Parsed::Partial) => have = (have + cuts.next().unwrap_or(1).max(1)).min(stream.len()),
            Err(error) => return (all, Some(error)),
        }
    }
}

fn array(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn words() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6)
}

proptest! {
    #[test]
    fn a_stream_has_the_same_requests_however_it_is_cut(
        all in prop::collection::vec(words(), 1..8),
        cuts in prop::collection::vec(1_usize..30, 1..8),
    ) {
        let stream: Vec<u8> = all.iter().flat_map(|words| array(words)).collect();
        prop_assert_eq!(requests(&stream, &cuts), (all, None));
    }

    #[test]
    fn garbage_is_refused_or_waited_for_and_never_panics(
        garbage in prop::collection::vec(
            prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'-'), Just(b'"'), Just(b'\\'), any::<u8>()],
            0..200,
        ),
        cuts in prop::collection::vec(1_usize..30, 1..8),
    ) {
        prop_assert_eq!(requests(&garbage, &cuts), requests(&garbage, &[1000]));
    }
}

#[test]
fn a_line_is_split_as_redis_does() {
    let line = |text: &str| requests(format!("{text}\r\n").as_bytes(), &[1000]);
    let words = |all: &[&str]| {
        (
            vec![all.iter().map(|word| word.as_bytes().to_vec()).collect()],
            None,
        )
    };
    assert_eq!(line("set a  b"), words(&["set", "a", "b"]));
    assert_eq!(line(r#"set "a b" 'c d'"#), words(&["set", "a b", "c d"]));
    assert_eq!(line(r#""\x41\n\"" 'it\'s'"#), words(&["A\n\"", "it's"]));
    for bad in [r#""a"#, "'a", r#""a"b"#] {
        assert_eq!(line(bad), (vec![], Some(ProtocolError::Quotes)), "{bad}");
    }
    assert_eq!(line(""), (vec![], None));
}

#[test]
fn limits_end_a_stream() {
    for (stream, error) in [
        ("*1001\r\n", ProtocolError::Count),
        ("*x\r\n", ProtocolError::Count),
        ("*1\r\n$1001\r\n", ProtocolError::Length),
        ("*1\r\n$-1\r\n", ProtocolError::Length),
        ("*1\r\n:1\r\n", ProtocolError::NoWord(b':')),
    ] {
        assert_eq!(requests(stream.as_bytes(), &[1000]).1, Some(error), "{stream}");
    }
    let long = |first: &str| [first.as_bytes(), &vec![b'1'; 1 << 17]].concat();
    assert_eq!(requests(&long("*"), &[1 << 20]).1, Some(ProtocolError::LongCount));
    assert_eq!(
        requests(&long("*1\r\n$"), &[1 << 20]).1,
        Some(ProtocolError::LongLength)
    );
    assert_eq!(requests(&long(""), &[1 << 20]).1, Some(ProtocolError::LongLine));
    assert_eq!(requests(b"*0\r\n*-1\r\n\r\n*1\r\n$1\r\na\r\n", &[1]).0.len(), 1);
}
