//! Showing text that came from outside.

/// `text` made safe for a terminal, a log line and a JSON message: everything that is not
/// printable ASCII becomes a `\u{..}` escape, and at most `chars_max` characters are kept
/// (then `...`).
pub fn shown(text: &str, chars_max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(chars_max) + 3);
    for (count, c) in text.chars().enumerate() {
        if count == chars_max {
            out.push_str("...");
            break;
        }
        if c == ' ' || c.is_ascii_graphic() {
            out.push(c);
        } else {
            out.extend(c.escape_unicode());
        }
    }
    out
}

/// The name of `known` nearest to `given`, if it is within two edits.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if given.len() > 256 {
        return None;
    }
    known
        .into_iter()
        .map(|candidate| (edit_distance(given, candidate), candidate))
        .filter(|&(distance, _)| distance <= 2 && distance < given.chars().count())
        .min()
        .map(|(_, candidate)| candidate)
}

/// Optimal string alignment distance (insert, delete, replace, swap neighbours).
fn edit_distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    if a.len().abs_diff(b.len()) > 2 {
        return usize::MAX;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replace.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swapped_neighbours_are_one_edit() {
        assert_eq!(nearest("tiemout", ["timeout", "image"]), Some("timeout"));
        assert_eq!(nearest("imgae", ["timeout", "image"]), Some("image"));
        assert_eq!(nearest("xyz", ["timeout", "image"]), None);
    }

    #[test]
    fn control_characters_are_escaped_and_length_is_bounded() {
        assert_eq!(shown("a\u{1b}[31m", 80), "a\\u{1b}[31m");
        assert_eq!(shown("abcdef", 3), "abc...");
    }
}
