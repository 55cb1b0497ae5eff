//! Numbers for people.

/// A number for people: three digits that count, or all before the point.
pub fn plain(number: f64) -> String {
    let size = number.abs();
    let text = match size {
        _ if !number.is_finite() => return "–".to_owned(),
        _ if size >= 99.95 || number == 0.0 => return grouped(number),
        _ if size >= 9.995 => format!("{number:.1}"),
        _ if size >= 0.0995 => format!("{number:.2}"),
        _ => format!("{number:.4}"),
    };
    let short = text.trim_end_matches('0').trim_end_matches('.');
    short.to_owned()
}

/// As [`plain`], but with all three digits: for quotients, where 1 and 1.00 are not the same.
pub fn exact(number: f64) -> String {
    match number.abs() {
        size if size < 0.995 => format!("{number:.3}"),
        size if size < 9.995 => format!("{number:.2}"),
        size if size < 99.95 => format!("{number:.1}"),
        _ => plain(number),
    }
}

/// A whole number with its thousands apart.
fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0.0 { format!("-{text}") } else { text }
}
