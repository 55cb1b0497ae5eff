//! Replies of RESP2 and RESP3.

use crate::number::Digits;

/// The version of the protocol that a connection has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protocol {
    /// RESP2, until the connection says HELLO 3.
    #[default]
    Two,
    /// RESP3.
    Three,
}

/// `OK`.
pub const OK: &[u8] = b"+OK\r\n";

/// A line that says how many of something follow.
fn head(out: &mut Vec<u8>, sign: u8, number: i64) {
    out.push(sign);
    out.extend_from_slice(Digits::new(number).text());
    out.extend_from_slice(b"\r\n");
}

/// A line of text.
pub fn status(out: &mut Vec<u8>, text: &str) {
    out.push(b'+');
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// An error, with its code. Ends of lines in it become blanks.
pub fn error(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'-');
    let plain = |byte: &u8| {
        if matches!(byte, b'\r' | b'\n') {
            b' '
        } else {
            *byte
        }
    };
    out.extend(text.iter().map(plain));
    out.extend_from_slice(b"\r\n");
}

/// A number.
pub fn integer(out: &mut Vec<u8>, value: i64) {
    head(out, b':', value);
}

/// Bytes.
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    head(out, b'$', bytes.len() as i64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Nothing.
pub fn null(out: &mut Vec<u8>, protocol: Protocol) {
    out.extend_from_slice(match protocol {
        Protocol::Two => b"$-1\r\n",
        Protocol::Three => b"_\r\n",
    });
}

/// So many replies follow.
pub fn array(out: &mut Vec<u8>, count: usize) {
    head(out, b'*', count as i64);
}

/// So many pairs of replies follow.
pub fn map(out: &mut Vec<u8>, pairs: usize, protocol: Protocol) {
    match protocol {
        Protocol::Two => array(out, 2 * pairs),
        Protocol::Three => head(out, b'%', pairs as i64),
    }
}

/// Text for people.
pub fn text(out: &mut Vec<u8>, text: &[u8], protocol: Protocol) {
    match protocol {
        Protocol::Two => bulk(out, text),
        Protocol::Three => {
            head(out, b'=', text.len() as i64 + 4);
            out.extend_from_slice(b"txt:");
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
    }
}
