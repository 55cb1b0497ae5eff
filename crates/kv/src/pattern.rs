//! Patterns of KEYS and SCAN (Redis' `stringmatchlen`): `*`, `?`, `[abc]`, `[^a-c]`, and `\` before a sign that stands for itself.

/// True if the whole of `text` is as `pattern` says. Takes no more than about the product of their lengths.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The last `*`, and where the text behind it begins.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        if t == text.len() {
            return p >= pattern.len();
        }
        if let Some(next) = step(pattern, p, text[t]) {
            (p, t) = (next, t + 1);
            continue;
        }
        let Some((behind, from)) = star else {
            return false;
        };
        star = Some((behind, from + 1));
        (p, t) = (behind, from + 1);
    }
}

/// The place behind the sign of the pattern at `p`, if it stands for `byte`.
fn step(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        b'[' => set(pattern, p + 1, byte),
        sign => (sign == byte).then_some(p + 1),
    }
}

/// The same for a set of signs. A set without an end ends with the pattern.
fn set(pattern: &[u8], mut p: usize, byte: u8) -> Option<usize> {
    let is_negated = pattern.get(p) == Some(&b'^');
    p += usize::from(is_negated);
    let mut has = false;
    loop {
        match pattern.get(p..) {
            None | Some([]) => break,
            Some([b'\\', sign, ..]) => {
                has |= *sign == byte;
                p += 2;
            }
            Some([b']', ..]) => {
                p += 1;
                break;
            }
            Some([from, b'-', to, ..]) => {
                let (from, to) = (*from.min(to), *from.max(to));
                has |= (from..=to).contains(&byte);
                p += 3;
            }
            Some([sign, ..]) => {
                has |= *sign == byte;
                p += 1;
            }
        }
    }
    (has != is_negated).then_some(p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_with_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "abc", true),
            ("a*c", "abbc", true),
            ("a*c", "abb", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hxllo", false),
            ("*a*b*c*", "xxaxxbxxcxx", true),
            ("a", "", false),
            ("", "", true),
            ("", "a", false),
            ("[a", "a", true),
            ("a**b", "ab", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                expected,
                "{pattern} {text}"
            );
        }
    }

    /// bug of others: a pattern of many stars takes exponential time. This one steps back to the last star only.
    #[test]
    fn a_pattern_of_many_stars_ends() {
        let pattern = [b"*a".repeat(200), b"b".to_vec()].concat();
        assert!(!matches(&pattern, &[b'a'; 5000]));
    }
}
