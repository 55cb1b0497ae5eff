//! Numbers as Redis reads and writes them.

/// A whole number without blanks, signs of `+`, or zeros before it (Redis' `string2ll`).
pub fn parse(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !is_negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value: i64 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        // Below zero there is one number more.
        value = value.checked_mul(10)?.checked_sub(i64::from(digit - b'0'))?;
    }
    match is_negative {
        true => Some(value),
        false => value.checked_neg(),
    }
}

/// The digits of a number, at the end of a buffer.
pub struct Digits {
    bytes: [u8; 20],
    begin: usize,
}

impl Digits {
    /// Those of `value`.
    pub fn new(value: i64) -> Self {
        let (mut bytes, mut begin) = ([0; 20], 20);
        let mut rest = value.unsigned_abs();
        loop {
            begin -= 1;
            bytes[begin] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if value < 0 {
            begin -= 1;
            bytes[begin] = b'-';
        }
        Self { bytes, begin }
    }

    /// As text.
    pub fn text(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_redis_reads_them() {
        for value in [0, 1, -1, 42, i64::MAX, i64::MIN, -9, 1_000_000] {
            let digits = Digits::new(value);
            assert_eq!(digits.text(), value.to_string().as_bytes());
            assert_eq!(parse(digits.text()), Some(value));
        }
        for text in [
            "",
            "-",
            "+1",
            " 1",
            "1 ",
            "01",
            "-0",
            "00",
            "9223372036854775808",
            "1.0",
            "0x1",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
